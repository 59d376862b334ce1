"""Every rule through the whole service: what is learned from Kafka is the formula, and a user can reach all of it."""

import asyncio
import functools
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.identity import Identity
from service.learning.start import initial
from service.learning.weights import Weights
from tests import formulas
from tests.conftest import Run, Running, create_topic, event, perceptron, wait

UNITS = """
[model]
rule = "threshold-unit"
[models.and]
weights = { a = 1, b = 1 }
threshold = 2
[models.or]
weights = { a = 1, b = 1 }
threshold = 1
[models.not]
weights = { a = -1 }
threshold = 0
labels = ["off", "on"]
"""


def rows(count: int, seed: int = 1) -> list[tuple[list[float], int]]:
    rng = random.Random(seed)
    return [([round(rng.gauss(0, 1), 3) for _ in range(4)], rng.choice([0, 1])) for _ in range(count)]


@pytest.mark.parametrize(
    ("settings", "identity"),
    [
        ('rule = "error-correction"', Identity(rule="error-correction", outputs="bipolar")),
        (
            'rule = "error-correction"\noutputs = "binary"\ntie = "positive"',
            Identity(rule="error-correction", outputs="binary", tie="positive"),
        ),
        ('rule = "half-step"\nstart = "random:7"', Identity(rule="half-step", eta=0.5, start="random:7")),
        ('rule = "lms"', Identity(rule="lms", eta=0.001)),
        ('rule = "logistic-delta"\nslope = 2.0', Identity(rule="logistic-delta", eta=0.1, slope=2.0)),
    ],
    ids=["bipolar", "binary-tie", "half-step-random", "lms", "logistic"],
)
async def test_a_rule_is_learned_as_its_formula(
    run: Run, producer: AIOKafkaProducer, topic: str, settings: str, identity: Identity
) -> None:
    """SEEDS rows 2, 3, 4, 12, 13: over Kafka, through a restart, bit for bit (the logistic rule's exp nearly so)."""
    whole = f'[model]\nfeatures = "positional"\ndimension = 4\n{settings}\n'
    service = await asyncio.to_thread(run(whole).up)
    events = rows(400)
    w = initial(identity.start, 0, 5).tolist()
    updates = 0
    for i, (x, label) in enumerate(events):
        if i == 200:
            await asyncio.to_thread(service.wait_for, 200)
            assert await asyncio.to_thread(service.stop) == 0
            service = await asyncio.to_thread(run(whole).up)
        await producer.send_and_wait(topic, event(x, label))
        updates += formulas.learn(w, list(enumerate(x, 1)), 2.0 * label - 1.0, 1.0, identity)[1] != 0.0
    model = await asyncio.to_thread(service.wait_for, 400)
    assert model["identity"]["rule"] == identity.rule
    assert model["updates"] == updates
    if identity.rule == "logistic-delta":
        assert service.vector() == pytest.approx(w, rel=1e-9, abs=1e-12)
    else:
        assert service.vector() == w
    assert (model["bound"] is None) == (identity.rule in {"lms", "logistic-delta"})
    assert (model["squared_norm_limit"] is None) == (model["bound"] is None)
    if model["bound"] is not None:
        assert model["updates"] <= model["bound"]
    else:
        assert f"rule {identity.rule} does not only update" in model["bound_reason"]


