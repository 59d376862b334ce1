"""The page at `/`: a few files, and the body that they poll.

The files hold no data of any model, so they need no token. The body needs one, like the rest of the service.
"""

from functools import partial
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

from service.serving.page.page_state import PageState

POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self'{}; img-src 'self'{}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of a page, with places for more sources of scripts, styles and images."""
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {f"/page/{file.name}": file for file in Path(__file__).parent.iterdir() if file.suffix in _TYPES}
_FILES["/"] = _FILES.pop("/page/page.html")
OPEN = tuple(_FILES)
"""Paths that need no token."""


def install_page(app: FastAPI, state: PageState) -> None:
    """Serve the page."""
    headers = {"content-security-policy": POLICY.format("", "", "")}
    for path, file in _FILES.items():
        answer = Response(file.read_bytes(), headers=headers, media_type=_TYPES[file.suffix])
        app.get(path, include_in_schema=False)(partial(_file, answer))

    @app.get("/page/now", include_in_schema=False)
    async def now(model: str | None = None) -> Response:
        return await state.response(model)


async def _file(answer: Response) -> Response:
    return answer
