"""Candidates through real Kafka and Redis: killed, restored, verified, changed; one of them answers in the end."""

import asyncio
import json
from typing import Any

import msgspec
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from tests.conftest import TAKEOVER_SECONDS, Run, Running, create_topic, event, wait
from tests.data import table
from tests.integration.kept import KEEPING, Tool, send

MODEL = Identity(labels=(0, 1))
FIRST = f"""{KEEPING}[model]
labels = [0, 1]
[model.candidates.calm]
average = "recent"
half_life = 100
serve = "average"
[model.candidates.logistic]
rule = "logistic-delta"
[model.candidates.wide]
margin = [1, 2]
"""
SECOND = FIRST.replace("margin = [1, 2]", "margin = [1, 3]").replace("[model]\n", '[model]\nserve = "logistic"\n')
CALM: dict[str, Any] = {"average": "recent", "half_life": 100}
LOGISTIC: dict[str, Any] = {"rule": "logistic-delta", "eta": 0.1, "slope": 1.0}


def alone(records: list[bytes], **others: Any) -> Learner:
    """A model of its own over these records."""
    learner = Learner(msgspec.structs.replace(MODEL, **others))
    learner.begin({0: 0})
    learner.apply(0, Records.of(0, records))
    return learner


def shown(service: Running, candidate: str = "") -> dict[str, float]:
    query = f"?candidate={candidate}" if candidate else ""
    answer = service.http.get(f"/v1/models/{service.topic}/weights{query}").raise_for_status().json()
    assert answer.get("candidate", "") == candidate
    return {"bias": answer["bias"], **{row["name"]: row["weight"] for row in answer["weights"]}}


def named(learner: Learner, w: Any) -> dict[str, float]:
    return dict(zip(["bias", *learner.columns.names], map(float, w), strict=True))


def some_saved(service: Running, more_than: int) -> None:
    wait(lambda: (m := service.model())["events"] - m["ahead"] > more_than, "some are learned, and saved")


async def test_three_candidates_killed_restored_verified_changed_and_asked(
    run: Run, tool: Tool, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    x, y = table("phishing")
    raws = [event({f"f{j}": round(v, 4) for j, v in enumerate(row)}, int(t > 0)) for row, t in zip(x, y, strict=True)]
    await create_topic(kafka, topic)
    service = await asyncio.to_thread(run(FIRST, session_timeout=TAKEOVER_SECONDS).up)
    for end in (400, 800):
        await send(producer, topic, raws[end - 400 : end])
        await asyncio.to_thread(some_saved, service, end - 400)
        service.kill()
        service = await asyncio.to_thread(run(FIRST if end < 800 else SECOND, session_timeout=TAKEOVER_SECONDS).up)
    # What is set has changed: one begins anew where the snapshot went on, one answers, nothing is learned again.
    wait(lambda: service.model()["learning_here"], "it learns")
    begun = service.model()["candidates"][2]["since"]["0"]
    assert 400 < begun <= 800
    assert "candidate begins anew: its settings changed" in service.log.read_text()
    await send(producer, topic, raws[800:])
    model = await asyncio.to_thread(service.wait_for, len(raws))

    plain, calm, logistic = alone(raws), alone(raws, **CALM), alone(raws, **LOGISTIC)
    wide = alone(raws[begun:], margin=(1.0, 3.0))
    assert shown(service, "calm") == named(calm, calm.average)
    assert shown(service, "logistic") == named(logistic, logistic.weights)
    assert shown(service, "wide") == named(wide, wide.weights)
    assert (model["events"], model["mistakes"]) == (len(raws), plain.counts.mistakes)
    found = await tool.verify()
    assert (found["equal"], found["replayed_state_digest"]) == (True, model["state_digest"])
    assert found["candidates"] == {"calm": len(raws), "logistic": len(raws), "wide": len(raws) - begun}

    answer = service.http.get(f"/v1/models/{topic}/candidates").json()
    rows = {row["name"]: row for row in answer["candidates"]}
    assert (answer["answering"], model["serve"], list(rows)) == ("logistic", "logistic", ["calm", "logistic", "wide"])
    assert rows["logistic"]["wrong_predictions"] == logistic.counts.wrong_predictions
    found, right = logistic.counts.confusion[1][1], sum(logistic.counts.confusion[i][1] for i in (0, 1))
    assert rows["logistic"]["recall"]["all"] == found / logistic.counts.by_label[1]
    assert rows["logistic"]["precision"]["all"] == found / right
    assert rows["calm"]["settings"] == CALM
    assert rows["logistic"]["against_the_model"]["better"] == "logistic"
    assert [row["answers"] for row in rows.values()] == [False, True, False]
    asked = {"features": {"f0": 1.0, "f3": -2.0, "unseen": 1}}
    body = service.predict(asked).json()
    assert (body["candidate"], body["score"]) == ("logistic", logistic.score(asked["features"])[0])
    assert 0.0 < body["probability"] < 1.0
    url = f"/v1/models/{topic}/predict?candidate="
    other = service.http.post(f"{url}wide&explain=true", json={"instances": [asked]}).json()
    assert (other["candidate"], other["predictions"][0]["score"]) == ("wide", wide.score(asked["features"])[0])
    assert sum(term["product"] for term in other["predictions"][0]["contributions"]) != 0.0
    for path in (f"{url}absent", f"/v1/models/{topic}/weights?candidate=absent"):
        refused = service.http.request("POST" if "predict" in path else "GET", path, json=asked)
        assert refused.status_code == 404
        assert refused.json()["detail"] == "?candidate: the model has none of this name, it has calm, logistic, wide"
    metrics = service.metrics()
    key = f'{{candidate="logistic",model="{topic}"}}'
    assert metrics[f"perceptron_candidate_events{key}"] == len(raws)
    assert metrics[f"perceptron_candidate_accuracy{key}"] == rows["logistic"]["accuracy"]["recent"]
    assert metrics[f"perceptron_candidate_answers{key}"] == 1.0
    assert (
        metrics[f'perceptron_prequential_accuracy_overall{{model="{topic}",weights="served"}}']
        == rows["logistic"]["accuracy"]["all"]
    )

    said = await tool("inspect", settings=service.config)
    lines = [line.split() for line in said.stdout.splitlines()]
    assert any(line[:2] == ["logistic", "1,250"] and line[7:9] == ["better,", "answers"] for line in lines), said.stdout
    about = json.loads((await tool("inspect", "--json", settings=service.config)).stdout)
    assert about["candidates"] == answer["candidates"]


async def test_one_that_diverges_is_said_once_and_the_others_go_on(
    run: Run, producer: AIOKafkaProducer, topic: str
) -> None:
    wild = '[model]\nserve = "wild"\n[model.candidates.wild]\nrule = "lms"\neta = 10\n'
    service = await asyncio.to_thread(run(wild).up)
    raws = [event({"a": 1000.0 * (-1) ** i}, i % 2) for i in range(40)]
    await send(producer, topic, raws)
    assert (await asyncio.to_thread(service.wait_for, 40))["stopped"] is None
    row = service.http.get(f"/v1/models/{topic}/candidates").json()["candidates"][0]
    assert row["events"] < 40
    assert f"the update at offset {row['events']} of partition 0" in row["diverged"]
    said = service.log.read_text()
    assert said.count("candidate learns no more, the others go on") == 1
    assert row["diverged"] in said
    # The model answers in its place.
    assert service.predict({"features": {"a": 1}}).json()["score"] == alone(raws).score({"a": 1.0})[0]
    await send(producer, topic, raws)
    await asyncio.to_thread(service.wait_for, 80)
    assert service.log.read_text().count("candidate learns no more") == 1
