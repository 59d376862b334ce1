"""What `/openapi.json` and `/docs` show: the shapes of answers as they are encoded, and of requests by kind of model.

Requests are described alone: `requests.read` reads them, and says what is wrong in the format's own words. A test
holds all of it against real answers.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote

import msgspec

from service.errors import UnknownCandidate, UnknownModel
from service.learning.events.json_pointer import parse_pointer
from service.learning.identity import MAX_VALUE, Identity
from service.serving.edge import ENCODED, NOT_JSON
from service.serving.problems import Fault, Problem, problem

PREDICT = "/v1/models/{name}/predict"
INTRODUCTION = """
Each model learns one Kafka topic and has its name. `POST /v1/models/{name}/predict` asks it: with `features` of one
event, with `instances` of many, or with whole records as `event` or `events`. An answer says the `version` of the
snapshot that it stands on, and how many events it is `ahead` of that.

Every error is a problem document (RFC 9457) whose `errors` name each member at fault. No value that was sent is echoed.
With `http.token_file` each request needs the header `authorization: Bearer TOKEN`, but for `/livez` and `/readyz`.
"""
TAGS = [
    {"name": "predictions", "description": "Ask a model."},
    {"name": "models", "description": "What a model has learned, how good it is, what it was."},
    {"name": "process", "description": "What orchestrators and Prometheus ask."},
]
PROBLEMS = {
    "token missing": problem(401, "send a token, with the header authorization: Bearer TOKEN"),
    "unknown model": problem(404, str(UnknownModel())),
    "unknown candidate": problem(404, str(UnknownCandidate(["logistic"]))),
    "body too slow": problem(408, "the body did not arrive within 10 seconds"),
    "body too large": problem(413, f"the body is larger than {16 << 20} bytes"),
    "not JSON": problem(415, NOT_JSON),
    "encoded": problem(415, ENCODED),
    "bad body": problem(422, 'feature "age" is not a finite number', Fault("/features/age", "not-finite")),
    "bad parameter": problem(422, "?top= must be at least 1, got less", Fault("?top", "out-of-range")),
    "unknown parameter": problem(
        422, "'candidat': there is no such parameter: perhaps candidate", Fault("?candidat", "unknown-parameter")
    ),
    "defect": problem(500, "the service failed on this request; its log says why"),
    "no snapshot yet": problem(503, "the model has no snapshot yet"),
    "not ready": problem(503, "not every model can answer yet, or the service is shutting down"),
    "too busy": problem(503, "too many requests at a time"),
    "Redis away": problem(503, "the snapshot store does not answer"),
}
"""Each problem that a route may name among its `responses`, as it answers it at the defaults: any can have a defect."""
METRICS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the answer",
        "content": {"text/plain": {"example": 'perceptron_events_total{model="churn"} 40000.0\n'}},
    }
}
SHOWN = 5
"""Names of models in a summary; all of them are the values that its parameter may have."""
LOOKED_AT = 20
"""Names of which two that are no categories become an example."""
_REF = "#/components/schemas/{name}"
_NUMBER = {"type": "number", "minimum": -MAX_VALUE, "maximum": MAX_VALUE}


def responses(answers: Sequence[type[msgspec.Struct]], *names: str) -> dict[int | str, dict[str, Any]]:
    """A route's `responses`: its answer is one of these, and these of PROBLEMS are those that it can end with."""
    shapes, _ = msgspec.json.schema_components(answers, ref_template=_REF)
    shape = {"anyOf": list(shapes)} if len(shapes) > 1 else shapes[0]
    return {200: {"description": "the answer", "content": {"application/json": {"schema": shape}}}, **ending(*names)}


