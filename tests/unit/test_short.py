"""The short way to a prediction says what the long way says, and is gone where there is nothing odd."""

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.monitoring.metrics import Metrics
from service.serving.app import Limits, create_app
from service.serving.models import Models, given
from service.serving.openapi import PREDICT
from service.serving.short import MOST_KNOWN
from service.serving.tokens import Tokens
from service.snapshots.store import RedisStore
from tests.fuzz.requests import Answered, Asked, ask

BODY = b'{"features":{"a":2,"never seen":1}}'


class Served(NamedTuple):
    app: FastAPI
    metrics: Metrics
    route: APIRoute

    async def predict(self, query: str = "", path: str = "/v1/models/m/predict", **more: Any) -> Answered:
        asked = Asked("POST", path, query, b"application/json", BODY)
        return await ask(self.app, asked._replace(**more))

    def counted(self, code: str = "200") -> float:
        value = self.metrics.registry.get_sample_value(
            "perceptron_http_request_duration_seconds_count", {"route": PREDICT, "method": "POST", "code": code}
        )
        return value or 0.0


def serve(tokens: Tokens | None = None) -> Served:
    learner = Learner(Identity(labels=("x", "y", "z")))
    learner.add_candidate("other", Identity(labels=("x", "y", "z"), eta=0.5))
    learner.begin({0: 0})
    learner.apply(0, 0, [b'{"features":{"a":1},"label":"y"}', b'{"features":{"a":-1},"label":"x"}'])
    metrics, store = Metrics("0", list, lambda: True, dict), cast(RedisStore, None)
    limits = Limits(body_bytes=1000)
    models = Models([given("m", learner, 0.0)])
    app = create_app(models, metrics, lambda: True, lambda: False, store, limits, version="0", tokens=tokens)
    (route,) = [route for route in app.routes if isinstance(route, APIRoute) and route.path == PREDICT]
    return Served(app, metrics, route)


async def _missing(*_: Any) -> None:
    raise AssertionError("the long way was taken")


@pytest.mark.parametrize(
    "query",
    ["", "explain=true", "explain=no&top=1", "candidate=other", "candidate=none", "top=2&explain=%6eo", "top=2&top=1"],
)
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({}, 200),
        ({"body": b'{"features":{"a":"x"}'}, 422),
        ({"body": b" " * 1001}, 413),
        ({"media": b"text/plain"}, 415),
        ({"cut": True}, 400),
        ({"path": "/v1/models/none/predict"}, 404),
        ({"path": "/v1/models/%C3%A9%20/predict"}, 404),
    ],
)
async def test_a_query_that_is_known_is_answered_as_it_was_before(
    query: str, more: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And without the framework's routing: answers, refusals, and what is counted of each."""
    served = serve()
    long = await served.predict(query, **more)
    assert long.status == (404 if query == "candidate=none" else code)
    monkeypatch.setattr(served.route, "app", _missing)
    assert await served.predict(query, **more) == long
    assert served.counted(str(long.status)) == 2


async def test_a_query_that_is_refused_is_so_again() -> None:
    """And is never known."""
    served = serve()
    for query in ("top=0", "explain=perhaps", "top=x", "explian=true", "x=&top=1"):
        for _ in range(3):
            answered = await served.predict(query)
            assert answered.status == 422
            assert json.loads(answered.body)["errors"][0]["pointer"] == f"?{query.partition('=')[0]}"


async def test_other_paths_and_methods_go_the_long_way() -> None:
    served = serve()
    await served.predict()
    for path, code in (
        ("/v1/models/m", 405), ("/v1/models/m/weights", 405), ("/v1/modelsX/m/predict", 404),
        ("/v1/models/predict", 405), ("/v1/models//predict", 404), ("/predict", 404), ("/v1/models/m/predict/", 404),
        ("/v1/models/a/b/predict", 404), ("/v1/models/a%2Fb/predict", 404),
    ):  # fmt: skip
        assert (await served.predict(path=path)).status == code, path
    assert (await served.predict(method="GET")).status == 405


async def test_queries_without_end_are_not_kept() -> None:
    served = serve()
    for i in range(3 * MOST_KNOWN):
        assert (await served.predict(f"top={i}&top=1")).status == 200
    assert (await served.predict("top=" + "0" * 5000 + "&top=1")).status == 200
    assert served.counted() == 3 * MOST_KNOWN + 1
    assert (await served.predict()).status == 200


async def test_a_defect_is_a_problem_and_goes_on_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve()
    for _ in range(2):
        before = await served.predict()
        assert before.status == 200
    monkeypatch.setattr(Learner, "score", lambda *_: 1 / 0)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": BODY}

    scope = {"type": "http", "method": "POST", "path": "/v1/models/m/predict", "query_string": b"", "headers": []}
    with pytest.raises(ZeroDivisionError):
        await served.app(scope, receive, send)
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["detail"] == "the service failed on this request; its log says why"
    assert served.counted("500") == 1


async def test_the_short_way_needs_a_token_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").write_text("token-0123456789abcd\n")
    served = serve(Tokens(str(tmp_path / "tokens")))
    assert (await served.predict()).status == 401
    for token, code in (("token-0123456789abcd", 200), ("token-0123456789abcd", 200), ("another", 401)):
        transport, headers = httpx.ASGITransport(served.app), {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http:
            assert (await http.post("/v1/models/m/predict", json={"features": {}})).status_code == code
        monkeypatch.setattr(served.route, "app", _missing)
