"""Our own protocol: predictions, models, their weights and kept versions, under `/v1/models`.

Handlers are `async def` only: a plain one would run in a thread and see half an update.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray
from starlette.types import ASGIApp

from service.errors import DependencyError, Rejected, SnapshotDamaged
from service.learning.classifier import Classifier, largest
from service.learning.identity import Identity, Label, listed
from service.serving.http import problems
from service.serving.http.openapi import request_of, responses
from service.serving.http.predict import CANDIDATE, PREDICT, PredictParameters
from service.serving.http.problems import Refusal
from service.serving.http.request_bodies import InFlight
from service.serving.model_info import CandidateInfo, Description, Name, Summary, Version
from service.serving.models import Models
from service.serving.predictions import BatchPredictionResponse, PredictionResponse
from service.snapshots import codec
from service.snapshots.redis.store import RedisStore

MAX_PAGE = 10_000
"""Weights in one answer."""
BIAS = np.zeros(1, np.intp)
"""Its column."""


class ModelList(msgspec.Struct, forbid_unknown_fields=True):
    """All models of the process."""

    models: list[Summary]


class Weight(msgspec.Struct, forbid_unknown_fields=True):
    """One weight."""

    name: Annotated[str, Meta(examples=["clicks"])]
    column: Annotated[int, Meta(examples=[2])]
    weight: Annotated[float, Meta(examples=[1.5])]


class Weights(msgspec.Struct, forbid_unknown_fields=True):
    """Some weights; `next` is the cursor of the following page, if there is one."""

    bias: Annotated[float, Meta(examples=[0.45])]
    weights: list[Weight]
    next: Annotated[str | None, Meta(examples=["1001"])]
    label: Label | UnsetType = UNSET
    """Whose they are, with three labels and more."""
    candidate: str | UnsetType = UNSET
    """Whose they are, where not the model's own."""


class Candidates(msgspec.Struct, forbid_unknown_fields=True):
    """What learns side by side with a model."""

    model: Name
    answering: Annotated[str | None, Meta(examples=["logistic"])]
    """Null: the model itself answers."""
    candidates: list[CandidateInfo]


class Versions(msgspec.Struct, forbid_unknown_fields=True):
    """The versions kept for rollback, oldest first."""

    versions: list[Version]


MODEL_PROBLEMS = "token missing", "unknown model", "no snapshot yet"
VERSIONS_PROBLEMS = *MODEL_PROBLEMS, "too busy", "Redis away"
WEIGHTS_PROBLEMS = (
    "token missing", "unknown model", "unknown candidate", "bad parameter", "unknown parameter", "no snapshot yet",
)  # fmt: skip
PREDICT_PROBLEMS = (
    "not gzip", "token missing", "unknown model", "unknown candidate", "body too slow", "body too large", "not JSON",
    "encoded", "bad body", "bad parameter", "unknown parameter", "no snapshot yet", "too busy",
)  # fmt: skip
"""Problems of routes by status: names of `openapi.PROBLEMS`."""
ANSWERS = PredictionResponse, BatchPredictionResponse, ModelList, Description, Candidates, Weights, Versions

CandidateParameter = Annotated[str | None, Query(description=CANDIDATE)]


async def _check_parameters(request: Request) -> None:
    parameters = request.scope["route"].dependant.query_params
    problems.check_parameters(request.query_params, [parameter.alias for parameter in parameters])


def predict(name: str, parameters: Annotated[PredictParameters, Query()]) -> None:
    """Predict one (`features`) or many (`instances`); `?explain=true` adds what each feature contributes.

    `?candidate=NAME` has that one answer. Before its first event a model answers as it begins, of `version` 1 and
    `ahead` 0.
    """


