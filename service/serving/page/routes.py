"""The page at `/`: a few files, and the body that they poll.

The files hold no data of any model, so they need no token. The body needs one, like the rest of the service.
"""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

from service.serving.page.page_state import PageState

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {f"/page/{file.name}": file for file in Path(__file__).parent.iterdir() if file.suffix in _TYPES}
_FILES["/"] = _FILES.pop("/page/page.html")
OPEN = tuple(_FILES)
"""Paths that need no token."""


def install_page(app: FastAPI, state: PageState) -> None:
    """Serve the page."""
    headers = {"content-security-policy": _POLICY}
    for path, file in _FILES.items():
        _serve(app, path, Response(file.read_bytes(), headers=headers, media_type=_TYPES[file.suffix]))

    @app.get("/page/now", include_in_schema=False)
    async def now(model: str | None = None) -> Response:
        return await state.response(model)


def _serve(app: FastAPI, path: str, answer: Response) -> None:
    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return answer
