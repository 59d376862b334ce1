"""Structured logs on stderr: a line for each event that matters, as text or JSON. Nothing waits for a line."""

import logging
import os
import select
import sys
from collections.abc import Callable
from typing import Any

import structlog

PIECE_BYTES = select.PIPE_BUF
"""Bytes that a pipe takes without waiting if it takes any."""


class LineWriter:
    """Writes lines to a file descriptor. A line that it does not take at once is dropped."""

    def __init__(self, descriptor: int, count_dropped: Callable[[], None]) -> None:
        self._descriptor, self._count_dropped, self._is_cut = descriptor, count_dropped, False
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)

    def write(self, line: str) -> None:
        """Write a line, or drop it: the file may be full, the pipe too, or its reader gone."""
        data = b"\n" * self._is_cut + line.encode(errors="backslashreplace")
        try:
            for start in range(0, len(data), PIECE_BYTES):
                piece = data[start : start + PIECE_BYTES]
                if not self._ready.poll(0) or os.write(self._descriptor, piece) < len(piece):
                    raise BlockingIOError
                self._is_cut = True
            self._is_cut = False
        except OSError:
            self._count_dropped()

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


def configure_logging(log_format: str, count_dropped: Callable[[], None]) -> Any:
    """Configure logging for the process; `log_format` is `text` or `json`. Returns the service's logger.

    `count_dropped` is called for each line that cannot be written.
    """
    writer: Any = LineWriter(sys.stderr.fileno(), count_dropped)
    json: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    plain, colors = structlog.dev.plain_traceback, sys.stderr.isatty()
    text: list[Any] = [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=28, exception_formatter=plain)]
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    structlog.configure(
        processors=[structlog.processors.add_log_level, stamp, *(json if log_format == "json" else text)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(writer),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=writer, format="%(message)s")  # the lines of libraries
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # an error of uvicorn's is a defect of ours
    return structlog.get_logger()
