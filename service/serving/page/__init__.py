"""The page at `/`: a few files that hold nothing of any model, and the one body that they poll.

So the files are open to all, and the body, like the rest of the service, is for who has a token.
"""

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response

from service.serving.page.body import Body

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
_NOW = {"cache-control": "no-store", "vary": "accept-encoding"}
_FILES = {
    "/": ("page.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/chart.js": ("chart.js", "text/javascript"),
    "/page/page.svg": ("page.svg", "image/svg+xml"),
}
OPEN = tuple(_FILES)
"""Paths that need no token."""


def install(app: FastAPI, body: Body) -> None:
    """Serve it."""
    for path, (name, kind) in _FILES.items():
        _serve(app, path, Response(Path(__file__).with_name(name).read_bytes(), headers=_HEADERS, media_type=kind))

    @app.get("/page/now", include_in_schema=False)
    async def now(request: Request, model: str | None = None) -> Response:
        """What the page shows of a model, or of the first."""
        plain, packed = await body.of(model)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed, headers=_NOW | {"content-encoding": "gzip"}, media_type="application/json")
        return Response(plain, headers=_NOW, media_type="application/json")


def _serve(app: FastAPI, path: str, answer: Response) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return answer
