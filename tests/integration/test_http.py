"""The HTTP surface, asked as a client would, wrong requests included."""

import asyncio
import contextlib
import json
import re
import socket
from typing import Any

import httpx
import jsonschema
import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.errors import ConfigurationError
from service.process.http import bind
from tests.conftest import Run, Running, create_topic, event, wait

SETTINGS = '[http]\nmax_body_bytes = 5000\nmax_instances = 3\n[model]\nlabels = ["stay", "leave"]\nmax_features = 5\n'
EVENTS = [event({"age": 0.3, "clicks": 2}, "leave"), event({"age": 1.0}, "stay"), b"bad"]


@pytest.fixture
async def service(run: Run, producer: AIOKafkaProducer, topic: str) -> Running:
    started = await asyncio.to_thread(run(SETTINGS).up)
    for raw in EVENTS:
        await producer.send(topic, raw)
    await producer.flush()
    await asyncio.to_thread(started.wait_for, len(EVENTS))
    return started


async def test_every_answer_has_the_fields_it_promises(service: Running, topic: str) -> None:
    """One service, asked everything: SURFACE's names are fixed."""
    http = service.http
    one = service.predict({"features": {"clicks": 2, "unseen": 1}}).json()
    assert one == {
        "model": topic,
        "version": one["version"],
        "ahead": 0,
        "label": "leave",
        "score": 4.0,
        "unknown_features": 1,
    }
    many = service.predict({"instances": [{"features": {}}, {"features": {"age": 10}}]}).json()
    assert set(many) == {"model", "version", "ahead", "predictions"}
    # After "leave" w = [1, .3, 2]; "stay" scores 1.3, a mistake: w = [0, -.7, 2].
    assert [(p["label"], p["score"]) for p in many["predictions"]] == [("stay", 0.0), ("stay", -7.0)]
    assert service.predict({"instances": []}).json()["predictions"] == []

    models = http.get("/v1/models").json()["models"]
    assert [m["model"] for m in models] == [topic]
    assert set(models[0]) == {"model", "rule", "features", "version", "events", "mistakes", "learning_here"}
    about = service.model()
    assert set(about) >= {
        "model", "identity", "version", "ahead", "order", "next", "covered", "events", "mistakes", "wrong_predictions",
        "updates", "rejected", "ignored_features", "skipped", "columns", "scaled_columns", "squared_norm",
        "squared_norm_limit", "bound", "bound_reason", "digest", "state_digest", "saved_at", "learning_here", "stopped",
    }  # fmt: skip
    assert (about["order"], about["next"], about["covered"]) == ("log", {"0": 3}, {"0": [[0, 3]]})
    assert (about["events"], about["mistakes"], about["rejected"]) == (2, 2, {"not-json": 1})
    assert (about["learning_here"], about["stopped"]) == (True, None)
    assert about["bound"] is None or about["bound"] >= about["updates"]
    assert (about["bound"] is None) == (about["bound_reason"] is not None)
    assert about["confusion"] == [[0, 1], [1, 0]]

    names = http.get(f"/v1/models/{topic}/weights").json()
    assert names == {
        "bias": 0.0,
        "weights": [{"name": "age", "column": 1, "weight": -0.7}, {"name": "clicks", "column": 2, "weight": 2.0}],
        "next": None,
    }
    first = http.get(f"/v1/models/{topic}/weights?limit=1").json()
    assert first["next"] == "2"
    assert http.get(f"/v1/models/{topic}/weights?limit=1&cursor=2").json()["weights"][0]["name"] == "clicks"
    assert http.get(f"/v1/models/{topic}/weights?top=1").json()["weights"][0]["name"] == "clicks"
    assert [w["name"] for w in http.get(f"/v1/models/{topic}/weights?names=clicks,none").json()["weights"]] == [
        "clicks"
    ]
    assert http.get(f"/v1/models/{topic}/weights?top=1&names=").json()["weights"] == []
    assert http.get("/livez").json() == {"live": True}
    assert http.get("/readyz").json() == {"ready": True}
    assert "/v1/models/{name}/predict" in http.get("/openapi.json").json()["paths"]
    metrics = service.metrics()
    assert metrics[f'perceptron_events_total{{model="{topic}"}}'] == 2
    assert metrics[f'perceptron_predictions_total{{label="leave",model="{topic}"}}'] == 1
    route = 'route="/v1/models/{name}/predict"'
    assert metrics[f'perceptron_http_request_duration_seconds_count{{code="200",method="POST",{route}}}'] == 3


