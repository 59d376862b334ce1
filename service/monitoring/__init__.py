"""What the service shows of itself. Imports no room: it is handed callables."""

__all__ = ["logs", "metrics", "rejections"]
