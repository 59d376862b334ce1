"""The parts of `/openapi.json` that FastAPI does not make of the routes: schemas of answers, problems and requests.

The docstrings of a class and of its members are their descriptions. A test compares all of it with real answers.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from service.learning.identity import MAX_VALUE
from service.serving.http.problems import Problem

INTRODUCTION = """
Each model learns one Kafka topic and has its name. `POST /v1/models/{name}/predict` asks it: with `features` of one
event, with `instances` of many, or with whole records as `event` or `events`. An answer says the `version` of the
snapshot that it is based on, and how many events were learned since then (`ahead`).

Every error is a problem document (RFC 9457) whose `errors` name each member at fault. No value that was sent is echoed.
With `http.token_file` each request needs the header `authorization: Bearer TOKEN`, except probes and page files.
"""
TAGS = [
    {"name": "predictions", "description": "Ask a model for predictions."},
    {"name": "records", "description": "Post events, and labels that come later."},
    {"name": "models", "description": "The weights, figures and kept versions of models."},
    {"name": "process", "description": "Probes for orchestrators, and metrics for Prometheus."},
]
_REF = "#/components/schemas/{name}"
_UNSTORED = {"schema": {"$ref": _REF.format(name="UnstoredProblem")}}
UNSTORED: dict[int | str, dict[str, Any]] = {
    503: {"description": "too busy, Kafka away", "content": {"application/problem+json": _UNSTORED}}
}
"""The response of a post whose records are not all stored."""
ID = {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "of the event"}
NUMBER = {"type": "number", "minimum": -MAX_VALUE, "maximum": MAX_VALUE}


def responses(problems: dict[int | str, str], *answers: type[msgspec.Struct]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: its answers, its problems (their names, by status), and a defect."""
    content: dict[str, Any] = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}
    described: dict[int | str, dict[str, Any]] = {}
    for status, names in (problems | {"default": "defect"}).items():
        described[status] = {"description": names, "content": content}
    if answers:
        schemas = [{"$ref": _REF.format(name=answer.__name__)} for answer in answers]
        schema = {"anyOf": schemas} if len(schemas) > 1 else schemas[0]
        described[200] = {"description": "the answer", "content": {"application/json": {"schema": schema}}}
    return described


def request_of(max_instances: int) -> dict[str, Any]:
    """The `requestBody` of a prediction. It allows all kinds of features, as a model's settings choose one."""
    features = {
        "description": "an object for a model of named or hashed features, a list of numbers for a positional one",
        "anyOf": [{"type": "object"}, {"type": "array", "items": NUMBER}],
    }
    event = {"type": "object", "description": "a whole record, with features where the model's settings say"}
    own_id = {"description": "of the event: a string or an integer if predictions are logged, and else not read"}
    instance = {"type": "object", "required": ["features"], "properties": {"features": features, "id": own_id}}
    members = {
        "features": features,
        "instances": {"type": "array", "items": instance, "maxItems": max_instances},
        "event": event,
        "events": {"type": "array", "items": event, "maxItems": max_instances},
    }
    example = {"features": {"age": 31, "page": "/home"}, "id": "r-17"}
    examples = [example, {"instances": [example] * min(2, max_instances)}, {"event": example}]
    one_of = [{"required": [name]} for name in members]
    schema = {"type": "object", "properties": members | {"id": own_id}, "oneOf": one_of, "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def posts_of(kind: str, max_records: int) -> dict[str, Any]:
    """The `requestBody` of a post of events or labels."""
    record: dict[str, Any] = {"type": "object", "description": "a whole record, as the model's settings say"}
    example: dict[str, Any] = {"id": "r-17", "features": {"age": 31}, "label": 1}
    if kind == "labels":
        label = {"anyOf": [{"type": name} for name in ("boolean", "number", "string", "null")]}
        record = {"type": "object", "required": ["id", "label"], "properties": {"id": ID, "label": label}}
        example = {"id": "r-17", "label": 1}
    many = {"type": "array", "items": record, "maxItems": max_records}
    listed = {"type": "object", "required": [kind], "properties": {kind: many}}
    schema = {"anyOf": [record, listed], "examples": [example, {kind: [example]}]}
    lines = {"schema": {"type": "string", "description": "a record in each line"}}
    content = {"application/json": {"schema": schema}, "application/x-ndjson": lines}
    return {"requestBody": {"required": True, "content": content}}


def with_schemas(document: dict[str, Any], answers: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    """FastAPI's document with the schemas of problems and of these answers: structs of msgspec, unknown to FastAPI."""
    _, schemas = msgspec.json.schema_components([Problem, *answers], ref_template=_REF)
    described = _described({answer.__module__ for answer in answers})
    for name, schema in schemas.items():
        for member, shape in schema.get("properties", {}).items():
            if text := described.get((name, member)):
                shape["description"] = text
    return document | {"components": {"schemas": schemas}}


def _described(modules: Iterable[str]) -> dict[tuple[str, str], str]:
    """The docstrings of members, by class and member, of all classes in these modules."""
    described: dict[tuple[str, str], str] = {}
    for module in modules:
        for node in ast.parse(inspect.getsource(sys.modules[module])).body:
            if isinstance(node, ast.ClassDef):
                for member, text in pairwise(node.body):
                    match member, text:
                        case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(docstring))):
                            described[node.name, name] = " ".join(docstring.split())
    return described
