"""Snapshots, kept in Redis: all state at one point of the log, as a head and blobs. One script accepts a save."""

__all__ = ["blobs", "codec", "endpoint", "head", "keeper", "ports", "rollback", "store"]
