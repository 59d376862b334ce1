"""The HTTP surface of a running service: what each answer has, and what a wrong request hears."""

import asyncio
import contextlib

import httpx
import pytest
from aiokafka import AIOKafkaProducer

from service.errors import ConfigurationError
from service.process.service import bind
from tests.conftest import Run, Running, event, wait

SETTINGS = '[http]\nmax_body_bytes = 5000\n[model]\nlabels = ["stay", "leave"]\n'
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
    promised = {"model": topic, "ahead": 0, "label": "leave", "score": 4.0, "unknown_features": 1}
    assert one == promised | {"version": one["version"]}
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
    for query, found in (("limit=1", ["age"]), ("limit=1&cursor=2", ["clicks"]), ("top=1", ["clicks"]),
                         ("names=clicks,none", ["clicks"]), ("top=1&names=", [])):  # fmt: skip
        page = http.get(f"/v1/models/{topic}/weights?{query}").json()
        assert [row["name"] for row in page["weights"]] == found, query
    assert http.get("/livez").json() == {"live": True}
    assert http.get("/readyz").json() == {"ready": True}
    assert "/v1/models/{name}/predict" in http.get("/openapi.json").json()["paths"]
    metrics = service.metrics()
    assert metrics[f'perceptron_events_total{{model="{topic}"}}'] == 2
    assert metrics[f'perceptron_predictions_total{{label="leave",model="{topic}"}}'] == 1
    route = 'route="/v1/models/{name}/predict"'
    assert metrics[f'perceptron_http_request_duration_seconds_count{{code="200",method="POST",{route}}}'] == 3
    explained = http.post(f"/v1/models/{topic}/predict?explain=true", json={"features": {"age": 2, "clicks": 3}}).json()
    assert explained["contributions"] == [
        {"name": "clicks", "value": 3.0, "weight": 2.0, "product": 6.0},
        {"name": "age", "value": 2.0, "weight": -0.7, "product": -1.4},
        {"name": "bias", "value": 1.0, "weight": 0.0, "product": 0.0},
    ]
    _hears_of_wrong_requests(service)


def _hears_of_wrong_requests(service: Running) -> None:
    """Each gets a problem that names the field and repeats no value; nothing of the service breaks."""
    url, secret, json = f"/v1/models/{service.topic}/predict", "c0ffee", {"content-type": "application/json"}
    post, get = service.http.post, service.http.get
    for answer, status, errors in (
        (service.predict({"features": {"a": [secret, 1]}}), 422, [("/features/a", "wrong-type")]),
        (post(url, content=b'{"features":' + b"[" * 4000, headers=json), 422, [("", "not-json")]),
        (post(url, content=b"{}", headers={"content-type": "text/plain"}), 415, None),
        (post(url, content=b" " * 5001, headers=json), 413, None),
        (post(url, content=iter([b" " * 1000] * 10), headers=json), 413, None),
        (post(f"{url}?explain={secret}", json={"features": {}}), 422, [("?explain", "wrong-type")]),
        (get(f"/v1/models/{secret}"), 404, None),
        (get("/nowhere"), 404, None),
        (get(url), 405, None),
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
        problem = answer.json()
        assert set(problem) == {"type", "title", "status", "detail", "errors"}
        assert errors is None or [(one["pointer"], one["reason"]) for one in problem["errors"]] == errors
        assert secret not in answer.text
    assert service.predict({"features": {"clicks": 1}}).json()["label"] == "leave"
    assert not [name for name in service.metrics() if 'code="500"' in name]


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
