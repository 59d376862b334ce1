"""Structured logs on stderr: a line for each event that matters, as text or JSON."""

import logging
import sys
from typing import Any

import structlog


def configure_logging(log_format: str) -> Any:
    """Configure logging for the process; `log_format` is `text` or `json`. Returns the service's logger."""
    json: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    plain, colors = structlog.dev.plain_traceback, sys.stderr.isatty()
    text: list[Any] = [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=28, exception_formatter=plain)]
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    structlog.configure(
        processors=[structlog.processors.add_log_level, stamp, *(json if log_format == "json" else text)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # an error of uvicorn's is a defect of ours
    return structlog.get_logger()