def install_v1(
    app: FastAPI, models: Models, store: RedisStore, in_flight: InFlight, answer_predict: ASGIApp, max_instances: int
) -> APIRoute:
    """Give `app` the routes of this protocol; returns that of predictions."""
    page_at_a_time = asyncio.Lock()
    # FastAPI documents `predict`, and `answer_predict` answers.
    app.post(
        PREDICT,
        tags=["predictions"],
        response_model=None,
        responses=responses([PredictionResponse, BatchPredictionResponse], *PREDICT_PROBLEMS),
        openapi_extra=request_of(max_instances),
    )(predict)
    (route,) = [route for route in app.routes if isinstance(route, APIRoute) and route.path == PREDICT]
    route.app = answer_predict

    @app.get("/v1/models", tags=["models"], responses=responses([ModelList], "token missing"))
    async def list_models() -> Response:
        """Every model of this process."""
        return encoded(ModelList([Summary.of(model) for model in models]))

    @app.get("/v1/models/{name}", tags=["models"], responses=responses([Description], *MODEL_PROBLEMS))
    async def describe_model(name: str) -> Response:
        """Counts and offsets of the state that answers; version and digests of its accepted head."""
        return encoded(Description.of(*models.answering(name)))

    @app.get("/v1/models/{name}/candidates", tags=["models"], responses=responses([Candidates], *MODEL_PROBLEMS))
    async def candidates(name: str) -> Response:
        """What learns side by side with the model: how each of them predicts, and which one answers."""
        learner = models.answering(name)[1].learner
        return encoded(Candidates(name, learner.answering, CandidateInfo.all_of(learner)))

    @app.get(
        "/v1/models/{name}/weights", tags=["models"], responses=responses([Weights], *WEIGHTS_PROBLEMS),
        dependencies=[Depends(_check_parameters)],
    )  # fmt: skip
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
        label: Annotated[
            str | None, Query(description="whose: with three labels and more each has weights of its own")
        ] = None,
        candidate: CandidateParameter = None,
    ) -> Response:
        """Some weights by name (`names`, `name`), the largest of these or of all (`top`), or all in pages (`limit`)."""
        a = models.answering(name)[1]
        learner, (who, by) = a.learner, a.by(candidate)
        place, names_of = _place(learner.identity, label), learner.columns.name_of
        labels = learner.identity.labels or ()
        wanted = one if names is None else [*one, *names.split(",")]
        async with page_at_a_time:
            await asyncio.sleep(0)  # between two pages others have a turn of the loop
            bias, whose = by.served_at(BIAS, place).item(), UNSET if place is None else labels[place]
            columns, w, after = await _choose(by, wanted, top, limit, cursor, place)
            rows = [Weight(names_of(c), c, weight) for c, weight in zip(columns, w.tolist(), strict=True)]
            return encoded(Weights(bias, rows, after, whose, UNSET if who is None else who))

    @app.get("/v1/models/{name}/versions", tags=["models"], responses=responses([Versions], *VERSIONS_PROBLEMS))
    async def versions(name: str) -> Response:
        """The versions kept for rollback, oldest first."""
        a = models.answering(name)[1]
        in_flight.take()
        try:
            found = await store.kept(name, [v.version for v in a.head.kept])
            kept = codec.kept_versions(a.head, a.digest, found)
        except SnapshotDamaged as error:
            raise Refusal(503, str(error)) from None
        except DependencyError:
            raise Refusal(503, "the snapshot store does not answer") from None
        finally:
            in_flight.release()
        return encoded(Versions([Version.of(*version) for version in kept]))

    return route


def encoded(answer: msgspec.Struct) -> Response:
    """An answer as JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _place(identity: Identity, label: str | None) -> int | None:
    """Whose weights are asked for, None where both labels share theirs; raises Rejected where that is not said."""
    if not identity.multiclass:
        if label is None:
            return None
        raise Rejected("unknown-label", "the model's two labels have the same weights: leave ?label= out", "?label")
    known = f"?label= must be one of {listed(identity.labels or ())}"
    if label is None:
        raise Rejected("missing-field", f"each label has weights of its own: {known}", "?label")
    place = identity.place(label)
    if place is None:
        raise Rejected("unknown-label", known, "?label")
    return place


async def _choose(
    by: Classifier, wanted: Sequence[str], top: int | None, limit: int, cursor: int, label: int | None
) -> tuple[Sequence[int], NDArray[np.float64], str | None]:
    """Columns to show, their weights in this turn of the loop, and the cursor of the page after them."""
    count = len(by.columns)
    if not wanted and top is not None:
        w = by.served_at(slice(count), label)
        copy = w if by.averaged else w.copy()
        columns = await asyncio.to_thread(largest, copy, top)
        return columns, copy[columns], None
    if not wanted:
        end = min(cursor + limit, count)
        return range(cursor, end), by.served_at(slice(cursor, end), label).copy(), str(end) if end < count else None
    known = [c for n in wanted if (c := by.columns.column_of(n)) is not None]
    w = by.served_at(np.array(known, np.intp), label)
    if top is not None:
        order = np.lexsort((np.array(known), -np.abs(w)))[:top]
        known, w = [known[i] for i in order.tolist()], w[order]
    return known, w, None
