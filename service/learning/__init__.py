"""What is learned and how: plain functions and objects, fed with bytes and offsets. No I/O, no asyncio, no clock."""

__all__ = [
    "advice", "bounds", "candidates", "classifier", "columns", "compiled", "confidence", "confusion", "events",
    "identity", "kernel", "learner", "machine", "options", "passes", "recent", "records",
    "rules", "scale", "seen", "separable", "start", "watch", "weights",
]  # fmt: skip
