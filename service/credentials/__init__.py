"""Credentials of connections: TLS from its files, and files that are read again when they change."""

__all__ = ["asking", "certificate", "reread", "tls"]
