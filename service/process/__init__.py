"""One running process: its tasks, and what it shows of itself."""

__all__ = ["service"]
