"""The page at `/`: a few files that hold nothing of any model, the one body that they poll, and an event for its form.

So the files are open to all, and the others, like the rest of the service, are for who has a token.
"""

from pathlib import Path
from urllib.parse import parse_qsl

import msgspec
from fastapi import FastAPI
from fastapi.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from service.serving.models import Models
from service.serving.page.body import Body
from service.serving.page.event import Event

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # a newer release has others of the same names
}
_FILES = {
    "/": ("page.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/ask.js": ("ask.js", "text/javascript"),
    "/page/chart.js": ("chart.js", "text/javascript"),
    "/page/form.js": ("form.js", "text/javascript"),
    "/page/words.js": ("words.js", "text/javascript"),
    "/page/page.svg": ("page.svg", "image/svg+xml"),
}
OPEN = tuple(_FILES)
"""Paths that need no token."""


def install(app: FastAPI, body: Body, models: Models) -> None:
    """Serve it."""
    for path, (name, kind) in _FILES.items():
        _serve(app, path, Response(Path(__file__).with_name(name).read_bytes(), headers=_HEADERS, media_type=kind))

    @app.get("/page/event", include_in_schema=False)
    async def event(model: str) -> Response:
        newest = msgspec.json.encode(Event.of(models.answering(model)[1].learner))
        return Response(newest, headers={"cache-control": "no-store"}, media_type="application/json")

    # First of all and not FastAPI's: most of a poll would be to find the route and to read two parameters.
    app.router.routes.insert(0, Route("/page/now", _Now(body), methods=["GET"], include_in_schema=False))


class _Now:
    """What the page shows of a model, or of the first: of its history what is newer than `since`, or about that."""

    def __init__(self, body: Body) -> None:
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        plain, packed = await self._body.of(asked.get("model"), _seconds(asked.get("since", "")))
        gzip = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
        await (packed if gzip else plain)(scope, receive, send)


def _seconds(text: str) -> float:
    """Since 1970; none where it says none."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _serve(app: FastAPI, path: str, answer: Response) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return answer
