"""The shapes of requests and answers, with examples: what `/openapi.json` and `/docs` show.

Documentation only. Requests are read by `predict.read`, which says what is wrong in the format's own words, and
answers are encoded as they are; a test holds these shapes against real answers.
"""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from service.learning.identity import MAX_VALUE, Identity

_EXACT = ConfigDict(extra="forbid")

PREDICT = "/v1/models/{name}/predict"
Label = bool | int | float | str


class Contribution(BaseModel):
    """One term of the score."""

    model_config = _EXACT
    name: str = Field(examples=["clicks"])
    value: float = Field(examples=[2.0])
    weight: float = Field(examples=[1.5])
    product: float = Field(examples=[3.0])


class Prediction(BaseModel):
    """The predicted label, the score w·x that it comes from, and how many features the model has never seen."""

    model_config = _EXACT
    label: Label = Field(examples=[1])
    score: float = Field(examples=[3.45])
    unknown_features: int = Field(examples=[0])
    contributions: list[Contribution] | None = Field(None, description="with ?explain=true, largest first")


class Answered(BaseModel):
    """What answered: `version` is the accepted snapshot, `ahead` how many events were learned beyond it."""

    model_config = _EXACT
    model: str = Field(examples=["churn"])
    version: int = Field(examples=[42])
    ahead: int = Field(examples=[0])


class One(Answered, Prediction):
    """The answer to `features`."""


class Many(Answered):
    """The answer to `instances`, in their order."""

    predictions: list[Prediction]


class Summary(BaseModel):
    """A model in a list; fields are null before its first snapshot is there."""

    model_config = _EXACT
    model: str = Field(examples=["churn"])
    rule: str | None = Field(examples=["perceptron"])
    features: str | None = Field(examples=["named"])
    version: int | None = Field(examples=[42])
    events: int | None = Field(examples=[1000])
    mistakes: int | None = Field(examples=[31])
    learning_here: bool


class ModelList(BaseModel):
    """All models of the process."""

    model_config = _EXACT
    models: list[Summary]


class Accuracy(BaseModel):
    """Prequential: each event was predicted before it was learned. Null before the first event."""

    model_config = _EXACT
    all: float | None = Field(examples=[0.969])
    recent: float | None = Field(examples=[0.98])


class About(BaseModel):
    """A model: counts and offsets of the state that answers; version and digests of its accepted head."""

    model_config = _EXACT
    model: str = Field(examples=["churn"])
    identity: dict[str, Any] = Field(examples=[{"fold": 1, "rule": "perceptron", "eta": 1.0, "features": "named"}])
    version: int = Field(examples=[42])
    ahead: int = Field(examples=[0])
    order: str = Field(examples=["log"])
    next: dict[str, int] = Field(examples=[{"0": 1234}])
    covered: dict[str, list[tuple[int, int]]] = Field(examples=[{"0": [[0, 1234]]}])
    events: int = Field(examples=[1230])
    mistakes: int = Field(examples=[31])
    wrong_predictions: int = Field(examples=[29])
    updates: int = Field(examples=[31])
    confusion: list[list[int]] = Field(examples=[[[600, 14], [15, 601]]], description="[truth][prediction]")
    rejected: dict[str, int] = Field(examples=[{"not-json": 4}])
    ignored_features: int = Field(examples=[0])
    accuracy: Accuracy
    columns: int = Field(examples=[21])
    squared_norm: float | None = Field(examples=[88.5], description="null where it is beyond what a number can hold")
    squared_norm_limit: float | None = Field(examples=[310.25])
    loss: float | None = Field(examples=[0.02], description="mean perceptron loss max(0, -y*s) of recent events")
    margins: dict[str, float] | None = Field(
        examples=[{"0.1": 0.2, "0.5": 1.1, "0.9": 2.5}], description="quantiles of y*s/|x| of recent events"
    )
    serve: str = Field(examples=["last"], description="the weights that answer: last or average")
    bound: int | None = Field(examples=[112], description="the most updates that the perceptron theorem allows")
    bound_reason: str | None = Field(examples=[None])
    digest: str = Field(examples=["9d55c0e5…"])
    state_digest: str = Field(examples=["1f0e7a21…"])
    saved_at: str = Field(examples=["2030-01-01T12:00:00.000+00:00"])
    learning_here: bool
    stopped: str | None


class Weight(BaseModel):
    """One weight."""

    model_config = _EXACT
    name: str = Field(examples=["clicks"])
    column: int = Field(examples=[2])
    weight: float = Field(examples=[1.5])


class Weights(BaseModel):
    """Some weights; `next` is the cursor of the following page, if there is one."""

    model_config = _EXACT
    bias: float = Field(examples=[0.45])
    weights: list[Weight]
    next: str | None = Field(examples=["1001"])