def test_threshold_units_are_served_with_no_topic_no_kafka_and_no_redis(topic: str, tmp_path: Path) -> None:
    """SEEDS row 14: McCulloch and Pitts' AND, OR and NOT, as settings give them."""
    service = Running("", "127.0.0.1:1", "127.0.0.1:1", tmp_path, UNITS)
    try:
        service.up()

        def fires(unit: str, **inputs: int) -> Any:
            answer = service.http.post(f"/v1/models/{unit}/predict", json={"features": inputs})
            return answer.raise_for_status().json()["label"]

        for a in (0, 1):
            assert fires("not", a=a) == ("off" if a else "on")
            for b in (0, 1):
                assert fires("and", a=a, b=b) == (1 if a and b else -1)
                assert fires("or", a=a, b=b) == (1 if a or b else -1)
        names = [model["model"] for model in service.http.get("/v1/models").json()["models"]]
        assert names == ["and", "or", "not"]
        about = service.model("and")
        assert (about["identity"]["rule"], about["events"], about["next"]) == ("threshold-unit", 0, {})
        assert service.http.get("/v1/models/and/weights").json()["bias"] == -2.0
        assert service.stop() == 0
    finally:
        service.kill()
        service.http.close()
    config = tmp_path / "units.toml"
    config.write_text(UNITS)
    done = perceptron("-c", str(config), "run", "-t", "and")
    assert (done.returncode, "'and' is a threshold-unit, which never learns" in done.stderr) == (2, True)
    assert topic


@pytest.mark.parametrize("kept", ["true", '"recent"\nhalf_life = 20'], ids=["mean", "recent"])
async def test_the_average_answers_where_settings_say_so(
    run: Run, producer: AIOKafkaProducer, topic: str, kept: str
) -> None:
    """Learning and mistakes are those of the last weights either way; a replica answers with the average too."""
    settings = f'[model]\nfeatures = "positional"\ndimension = 4\naverage = {kept}\n'
    service = await asyncio.to_thread(run(settings + 'serve = "average"\n').up)
    replica = await asyncio.to_thread(run(settings + 'serve = "average"\n', "--no-learn").up)
    last = await asyncio.to_thread(run(settings, "--no-learn").up)
    w, average, mistakes = [0.0] * 5, [0.0] * 5, 0
    events = rows(300)
    for n, (x, label) in enumerate(events, 1):
        await producer.send(topic, event(x, label))
        y = 2.0 * label - 1.0
        mistakes += y * formulas.learn(w, list(enumerate(x, 1)), y, 1.0, Identity())[0] <= 0.0
        new = 1.0 / n if kept == "true" else 1.0 - 0.5 ** (1 / 20)
        average = [(1.0 - new) * a + new * b for a, b in zip(average, w, strict=True)]
    await producer.flush()
    model = await asyncio.to_thread(service.wait_for, 300)
    assert (model["mistakes"], model["serve"]) == (mistakes, "average")
    for process, expected in ((service, average), (replica, average), (last, w)):
        await asyncio.to_thread(process.wait_for, 300)
        assert process.vector() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        for x, _ in events[:20]:
            answer = process.http.post(f"/v1/models/{topic}/predict?explain=true", json={"features": x}).json()
            score = expected[0] + sum(a * b for a, b in zip(expected[1:], x, strict=True))
            assert answer["score"] == pytest.approx(score, rel=1e-9, abs=1e-9)
            assert sum(c["product"] for c in answer["contributions"]) == pytest.approx(score, rel=1e-9, abs=1e-9)
    loss = service.metrics()[f'perceptron_loss{{model="{topic}"}}']
    assert loss == model["loss"] >= 0.0
    assert sorted(model["margins"].values()) == list(model["margins"].values())


