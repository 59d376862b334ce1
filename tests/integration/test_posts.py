"""The loop over HTTP: predictions are logged, labels and events are posted, and the model learns."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.embedded.servers import Server
from tests.conftest import TAKEOVER_SECONDS, Run, Running, create_topic, perceptron, read_all, until, wait

LOOP = """
[models.{model}]
topic = "{model}-events"
labels = [0, 1]
[models.{model}.join]
topic = "{model}-labels"
window = "10m"
[models.{model}.predictions]
topic = "{model}-events"
"""


async def service_with_topics(run: Run, kafka: Server, model: str, settings: str, *names: str) -> Running:
    for name in names:
        await create_topic(kafka, f"{model}-{name}", 2)
    service = run(settings.format(model=model), topic="")
    service.topic = model
    return await asyncio.to_thread(service.up)


def post(service: Running, kind: str, body: Any, **options: Any) -> httpx.Response:
    return service.http.post(f"/v1/models/{service.topic}/{kind}", json=body, **options)


async def test_a_model_learns_from_its_predictions_and_their_labels(run: Run, kafka: Server, topic: str) -> None:
    service = await service_with_topics(run, kafka, topic, LOOP, "events", "labels")
    n, answers = 200, list[int]()
    for i in range(n):
        features = {"a": i % 5, "b": f"v{i % 3}"}
        body: dict[str, Any] = {"features": features, "id": f"one:{i}"}
        if i % 3 == 1:
            body = {"event": {"id": i, "features": features, "other": [1]}}
        if i % 3 == 2:
            body = {"instances": [{"features": features, "id": f"many{i}"}, {"features": features}]}
        answer = service.predict(body).raise_for_status().json()
        answers.append(answer.get("predictions", [answer])[0]["label"])
    ids = [(f"one:{i}", i, f"many{i}")[i % 3] for i in range(n)]
    labels = [{"id": id_, "label": int(i % 5 > 2)} for i, id_ in enumerate(ids)]
    first = post(service, "labels", labels[0]).raise_for_status().json()
    assert [place["topic"] for place in first["records"]] == [f"{topic}-labels"]
    rest = post(service, "labels", {"labels": labels[1:]}).raise_for_status().json()
    assert len({(place["partition"], place["offset"]) for place in first["records"] + rest["records"]}) == n
    about = wait(lambda: (m := service.model())["events"] == n and not m["ahead"] and m, "all are learned")
    assert about["label_outcomes"]["joined"] == n
    right = sum(answer == row["label"] for answer, row in zip(answers, labels, strict=True))
    assert about["answered_accuracy"]["all"] == right / n
    assert service.metrics()[f'perceptron_predictions_logged_total{{model="{topic}",result="written"}}'] == n
    verified = perceptron(
        "-c", str(service.config), "verify", "-m", topic, "-b", kafka.address, "--redis", service.redis_url
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


async def test_events_are_stored_as_they_were_posted_all_or_none(run: Run, topic: str) -> None:
    service = await asyncio.to_thread(run().up)
    path, good = f"/v1/models/{topic}/events", {"features": {"a": 1}, "label": 1}
    single = post(service, "events", good | {"id": "a", "events": 3}).raise_for_status().json()["records"]
    text = json.dumps({"events": [good] * 3}, indent=1)
    as_json = {"content-type": "application/json"}
    listed = service.http.post(path, content=text, headers=as_json).raise_for_status().json()["records"]
    lines = f"{json.dumps(good)}\n" * 2
    ndjson = {"content-type": "application/x-ndjson"}
    many = service.http.post(path, content=lines, headers=ndjson).raise_for_status().json()["records"]
    assert [place["offset"] for place in single + listed + many] == list(range(6))
    assert post(service, "events", {"events": []}).raise_for_status().json() == {"records": []}
    bad = [{"features": {"a": "x" * 300}, "label": 1}, good | {"label": 7}]
    refused = post(service, "events", {"events": [good, *bad]})
    assert refused.status_code == 422
    faults = [(fault["pointer"], fault["reason"]) for fault in refused.json()["errors"]]
    assert faults == [("/events/1/features", "name-too-long"), ("/events/2/label", "unknown-label")]
    text = lines + json.dumps(bad[1])
    by_line = service.http.post(path, content=text, headers=ndjson).json()["errors"]
    assert by_line == [{"pointer": "/2/label", "reason": "unknown-label"}]
    large = post(service, "events", {"events": [good, good | {"more": "x" * (1 << 20)}]})
    assert (large.status_code, large.json()["errors"]) == (422, [{"pointer": "/events/1", "reason": "too-large"}])
    assert service.http.post("/v1/models/nobody/events", json=good).status_code == 404
    waiting = run(topic=f"{topic}-x", create=False)
    wait(lambda: waiting.is_ok("/livez"), "it listens")
    missing = post(waiting, "events", good)
    assert (missing.status_code, missing.json()["detail"]) == (404, f"topic {topic}-x does not exist")
    assert post(service, "labels", {"id": "a", "label": 1}).status_code == 404
    assert service.wait_for(6)["rejected"] == {}


def test_posts_take_their_own_tokens_alone(run: Run, topic: str, tmp_path: Path) -> None:
    for name in ("read", "post"):
        (tmp_path / name).write_text(f"{name}-token-0123456789")
    files = f'token_file = "{tmp_path}/read"\ningest_token_file = "{tmp_path}/post"'
    service = run(f"[http]\n{files}")
    event = {"features": {"a": 1}, "label": 1}
    by = {name: {"authorization": f"Bearer {name}-token-0123456789"} for name in ("read", "post")}
    wait(lambda: service.is_ok("/readyz"), "it is ready")
    assert [post(service, "events", event, headers=headers).status_code for headers in by.values()] == [401, 200]
    model = f"/v1/models/{topic}"
    assert [service.http.get(model, headers=headers).status_code for headers in by.values()] == [200, 401]


async def test_labels_follow_the_settings_of_the_join(run: Run, kafka: Server, topic: str) -> None:
    """Their places, the only label, and the share of the predictions that is logged."""
    settings = LOOP.replace('topic = "{model}-labels"', 'topic = "{model}-labels"\nid = "/of/id"\nlabel_value = 1')
    service = await service_with_topics(run, kafka, topic, settings + "share = 0.5", "events", "labels")
    n = 100
    for i in range(n):
        service.predict({"features": {"a": i}, "id": i}).raise_for_status()
    written = post(service, "labels", {"labels": [{"id": str(i), "label": 1} for i in range(n)]}).raise_for_status()
    share = sum(place is not None for place in written.json()["records"])
    assert 20 < share < 80
    wait(lambda: (m := service.model())["events"] == share and not m["ahead"], "the share is learned")
    refused = post(service, "labels", {"labels": [{"id": "a", "label": 0}, {"id": 1.5, "label": 1}]})
    faults = [(fault["pointer"], fault["reason"]) for fault in refused.json()["errors"]]
    assert faults == [("/labels/0/label", "unknown-label"), ("/labels/1/id", "wrong-type")]


async def test_a_file_of_labels_is_joined(run: Run, kafka: Server, topic: str, tmp_path: Path) -> None:
    """`perceptron produce --labels` sends what a post would, and names a bad line and where to continue."""
    settings = LOOP.replace('topic = "{model}-labels"', 'topic = "{model}-labels"\nid = "/of/id"')
    service = await service_with_topics(run, kafka, topic, settings, "events", "labels")
    n, file = 1000, tmp_path / "labels.jsonl"
    service.predict({"instances": [{"features": {"a": i}, "id": i} for i in range(n)]}).raise_for_status()
    lines = [json.dumps({"id": f"{i}", "label": i % 2}) for i in range(n)]
    file.write_text("\n".join([*lines[:700], '{"id": "x", "label": 7}', *lines[700:]]))
    produce = ["-c", str(service.config), "produce", "--labels", "-b", kafka.address]
    result = perceptron(*produce, str(file), cwd=tmp_path)
    fault = f"{file}, line 701: unknown-label: 'label' must be one of 0, 1"
    assert (result.returncode, result.stderr) == (
        1, f"perceptron: {fault} (700 labels sent; --skip 700 goes on)\n"
    )  # fmt: skip
    result = perceptron(*produce, str(file), "--dry-run", cwd=tmp_path)
    assert result.stderr.splitlines() == [fault, f"perceptron: {file}: 1 line bad, 1,000 labels good"]
    file.write_text("\n".join(lines))
    result = perceptron(*produce, str(file), "--skip", "700", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, f"300 labels sent to {topic}-labels\n")
    about = wait(lambda: (m := service.model())["events"] == n and not m["ahead"] and m, "all are learned")
    assert about["label_outcomes"]["joined"] == n
    sent = [record for p in (0, 1) for record in await read_all(kafka, f"{topic}-labels", p)]
    assert sorted((int(r.key), json.loads(r.value)) for r in sent) == [
        (i, {"of": {"id": f"{i}"}, "label": i % 2}) for i in range(n)
    ]
    for option, code in (("--as=msgpack", 2), ("--format=csv", 2), ("--no-check", 2), ("--dry-run", 0)):
        assert perceptron(*produce, str(file), option, cwd=tmp_path).returncode == code, option
    result = perceptron(*produce, str(file), "-m", "other", cwd=tmp_path)
    why = "model other has no labels that come later: set [models.other.join]"
    assert (result.returncode, result.stderr) == (2, f"perceptron: {why}\n")


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=pytest.mark.nightly)])
async def test_each_logged_prediction_is_learned_once_whatever_dies(
    run: Run, kafka: Server, topic: str, count: int
) -> None:
    """A learner and a replica answer at full speed, and are killed in turn. The labels are posted afterwards."""
    for name in ("events", "labels"):
        await create_topic(kafka, f"{topic}-{name}", 2)
    settings, flags = LOOP.format(model=topic), ((), ("--no-learn",))
    services = [run(settings, *own, topic="", session_timeout=TAKEOVER_SECONDS) for own in flags]
    for service in services:
        service.topic = topic
        await asyncio.to_thread(service.up)
    answered, kills = set[int](), 4

    def ask(numbers: range, service: Running) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{service.port}") as client:
            for i in numbers:
                try:
                    body = {"id": i, "features": {"a": i % 7}}
                    if client.post(f"/v1/models/{topic}/predict", json=body).status_code == 200:
                        answered.add(i)
                except httpx.TransportError:
                    wait(lambda: service.is_ok("/livez"), "the killed process is back")

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, range(k, count, 8), services[k % 2]) for k in range(8)]
        for turn in range(kills):
            await until(lambda: len(answered) > count * (turn + 1) / (kills + 2), "predictions are answered")  # noqa: B023
            victim = services[turn % 2]
            victim.kill()
            victim.start(victim.command)
            await asyncio.to_thread(victim.up)
        for each in asking:
            await asyncio.to_thread(each.result)
    learner = services[0]
    labels = [{"id": str(i), "label": int(i % 7 > 3)} for i in answered]
    for begin in range(0, len(labels), 1000):
        post(learner, "labels", {"labels": labels[begin : begin + 1000]}).raise_for_status()
    logged = [int(record.key) for p in (0, 1) for record in await read_all(kafka, f"{topic}-events", p)]
    assert len(set(logged)) == len(logged)
    # A kill loses what was answered in its last moments, however many were answered before: 1 % of 20,000 in all.
    assert len(answered - set(logged)) <= 200
    learned = len(set(logged) & answered)
    about = wait(lambda: (m := learner.model())["events"] == learned and not m["ahead"] and m, "all are learned")
    assert (about["repeated"], about["label_outcomes"]["joined"]) == (0, learned)
    verified = perceptron(
        "-c", str(learner.config), "verify", "-m", topic, "-b", kafka.address, "--redis", learner.redis_url
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
