"""Mutated requests to the application in process, against the judge: `python -m tests.fuzz.requests 100000 [SEED]`.

It asserts for each: a response, never 500, with a status and a schema in `/openapi.json`; JSON without NaN, or a
problem document; 200 if and only if the judge accepts the body; and then the score is w·x over the judge's features,
bit for bit.
"""

import asyncio
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from jsonschema import Draft202012Validator

from service.learning.learner import Learner
from service.serving.http.app import Application
from service.serving.models import static_model
from service.serving.predictions import LARGE_BODY_BYTES
from service.settings.connections import HttpSettings
from tests import formulas
from tests.fuzz import judge
from tests.fuzz.events import IDENTITIES, event, features, learn_slices, placed, record
from tests.fuzz.texts import Texts
from tests.oracle import standard
from tests.unit.applications import serving

LIMITS = HttpSettings(max_body_bytes=LARGE_BODY_BYTES + 2000, max_instances=4)
PARAMETERS = ("top", "names", "limit", "cursor", "explain", "Top", "")
VALUES = (
    "", "0", "1", "2", "10", "-1", "10000", "10001", "1e3", "1.0", "true", "false", "yes", "no", "on", "off", "null",
    "NaN", "9" * 30, "9" * 5000,
    "0x1", " 1", "1 ", "a", "a,b", ",", ",,,", "0,1,2,99999999999", "é", "\ufffd", "\0", "١",
)  # fmt: skip
TRUE_TEXTS, FALSE_TEXTS = {"1", "true", "yes", "on", "t", "y"}, {"0", "false", "no", "off", "f", "n"}
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "X")
MEDIA = (
    b"application/json", b"application/json; charset=utf-8", b"APPLICATION/JSON", b"application/problem+json", b"",
    b"text/plain", b"json", b"\xff\xfe", b";", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x",
)  # fmt: skip


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: str
    media: bytes | None
    body: bytes
    cut: bool = False
    """Whether the client disconnects before the end of the body."""


class HttpResponse(NamedTuple):
    status: int
    media: str
    body: bytes


class _NoStore:
    async def kept(self, *_: Any) -> list[Any]:
        return []


def application() -> tuple[Application, list[Learner]]:
    """The application with one model of each identity, which has learned mutated events. Their names are m0, m1, …"""
    learners = []
    for i, identity in enumerate(IDENTITIES):
        texts = Texts(Random(i))
        learner, _ = learn_slices(identity, [record(texts, identity) for _ in range(100)], [(0, 100)])
        learner.main.diverged = None  # the records at which it diverged were skipped
        learners.append(learner)
    models = [static_model(f"m{i}", learner, 0.0) for i, learner in enumerate(learners)]
    return serving(*models, store=_NoStore(), http=LIMITS), learners


async def ask(app: Application, request: HttpRequest, body_parts: Iterable[bytes] = ()) -> HttpResponse:
    """Send a request to the application as uvicorn does; returns its response."""
    chunks = list(body_parts) or [request.body]
    messages: list[Any] = [{"type": "http.request", "body": c, "more_body": True} for c in chunks]
    messages += [{"type": "http.disconnect"}] if request.cut else [{"type": "http.request", "body": b""}]
    replies: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        replies.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method, "scheme": "http",
        "path": unquote(request.path), "raw_path": request.path.encode(), "query_string": request.query.encode(),
        "root_path": "", "headers": [] if request.media is None else [(b"content-type", request.media)],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    await app(scope, receive, send)
    headers = dict(replies[0]["headers"])
    body = b"".join(message.get("body", b"") for message in replies[1:])
    return HttpResponse(replies[0]["status"], headers.get(b"content-type", b"").decode(), body)


