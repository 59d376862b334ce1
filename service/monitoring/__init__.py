"""What the service shows of itself. It imports no other room: it gets callables."""

__all__ = ["logs", "metrics", "rejections"]
