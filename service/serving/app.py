"""The HTTP surface. Handlers are `async def` only: a plain one would run in a thread and see half an update."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST

from service.errors import DependencyError, Diverged, Rejected, SnapshotDamaged
from service.learning.learner import Learner
from service.monitoring.metrics import Metrics
from service.serving import large, predict, problems, report
from service.serving.edge import Edge, InFlight
from service.serving.large import LARGE
from service.serving.models import Answering, Model, Models
from service.serving.problems import Problem
from service.serving.schemas import (
    About,
    Live,
    Many,
    ModelList,
    One,
    Ready,
    Versions,
    Weights,
    following,
    responses,
)
from service.snapshots import codec
from service.snapshots.store import RedisStore

MAX_PAGE = 10_000


class Limits(NamedTuple):
    """Of one request, and of all that are answered at a time: what may be held in memory at once."""

    body_bytes: int = 16 << 20
    instances: int = 10_000
    body_seconds: float = 10.0
    in_flight: int = 100


def create_app(
    models: Models,
    metrics: Metrics,
    ready: Callable[[], bool],
    stopping: Callable[[], bool],
    store: RedisStore,
    limits: Limits,
    *,
    version: str,
) -> FastAPI:
    """The application over these models."""
    # FastAPI's own /docs loads its page from elsewhere, and is blank where there is no network.
    app = FastAPIOffline(title="Perceptron Service", version=version, redoc_url=None, redirect_slashes=False)
    problems.install(app)
    in_flight = InFlight(limits.in_flight, limits.body_bytes, limits.body_seconds)
    app.add_middleware(Edge, metrics=metrics, stopping=stopping, in_flight=in_flight)

    beside = asyncio.Semaphore(1)  # more threads at a time would only take the interpreter from the loop, and memory

    @app.post(
        "/v1/models/{name}/predict",
        responses=responses(One | Many, 404, 408, 413, 415, 422, 503),
    )
    async def predict_one_or_many(name: str, request: Request, explain: bool = False) -> Response:
        """Predict one (`features`) or many (`instances`); `?explain=true` adds what each feature contributes."""
        _predicting(models, name)
        body = await in_flight.read(request)
        try:
            if len(body) > LARGE:
                async with beside:
                    a = _predicting(models, name)
                    reading = large.moment(a.learner), body, limits.instances, explain
                    answers, many, labels = await asyncio.to_thread(large.answer, *reading)
            else:
                # One state answers, as there is no turn of the loop.
                a = _predicting(models, name)
                instances, many = predict.read(body, a.learner.identity, limits.instances)
                if explain:
                    predict.check_explained(instances)
                answers = [predict.answer(a.learner, features, explain) for features in instances]
                predict.check_finite(answers, many)
                labels = Counter(answer["label"] for answer in answers)
        except Rejected as rejected:
            raise problems.invalid(rejected) from None
        for label, n in labels.items():
            metrics.predictions.labels(name, _shown(label)).inc(n)
        common = {"model": name, "version": a.head.version, "ahead": a.ahead}
        return _json({**common, "predictions": answers} if many else {**common, **answers[0]})

    @app.get("/v1/models", responses=responses(ModelList))
    async def list_models() -> Response:
        """Every model of this process."""
        return _json({"models": [report.summary(m) for m in models]})

    @app.get("/v1/models/{name}", responses=responses(About, 404, 503))
    async def describe_model(name: str) -> Response:
        """Counts and offsets of the state that answers; version and digests of its accepted head."""
        return _json(report.describe(*_answering(models, name)))

    @app.get("/v1/models/{name}/weights", responses=responses(Weights, 404, 422, 503))
    async def weights(
        name: str,
        one: Annotated[
            list[str],
            Query(alias="name", default_factory=list, description="this one, commas and all; may be given again"),
        ],
        top: Annotated[int | None, Query(ge=1, le=MAX_PAGE, description="the largest")] = None,
        names: Annotated[str | None, Query(description="these, with commas between them")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="of a page")] = 1000,
        cursor: Annotated[int, Query(ge=1, description="`next` of the page before")] = 1,
    ) -> Response:
        """Some weights by name (`names`, `name`), the largest of these or of all (`top`), or all in pages (`limit`)."""
        learner = _answering(models, name)[1].learner
        wanted = one if names is None else [*one, *names.split(",")]
        chosen, after = _choose(learner, wanted, top, limit, cursor)
        w = learner.served
        rows = [{"name": learner.columns.name_of(c), "column": c, "weight": float(w[c])} for c in chosen]
        return _json({"bias": float(w[0]), "weights": rows, "next": after})

    @app.get("/v1/models/{name}/versions", responses=responses(Versions, 404, 503))
    async def versions(name: str, request: Request) -> Response:
        """The versions kept for rollback, oldest first."""
        a = _answering(models, name)[1]
        in_flight.take(request)
        try:
            found = await store.kept(name, [v.version for v in a.head.kept])
        except (DependencyError, SnapshotDamaged) as error:
            raise _unread(error) from None
        return _json({"versions": [report.describe_version(*v) for v in codec.kept(a.head, a.digest, found)]})

    _operations(app, metrics, ready)
    app.openapi = following(app.openapi(), models, limits.instances)  # type: ignore[method-assign]
    return app


def _unread(error: DependencyError | SnapshotDamaged) -> Problem:
    return Problem(503, str(error) if isinstance(error, SnapshotDamaged) else "the snapshot store does not answer")


def _operations(app: FastAPI, metrics: Metrics, ready: Callable[[], bool]) -> None:
    """What orchestrators and Prometheus ask."""

    @app.get("/livez", responses=responses(Live))
    async def live() -> Response:
        """The event loop turns. A dead task ends the process, so this needs no more."""
        return _json({"live": True})

    @app.get("/readyz", responses=responses(Ready, 503))
    async def readiness() -> Response:
        """Every model can answer, and the process is not shutting down."""
        if not ready():
            raise Problem(503, "not every model can answer yet, or the service is shutting down")
        return _json({"ready": True})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Prometheus' text format."""
        return Response(await metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _answering(models: Models, name: str) -> tuple[Model, Answering]:
    found = models.get(name)
    if found is None:
        raise Problem(404, "there is no model of this name; GET /v1/models lists them")
    if found.answering is None:
        raise Problem(503, found.why_not)
    return found, found.answering


def _predicting(models: Models, name: str) -> Answering:
    _, a = _answering(models, name)
    if a.learner.diverged:
        raise Problem(503, str(Diverged(name, a.learner.diverged)))
    return a


def _choose(
    learner: Learner, wanted: Sequence[str], top: int | None, limit: int, cursor: int
) -> tuple[Sequence[int], str | None]:
    """Columns to show, and the cursor of the page after them."""
    if wanted:
        columns = [c for n in wanted if (c := learner.columns.column_of(n)) is not None]
        if top is None:
            return columns, None
        w = learner.served
        return sorted(columns, key=lambda c: (-abs(w[c]), c))[:top], None
    if top is not None:
        return learner.largest(top), None
    count = len(learner.columns)
    end = min(cursor + limit, count)
    return range(cursor, end), str(end) if end < count else None


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _shown(label: bool | int | float | str) -> str:
    return label if isinstance(label, str) else msgspec.json.encode(label).decode()
