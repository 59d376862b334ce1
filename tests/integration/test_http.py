"""The HTTP surface of a running service: the fields of each answer, and several processes on a port."""

import asyncio
import contextlib

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from service.errors import ConfigurationError
from service.process.service import bind
from tests.conftest import Run, Running, event, send, wait

SETTINGS = '[model]\nlabels = ["stay", "leave"]\n'
EVENTS = [event({"age": 0.3, "clicks": 2}, "leave"), event({"age": 1.0}, "stay"), b"bad"]


@pytest.fixture
async def service(run: Run, producer: AIOKafkaProducer, topic: str) -> Running:
    running = await asyncio.to_thread(run(SETTINGS).up)
    await send(producer, topic, EVENTS)
    await asyncio.to_thread(running.wait_for, len(EVENTS))
    return running


async def test_every_answer_has_its_documented_fields(service: Running, topic: str) -> None:
    """The names in answers are fixed: clients depend on them."""
    http = service.http
    single = service.predict({"features": {"clicks": 2, "unseen": 1}}).json()
    expected = {
        "model": topic,
        "ahead": 0,
        "label": "leave",
        "score": 4.0,
        "unknown_features": 1,
        "missing_features": 0,
    }
    assert single == expected | {"version": single["version"]}
    batch = service.predict({"instances": [{"features": {}}, {"features": {"age": 10}}]}).json()
    assert set(batch) == {"model", "version", "ahead", "predictions"}
    # After "leave" w = [1, .3, 2]; "stay" scores 1.3, a mistake: w = [0, -.7, 2].
    assert [(p["label"], p["score"]) for p in batch["predictions"]] == [("stay", 0.0), ("stay", -7.0)]
    assert service.predict({"instances": []}).json()["predictions"] == []

    models = http.get("/v1/models").json()["models"]
    assert [m["model"] for m in models] == [topic]
    assert set(models[0]) == {"model", "rule", "features", "version", "events", "mistakes", "learning_here"}
    info = service.model()
    assert set(info) >= {
        "model", "identity", "version", "ahead", "order", "next", "covered", "events", "mistakes", "wrong_predictions",
        "updates", "rejected", "ignored_features", "skipped", "columns", "scaled_columns", "squared_norm",
        "squared_norm_limit", "bound", "bound_reason", "digest", "state_digest", "saved_at", "learning_here", "stopped",
    }  # fmt: skip
    assert (info["order"], info["next"], info["covered"]) == ("log", {"0": 3}, {"0": [[0, 3]]})
    assert (info["events"], info["mistakes"], info["rejected"]) == (2, 2, {"not-json": 1})
    assert (info["learning_here"], info["stopped"]) == (True, None)
    assert info["bound"] is None or info["bound"] >= info["updates"]
    assert (info["bound"] is None) == (info["bound_reason"] is not None)
    assert info["confusion"] == [[0, 1], [1, 0]]

    names = http.get(f"/v1/models/{topic}/weights").json()
    assert names == {
        "bias": 0.0,
        "weights": [{"name": "age", "column": 1, "weight": -0.7}, {"name": "clicks", "column": 2, "weight": 2.0}],
        "next": None,
    }
    for query, names_on_page in (("limit=1", ["age"]), ("limit=1&cursor=2", ["clicks"]), ("top=1", ["clicks"]),
                         ("names=clicks,none", ["clicks"]), ("top=1&names=", [])):  # fmt: skip
        page = http.get(f"/v1/models/{topic}/weights?{query}").json()
        assert [row["name"] for row in page["weights"]] == names_on_page, query
    assert http.get("/livez").json() == {"live": True}
    assert http.get("/readyz").json() == {"ready": True}
    assert "/v1/models/{name}/predict" in http.get("/openapi.json").json()["paths"]
    metrics = service.metrics()
    assert metrics[f'perceptron_events_total{{model="{topic}"}}'] == 2
    assert metrics[f'perceptron_predictions_total{{label="leave",model="{topic}"}}'] == 1
    route = 'route="/v1/models/{name}/predict"'
    assert metrics[f'perceptron_http_request_duration_seconds_count{{code="200",method="POST",{route}}}'] == 3
    answer = http.post(f"/v1/models/{topic}/predict?explain=true", json={"features": {"age": 2, "clicks": 3}}).json()
    assert answer["contributions"] == [
        {"name": "clicks", "value": 3.0, "weight": 2.0, "product": 6.0},
        {"name": "age", "value": 2.0, "weight": -0.7, "product": -1.4},
        {"name": "bias", "value": 1.0, "weight": 0.0, "product": 0.0},
    ]


@pytest.mark.nightly
async def test_processes_share_a_port(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    """One process learns and one follows. Both get connections, and both give the same answer."""
    learner = await asyncio.to_thread(run("http.reuse_port = true").up)
    run("http.reuse_port = true", "--no-learn", "-p", str(learner.port))
    for raw in EVENTS[:2]:
        await producer.send_and_wait(topic, raw.replace(b'"leave"', b"1").replace(b'"stay"', b"0"))
    with contextlib.ExitStack() as stack:
        clients: dict[bool, httpx.Client] = {}

        def both_answered() -> bool:
            http = stack.enter_context(httpx.Client(base_url=str(learner.http.base_url)))
            answer = http.get(f"/v1/models/{topic}")
            if answer.status_code == 200 and answer.json()["events"] == 2 and answer.json()["ahead"] == 0:
                clients[answer.json()["learning_here"]] = http
            return len(clients) == 2

        await asyncio.to_thread(wait, both_answered, "each process has a connection")
        url, body = f"/v1/models/{topic}/predict", {"features": {"clicks": 2, "unseen": 1}}
        first, second = (client.post(url, json=body) for client in clients.values())
        assert first.json() == second.json()
        assert first.json()["score"] == 4.0
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{learner.port}"):
        bind("127.0.0.1", learner.port)  # without `reuse_port`


async def test_a_query_of_many_parameters_is_refused_at_once(service: Running, topic: str) -> None:
    """Whatever fits in a request line, others do not wait for it."""
    queries = "names=" + "," * 60_000, "&".join(["name=a"] * 9_000), "&".join(f"p{i}" for i in range(10_000))
    for path in (f"/v1/models/{topic}/weights", f"/v1/models/{topic}/predict", "/v1/models"):
        for query in queries:
            method = "POST" if path.endswith("predict") else "GET"
            answer = service.http.request(method, f"{path}?{query}", json={"features": {}})
            assert (answer.status_code, answer.json()["errors"]) == (422, [{"pointer": "?", "reason": "too-large"}])
    names = ",".join(["age"] * 500)
    assert len(service.http.get(f"/v1/models/{topic}/weights?names={names}").json()["weights"]) == 500