def body(texts: Texts, learner: Learner) -> bytes:
    """The body of a request for this model, sometimes with an unusual part."""
    chance, random = texts.chance, texts.random
    as_event = chance(0.3)

    def instance() -> str:
        if as_event:
            raw = record(texts, learner.identity) if chance(0.1) else event(texts, learner.identity)
            return (raw or b"").decode(errors="surrogateescape")
        members_ = [("features", features(texts, learner.identity))]
        if chance(0.05):
            members_.append((texts.name(), texts.value()))
        return texts.object(members_) if chance(0.98) else texts.value()

    if chance(0.5):
        members = [("event", instance())] if as_event else [("features", features(texts, learner.identity))]
    else:
        rows = [instance() for _ in range(random.choice((0, 1, 2, 3, 4, 5)))]
        members = [("events" if as_event else "instances", texts.list(rows) if chance(0.98) else texts.value())]
    if chance(0.1):
        members.append((texts.name(), texts.value()))
    if chance(0.02):
        members.pop()
    random.shuffle(members)
    text = texts.object(members) + texts.space()
    raw = texts.mutate(text.encode(errors="surrogateescape" if as_event else "surrogatepass"))
    return texts.mark(raw) if chance(0.995) else raw + b" " * random.choice((LARGE_BODY_BYTES, LIMITS.max_body_bytes))


def random_request(texts: Texts, learners: list[Learner]) -> tuple[HttpRequest, int]:
    """A request, and the number of its model."""
    chance, random = texts.chance, texts.random
    i = random.randrange(len(learners))
    name = f"m{i}" if chance(0.97) else quote(texts.name() or "x", safe="")
    pairs = []
    predicts = chance(0.7)
    if chance(0.3 if predicts else 0.7):
        key = "explain" if predicts and chance(0.8) else random.choice(PARAMETERS)
        value = random.choice(("true", "1", "false")) if predicts and chance(0.5) else random.choice(VALUES)
        pairs = [(key, value)] * random.choice((1, 1, 1, 2))
        if chance(0.3):
            pairs.append((random.choice(PARAMETERS), random.choice(VALUES)))
    query = "&".join(f"{k}={quote(v)}" for k, v in pairs)
    if chance(0.02):
        query += random.choice(("&", "=", "%", "%zz", "%ff", "&&=&", "explain", "top=%ed%a0%80", "explain[]=1"))
    media = b"application/json" if chance(0.95) else random.choice((None, *MEDIA))
    if predicts:
        method = "POST" if chance(0.98) else random.choice(METHODS)
        raw = body(texts, learners[i])
        return HttpRequest(method, f"/v1/models/{name}/predict", query, media, raw, chance(0.01)), i
    path = random.choice(("", "/weights", "/weights", "/weights", "/versions", "/predict", "/", "/nothing", "//"))
    path = f"/v1/models/{name}{path}"
    if chance(0.1):
        path = random.choice(("/v1/models", "/livez", "/readyz", "/openapi.json", "/v1", "/v1/models/", "/%00", "/%ff"))
    method = "GET" if chance(0.9) else random.choice(METHODS)
    return HttpRequest(method, path, query, media, b"" if chance(0.9) else body(texts, learners[i])), i


