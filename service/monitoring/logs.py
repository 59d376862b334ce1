"""Structured logs on stderr: one line an event that matters, as text or JSON."""

import logging
import sys
from typing import Any

import structlog


def set_up(form: str) -> Any:
    """Configure logging for the process; `form` is `text` or `json`. Returns the service's logger."""
    colors = sys.stderr.isatty()
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=colors, pad_event_to=28, exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if form == "json" else _as_is,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what it calls an error is a defect of ours
    return structlog.get_logger()


def _as_is(_logger: Any, _method: str, event: Any) -> Any:
    return event
