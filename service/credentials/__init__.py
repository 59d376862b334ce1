"""What a connection proves itself with: TLS by its files, and files that are read again when they change."""

__all__ = ["asking", "certificate", "reread", "tls"]
