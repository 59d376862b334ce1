"""Our own protocol under `/v1/models`: predictions, posts of events and labels, models, their weights and versions.

All handlers are `async def`: a plain function would run in a thread and see half an update.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import FastAPI, Query
from fastapi.responses import Response
from fastapi.routing import APIRoute
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray
from prometheus_client import Counter
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from service.errors import BadRecords, DependencyError, NotFound, Rejected, UnknownModel
from service.learning.classifier import Classifier, largest
from service.learning.events.value_formats import ValueBuffer, text_values
from service.learning.identity import Identity, Label, listed
from service.learning.learner import Learner
from service.monitoring.metrics import Metrics
from service.serving.http.endpoint import Endpoint, InFlight, Predict, media_type
from service.serving.http.openapi import request_body, responses
from service.serving.http.problems import StoredRecord, Unstored
from service.serving.model_info import CandidateInfo, Description, Name, Summary, Version, describe
from service.serving.models import Model, Models, read_all
from service.serving.posting import Posting
from service.serving.predictions import (
    PredictionResponse,
    PredictParameters,
    PredictRequest,
    V1Request,
    check_count,
    edges,
)
from service.serving.scoring import Scorer, freeze, predict_large
from service.snapshots.ports import Store
from service.streaming.kafka.topic_writer import TopicWriter
from service.streaming.records import Message

MAX_PAGE = 10_000
"""Weights in one answer."""
NDJSON = b"application/x-ndjson"
ANSWER_SECONDS = 9.0
"""The time for Kafka to store the records of a post, which is answered within ten seconds."""
_BEFORE, _LIST, _AFTER = re.compile(rb'\s*\{\s*"[^"]*"\s*:\s*'), re.compile(rb"\s*\["), re.compile(rb"\s*\}\s*")
"""What stands before the value of an object's only member, how a list begins, and what stands after the value."""
_EventId = Annotated[Any, Meta(description="text or a whole number: the id of the event")]
_Label = Annotated[Any, Meta(description="one of the model's labels; null withdraws the event")]


class ModelList(msgspec.Struct, forbid_unknown_fields=True):
    """All models of the process."""

    models: list[Summary]


class Weight(msgspec.Struct, forbid_unknown_fields=True):
    """One weight."""

    name: Annotated[str, Meta(examples=["clicks"])]
    column: Annotated[int, Meta(examples=[2])]
    weight: Annotated[float, Meta(examples=[1.5])]


class WeightList(msgspec.Struct, forbid_unknown_fields=True):
    """Some weights; `next` is the cursor of the next page, if there is one."""

    bias: Annotated[float, Meta(examples=[0.45])]
    weights: list[Weight]
    next: Annotated[str | None, Meta(examples=["1001"])]
    label: Label | UnsetType = UNSET
    """The label that has these weights, with three labels and more."""
    candidate: str | UnsetType = UNSET
    """The candidate that has these weights; left out if they are the model's own."""


class CandidateList(msgspec.Struct, forbid_unknown_fields=True):
    """The candidates that learn side by side with a model."""

    model: Name
    answering: Annotated[str | None, Meta(examples=["logistic"])]
    """The candidate that answers; null if the model itself answers."""
    candidates: list[CandidateInfo]


class VersionList(msgspec.Struct, forbid_unknown_fields=True):
    """The versions kept for rollback, oldest first."""

    versions: list[Version]


class EventsRequest(msgspec.Struct):
    """One event, an object with any members as the model's settings say, or many as `events`, the only member."""

    events: list[dict[str, Any]] | UnsetType = UNSET


class LabelRecord(msgspec.Struct):
    """The label of an event."""

    id: _EventId
    label: _Label


class LabelsRequest(msgspec.Struct):
    """One label with the `id` of its event, or many as `labels`, the only member."""

    id: _EventId | UnsetType = UNSET
    label: _Label | UnsetType = UNSET
    labels: list[LabelRecord] | UnsetType = UNSET


class StoredRecords(msgspec.Struct, forbid_unknown_fields=True):
    """All records of the request are stored."""

    records: list[StoredRecord | None]
    """In the order of the request; null for a label whose prediction was left out by `predictions.share`."""