def ending(*names: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of these PROBLEMS, and of a defect, which any route can have."""
    (shape,), _ = msgspec.json.schema_components([Problem], ref_template=_REF)

    def told(names: Sequence[str]) -> dict[str, Any]:
        examples = {name: {"value": msgspec.to_builtins(PROBLEMS[name])} for name in names}
        content = {"schema": shape, "examples": examples}
        return {"description": ", ".join(names), "content": {"application/problem+json": content}}

    by_status = groupby(names, lambda name: PROBLEMS[name].status)
    return {"default": told(["defect"]), **{status: told(list(those)) for status, those in by_status}}


def _example(schema: Any, shapes: Any) -> Any:
    """What always stands there, of what its parts have for examples."""
    if schema.get("examples"):
        return schema["examples"][0]
    if "default" in schema:
        return schema["default"]
    if "$ref" in schema:
        return _example(shapes[schema["$ref"].rpartition("/")[2]], shapes)
    if "anyOf" in schema:
        return None if {"type": "null"} in schema["anyOf"] else _example(schema["anyOf"][0], shapes)
    if schema.get("type") == "boolean":
        return True
    if schema.get("type") == "array":
        return [_example(schema["items"], shapes)] if schema.get("items") else []
    parts, needed = schema.get("properties", {}), schema.get("required", [])
    return {name: _example(one, shapes) for name, one in parts.items() if name in needed or "default" in one}


def described(document: dict[str, Any], answers: Iterable[Any]) -> dict[str, Any]:
    """A document with the schemas of these answers, of what they are made of, and an example of each.

    FastAPI would leave out of an example what is null.
    """
    _, schemas = msgspec.json.schema_components([Problem, *answers], ref_template=_REF)
    for route in (route for routes in document["paths"].values() for route in routes.values()):
        if content := route["responses"]["200"]["content"].get("application/json"):
            shapes = content["schema"].get("anyOf", [content["schema"]])
            content["examples"] = {one["$ref"].split("/")[-1]: {"value": _example(one, schemas)} for one in shapes}
    components = document.get("components", {})
    return document | {"components": components | {"schemas": components.get("schemas", {}) | schemas}}


def following(document: dict[str, Any], models: Iterable[Any], max_instances: int) -> Callable[[], dict[str, Any]]:
    """`/openapi.json`: the document of the routes, its requests of the kinds that there are `models` of by now.

    What one kind of model takes another refuses. So where there are several kinds, the one of most models has the route
    as it stands, which says of which models, and each model of another kind has a path of its own.
    """

    def openapi() -> dict[str, Any]:
        kinds: dict[str, list[Any]] = {}
        for model in models:
            if model.answering is not None:
                kinds.setdefault(repr(_body(model.answering.learner.identity, max_instances)), []).append(model)
        alike, *others = sorted(kinds.values(), key=len, reverse=True) or [[]]
        components = document.get("components", {})
        shapes = components.get("schemas", {}) | _values(Identity())
        for model in models:
            if model.answering is not None:
                shapes |= _values(model.answering.learner.identity)
        operation = document["paths"][PREDICT]["post"]
        name, *parameters = operation["parameters"]
        first = _of(alike[0], operation, max_instances) if alike else operation | _body(None, max_instances)
        paths = document["paths"] | {PREDICT: {"post": first}}
        if others:
            names = [model.name for model in alike]
            only = name | {"schema": name["schema"] | {"enum": names}}
            said = f"{operation['summary']}: {', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}"
            paths[PREDICT]["post"] |= {"parameters": [only, *parameters], "summary": said}
        for model in (model for kind in others for model in kind):
            its = {"operationId": f"{operation['operationId']}_{model.name}", "parameters": parameters}
            path = PREDICT.replace("{name}", quote(model.name, safe=""))
            paths[path] = {"post": _of(model, operation, max_instances) | its}
        return document | {"paths": paths, "components": components | {"schemas": shapes}}

    return openapi


def _of(model: Any, operation: dict[str, Any], max_instances: int) -> dict[str, Any]:
    """The operation with examples of this model: features and one of the labels that it knows, and its name."""
    identity, columns = model.answering.learner.identity, model.answering.learner.columns
    known = map(columns.name_of, range(1, min(len(columns), LOOKED_AT))) if identity.features == "named" else ()
    numbers = dict.fromkeys([name for name in known if "=" not in name][:2], 1.5)
    label = {"label": (identity.labels or (-1, 1))[-1]}

    def own(value: dict[str, Any]) -> dict[str, Any]:
        many = {"predictions": [one | label for one in value["predictions"]]} if "predictions" in value else label
        return value | {"model": model.name} | many

    answers = operation["responses"]["200"]
    content = answers["content"]["application/json"]
    examples = {name: {"value": own(one["value"])} for name, one in content["examples"].items()}
    told = answers | {"content": {"application/json": content | {"examples": examples}}}
    return operation | {"responses": operation["responses"] | {"200": told}} | _body(identity, max_instances, numbers)


def _body(identity: Identity | None, max_instances: int, known: Any = None) -> dict[str, Any]:
    """The `requestBody` of a prediction, with known features for an example: the handler reads the bytes itself."""
    features = _features(identity or Identity(), known)
    if identity is None:
        features = {"anyOf": [features, _features(Identity(features="positional", dimension=2), None)]}
    example = (features["anyOf"][0] if identity is None else features)["examples"][0]
    event = _event(features, example, parse_pointer((identity or Identity()).event.features))
    instance = {"type": "object", "required": ["features"], "properties": {"features": features}}
    parts = {
        "features": features,
        "instances": {"type": "array", "items": instance, "maxItems": max_instances},
        "event": event,
        "events": {"type": "array", "items": event, "maxItems": max_instances},
    }
    examples = [
        {"features": example},
        {"instances": [{"features": example}] * min(2, max_instances)},
        {"event": event["examples"][0]},
    ]
    one_of = [{"required": [name]} for name in parts]
    schema = {"type": "object", "properties": parts, "oneOf": one_of, "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _event(features: dict[str, Any], example: Any, inwards: Sequence[str]) -> dict[str, Any]:
    """A whole record, in which the features stand there."""
    schema, value = features, example
    for name in reversed(inwards):
        value = {name: value}
        schema = {"type": "object", "required": [name], "properties": {name: schema}, "examples": [value]}
    return schema


def _features(identity: Identity, known: Any) -> dict[str, Any]:
    if identity.features == "positional":
        count = identity.dimension or 0
        listed = [[0.3, 2.0][i % 2] for i in range(count)]
        return {"type": "array", "items": _NUMBER, "minItems": count, "maxItems": count, "examples": [listed]}
    event, limit = identity.event, identity.max_name_bytes
    page: Any = "/home" if identity.text != "reject" else 2
    example = known or {n: v for n, v in {"age": 31, "page": page}.items() if len(f"{n}={v}") <= limit}
    parts = [part for part in (event.label, event.weight, event.id) if part and part.startswith(f"{event.features}/")]
    # What a pattern leaves out may be anything, and so may another part of the event.
    anything = bool(event.only or event.without)
    return {
        "type": "object",
        "additionalProperties": {} if anything else {"$ref": _REF.format(name=_value_name(identity))},
        "properties": {parse_pointer(part)[len(parse_pointer(event.features))]: {} for part in parts},
        "description": f"at most {identity.max_features:,} values at any depth; a feature's name has at most {limit} "
        "bytes, with those around it and a string",
        "examples": [dict(list(example.items())[: identity.max_features])],
    }


def _value_name(identity: Identity) -> str:
    return f"Value_{identity.text}_{identity.max_name_bytes}"


def _values(identity: Identity) -> dict[str, Any]:
    """By its name, what a member of features may be: a schema that refers to itself."""
    kinds: list[dict[str, Any]] = [_NUMBER, {"type": "boolean"}]
    if identity.text != "reject":
        longest = {"maxLength": identity.max_name_bytes} if identity.text == "category" else {}
        kinds.append({"type": "string"} | longest)
    lists = [{"type": "array", "items": kind} for kind in kinds]
    inner = {"type": "object", "additionalProperties": {"$ref": _REF.format(name=_value_name(identity))}}
    return {_value_name(identity): {"anyOf": [*kinds, *lists, {"type": "null"}, inner]}}