def strict(raw: bytes) -> Any:
    """Parse JSON strictly: NaN and infinities raise ValueError."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    return json.loads(raw.decode(), parse_constant=refuse)


def score(learner: Learner, row: judge.Features) -> tuple[float, int]:
    """w·x in record order, and the number of features without a weight."""
    pairs, unknown, sums = list[tuple[int, float]](), 0, learner.arrays
    for i, item in enumerate(row):
        column, value = placed(learner.identity, list(learner.columns.names), i, item)
        if column is None:
            unknown += 1
            continue
        if "m2" in sums and isinstance(value, float):
            own = [float(sums[name][column]) for name in ("count", "mean", "m2")]
            value = standard(value, own, learner.identity.clip or None)
        pairs.append((column, value))
    return formulas.score(learner.main.weights.tolist(), judge.merged(pairs)), unknown


def expected(request: HttpRequest, learner: Learner, model_exists: bool) -> tuple[set[int], list[judge.Features], bool]:
    """The statuses that a prediction may get; if 200 is one, its instances, and whether they are in a list."""
    explain = {p.partition("=")[2].lower() for p in request.query.split("&") if p.startswith("explain")}
    top = {p.partition("=")[2] for p in request.query.split("&") if p.startswith("top")}
    if {p.partition("=")[0] for p in request.query.split("&") if p} - {"explain", "top", "candidate"}:
        return {422} if model_exists else {404, 422}, [], False  # a model called "/" is another path
    flags = TRUE_TEXTS | FALSE_TEXTS
    strange = "%" in request.query or len(explain) > 1 or not explain <= flags or not top <= {"1", "2", "10"}
    if not model_exists:
        return {404, 422}, [], False
    media = (request.media if request.media is not None else b"application/json").decode("latin-1").split(";")[0]
    media = media.strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        return {415, 422} if strange else {415}, [], False
    if request.cut:
        return {400, 413, 422}, [], False
    if len(request.body) > LIMITS.max_body_bytes:
        return {413, 422} if strange else {413}, [], False
    rows, is_list, faults = judge.request(request.body, learner.identity, LIMITS.max_instances)
    if not faults:
        faults = {"not-finite"} if not all(math.isfinite(score(learner, row)[0]) for row in rows) else set()
    if faults:
        return {422}, [], False
    return {200, 422} if strange else {200}, rows, is_list


def closed(schema: Any) -> Any:
    """A schema that allows only the members that it describes."""
    return {"additionalProperties": False} | schema if "properties" in schema else schema


def check_documented(document: Any, request: HttpRequest, status: int, media: str, value: Any) -> None:
    """Raise an error if `/openapi.json` has another schema for the response, or does not have its status."""
    for path, routes in document["paths"].items():
        route = routes.get(request.method.lower())
        if route and re.fullmatch(re.sub(r"{\w+}", "[^/]+", path), request.path):
            schema = route["responses"][str(status)]["content"][media]["schema"]
            Draft202012Validator(schema | {"components": document["components"]}).validate(value)


def check(document: Any, request: HttpRequest, response: HttpResponse) -> None:
    """Raise an error if the response is not as documented."""
    status, media, raw = response
    assert status < 500, status
    value = strict(raw)
    check_documented(document, request, status, media, value)
    if status >= 400:
        assert media == "application/problem+json"
        assert set(value) == {"type", "title", "status", "detail", "errors"}
        assert value["status"] == status
        assert "\n" not in value["detail"]
        return
    assert (status, media) == (200, "application/json")
    assert b":null" not in raw.replace(b'"next":null', b"") or not request.path.endswith(("/predict", "/weights"))


def check_prediction(request: HttpRequest, response: HttpResponse, learner: Learner, model_exists: bool) -> None:
    """Raise AssertionError if a prediction is not what the judge expects."""
    statuses, rows, is_list = expected(request, learner, model_exists)
    assert response.status in statuses, f"{response.status} instead of {statuses}"
    if response.status != 200:
        return
    value = json.loads(response.body)
    answers = value["predictions"] if is_list else [value]
    assert len(answers) == len(rows)
    identity = learner.identity
    for answer, row in zip(answers, rows, strict=True):
        s, unknown = score(learner, row)
        assert (answer["score"], answer["unknown_features"]) == (s, unknown)
        positive = s > 0.0 or (s == 0.0 and identity.tie == "positive")
        label = (identity.labels or (-1, 1))[positive]
        assert json.dumps(answer["label"]) == json.dumps(label)
        for term in answer.get("contributions", ()):
            assert term["product"] == term["weight"] * term.get("scaled", term["value"])


async def fuzz(requests: int, seed: int = 0) -> Counter[int]:
    """Send this many requests of one seed; returns the number of responses by status."""
    app, learners = application()
    document = json.loads(json.dumps(app.api.openapi()), object_hook=closed)
    texts, counts = Texts(Random(seed)), Counter[int]()
    for _ in range(requests):
        request, i = random_request(texts, learners)
        model_exists = request.path.startswith(f"/v1/models/m{i}/")
        half = texts.random.randint(0, len(request.body))
        try:
            response = await ask(app, request, [request.body[:half], request.body[half:]])
            check(document, request, response)
            if request.path.endswith("/predict") and request.method == "POST" and request.path.count("/") == 4:
                check_prediction(request, response, learners[i], model_exists)
        except Exception as error:
            error.add_note(f"seed {seed}, {learners[i].identity}: {request}")
            raise
        counts[response.status] += 1
    return counts


if __name__ == "__main__":
    began, counted = time.perf_counter(), asyncio.run(fuzz(*map(int, sys.argv[1:])))
    took = time.perf_counter() - began
    print(f"{counted.total()} requests in {took:.0f} s, 0 violations: {dict(counted.most_common())}")
