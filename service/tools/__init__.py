"""The one-shot commands: each asks or tells the servers something and ends."""

__all__ = [
    "check", "client", "config", "dead_letters", "export", "fit", "formats", "inspect", "produce", "rollback", "stored",
    "suggest", "verify",
]  # fmt: skip
