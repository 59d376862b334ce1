"""A model that is corrupt or grows without limit stops learning, and its last good version answers."""

import asyncio
import contextlib
import functools
import json
import sys
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.weights_file import WeightsFile
from tests.conftest import Run, Running, create_both_topics, event, send, wait
from tests.integration.kept import Tool

pytestmark = pytest.mark.nightly

CORRUPTING_SERVICE = """
import pathlib
from service.learning.learner import Learner
apply = Learner.apply
def corrupted(self, *arguments):
    done = apply(self, *arguments)
    if pathlib.Path(TRIGGER).exists():
        self.main.weights[:] *= 16.0  # as a flipped bit of an exponent would
    return done
Learner.apply = corrupted
from service.cli.app import main
main()
"""


async def test_a_state_that_the_theorem_excludes_is_not_saved_and_not_served(
    kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Damaged memory fails a check before a save: learning stops, and the last good version answers."""
    await create_both_topics(kafka, topic)
    file = tmp_path / "reference.json"
    file.write_bytes(msgspec.json.encode(WeightsFile([1.0], 0.0, ["a"])))
    service = Running(topic, kafka.address, redis.address, tmp_path, f'[model]\nreference = "{file}"\n')
    service.kill()
    trigger = tmp_path / "trigger"
    code = CORRUPTING_SERVICE.replace("TRIGGER", json.dumps(str(trigger)))
    service.start([sys.executable, "-c", code, *service.command[3:]])
    with contextlib.closing(service):
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


async def test_an_earlier_version_answers_for_a_model_that_diverges(
    run: Run, producer: AIOKafkaProducer, tool: Tool, topic: str
) -> None:
    """lms on unscaled values stops at ‖w‖² = 1e30: learner, replica and restart answer with an earlier version."""
    settings, count = '[model]\nrule = "lms"\n[snapshots]\nkeep_every = 0.001\nkeep = 50\n', 0
    service = await asyncio.to_thread(run(settings).up)
    replica = await asyncio.to_thread(run(settings, "--no-learn").up)
    for count in range(1, 101):
        await producer.send_and_wait(topic, event({"a": count % 3 - 1.0, "b": count % 2}, count % 2))
        if count % 20 == 0:
            good = await asyncio.to_thread(service.wait_for, count)

    def is_handled(records: int) -> bool:
        info = service.model()
        return bool(info["stopped"] or (info["next"], info["ahead"]) == ({"0": records}, 0))

    while not (stopped := service.model()["stopped"]):
        await producer.send_and_wait(topic, event({"a": 900.0 + count % 7, "b": -700.0}, count % 2))
        count += 1
        assert count < 150, "it diverges"
        await asyncio.to_thread(wait, functools.partial(is_handled, count), "it is saved, or the end")
    assert f"the update at offset {count - 1} of partition 0 takes the squared norm of the weights beyond" in stopped

    def is_restored(process: Running) -> bool:
        info = process.model()
        assert info["squared_norm"] <= 1e30
        return bool(info["stopped"] == stopped and info["events"] == good["events"] and not info["learning_here"])

    for process in (service, replica):
        await asyncio.to_thread(wait, functools.partial(is_restored, process), "an earlier version answers")
        assert process.model()["state_digest"] == good["state_digest"]
        assert abs(process.predict({"features": {"a": 1.0, "b": 1.0}}).json()["score"]) < 2.0
    assert await asyncio.to_thread(service.stop) == 0
    restarted = await asyncio.to_thread(run(settings).up)
    await asyncio.to_thread(wait, lambda: is_restored(restarted), "and after a restart")
    version = restarted.model()["version"]
    await tool.roll_back(version, "--resume-at", f"0:{count}")
    await asyncio.to_thread(wait, lambda: restarted.model()["learning_here"], "it continues after these events")


async def test_a_diverged_model_with_nothing_kept_says_why(
    run: Run, producer: AIOKafkaProducer, tool: Tool, topic: str
) -> None:
    """Predictions are refused with the reason, the model can be looked at, and the process stays ready."""
    service = await asyncio.to_thread(run('[model]\nrule = "lms"\n[snapshots]\nkeep = 0\n').up)
    await send(producer, topic, (event({"a": 1e3, "b": 7e3 + i}, i % 2) for i in range(200)))
    info = await asyncio.to_thread(wait, lambda: (a := service.model())["stopped"] and a, "it says so")
    answer = service.predict({"features": {"a": 1.0}})
    assert (answer.status_code, answer.json()["detail"]) == (503, info["stopped"])
    assert "beyond 1e+30" in info["stopped"]
    assert info["squared_norm"] <= 1e30
    assert service.http.get("/readyz").status_code == 200
    await tool.verify()
