"""Candidates on real servers: killed, restored, changed, verified; one of them answers."""

import asyncio
import json
from random import Random
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import CandidateOptions, Options
from service.serving.model_info import Accuracy
from tests.checks import learner_of
from tests.conftest import TAKEOVER_SECONDS, Run, Running, create_topic, event, perceptron, send, wait
from tests.data import table
from tests.integration.kept import KEEP_OFTEN, Tool

MODEL = Identity(labels=(0, 1))
FIRST = f"""{KEEP_OFTEN}[model]
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


def learner_after(records: list[bytes], **fields: Any) -> Learner:
    """A learner with these settings, after these records."""
    return learner_of(msgspec.structs.replace(MODEL, **fields), records)


def served_weights(service: Running, candidate: str = "") -> dict[str, float]:
    query = f"?candidate={candidate}" if candidate else ""
    answer = service.http.get(f"/v1/models/{service.topic}/weights{query}").raise_for_status().json()
    assert answer.get("candidate", "") == candidate
    return {"bias": answer["bias"], **{row["name"]: row["weight"] for row in answer["weights"]}}


def by_name(learner: Learner, w: Any) -> dict[str, float]:
    return dict(zip(["bias", *learner.columns.names], map(float, w), strict=True))


def wait_for_saved(service: Running, more_than: int) -> None:
    wait(lambda: (m := service.model())["events"] - m["ahead"] > more_than, "some events are learned and saved")


@pytest.mark.nightly
async def test_three_candidates_killed_restored_verified_changed_and_asked(
    run: Run, tool: Tool, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    x, y = table("phishing")
    raws = [event({f"f{j}": round(v, 4) for j, v in enumerate(row)}, int(t > 0)) for row, t in zip(x, y, strict=True)]
    await create_topic(kafka, topic)
    service = await asyncio.to_thread(run(FIRST, session_timeout=TAKEOVER_SECONDS).up)
    for end in (400, 800):
        await send(producer, topic, raws[end - 400 : end])
        await asyncio.to_thread(wait_for_saved, service, end - 400)
        service.kill()
        service = await asyncio.to_thread(run(FIRST if end < 800 else SECOND, session_timeout=TAKEOVER_SECONDS).up)
    # Settings changed: one candidate begins from scratch at the snapshot, one answers, nothing is learned again.
    wait(lambda: service.model()["learning_here"], "it learns")
    start = service.model()["candidates"][2]["since"]["0"]
    assert 400 < start <= 800
    assert "candidate dropped: its settings changed, so it starts from scratch" in service.log.read_text()
    await send(producer, topic, raws[800:])
    model = await asyncio.to_thread(service.wait_for, len(raws))

    plain, calm, logistic = learner_after(raws), learner_after(raws, **CALM), learner_after(raws, **LOGISTIC)
    wide = learner_after(raws[start:], margin=(1.0, 3.0))
    assert served_weights(service, "calm") == by_name(calm, calm.main.average)
    assert served_weights(service, "logistic") == by_name(logistic, logistic.main.weights)
    assert served_weights(service, "wide") == by_name(wide, wide.main.weights)
    assert (model["events"], model["mistakes"]) == (len(raws), plain.main.counts.mistakes)
    report = await tool.verify()
    assert (report["equal"], report["replayed_state_digest"]) == (True, model["state_digest"])
    assert report["candidates"] == {"calm": len(raws), "logistic": len(raws), "wide": len(raws) - start}

    answer = service.http.get(f"/v1/models/{topic}/candidates").json()
    rows = {row["name"]: row for row in answer["candidates"]}
    assert (answer["answering"], model["serve"], list(rows)) == ("logistic", "logistic", ["calm", "logistic", "wide"])
    assert rows["logistic"]["wrong_predictions"] == logistic.main.counts.wrong_predictions
    assert rows["calm"]["settings"] == CALM
    assert rows["logistic"]["against_the_model"]["better"] == "logistic"
    assert [row["answers"] for row in rows.values()] == [False, True, False]
    question = {"features": {"f0": 1.0, "f3": -2.0, "unseen": 1}}
    body = service.predict(question).json()
    assert (body["candidate"], body["score"]) == ("logistic", logistic.score(question["features"], logistic.main)[0])
    assert 0.0 < body["probability"] < 1.0
    url = f"/v1/models/{topic}/predict?candidate="
    reply = service.http.post(f"{url}wide", json={"instances": [question]}).json()
    assert (reply["candidate"], reply["predictions"][0]["score"]) == (
        "wide",
        wide.score(question["features"], wide.main)[0],
    )
    key = f'{{candidate="logistic",model="{topic}"}}'
    assert service.metrics()[f"perceptron_candidate_accuracy{key}"] == rows["logistic"]["accuracy"]["recent"]


async def test_the_best_predictor_takes_over_and_answers_everywhere(
    run: Run, tool: Tool, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """The labels become noisy, where an average is better. The learner is killed amid a window."""
    settings, rng = f'[models.{topic}]\nserve = "best"\nlabels = [0, 1]\n[models.{topic}.candidates.calm]\n', Random(3)
    settings += 'average = "recent"\nhalf_life = 100\nserve = "average"\n'
    raws = list[bytes]()
    for i in range(900):
        x = {name: rng.choice((-1.0, 0.5, 1.0)) for name in "abc"}
        raws.append(event(x, int((x["a"] + x["b"] > 0) != (i > 300 and rng.random() < 0.3))))
    await create_topic(kafka, topic)
    service = await asyncio.to_thread(run(settings, session_timeout=TAKEOVER_SECONDS).up)
    await send(producer, topic, raws[:460])
    await asyncio.to_thread(wait_for_saved, service, 459)
    service.kill()
    service = await asyncio.to_thread(run(settings, session_timeout=TAKEOVER_SECONDS).up)
    replica = await asyncio.to_thread(run(settings, "--no-learn", create=False).up)
    await send(producer, topic, raws[460:])
    model = await asyncio.to_thread(service.wait_for, len(raws))
    calm = CandidateOptions(msgspec.structs.replace(MODEL, **CALM), "average")
    learner = learner_of(MODEL, raws, Options(serve="best", candidates={"calm": calm}))
    assert learner.best
    assert (model["serve"], model["takeovers"]) == (learner.serve, learner.best.takeovers) == ("calm", 1)
    assert model["takeover"] == msgspec.to_builtins(learner.best.takeover)
    assert model["served_accuracy"]["all"] == Accuracy.from_answering(learner).all
    assert service.log.read_text().count("another predictor answers") == 1
    await asyncio.to_thread(replica.wait_for, len(raws))
    for each in service, replica:
        body = each.predict({"features": {"a": 1.0, "c": -1.0}}).json()
        assert (body["candidate"], body["score"]) == ("calm", learner.score({"a": 1.0, "c": -1.0}, learner.serving)[0])
    assert (await tool.verify())["equal"]
    command = "-c", str(service.config), "export", "-t", topic, "--redis", service.redis_url
    exported = await asyncio.to_thread(perceptron, *command, cwd=service.config.parent)
    assert json.loads(exported.stdout)["intercept"] == learner.serving.served[0]