async def test_a_service_goes_on_from_given_weights(
    run: Run, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """It predicts with them at once, learns on from them, and takes their bound against a given reference."""
    file = tmp_path / "weights.json"
    file.write_bytes(msgspec.json.encode(Weights([2.0, -1.0], 0.5, ["a", "b"])))
    settings = f'[model]\nstart = "{file}"\nreference = "{file}"\n'
    service = await asyncio.to_thread(run(settings).up)
    answer = service.predict({"features": {"a": 1, "b": 1, "c": 1}}).json()
    assert (answer["score"], answer["unknown_features"]) == (1.5, 1)
    await producer.send_and_wait(topic, event({"a": 1, "c": 2}, 0))
    model = await asyncio.to_thread(service.wait_for, 1)
    assert service.vector() == [-0.5, 1.0, -1.0, -2.0]
    assert (model["updates"], model["squared_norm_limit"]) == (1, 5.25 + 6.0)
    assert model["bound"] >= 1
    assert model["identity"]["start"].startswith("weights:")
    # Other weights are another model.
    file.write_bytes(msgspec.json.encode(Weights([2.0, -1.5], 0.5, ["a", "b"])))
    assert await asyncio.to_thread(service.stop) == 0
    other = run(settings)
    assert await asyncio.to_thread(other.process.wait, 60) == 2
    assert "start: " in other.log.read_text()


async def test_the_bound_follows_the_model_from_its_first_kept_version_on(
    run: Run, producer: AIOKafkaProducer, topic: str
) -> None:
    """Before it there is no reference; a stretch is gone on with after a restart; a follower has the same figure."""
    settings = "[snapshots]\nkeep_every = 1.0\n"
    service = await asyncio.to_thread(run(settings).up)
    assert (service.model()["bound"], service.model()["bound_reason"]) == (None, "no reference is known yet")
    rng = random.Random(3)

    async def more(count: int) -> None:
        for _ in range(count):
            x = {f"n{i}": round(rng.uniform(-1, 1), 3) for i in range(5)}
            await producer.send(topic, event(x, 1 if sum(x.values()) > 0 else 0))
        await producer.flush()

    await more(500)
    await asyncio.to_thread(wait, lambda: service.model()["bound"] is not None, "a version is kept")
    await more(500)
    model = await asyncio.to_thread(service.wait_for, 1000)
    assert model["updates"] <= model["bound"] < 1000
    assert service.metrics()[f'perceptron_mistake_bound{{model="{topic}"}}'] == model["bound"]
    replica = await asyncio.to_thread(run(settings, "--no-learn").up)
    assert replica.model()["bound"] == model["bound"]
    assert await asyncio.to_thread(service.stop) == 0
    again = await asyncio.to_thread(run(settings).up)
    assert again.model()["bound"] == model["bound"]
    silent = await asyncio.to_thread(run("[model]\nbound = false\n", "--no-learn").up)
    assert (silent.model()["bound"], silent.model()["bound_reason"]) == (None, "bound = false")


CORRUPTED = """
import pathlib
from service.learning.learner import Learner
apply = Learner.apply
def corrupted(self, *arguments):
    done = apply(self, *arguments)
    if pathlib.Path(TRIGGER).exists():
        self.weights[:] *= 16.0  # what a flipped bit of an exponent does
    return done
Learner.apply = corrupted
from service.cli import main
main()
"""


async def test_a_state_that_the_theorem_excludes_is_not_saved_and_not_served(
    kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Memory that is damaged breaks a check before a save: learning stops, the last good version answers."""
    await create_topic(kafka, topic)
    await create_topic(kafka, f"{topic}.dead-letters")
    file = tmp_path / "reference.json"
    file.write_bytes(msgspec.json.encode(Weights([1.0], 0.0, ["a"])))
    service = Running(topic, kafka.address, redis.address, tmp_path, f'[model]\nreference = "{file}"\n')
    service.kill()
    trigger = tmp_path / "trigger"
    code = CORRUPTED.replace("TRIGGER", json.dumps(str(trigger)))
    service.start([sys.executable, "-c", code, *service.command[3:]])
    try:
        await asyncio.to_thread(service.up)
        await producer.send_and_wait(topic, event({"a": 1}, 1))
        good = await asyncio.to_thread(service.wait_for, 1)
        trigger.touch()
        await producer.send_and_wait(topic, event({"a": 3}, 1))
        await asyncio.to_thread(wait, lambda: service.model()["stopped"], "it stops")
        assert f"model {topic} is corrupt: the squared norm of the weights is" in service.model()["stopped"]
        await asyncio.to_thread(wait, lambda: service.model()["ahead"] == 0, "the last good version answers")
        model = service.model()
        assert (model["state_digest"], model["learning_here"]) == (good["state_digest"], False)
        assert service.predict({"features": {"a": 1}}).json()["score"] == 2.0
    finally:
        service.kill()
        service.http.close()


async def test_a_model_that_diverges_is_answered_for_by_what_was_kept_before(
    run: Run, producer: AIOKafkaProducer, tool: Any, topic: str
) -> None:
    """lms on values that nobody scaled: it stops at ‖w‖² = 1e30, on learner, replica and restart alike.

    The last version from before the growth answers. Versions are kept all along the growth, each of them worse.
    """
    settings = '[model]\nrule = "lms"\n[snapshots]\nkeep_every = 0.001\nkeep = 50\n'
    service = await asyncio.to_thread(run(settings).up)
    replica = await asyncio.to_thread(run(settings, "--no-learn").up)
    sent = 0
    for _ in range(5):
        for _ in range(20):
            await producer.send(topic, event({"a": sent % 3 - 1.0, "b": sent % 2}, sent % 2))
            sent += 1
        await producer.flush()
        good = await asyncio.to_thread(service.wait_for, sent)

    def taken(records: int) -> bool:
        about = service.model()
        return bool(about["stopped"] or (about["next"], about["ahead"]) == ({"0": records}, 0))

    while not (stopped := service.model()["stopped"]):
        await producer.send_and_wait(topic, event({"a": 900.0 + sent % 7, "b": -700.0}, sent % 2))
        sent += 1
        assert sent < 150, "it diverges"
        await asyncio.to_thread(wait, functools.partial(taken, sent), "it is saved, or the end")
    assert re.search(
        rf"model {topic} diverged: rule lms with eta 0.001: the update at offset {sent - 1} of partition 0 takes the "
        r"squared norm of the weights beyond 1e\+30; .* `perceptron reset -t .*, or .* `perceptron rollback -t ",
        stopped,
    )

    def as_before(process: Running) -> bool:
        about = process.model()
        assert about["squared_norm"] <= 1e30
        return bool(about["stopped"] == stopped and about["events"] == good["events"] and not about["learning_here"])

    for process in (service, replica):
        await asyncio.to_thread(
            wait, functools.partial(as_before, process), "the version from before the growth answers"
        )
        assert process.model()["state_digest"] == good["state_digest"]
        assert abs(process.predict({"features": {"a": 1.0, "b": 1.0}}).json()["score"]) < 2.0
        assert process.http.get("/readyz").status_code == 200
    assert await asyncio.to_thread(service.stop) == 0
    again = await asyncio.to_thread(run(settings).up)
    await asyncio.to_thread(wait, lambda: as_before(again), "and after a restart")
    version = again.model()["version"]
    back = await tool("rollback", "--to", str(version), "--resume-at", f"0:{sent}", "--yes")
    assert back.returncode == 0, back.stderr
    await asyncio.to_thread(wait, lambda: again.model()["learning_here"], "it goes on behind the events")
    assert again.model()["stopped"] is None
    assert again.predict({"features": {"a": 1.0, "b": 1.0}}).status_code == 200


async def test_a_model_that_diverges_with_nothing_kept_says_why(
    run: Run, producer: AIOKafkaProducer, tool: Any, topic: str
) -> None:
    """Nothing answers then, with the reason; what there is can be looked at, and the process stays in service."""
    service = await asyncio.to_thread(run('[model]\nrule = "lms"\n[snapshots]\nkeep = 0\n').up)
    for i in range(200):
        await producer.send(topic, event({"a": 1e3, "b": 7e3 + i}, i % 2))
    await producer.flush()
    await asyncio.to_thread(wait, lambda: service.predict({"features": {}}).status_code == 503, "nothing answers")
    refused = service.predict({"features": {"a": 1.0}})
    assert refused.status_code == 503
    about = await asyncio.to_thread(wait, lambda: (a := service.model())["stopped"] and a, "it says so")
    assert refused.json()["detail"] == about["stopped"]
    assert "beyond 1e+30" in about["stopped"]
    assert about["squared_norm"] <= 1e30
    assert about["events"] < 20
    assert service.http.get("/readyz").status_code == 200
    verified = await tool("verify")
    assert (verified.returncode, "equal, bit for bit" in verified.stdout) == (0, True), verified
