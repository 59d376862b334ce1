"""Labels that come later, on real servers: each event is learned once, and `verify` gives the same state."""

import asyncio
import json
import random
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import TAKEOVER_SECONDS, Run, Running, add_partitions, create_topic, perceptron, until, wait

START = 1_700_000_000_000
SETTINGS = """
[models.{model}]
topic = "{model}-events"
labels = [0, 1]
[models.{model}.join]
topic = "{model}-labels"
window = "1m"
default_label = 0
[snapshots]
keep_every = 2.0
"""


async def send_at(producer: AIOKafkaProducer, topic: str, time: int, value: Any, partition: int) -> None:
    await producer.send(topic, json.dumps(value).encode(), partition=partition, timestamp_ms=time)


async def produce(producer: AIOKafkaProducer, model: str, begin: int, count: int, partitions: int) -> int:
    """Send events, a second apart, and the labels of a third of them; returns how many labels were sent."""
    rng, labels = random.Random(begin), 0
    for i in range(begin, begin + count):
        time, id_ = START + 1000 * i, f"id{i}"
        event = {"id": id_, "features": {"a": i % 5, "b": i % 3}}
        await send_at(producer, f"{model}-events", time, event, i % partitions)
        if i % 3 == 0:
            labels += 1
            late = time + rng.randrange(0, 30_000)
            await send_at(producer, f"{model}-labels", late, {"id": id_, "label": 1}, rng.randrange(2))
    await producer.flush()
    return labels


async def finish(producer: AIOKafkaProducer, model: str, i: int, partitions: int) -> None:
    """Send records that are no events, later than all windows."""
    for k in range(20):
        for partition in range(partitions):
            await send_at(producer, f"{model}-events", START + 1000 * (i + 120 + k), {"id": "x"}, partition)
    await producer.flush()


def learned(service: Running, events: int) -> bool:
    about = service.model()
    return bool(about["events"] == events and not about["ahead"])


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.nightly)])
async def test_each_event_is_learned_once_with_its_label_whatever_dies(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, kills: int
) -> None:
    for name in (f"{topic}-events", f"{topic}-labels"):
        await create_topic(kafka, name, 2)
    settings, count, labels, partitions, version = SETTINGS.format(model=topic), 40, 0, 2, 0
    service = run(settings, topic="", session_timeout=TAKEOVER_SECONDS)
    service.topic = topic
    for i in range(kills):
        labels += await produce(producer, topic, count * i, count, partitions)
        if i % 2:
            other = run(settings, topic="", session_timeout=TAKEOVER_SECONDS)
            other.topic = topic
        else:
            other = service
        await asyncio.to_thread(service.up)
        await until(lambda: service.model()["version"] > version, "a head is saved")  # noqa: B023 - it is awaited here
        version = service.model()["version"]
        if i == kills // 2:  # while events are held
            await add_partitions(kafka, f"{topic}-events", 3)
            await until(lambda: f"{topic}-events-2" in service.model()["next"], "the new partition is known")  # noqa: B023
            await producer.client.force_metadata_update()
            partitions = 3
        service.kill()
        service = other if other is not service else service.start(service.command)
    await asyncio.to_thread(service.up)
    await finish(producer, topic, count * kills, partitions)
    await asyncio.to_thread(wait, lambda: learned(service, count * kills), "all events are learned")
    about = service.model()
    assert about["label_outcomes"]["joined"] == labels
    assert (about["held"], about["repeated"], about["expired"]) == (0, 0, 0)
    assert [sum(row) for row in about["confusion"]] == [count * kills - labels, labels]
    verified = perceptron(
        "-c", str(service.config), "verify", "-m", topic, "-b", kafka.address, "--redis", service.redis_url
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize(("order", "first"), [("arrival", START), ("time", START), ("arrival", -1)])
async def test_a_partition_that_ends_long_before_the_others_is_named_unless_they_are_merged_or_have_no_time(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, order: str, first: int
) -> None:
    await create_topic(kafka, topic, 2)
    for partition, time, count in ((0, first, 20_000), (1, START + 3 * 86_400_000, 100)):
        for i in range(count):
            await send_at(producer, topic, time, {"features": {"a": i % 3}, "label": partition}, partition)
    await producer.flush()
    service = await asyncio.to_thread(run(f'[model.event]\norder = "{order}"').up)
    await asyncio.to_thread(wait, lambda: learned(service, 20_100), "all events are learned")
    assert ("partition 1 has ended" in service.log.read_text()) == (order == "arrival" and first == START)


async def test_a_user_lets_windows_close_without_silent_labels_and_forgets_what_is_held(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    events, labels = f"{topic}-events", f"{topic}-labels"
    for name in (events, labels):
        await create_topic(kafka, name, 1)
    settings = SETTINGS.format(model=topic).replace('window = "1m"', 'window = "10s"\nmax_silence = "5s"')
    service = run(settings, topic="")
    service.topic = topic

    async def ask(begin: int, end: int) -> None:
        for i in range(begin, end):
            await send_at(producer, events, START + 1000 * i, {"id": i, "features": {"a": i % 3}}, 0)
        await producer.flush()

    def command(*words: str) -> tuple[int, str]:
        done = perceptron("-c", str(service.config), *words, "-m", topic, "--redis", service.redis_url)
        return done.returncode, done.stdout + done.stderr

    for i in range(12):
        await send_at(producer, labels, START + 1000 * i, {"id": i, "label": 1}, 0)
    await ask(0, 90)
    await asyncio.to_thread(service.up)
    await until(lambda: service.model()["held"] == 90 and service.model()["join_waits"], "windows wait for labels")
    waiting = service.model()
    assert waiting["events"] == 0
    assert f"{labels}-0" in waiting["join_waits"]
    assert f"perceptron join resume -m {topic}" in waiting["join_waits"]
    assert command("join", "resume")[0] == 0
    await ask(90, 100)
    await until(lambda: service.model()["events"] + service.model()["held"] == 100, "windows close")
    resumed = service.model()
    assert (resumed["label_outcomes"]["joined"], resumed["join_waits"]) == (12, None)
    assert 0 < resumed["held"] < 20
    code, text = command("join", "drop")
    assert (code, f"{resumed['held']} events" in text, "--yes" in text) == (2, True, True)
    assert command("join", "drop", "--yes")[0] == 0
    await until(lambda: service.model()["held"] == 0, "the service has taken over the new head")
    assert (service.model()["dropped"], service.model()["events"]) == (resumed["held"], resumed["events"])
    code, text = command("verify", "-b", kafka.address)
    assert code == 0, text