async def test_answers_have_the_shapes_that_openapi_shows(service: Running, topic: str) -> None:
    """Every JSON route's answer is validated against the schema of its documentation; examples too."""
    http, document = service.http, service.http.get("/openapi.json").json()
    bodies: list[Any] = [{"features": {"age": 1}}, {"instances": [{"features": {"age": 1}}]}]
    asked = 0
    for path, routes in document["paths"].items():
        for method, route in routes.items():
            if path == "/metrics":
                continue
            url = path.replace("{name}", topic)
            schema = route["responses"]["200"]["content"]["application/json"]["schema"]
            for body in bodies if method == "post" else [None]:
                for query in ("", "?explain=true") if body else ("",):
                    answer = http.request(method, url + query, json=body)
                    assert answer.status_code == 200, url
                    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
                    asked += 1
    assert asked == 11
    request = document["paths"]["/v1/models/{name}/predict"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    for body in [*bodies, *request["examples"]]:
        jsonschema.validate(body, {**request, "components": document["components"]})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"instances": [{"features": "x"}]}, request)
    docs = http.get("/docs")
    assert docs.status_code == 200
    assert "http" not in docs.text.replace("http-equiv", ""), "no address but our own"
    for asset in re.findall(r'(?:src|href)="(/[^"]+)"', docs.text):
        assert http.get(asset).status_code == 200


async def test_explain_adds_up_to_the_score(service: Running, topic: str) -> None:
    url = f"/v1/models/{topic}/predict?explain=true"
    answer = service.http.post(url, json={"features": {"age": 2, "clicks": 3, "unseen": 9}}).json()
    assert answer["contributions"] == [
        {"name": "clicks", "value": 3.0, "weight": 2.0, "product": 6.0},
        {"name": "age", "value": 2.0, "weight": -0.7, "product": -1.4},
        {"name": "bias", "value": 1.0, "weight": 0.0, "product": 0.0},
    ]
    assert answer["score"] == sum(c["product"] for c in answer["contributions"])
    assert answer["unknown_features"] == 1


def test_before_its_first_event_a_model_answers_as_it_begins(run: Run, topic: str) -> None:
    service = run('[model]\ntie = "positive"\n').up()
    answer = {"model": topic, "version": 1, "ahead": 0, "label": 1, "score": 0.0, "unknown_features": 1}
    assert service.predict({"features": {"a": 1}}).json() == answer
    assert service.model()["events"] == 0


