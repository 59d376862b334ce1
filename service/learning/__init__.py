"""What is learned and how: plain functions and objects, fed with bytes and offsets. No I/O, no asyncio, no clock."""

__all__ = [
    "advice", "bounds", "candidates", "classifier", "columns", "compiled", "confidence", "confusion", "events",
    "features", "forms", "identity", "joined", "kernel", "learner", "machine", "options", "passes", "places", "recent",
    "records", "rules", "scale", "scanner", "seen", "separable", "start", "values", "watch", "weights",
]  # fmt: skip
