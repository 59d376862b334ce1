"""What a connection proves itself with, in files that are read again when they change: secrets and TLS."""

__all__ = ["asking", "certificate", "reread", "secret", "tls"]
