"""What FastAPI does not make of `/openapi.json`: schemas of answers, problems and requests; and its page at `/docs`.

The docstrings of a class and of its members are their descriptions. A test compares all of it with real answers.

The service serves the files of Swagger UI itself: FastAPI's own page loads them from elsewhere. The page's
Content-Security-Policy names everything that it may load, so that text it shows cannot run as code.
"""

import ast
import base64
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from service.serving.page.page import POLICY

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
_FILES = "static-offline-docs"  # links are relative, so that a proxy may serve the page under a prefix
FORMATS = {"integer": "int64", "number": "double"}
"""Without them generated clients have numbers of 32 bits."""


def responses(
    problems: dict[int | str, str], answer: type[msgspec.Struct] | None = None, examples: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: its answer, its problems (their names, by status), and a defect."""
    content: dict[str, Any] = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}
    every = problems | {"default": "defect"}
    described = {status: {"description": names, "content": content} for status, names in every.items()}
    if answer:
        described[200] = {"description": "the answer", "content": _json(answer, examples)}
    return described


def request_body(request: type[msgspec.Struct], examples: dict[str, Any], *, ndjson: bool = False) -> dict[str, Any]:
    """The `requestBody` of a route; `ndjson` allows a record in each line too."""
    lines = {"application/x-ndjson": {"schema": {"type": "string", "description": "a record in each line"}}}
    content = _json(request, examples) | (lines if ndjson else {})
    return {"requestBody": {"required": True, "content": content}}


def _json(struct: type[msgspec.Struct], examples: dict[str, Any] | None) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": {"$ref": _REF.format(name=struct.__name__)}}
    if examples:
        media["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"application/json": media}


def with_schemas(document: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's document with the schemas that it names: structs of msgspec in this namespace, unknown to FastAPI."""
    names = dict.fromkeys(re.findall(_REF.format(name=r"(\w+)"), json.dumps(document)))
    structs = [namespace[name] for name in names]
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    schemas = json.loads(json.dumps(schemas), object_hook=_simplify)
    schemas["EventsRequest"]["additionalProperties"] = True  # an event has any members
    described = _described({struct.__module__ for struct in structs})
    for name, schema in schemas.items():
        for member, shape in schema.get("properties", {}).items():
            if text := described.get((name, member)):
                shape["description"] = text
    components = {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    return document | {"components": components, "security": [{}, {"token": []}]}


def _simplify(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema in terms that generators of clients know: no tuples and no defaults; a union of types is any value.

    An answer may have more members in a later release, which a client of this one ignores.
    """
    schema.pop("default", None)
    if "prefixItems" in schema:  # the values of each of our tuples have one type
        schema["items"] = schema.pop("prefixItems")[0]
    if len([choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]) > 1:
        del schema["anyOf"]
    match schema:
        case {"type": ("integer" | "number") as kind}:
            schema["format"] = FORMATS[kind]
        case {"additionalProperties": False}:
            del schema["additionalProperties"]
    return schema


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


def install_swagger_ui(app: FastAPI) -> None:
    """Serve Swagger UI at `/docs`."""
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
