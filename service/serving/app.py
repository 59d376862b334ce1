"""The HTTP application: its protocols, what orchestrators and Prometheus ask, and what is around every request."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp

from service.monitoring.metrics import Metrics
from service.serving import openapi, page, pages, problems, v1
from service.serving.access import Access
from service.serving.direct import Direct
from service.serving.edge import Edge, InFlight
from service.serving.models import Models
from service.serving.openapi import responses
from service.serving.page.body import Body
from service.serving.page.history import History
from service.serving.predictor import Predictor
from service.serving.problems import Refusal
from service.serving.tokens import Tokens
from service.snapshots.store import RedisStore


class Limits(NamedTuple):
    """Of one request, and of all that are answered at a time: what may be held in memory at once."""

    body_bytes: int = 16 << 20
    instances: int = 10_000
    body_seconds: float = 10.0
    in_flight: int = 100


class Live(msgspec.Struct, forbid_unknown_fields=True):
    """The event loop turns."""

    live: bool = True


class Ready(msgspec.Struct, forbid_unknown_fields=True):
    """Every model can answer."""

    ready: bool = True


def create_app(
    models: Models,
    metrics: Metrics,
    ready: Callable[[], bool],
    stopping: Callable[[], bool],
    store: RedisStore,
    limits: Limits,
    *,
    version: str,
    tokens: Tokens | None = None,
    metrics_tokens: Tokens | None = None,
    history: History | None = None,
) -> FastAPI:
    """The application over these models, and their `history`, if somebody takes it.

    With `tokens` who asks needs one of them, but for probes. `state.direct` is what answers predictions at once.
    """
    # Its own telemetry would look for somebody to tell at each request. An older release knows of none.
    telemetry = {"tracing": False, "metrics": False, "logs": False}
    app = FastAPIOffline(
        title="Perceptron Service", summary="A linear classifier that learns from a Kafka topic while it answers.",
        description=openapi.INTRODUCTION, openapi_tags=openapi.TAGS, version=version, docs_url=None, redoc_url=None,
        redirect_slashes=False, telemetry=telemetry,
    )  # fmt: skip
    problems.install(app)
    pages.install(app)
    page.install(app, Body(models, history or History(models, lambda _: None), version, metrics.missing), models)
    in_flight = InFlight(limits.in_flight, limits.body_bytes, limits.body_seconds)
    predictor = Predictor(models, metrics, limits.instances)
    direct = Direct(predictor, in_flight, metrics, stopping, tokens)
    v1.install(app, models, predictor, store, in_flight, direct)
    app.state.direct = direct

    @app.get("/livez", tags=["process"], responses=responses([Live]))
    async def live() -> Response:
        """The event loop turns. A dead task ends the process, so this needs no more."""
        return v1.encoded(Live())

    @app.get("/readyz", tags=["process"], responses=responses([Ready], "not ready"))
    async def readiness() -> Response:
        """Every model can answer, and the process is not shutting down."""
        if not ready():
            raise Refusal(503, "not every model can answer yet, or the service is shutting down")
        return v1.encoded(Ready())

    told = openapi.METRICS | openapi.ending("token missing")

    @app.get("/metrics", tags=["process"], response_class=PlainTextResponse, responses=told)
    async def prometheus() -> Response:
        """Prometheus' text format."""
        return Response(await metrics.render(), media_type=CONTENT_TYPE_LATEST)

    document = openapi.described(app.openapi(), [*v1.ANSWERS, Live, Ready])
    app.openapi = openapi.following(document, models, limits.instances)  # type: ignore[method-assign]
    # Not as FastAPI's own middleware: a prediction would go through all of it.
    within: ASGIApp = app.build_middleware_stack()
    if tokens or metrics_tokens:
        within = Access(within, tokens, metrics_tokens)
    app.middleware_stack = Edge(within, metrics, stopping, in_flight)
    return app
