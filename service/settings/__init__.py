"""What can be set, and where it comes from."""

__all__ = ["load", "model", "section", "words"]