class Version(BaseModel):
    """A kept version."""

    model_config = _EXACT
    version: int = Field(examples=[40])
    saved_at: str = Field(examples=["2030-01-01T12:00:00.000+00:00"])
    next: dict[str, int] = Field(examples=[{"0": 1200}])
    events: int = Field(examples=[1196])
    mistakes: int = Field(examples=[30])
    digest: str = Field(examples=["77ab01cd…"])


class Versions(BaseModel):
    """The versions kept for rollback, oldest first."""

    model_config = _EXACT
    versions: list[Version]


class Live(BaseModel):
    """The event loop turns."""

    model_config = _EXACT
    live: bool


class Ready(BaseModel):
    """Every model can answer."""

    model_config = _EXACT
    ready: bool


class ProblemError(BaseModel):
    """A member at fault."""

    model_config = _EXACT
    pointer: str = Field(examples=["/features/age"])
    reason: str = Field(examples=["wrong-type"])


class Problem(BaseModel):
    """RFC 9457."""

    model_config = _EXACT
    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Unprocessable Entity"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=['feature "age" must be a number, got a string'])
    errors: list[ProblemError]


def responses(answer: Any, *problems: int) -> dict[int | str, dict[str, Any]]:
    """A route's `responses`: its answer, and the problems that it can end with."""
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    texts = {
        404: "no such model",
        408: "body too slow",
        413: "body too large",
        415: "not JSON",
        422: "not as expected",
        503: "not now",
    }
    shown: dict[int | str, dict[str, Any]] = {
        status: {"description": texts[status], "content": {"application/problem+json": schema}} for status in problems
    }
    # Some route must name the model, so that the schema is there to refer to.
    return {200: {"model": answer}, "default": {"model": Problem, "description": "a problem"}, **shown}


def following(document: dict[str, Any], models: Iterable[Any], max_instances: int) -> Callable[[], dict[str, Any]]:
    """`/openapi.json`: the document of the routes, its requests of the kinds that there are `models` of by now.

    What one kind of model takes another refuses. So where there are several kinds, one has the route as it stands, for
    the names of its models, and each model of another kind has a path of its own.
    """

    def openapi() -> dict[str, Any]:
        kinds: dict[str, tuple[dict[str, Any], list[str]]] = {}
        for model in models:
            if model.answering is not None:
                body = _body(model.answering.learner.identity, max_instances)
                kinds.setdefault(repr(body), (body, []))[1].append(model.name)
        by_count = sorted(kinds.values(), key=lambda kind: -len(kind[1]))
        body, names = by_count[0] if by_count else (_body(None, max_instances), [])
        operation = document["paths"][PREDICT]["post"]
        name, *parameters = operation["parameters"]
        if len(by_count) > 1:
            name = name | {"schema": name["schema"] | {"enum": names}}
        paths = document["paths"] | {PREDICT: {"post": operation | {"parameters": [name, *parameters]} | body}}
        for own, others in by_count[1:]:
            for other in others:
                its = {"operationId": f"{operation['operationId']}_{other}", "parameters": parameters}
                paths[PREDICT.replace("{name}", quote(other, safe=""))] = {"post": operation | its | own}
        return document | {"paths": paths}

    return openapi


def _body(identity: Identity | None, max_instances: int) -> dict[str, Any]:
    """The `requestBody` of a prediction: the handler reads the bytes itself."""
    features = _features(identity or Identity())
    if identity is None:
        features = {"anyOf": [features, _features(Identity(features="positional", dimension=2))]}
    example = (features["anyOf"][0] if identity is None else features)["examples"][0]
    instance = {"type": "object", "required": ["features"], "properties": {"features": features}}
    schema = {
        "type": "object",
        "properties": {
            "features": features,
            "instances": {"type": "array", "items": instance, "maxItems": max_instances},
        },
        "oneOf": [{"required": ["features"]}, {"required": ["instances"]}],
        "examples": [{"features": example}, {"instances": [{"features": example}] * min(2, max_instances)}],
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _features(identity: Identity) -> dict[str, Any]:
    number = {"type": "number", "minimum": -MAX_VALUE, "maximum": MAX_VALUE}
    if identity.features == "positional":
        count = identity.dimension or 0
        example = [[0.3, 2.0][i % 2] for i in range(count)]
        return {"type": "array", "items": number, "minItems": count, "maxItems": count, "examples": [example]}
    return {
        "type": "object",
        "additionalProperties": number,
        "maxProperties": identity.max_features,
        "propertyNames": {"maxLength": identity.max_name_bytes},
        "examples": [dict(list({"age": 0.3, "clicks": 2.0}.items())[: identity.max_features])],
    }