async def test_kept_versions_are_listed(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    service = await asyncio.to_thread(run("[snapshots]\nkeep_every = 0.01\nkeep = 2\n").up)
    for i in range(4):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
        await asyncio.to_thread(service.wait_for, i + 1)
    about = service.model()
    versions = service.http.get(f"/v1/models/{topic}/versions").json()["versions"]
    assert [v["events"] for v in versions] == [3, 4]
    assert [v["next"] for v in versions] == [{"0": 3}, {"0": 4}]
    assert (versions[-1]["version"], versions[-1]["digest"]) == (about["version"], about["digest"])


BAD: list[tuple[bytes, int, str, str]] = [
    (b"", 422, "", "not-json"),
    (b"{", 422, "", "not-json"),
    (b'{"features":{"\\ud800":1}}', 422, "", "not-json"),
    (b'{"features":{"\\ud800":"x"}}', 422, "", "not-json"),
    (b'{"features":{"a":1},"x":NaN}', 422, "", "not-json"),
    (b'{"features":{"a":1}} x', 422, "", "trailing-bytes"),
    (b"[1]", 422, "", "wrong-type"),
    (b"{}", 422, "/features", "missing-field"),
    (b'{"features":{},"instances":[]}', 422, "", "wrong-type"),
    (b'{"event":{"features":{}},"features":{}}', 422, "", "wrong-type"),
    (b'{"features":[1,2]}', 422, "/features", "wrong-type"),
    (b'{"features":{"a":["c0ffee",1]}}', 422, "/features/a", "wrong-type"),
    (b'{"features":{"a":{"a/b":[[]]}}}', 422, "/features/a/a~1b", "wrong-type"),
    (b'{"event":{"features":{"a":NaN}}}', 422, "/event/features/a", "not-finite"),
    (b'{"events":[{"features":{}},{}]}', 422, "/events/1/features", "missing-field"),
    (b'{"features":{"a":NaN}}', 422, "/features/a", "not-finite"),
    (b'{"features":{"a":1e31}}', 422, "/features/a", "out-of-range"),
    (b'{"features":{"a":1,"a":2}}', 422, "/features/a", "duplicate-feature"),
    (b'{"features":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}}', 422, "/features", "too-many-features"),
    (b'{"features":{"%s":1}}' % (b"n" * 257), 422, "/features", "name-too-long"),
    (b'{"instances":{"features":{}}}', 422, "/instances", "wrong-type"),
    (b'{"instances":[{"features":{}},7]}', 422, "/instances/1", "wrong-type"),
    (b'{"instances":[{"features":{}},{}]}', 422, "/instances/1/features", "missing-field"),
    (b'{"instances":[{"features":{}},{"features":{"x":[[]]}}]}', 422, "/instances/1/features/x", "wrong-type"),
    (
        b'{"instances":[{"features":{}},{"features":{}},{"features":{}},{"features":{}}]}',
        422,
        "/instances",
        "too-large",
    ),
]


async def test_a_bad_request_gets_a_problem_that_names_the_field(service: Running, topic: str) -> None:
    url = f"/v1/models/{topic}/predict"
    secret = "c0ffee"  # noqa: S105 - a value that must not come back

    def check(answer: Any, status: int, pointer: str | None = None, reason: str = "") -> None:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        body = answer.json()
        assert set(body) == {"type", "title", "status", "detail", "errors"}
        assert body["status"] == status
        assert secret not in answer.text
        if pointer is not None:
            assert body["errors"] == [{"pointer": pointer, "reason": reason}]

    for body, status, pointer, reason in BAD:
        answer = service.http.post(url, content=body, headers={"content-type": "application/json"})
        check(answer, status, pointer, reason)
    check(service.predict({"features": {"a": [secret, 1]}}), 422, "/features/a", "wrong-type")
    check(service.http.post(url, content=b"{}", headers={"content-type": "text/plain"}), 415)
    check(service.http.post(url, content=b" " * 5001, headers={"content-type": "application/json"}), 413)

    def chunks() -> Any:
        for _ in range(10):
            yield b" " * 1000

    check(service.http.post(url, content=chunks(), headers={"content-type": "application/json"}), 413)
    check(service.http.post("/v1/models/none/predict", json={"features": {}}), 404)
    check(service.http.get(f"/v1/models/{secret}"), 404)
    check(service.http.get("/nowhere"), 404)
    check(service.http.get(url), 405)
    for query in ("top=0", "limit=-1", "top=99999999"):
        name = query.partition("=")[0]
        check(service.http.get(f"/v1/models/{topic}/weights?{query}"), 422, f"?{name}", "out-of-range")
    for query in (f"top={secret}", "cursor=1.5", "limit="):
        name = query.partition("=")[0]
        check(service.http.get(f"/v1/models/{topic}/weights?{query}"), 422, f"?{name}", "wrong-type")
    check(service.http.post(f"{url}?explain={secret}", json={"features": {}}), 422, "?explain", "wrong-type")
    deep = b'{"features":' + b"[" * 4000
    check(service.http.post(url, content=deep, headers={"content-type": "application/json"}), 422, "", "not-json")
    # And it still answers, with nothing learned and nothing broken.
    assert service.predict({"features": {"clicks": 1}}).json()["label"] == "leave"
    assert not [name for name in service.metrics() if 'code="500"' in name]


async def test_a_prediction_is_the_learners_score(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    """Hashed features, colliding: what HTTP answers is what the fold scores, for seen and unseen names."""
    service = await asyncio.to_thread(run('[model]\nfeatures = "hashed"\nbits = 2\n').up)
    rows: list[dict[str, float]] = [{f"n{i * j % 17}": float(i - j) for j in range(1, 6)} for i in range(40)]
    for i, row in enumerate(rows):
        await producer.send(topic, event(row, i % 2))
    await producer.flush()
    await asyncio.to_thread(service.wait_for, len(rows))
    w = service.vector()
    assert len(w) == 5
    half = service.http.post(
        f"/v1/models/{topic}/predict",
        content=b'{"features":{"\\udc00":1}}',
        headers={"content-type": "application/json"},
    )
    assert half.status_code == 422
    import mmh3

    for row in [*rows, {"new": 1.0}]:
        x = [0.0] * 4
        for name, value in row.items():
            h = mmh3.hash(name)
            x[abs(h) % 4] += value if h >= 0 else -value
        expected = w[0] + sum(a * b for a, b in zip(w[1:], x, strict=True))
        answer = service.predict({"features": row}).json()
        assert answer["score"] == pytest.approx(expected, rel=1e-12)
        assert answer["label"] == (1 if answer["score"] > 0 else -1)
    assert json.loads(service.predict({"features": {}}).text)["score"] == w[0]


def test_a_body_that_does_not_arrive_takes_no_place_and_hears_when_its_time_is_over(run: Run, topic: str) -> None:
    service = run("[http]\nmax_in_flight = 1\nbody_timeout = 2.0\n").up()
    with socket.create_connection(("127.0.0.1", service.port)) as slow:
        slow.sendall(
            f"POST /v1/models/{topic}/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            "content-length: 10\r\n\r\n{".encode()
        )
        assert service.predict({"features": {}}).status_code == 200
        answer = ""
        while "}" not in answer:
            answer += slow.recv(4096).decode()
        assert answer.startswith("HTTP/1.1 408 ")
        assert "the body did not arrive within 2 seconds" in answer


async def test_ready_is_when_every_listed_model_can_answer(run: Run, kafka: Server, topic: str) -> None:
    """One of two topics is not there yet: its model cannot answer, so the process is not ready; the other learns."""
    await create_topic(kafka, topic)
    service = run("", "-t", f"{topic}-2", create=False)
    url = f"/v1/models/{topic}/predict"

    def first() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return service.http.post(url, json={"features": {}}).status_code == 200
        return False

    await asyncio.to_thread(wait, first, "the one answers")
    assert service.http.get("/readyz").status_code == 503
    assert service.http.post(f"/v1/models/{topic}-2/predict", json={"features": {}}).status_code == 503
    await create_topic(kafka, f"{topic}-2")
    await asyncio.to_thread(service.up)


async def test_a_name_with_a_comma_can_be_asked_for(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    """`names` has commas between names, as ever; `name` is one name, whatever is in it, and may be given again."""
    service = await asyncio.to_thread(run().up)
    await producer.send_and_wait(topic, event({"a": 1, "b": 2, "a,b": -3, "": 4}, 1))
    await asyncio.to_thread(service.wait_for, 1)

    def weights(*query: tuple[str, str]) -> dict[str, float]:
        answer = service.http.get(f"/v1/models/{topic}/weights", params=list(query)).raise_for_status().json()
        assert answer["next"] is None
        return {row["name"]: row["weight"] for row in answer["weights"]}

    assert weights(("names", "a,b")) == {"a": 1.0, "b": 2.0}
    assert weights(("name", "a,b")) == {"a,b": -3.0}
    assert weights(("name", "a,b"), ("name", "none"), ("name", "b")) == {"a,b": -3.0, "b": 2.0}
    assert weights(("name", "a,b"), ("names", "b,a")) == {"a,b": -3.0, "b": 2.0, "a": 1.0}
    assert list(weights(("names", "b,a"), ("name", "a,b"), ("top", "2"))) == ["a,b", "b"], "the largest of these"
    assert weights(("name", "")) == weights(("names", "")) == {"": 4.0}


async def test_processes_share_a_port(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    """One learns, one follows: connections come to both, and both answer as one."""
    learner = await asyncio.to_thread(run("http.reuse_port = true").up)
    run("http.reuse_port = true", "--no-learn", "-p", str(learner.port))
    for raw in EVENTS[:2]:
        await producer.send_and_wait(topic, raw.replace(b'"leave"', b"1").replace(b'"stay"', b"0"))
    with contextlib.ExitStack() as stack:
        clients: dict[bool, httpx.Client] = {}

        def both() -> bool:
            http = stack.enter_context(httpx.Client(base_url=str(learner.http.base_url)))
            about = http.get(f"/v1/models/{topic}")
            if about.status_code == 200 and about.json()["events"] == 2 and about.json()["ahead"] == 0:
                clients[about.json()["learning_here"]] = http
            return len(clients) == 2

        await asyncio.to_thread(wait, both, "each process has a connection")
        url, body = f"/v1/models/{topic}/predict", {"features": {"clicks": 2, "unseen": 1}}
        one, other = (client.post(url, json=body) for client in clients.values())
        assert one.json() == other.json()
        assert one.json()["score"] == 4.0
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{learner.port}"):
        bind("127.0.0.1", learner.port)  # without saying that it shares