MODEL_PROBLEMS: dict[int | str, str] = {401: "token missing", 404: "unknown model", 503: "no snapshot yet"}
VERSIONS_PROBLEMS = MODEL_PROBLEMS | {503: "no snapshot yet, too busy, Redis away"}
WEIGHTS_PROBLEMS = MODEL_PROBLEMS | {404: "unknown model, unknown candidate", 422: "bad parameter, unknown parameter"}
PREDICT_PROBLEMS = WEIGHTS_PROBLEMS | {
    400: "not gzip",
    408: "body too slow",
    413: "body too large",
    415: "not JSON, encoded",
    422: "bad body, bad parameter, unknown parameter",
    503: "no snapshot yet, too busy",
}
POST_PROBLEMS = PREDICT_PROBLEMS | {
    403: "no ingest tokens",
    404: "unknown model, unknown topic, no join",
    422: "bad record",
    503: "too busy, Kafka away",
}
"""The names of the problems that a route can end with, by status."""
_INSTANCE: dict[str, Any] = {"features": {"age": 31, "page": "/home"}, "id": "r-17"}
_PREDICTION = {"label": 1, "score": 3.45, "unknown_features": 0, "missing_features": 0}
_SNAPSHOT = {"model": "churn", "version": 42, "ahead": 0}
REQUESTS = {"single": _INSTANCE, "batch": {"instances": [_INSTANCE] * 2}, "event": {"event": _INSTANCE}}
ANSWERS = {"single": _SNAPSHOT | _PREDICTION, "batch": _SNAPSHOT | {"predictions": [_PREDICTION]}}
"""Examples of predictions."""


class WeightsParameters(BaseModel, extra="forbid"):
    """The query parameters of a request for weights."""

    name: list[str] = Field(default_factory=list, description="one name, which may have commas; may be repeated")
    top: int | None = Field(None, ge=1, le=MAX_PAGE, description="the number of largest weights")
    names: str | None = Field(None, description="names with commas between them")
    limit: int = Field(1000, ge=1, le=MAX_PAGE, description="weights in a page")
    cursor: int = Field(1, ge=1, description="`next` of the previous page")
    label: str | None = Field(None, description="the label that has the weights, with three labels and more")
    candidate: str | None = Field(None, description="the candidate that has the weights")


class Post(Endpoint):
    """Answers requests that post events, or labels."""

    def __init__(self, kind: str, find: Callable[[str], Posting | None], in_flight: InFlight, counter: Counter) -> None:
        """`kind` is "events" or "labels". `find` returns how a model takes posts, None if there is no such model.

        `counter` counts records by model, kind and result.
        """
        self._kind, self._find, self._in_flight, self._counter = kind, find, in_flight, counter

    async def answer(self, scope: Scope, receive: Receive) -> bytes:
        """Store the records, and say where."""
        name = scope["path_params"]["name"]
        if (posting := self._find(name)) is None:
            raise UnknownModel
        if (writer := posting.labels if self._kind == "labels" else posting.events) is None:
            raise NotFound("this model has no labels that come later: set [models.NAME.join]")
        body = await self._in_flight.read(scope, receive, NDJSON)
        self._in_flight.take(len(body))
        try:
            is_ndjson, limit = media_type(scope["headers"]) == NDJSON, self._in_flight.limits.max_instances
            values, pointer = await asyncio.to_thread(_split, body, self._kind, is_ndjson, limit)
            records = await posting.read(self._kind, values, pointer)
        finally:
            self._in_flight.release(len(body))  # a post that waits for Kafka keeps no prediction out
        return msgspec.json.encode(StoredRecords(await self._write(name, writer, records, pointer)))

    async def _write(
        self, model: str, writer: TopicWriter, records: Sequence[Message | None], pointer: str
    ) -> list[StoredRecord | None]:
        """Write records; returns where each is stored, None for one that is not written. Raises Unstored."""
        written = {i: record for i, record in enumerate(records) if record}
        delivery, why = None, ""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                partitions, limit = await writer.facts()
                if not partitions:
                    raise NotFound(f"topic {writer.topic} does not exist")
                why_large = f"topic {writer.topic} takes at most {limit} bytes"
                # Only the size of a long record is looked at in detail, which takes time.
                if large := [i for i, r in written.items() if 2 * len(r.value or b"") > limit and r.wire_size > limit]:
                    raise BadRecords([Rejected("too-large", why_large, pointer.format(i)) for i in large])
                if written:
                    if delivery := writer.add([*written.values()]):
                        await asyncio.shield(delivery.ended)
                        why = delivery.why
                    else:
                        why = f"too many records wait for topic {writer.topic}"
        except TimeoutError:
            why = f"{writer.cluster}: no acknowledgement in time"
        except DependencyError as error:
            why = str(error)
        stored = zip(written, delivery.places, strict=True) if delivery else ()
        places = {i: StoredRecord(writer.topic, *place) for i, place in stored if place}
        self._counter.labels(model, self._kind, "stored").inc(len(places))
        self._counter.labels(model, self._kind, "unstored").inc(len(written) - len(places))
        answer = [places.get(i) for i in range(len(records))]
        if why:
            raise Unstored(why, answer)
        return answer


