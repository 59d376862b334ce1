"""Swagger UI at `/docs`. The service serves its files itself: FastAPI's own page loads them from elsewhere.

The page's Content-Security-Policy names everything that it may load, so that text it shows cannot run as code.
"""

import base64
import hashlib
import re

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from service.serving.page.routes import POLICY

_FILES = "static-offline-docs"  # links are relative, so that a proxy may serve the page under a prefix


def install_swagger_ui(app: FastAPI) -> None:
    """Serve the page."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=f"{app.title} - Swagger UI",
        swagger_js_url=f"{_FILES}/swagger-ui-bundle.js",
        swagger_css_url=f"{_FILES}/swagger-ui.css",
        swagger_favicon_url=f"{_FILES}/favicon.png",
        swagger_ui_parameters={"validatorUrl": None},
    )
    programs = re.findall(rb"<script>(.*?)</script>", bytes(page.body), re.DOTALL)
    digests = (f" 'sha256-{base64.b64encode(hashlib.sha256(program).digest()).decode()}'" for program in programs)
    page.headers["content-security-policy"] = POLICY.format("".join(digests), " 'unsafe-inline'", " data:")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return page
