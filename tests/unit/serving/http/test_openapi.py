"""The examples of docs/api.md: answers have their schema, and problems are what each route answers, word for word."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest

from service.embedded.servers import free_port
from service.learning.identity import Identity
from service.learning.options import CandidateOptions, Options
from service.serving.http.problems import Fault, Problem
from service.serving.models import Model, static_model
from service.serving.posting import Posting
from service.settings.connections import HttpSettings
from service.settings.model import ModelSettings
from service.snapshots.head import KeptVersion
from service.snapshots.redis.store import RedisStore
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.topic_writer import TopicWriter
from tests.checks import learner_of
from tests.unit.applications import serving
from tests.unit.test_docs import GENERATOR

JSON = {"content-type": "application/json"}
HTTP = HttpSettings()
BODY_SECONDS = 0.05
"""The time for a body in these tests; the example says ten seconds."""


async def stalled_body() -> AsyncIterator[bytes]:
    """A body that never ends."""
    yield b"{"
    await asyncio.Event().wait()


REQUESTS: dict[str, dict[str, Any]] = {
    "token missing": {"settings": {"token_file": "tokens"}},
    "unknown model": {"name": "none"},
    "unknown candidate": {"params": {"candidate": "none"}},
    "body too slow": {"content": stalled_body, "settings": {"body_timeout": BODY_SECONDS}},
    "body too large": {"content": b" " * (HTTP.max_body_bytes + 1)},
    "not JSON": {"headers": {"content-type": "text/csv"}},
    "encoded": {"headers": {"content-encoding": "br"}},
    "not gzip": {"headers": {"content-encoding": "gzip"}},
    "bad body": {"content": b'{"features": {"age": NaN}}'},
    "bad parameter": {"params": {"top": 0}},
    "unknown parameter": {"params": {"candidat": "logistic"}},
    "no snapshot yet": {"name": "new"},
    "not ready": {"ready": False},
    "too busy": {"settings": {"max_in_flight": 0}},
    "Redis away": {},
    "Kafka away": {"content": b'{"id": "a", "label": 1, "features": {}}'},
    "no ingest tokens": {"settings": {"host": "0.0.0.0"}},  # noqa: S104 - not bound
    "no join": {"joins": False},
    "bad record": {"content": b'{"id": "a", "label": 7, "features": {}}'},
    "defect": {"store": None},
}
"""The settings and the request for which the answer is the problem of this name."""
FAULTS = {
    "bad body": [Fault("/features/age", "not-finite")],
    "bad parameter": [Fault("?top", "out-of-range")],
    "unknown parameter": [Fault("?candidat", "unknown-parameter")],
    "bad record": [Fault("/label", "unknown-label")],
}
WITH_KAFKA = {"unknown topic"}
"""Problems that tests/integration/test_posts.py shows."""


async def test_each_problem_is_what_its_route_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens").write_text("token-0123456789")
    options = Options(candidates={"logistic": CandidateOptions(Identity(rule="logistic-delta"))})
    model = static_model("learned", learner_of(Identity(), (), options), 0.0)
    assert model.answering is not None
    model.answering.head.kept.append(KeptVersion(1, 0.0))  # so that the route reads it from Redis
    redis = RedisStore(f"redis://127.0.0.1:{free_port()}")

    nothing_there = f"127.0.0.1:{free_port()}"
    writer = TopicWriter(Cluster(nothing_there), "topic", create=False, warn=lambda _: None)
    joined = ModelSettings(labels=(0, 1), join={"window": "1m"}).identity()

    async def answer(
        method: str, path: str, ready: bool = True, store: Any = redis, name: str = "learned", settings: Any = None,
        params: Any = None, content: Any = b'{"features": {}}', headers: Any = JSON, joins: bool = True,
    ) -> httpx.Response:  # fmt: skip
        postings = {"learned": Posting(joined, writer, writer if joins else None)}
        http = HTTP.model_copy(update=settings)
        app = serving(model, Model("new"), posting_of=postings.get, http=http, ready=ready, store=store)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            content = content() if callable(content) else content
            body = {"content": content, "headers": headers} if method == "post" else {}
            return await client.request(method, re.sub("{(name|model)}", name, path), params=params, **body)

    names = set()
    for path, routes in serving().api.openapi()["paths"].items():
        for method, route in routes.items():
            for status, documented in route["responses"].items():
                for name in documented["description"].split(", "):
                    if status == "200" or (name == "defect" and "versions" not in path) or name in WITH_KAFKA:
                        continue  # nothing here makes another route fail
                    if name == "no join" and "labels" not in path:
                        continue
                    response = await answer(method, path, **REQUESTS[name])
                    code = 500 if status == "default" else int(status)
                    detail = GENERATOR["DETAILS"][name].replace("10 seconds", f"{BODY_SECONDS} seconds")
                    detail = detail.replace("localhost:9092", nothing_there)
                    problem = Problem("about:blank", response.reason_phrase, code, detail, FAULTS.get(name, []))
                    document = json.loads(response.content)
                    assert document.pop("records", [None]) == [None]
                    received = msgspec.convert(document, Problem)
                    assert (response.status_code, received) == (code, problem), (path, name)
                    assert response.headers["content-type"] == "application/problem+json"
                    names.add(name)
    assert names == set(GENERATOR["DETAILS"]) - WITH_KAFKA


def test_each_answer_has_an_example_that_fits_its_schema() -> None:
    document = json.loads(json.dumps(serving().api.openapi()))
    count = 0
    for routes in document["paths"].values():
        for route in routes.values():
            assert route["tags"][0] in {tag["name"] for tag in document["tags"]}
            if content := route["responses"]["200"]["content"].get("application/json"):
                schema = content["schema"]
                examples = [item["value"] for item in content.get("examples", {}).values()]
                for example in examples or [GENERATOR["example"](schema, document["components"]["schemas"])]:
                    jsonschema.validate(example, schema | {"components": document["components"]})
                    count += 1
    assert count == 11