def _split(body: bytes, kind: str, is_ndjson: bool, limit: int) -> tuple[ValueBuffer, str]:
    """The records in a body, and the pointer of one, with `{}` in place of its index; raises Rejected."""
    if is_ndjson:
        data = np.frombuffer(body, np.uint8)
        ends = np.append(np.flatnonzero(data == ord("\n")), len(body) if body[-1:] != b"\n" else []).astype(np.int64)
        begins = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        check_count(len(ends), "", limit)
        for i in np.flatnonzero(begins == ends).tolist():
            raise Rejected("not-json", f"line {i} is empty", f"/{i}")
        return ValueBuffer(data, begins, ends), "/{}"
    commas = np.empty(limit, np.int64)
    member = text_values(body, ((kind,),), commas=commas).values[0]
    if member is UNSET or not (_BEFORE.fullmatch(body, 0, member.begin) and _AFTER.fullmatch(body, member.end)):
        return ValueBuffer.from_values([body]), ""
    if not _LIST.match(body, member.begin):
        raise Rejected("wrong-type", f"'{kind}' must be a list", f"/{kind}")
    check_count(member.items, kind, limit)
    return ValueBuffer(np.frombuffer(body, np.uint8), *edges(body, member, commas)), f"/{kind}/{{}}"


def predict(name: str, parameters: Annotated[PredictParameters, Query()]) -> None:
    """Predict one (`features`, `event`) or many (`instances`, `events`); `?explain=true` adds each contribution.

    With `?candidate=NAME` that candidate answers. Before its first event a model answers with its first weights, as
    `version` 1 and `ahead` 0.
    """


def post_events(name: str) -> None:
    """Store one event, many as `{"events": [...]}`, or one in each line (NDJSON), in the model's topic: all or none.

    An event that is posted twice is learned once if `event.once` is set.
    """


def post_labels(name: str) -> None:
    """Store one label or many (`{"labels": [...]}`) of events by their ids, for a model with a `join`: all or none.

    A label of null withdraws the event. A label that is posted twice counts once: the first of an id is taken.
    """


