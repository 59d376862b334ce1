"""The parts of `/openapi.json` that FastAPI does not make of the routes: schemas of answers and requests, and examples.

The docstrings of a class and of its members are their descriptions. A test compares all of it with real answers.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

import msgspec

from service.errors import UnknownCandidate, UnknownModel
from service.learning.identity import MAX_VALUE
from service.serving.http.problems import UNAUTHORIZED, Fault, Problem, problem
from service.serving.http.request_bodies import NOT_GZIP, NOT_JSON, UNSUPPORTED_ENCODING

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
    "not gzip": problem(400, NOT_GZIP),
    "token missing": problem(401, UNAUTHORIZED),
    "unknown model": problem(404, str(UnknownModel())),
    "unknown candidate": problem(404, str(UnknownCandidate(["logistic"]))),
    "body too slow": problem(408, "the body did not arrive within 10 seconds"),
    "body too large": problem(413, f"the body is larger than {16 << 20} bytes"),
    "not JSON": problem(415, NOT_JSON),
    "encoded": problem(415, UNSUPPORTED_ENCODING),
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
"""The problems that a route may name among its `responses`, as it answers them with the default settings."""
METRICS_EXAMPLE = {"text/plain": {"example": 'perceptron_events_total{model="churn"} 40000.0\n'}}
_REF = "#/components/schemas/{name}"
NUMBER = {"type": "number", "minimum": -MAX_VALUE, "maximum": MAX_VALUE}


def responses(answers: Sequence[type[msgspec.Struct]], *names: str) -> dict[int | str, dict[str, Any]]:
    """A route's `responses`: its possible answers, and the names of PROBLEMS that it can end with."""
    shapes, _ = msgspec.json.schema_components(answers, ref_template=_REF)
    shape = {"anyOf": list(shapes)} if len(shapes) > 1 else shapes[0]
    return described_responses({"application/json": {"schema": shape}}, *names)


def described_responses(content: dict[str, Any], *names: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of these PROBLEMS, and of a defect, which is possible on any route."""
    (shape,), _ = msgspec.json.schema_components([Problem], ref_template=_REF)

    def problems_of(names: Sequence[str]) -> dict[str, Any]:
        examples = {name: {"value": msgspec.to_builtins(PROBLEMS[name])} for name in names}
        problem_content = {"schema": shape, "examples": examples}
        return {"description": ", ".join(names), "content": {"application/problem+json": problem_content}}

    by_status = groupby([name for name in PROBLEMS if name in names], lambda name: PROBLEMS[name].status)
    answer, defect = {"description": "the answer", "content": content}, problems_of(["defect"])
    return {200: answer, "default": defect, **{status: problems_of(list(group)) for status, group in by_status}}


def request_of(max_instances: int) -> dict[str, Any]:
    """The `requestBody` of a prediction. Which features a model takes depends on its settings, so this allows all."""
    features = {
        "description": "an object for a model of named or hashed features, a list of numbers for a positional one",
        "anyOf": [{"type": "object"}, {"type": "array", "items": NUMBER}],
    }
    event = {"type": "object", "description": "a whole record, with features where the model's settings say"}
    instance = {"type": "object", "required": ["features"], "properties": {"features": features}}
    members = {
        "features": features,
        "instances": {"type": "array", "items": instance, "maxItems": max_instances},
        "event": event,
        "events": {"type": "array", "items": event, "maxItems": max_instances},
    }
    example = {"features": {"age": 31, "page": "/home"}}
    examples = [example, {"instances": [example] * min(2, max_instances)}, {"event": example}]
    one_of = [{"required": [name]} for name in members]
    schema = {"type": "object", "properties": members, "oneOf": one_of, "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def with_schemas(document: dict[str, Any], answers: Sequence[Any]) -> dict[str, Any]:
    """FastAPI's document with the schemas of these answers and of problems, and an example of each answer.

    Answers are structs of msgspec, which FastAPI does not know. FastAPI would drop members that are null from examples.
    """
    _, schemas = msgspec.json.schema_components([Problem, *answers], ref_template=_REF)
    described = _described({answer.__module__ for answer in answers})
    for name, schema in schemas.items():
        for member, shape in schema.get("properties", {}).items():
            if text := described.get(name, {}).get(member):
                shape["description"] = text
    for route in (route for routes in document["paths"].values() for route in routes.values()):
        if content := route["responses"]["200"]["content"].get("application/json"):
            shapes = content["schema"].get("anyOf", [content["schema"]])
            content["examples"] = {one["$ref"].split("/")[-1]: {"value": _example(one, schemas)} for one in shapes}
    components = document.get("components", {})
    return document | {"components": components | {"schemas": components.get("schemas", {}) | schemas}}


def _described(modules: Iterable[str]) -> dict[str, dict[str, str]]:
    """The docstrings of members, by class and member, of all classes in these modules."""
    described: dict[str, dict[str, str]] = {}
    nodes = (node for name in modules for node in ast.parse(inspect.getsource(sys.modules[name])).body)
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            own = described[node.name] = {}
            for member, text in pairwise(node.body):
                match member, text:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(docstring))):
                        own[name] = " ".join(docstring.split())
    return described


def _example(schema: Any, shapes: Any) -> Any:
    """An example of a schema, made of the examples of its parts, without optional members."""
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
        return [_example(schema["items"], shapes)]
    parts, needed = schema.get("properties", {}), schema.get("required", [])
    return {name: _example(one, shapes) for name, one in parts.items() if name in needed or "default" in one}
