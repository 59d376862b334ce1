"""The HTTP application: what every request goes through, and the routes that orchestrators and Prometheus use."""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.credentials import BearerTokens, bearer_token
from service.monitoring.metrics import Metrics
from service.serving.http import openapi, problems, v1
from service.serving.http.endpoint import InFlight
from service.serving.models import Models
from service.serving.page.page import OPEN, History, PageState, install_page
from service.serving.posting import Posting, PredictionLog
from service.serving.scoring import Scorer
from service.settings.connections import HttpSettings
from service.settings.section import loopback
from service.snapshots.ports import Store

PROBES, METRICS_PATH = ("/livez", "/readyz"), "/metrics"
MAX_PARAMETERS = 500
"""Query parameters, and names in one of them: each takes up to 20 µs (measured)."""
POSTS = re.compile("/v1/models/[^/]*/(events|labels)")
OPEN_PATHS = {*PROBES, *OPEN}
"""Paths that need no token: an orchestrator has none, and the page's files hold no data."""


class Live(msgspec.Struct, forbid_unknown_fields=True):
    """The event loop turns."""

    live: bool


class Ready(msgspec.Struct, forbid_unknown_fields=True):
    """Every listed model can answer."""

    ready: bool


class Application:
    """The ASGI application. It checks tokens, measures every request, and answers predictions without FastAPI."""

    def __init__(
        self,
        models: Models,
        metrics: Metrics,
        store: Store,
        history: History,
        stopping: Callable[[], bool],
        http: HttpSettings,
        version: str,
        logger: Any = None,
        log_of: Callable[[str], PredictionLog | None] = lambda _: None,
        posting_of: Callable[[str], Posting | None] = lambda _: None,
    ) -> None:
        """`version` is the release, which pages and `/openapi.json` show.

        `log_of` returns the log of a model's predictions, if they are logged. `posting_of` returns how events and
        labels of a model are posted; None if there is no such model, or if it never learns.

        Without token files no request needs a token; probes and the page's files never do. `logger` gets a warning if a
        token file changes and cannot be used.
        """
        self._stopping, self._root_path = stopping, http.root_path
        files = http.token_file, http.metrics_token_file, http.ingest_token_file
        self._tokens, metrics_tokens, ingest_tokens = (BearerTokens(f, logger) if f else None for f in files)
        self._metrics_tokens, self._ingest_tokens = metrics_tokens or self._tokens, ingest_tokens or self._tokens
        self._takes_posts = bool(ingest_tokens) or loopback(http.host)
        self._timer = cache(metrics.requests.labels)  # faster than `labels`
        self.api = FastAPIOffline(
            title="Perceptron Service",
            summary="A linear classifier that learns from a Kafka topic while it answers.",
            description=openapi.INTRODUCTION,
            openapi_tags=openapi.TAGS,
            version=version,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers=problems.HANDLERS,
            generate_unique_id_function=lambda route: route.name,
            # FastAPI's own telemetry would cost time at each request. Older releases ignore this.
            telemetry={"tracing": False, "metrics": False, "logs": False},
        )
        openapi.install_swagger_ui(self.api)
        install_page(self.api, PageState(models, history, version, metrics.missing))
        in_flight, scorer = InFlight(http), Scorer(models, metrics, log_of)
        self._direct_routes = v1.install_v1(self.api, models, store, in_flight, scorer, posting_of, metrics)
        """Routes whose requests do not go through FastAPI, which costs more than a prediction."""
        _install_process(self.api, metrics)
        self.api.openapi_schema = openapi.with_schemas(self.api.openapi(), vars(problems) | vars(v1) | globals())
        self._entry: ASGIApp = self._answer
        if http.allowed_origins:
            headers = ("authorization", "content-type", "content-encoding", *http.cors_headers)
            self._entry = CORSMiddleware(self._answer, http.allowed_origins, ("GET", "HEAD", "POST"), headers)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request."""
        return self._entry(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status, method = time.perf_counter(), "500", scope["method"]
        path: str = scope["path"]
        if self._root_path:  # a proxy may leave it or take it away
            path = path.removeprefix(self._root_path) if path.startswith(f"{self._root_path}/") else path
            scope = {**scope, "path": self._root_path + path, "root_path": self._root_path}

        def send_answer(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            return send(message)

        app: ASGIApp = self.api
        is_post = POSTS.fullmatch(path)
        tokens = self._ingest_tokens if is_post else self._metrics_tokens if path == METRICS_PATH else self._tokens
        try:
            if tokens and path not in OPEN_PATHS and not tokens.accept(bearer_token(scope["headers"])):
                app = problems.response(401, "send a token, with the header authorization: Bearer TOKEN")
            elif is_post and not self._takes_posts:
                app = problems.response(403, "posts need http.ingest_token_file, since others reach this address")
            elif path == self._root_path:  # the pages' links are relative to a path that ends with a slash
                app = RedirectResponse(f"{path}/")
            elif max(map(scope["query_string"].count, (b"&", b",", b"%2C", b"%2c"))) >= MAX_PARAMETERS:
                detail = f"a query may have at most {MAX_PARAMETERS:,} parameters, and as many names"
                app = problems.response(422, detail, problems.Fault("?", "too-large"))
            elif b"%2f" in scope.get("raw_path", b"").lower():  # no name has a slash
                app = problems.response(404, problems.NOTHING_SERVED)
            else:
                for direct in self._direct_routes:
                    if method in (direct.methods or ()) and (match := direct.path_regex.match(path)):
                        scope["route"], scope["path_params"], app = direct, match.groupdict(), direct.app
            if method == "HEAD":  # the answer to GET, of which uvicorn sends only the head
                scope = {**scope, "method": "GET"}
            await app(scope, receive, send_answer)
        except asyncio.CancelledError:
            if not self._stopping():
                raise
            # The time for requests in flight is over. uvicorn would log a defect, even if the answer has begun.
            with contextlib.suppress(asyncio.CancelledError, RuntimeError):
                await problems.response(503, "the service is shutting down")(scope, receive, send_answer)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            self._timer(route, method if route != "unknown" else "any", status).observe(time.perf_counter() - started)


def _install_process(api: FastAPI, metrics: Metrics) -> None:
    """Serve the probes and the metrics."""

    @api.get(PROBES[0], tags=["process"], responses=openapi.responses({}, Live))
    async def is_live() -> Response:
        """The event loop turns. Nothing else is checked, since a dead task ends the process."""
        return v1.encoded(Live(True))

    @api.get(PROBES[1], tags=["process"], responses=openapi.responses({503: "not ready"}, Ready))
    async def is_ready() -> Response:
        """Every model that the settings list can answer, and the process is not shutting down."""
        if not metrics.ready():
            raise HTTPException(503, "not every model can answer yet, or the service is shutting down")
        return v1.encoded(Ready(True))

    refusal = openapi.responses({401: "token missing"})

    @api.get(METRICS_PATH, tags=["process"], response_class=PlainTextResponse, responses=refusal)
    async def get_metrics() -> Response:
        """Prometheus' text format."""
        return Response(await metrics.render(), media_type=CONTENT_TYPE_LATEST)