def install_v1(
    app: FastAPI, models: Models, store: Store, in_flight: InFlight, scorer: Scorer,
    posting_of: Callable[[str], Posting | None], metrics: Metrics,
) -> list[APIRoute]:  # fmt: skip
    """Add the routes of this protocol to `app`; returns those whose requests need nothing of FastAPI."""
    page_at_a_time = asyncio.Lock()

    def direct(endpoint: Endpoint, function: Callable[..., None], tag: str, answers: Any, extra: Any) -> APIRoute:
        """FastAPI documents the function, and the endpoint answers the requests."""
        path = f"/v1/models/{{name}}/{function.__name__.removeprefix('post_')}"
        app.post(path, tags=[tag], responses=answers, openapi_extra=extra)(function)
        (route,) = [route for route in app.routes if isinstance(route, APIRoute) and route.path == path]
        route.app = endpoint
        return route

    answers = responses(PREDICT_PROBLEMS, PredictionResponse, ANSWERS)
    endpoint = Predict(scorer, in_flight, partial(V1Request, max_instances=in_flight.limits.max_instances))
    routes = [direct(endpoint, predict, "predictions", answers, request_body(PredictRequest, REQUESTS))]
    answers = responses(POST_PROBLEMS, StoredRecords)
    for kind, function, request, example in (
        ("events", post_events, EventsRequest, _INSTANCE | {"label": 1}),
        ("labels", post_labels, LabelsRequest, {"id": "r-17", "label": 1}),
    ):
        body = request_body(request, {"single": example, "batch": {kind: [example]}}, ndjson=True)
        routes.append(direct(Post(kind, posting_of, in_flight, metrics.ingested), function, "records", answers, body))

    @app.get("/v1/models", tags=["models"], responses=responses({401: "token missing"}, ModelList))
    async def list_models() -> Response:
        """Every model of this process."""
        aliases = dict(models.aliases)
        rows = [Summary.from_model(model, aliases.pop(model.name, UNSET)) for model in models]
        return encoded(ModelList([*rows, *(Summary.from_model(Model(alias), aliases[alias]) for alias in aliases)]))

    @app.get("/v1/models/{name}", tags=["models"], responses=responses(MODEL_PROBLEMS, Description))
    async def get_model(name: str) -> Response:
        """Counts and offsets of the state that answers; version and digests of its accepted head."""
        return encoded(await describe(*models.answering(name)))

    @app.get("/v1/models/{name}/candidates", tags=["models"], responses=responses(MODEL_PROBLEMS, CandidateList))
    async def list_candidates(name: str) -> Response:
        """The candidates that learn side by side with the model: how each predicts, and which one answers."""
        model, (learner, _, _) = models.answering(name)
        described = [CandidateInfo.from_learner(learner, candidate) for candidate in learner.candidates]
        return encoded(CandidateList(model.name, learner.answering, described))

    # `name` is a query parameter here, and generated clients mix up two parameters of one name.
    @app.get("/v1/models/{model}/weights", tags=["models"], responses=responses(WEIGHTS_PROBLEMS, WeightList))
    async def get_weights(model: str, parameters: Annotated[WeightsParameters, Query()]) -> Response:
        """Some weights by name (`names`, `name`), the largest of these or of all (`top`), or all in pages (`limit`)."""
        served = models.answering(model)[1]
        learner, (answered_by, classifier) = served.learner, served.classifier(parameters.candidate)
        index, labels = _label_index(learner.identity, parameters.label), learner.identity.labels or ()
        async with page_at_a_time:
            await asyncio.sleep(0)  # between two pages the event loop turns
            bias, label = classifier.served_at(slice(1), index).item(), UNSET if index is None else labels[index]
            columns, w, after = await _choose(learner, classifier, parameters, index)
            named = map(learner.columns.name_of, columns)
            rows = [*map(Weight, named, columns, w.tolist())]
            return encoded(WeightList(bias, rows, after, label, UNSET if answered_by is None else answered_by))

    @app.get("/v1/models/{name}/versions", tags=["models"], responses=responses(VERSIONS_PROBLEMS, VersionList))
    async def list_versions(name: str) -> Response:
        """The versions kept for rollback, oldest first."""
        model, served = models.answering(name)
        in_flight.take()
        try:
            stored = await store.kept(model.name, [v.version for v in served.head.kept])
            kept = served.head.kept_versions(served.digest, stored)
        except DependencyError:
            raise HTTPException(503, "the snapshot store does not answer") from None
        finally:
            in_flight.release()
        return encoded(VersionList([Version.from_head(*version) for version in kept]))

    return routes


def encoded(answer: msgspec.Struct) -> Response:
    """A response with this answer as JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _label_index(identity: Identity, label: str | None) -> int | None:
    """The index of the label whose weights are requested; None if two labels share them. Raises Rejected."""
    if not identity.multiclass:
        if label is None:
            return None
        raise Rejected("unknown-label", "the model's two labels have the same weights: leave ?label= out", "?label")
    index = None if label is None else identity.label_index(label)
    if index is None:
        reason = "missing-field" if label is None else "unknown-label"
        labels = listed(identity.labels or ())
        raise Rejected(reason, f"each label has weights of its own: ?label= must be one of {labels}", "?label")
    return index


async def _choose(
    learner: Learner, classifier: Classifier, parameters: WeightsParameters, label_index: int | None
) -> tuple[Sequence[int], NDArray[np.float64], str | None]:
    """Columns to show, their weights, and the cursor of the next page."""
    count, top, names = len(classifier.columns), parameters.top, list(parameters.name)
    if parameters.names is not None:
        names += parameters.names.split(",")
    if not names and top is None:
        end = min(parameters.cursor + parameters.limit, count)
        w = classifier.served_at(slice(parameters.cursor, end), label_index)
        return range(parameters.cursor, end), w, str(end) if end < count else None
    feature_columns = [c for name in names if (c := classifier.columns.column_of(name)) is not None]
    columns: Sequence[int] = [0, *feature_columns] if names else range(count)  # the bias comes first, as in `largest`
    at = np.array(columns, np.intp) if names else slice(count)
    w = await read_all(learner, partial(classifier.served_at, at, label_index))
    chosen = range(1, len(w)) if top is None else await asyncio.to_thread(largest, w, top)
    return [columns[i] for i in chosen], w[chosen], None


def warm_up_predictions(learner: Learner) -> None:
    """Compile what large requests need, with a model of one position."""
    request = V1Request(b'{"instances":[{"features":[1]},{"features":[1]}]}', 2)
    predict_large(freeze(learner, learner.main), request, explain=False, top=1)
