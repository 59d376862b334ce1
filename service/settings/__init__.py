"""The settings, and where each comes from."""

__all__ = ["load", "model", "section", "words"]
