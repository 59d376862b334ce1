"""All state at one point of the log, kept in Redis: heads, blobs, and the one script that accepts a save."""

__all__ = ["blobs", "codec", "endpoint", "head", "keeper", "ports", "rollback", "store"]
