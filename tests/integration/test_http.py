"""The HTTP surface, asked as a client would, wrong requests included."""

import asyncio
import contextlib
import socket
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from service.errors import ConfigurationError
from service.process.http import bind
from tests.conftest import Run, Running, event, wait

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


BAD: list[tuple[bytes, str, str]] = [
    (b"", "", "not-json"),
    (b'{"features":{"\\ud800":1}}', "", "not-json"),
    (b'{"features":{"a":1}} x', "", "trailing-bytes"),
    (b"{}", "/features", "missing-field"),
    (b'{"features":{},"instances":[]}', "", "wrong-type"),
    (b'{"features":{"a":["c0ffee",1]}}', "/features/a", "wrong-type"),
    (b'{"features":{"a":{"a/b":[[]]}}}', "/features/a/a~1b", "wrong-type"),
    (b'{"event":{"features":{"a":NaN}}}', "/event/features/a", "not-finite"),
    (b'{"events":[{"features":{}},{}]}', "/events/1/features", "missing-field"),
    (b'{"features":{"a":1e31}}', "/features/a", "out-of-range"),
    (b'{"features":{"a":1,"a":2}}', "/features/a", "duplicate-feature"),
    (b'{"features":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}}', "/features", "too-many-features"),
    (b'{"features":{"%s":1}}' % (b"n" * 257), "/features", "name-too-long"),
    (b'{"instances":[{"features":{}},{"features":{"x":[[]]}}]}', "/instances/1/features/x", "wrong-type"),
    (b'{"instances":[{"features":{}},{"features":{}},{"features":{}},{"features":{}}]}', "/instances", "too-large"),
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

    for body, pointer, reason in BAD:
        answer = service.http.post(url, content=body, headers={"content-type": "application/json"})
        check(answer, 422, pointer, reason)
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
    for query, reason in (("top=0", "out-of-range"), ("limit=-1", "out-of-range"), ("cursor=1.5", "wrong-type")):
        name = query.partition("=")[0]
        check(service.http.get(f"/v1/models/{topic}/weights?{query}"), 422, f"?{name}", reason)
    check(service.http.post(f"{url}?explain={secret}", json={"features": {}}), 422, "?explain", "wrong-type")
    deep = b'{"features":' + b"[" * 4000
    check(service.http.post(url, content=deep, headers={"content-type": "application/json"}), 422, "", "not-json")
    # And it still answers, with nothing learned and nothing broken.
    assert service.predict({"features": {"clicks": 1}}).json()["label"] == "leave"
    assert not [name for name in service.metrics() if 'code="500"' in name]


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


@pytest.mark.nightly
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
