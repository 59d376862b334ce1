"""Flipped bits in the first twelve bytes of a batch, its base offset and its length, which no checksum covers."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.streaming.dead_letters import topic_of
from tests.conftest import Run, Running, create_topic, event, wait
from tests.faults.conftest import repeated
from tests.faults.test_log_faults import batches
from tests.oracle import Fold, same

RECORDS = 10
"""Of a batch."""


def events(batch: int) -> list[bytes]:
    return [event({f"n{i % 3}": float(batch + i)}, i % 2) for i in range(RECORDS)]


async def send(client: AIOKafkaProducer, topic: str, numbers: range) -> None:
    """A batch for each of these numbers, in the topic's only partition."""
    for number in numbers:
        batch = client.create_batch()
        for i, raw in enumerate(events(number)):
            assert batch.append(key=b"%d-%d" % (number, i), value=raw, timestamp=None)
        await (await client.send_batch(batch, topic, partition=0))


def damage(kafka: Server, topic: str, batch: int, byte: int, bit: int) -> None:
    """One bit of this batch's first bytes is another one, in the broker's own file."""
    [path] = Path(kafka._log).parent.glob(f"kafka/{topic}-0/*.log")
    data = path.read_bytes()
    at = batches(data)[batch][2] + byte
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1 << bit]))


@pytest.fixture
def service(kafka: Server, redis: Server, topic: str, tmp_path: Path) -> Iterator[Any]:
    """Start a service on several topics; it is killed at the end."""
    started: list[Running] = []

    def start(*topics: str, watchdog: float = 60.0) -> Running:
        started.append(Running("", kafka.address, redis.address, tmp_path, "", "-g", f"g-{topic}", topics=topics,
                               watchdog=watchdog))  # fmt: skip
        return started[-1]

    yield start
    for one in started:
        one.http.close()
        if one.process.poll() is None:
            one.kill()


BASES = {"276": (6, 0), "4": (7, 4), "16": (7, 2), "28": (7, 3), "21": (7, 0), "beyond": (2, 0), "negative": (0, 7)}
"""Byte and bit of the batch that begins at 20, by where it says then that it begins."""


async def test_a_flipped_base_offset_stops_learning_before_it(
    service: Any, kafka: Server, redis: Server, topic: str
) -> None:
    """Wherever the batch says that it is: what is before it is learned and saved, nothing else, and the stop says so."""
    policies = ("delete", "compact")
    topics = {f"{topic}-{policy}-{name}": where for policy in policies for name, where in BASES.items()}
    healthy = f"{topic}-healthy"
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await client.start()
    try:
        for name in (healthy, *topics):
            await create_topic(kafka, name, cleanup_policy="compact" if "compact" in name else "delete")
            await create_topic(kafka, topic_of(name))
            await send(client, name, range(45))
    finally:
        await client.stop()
    for name, where in topics.items():
        damage(kafka, name, 2, *where)
    running = await asyncio.to_thread(service(healthy, *topics).up)
    await asyncio.to_thread(wait, lambda: running.model(healthy)["next"]["0"] == 450, "the healthy one is learned")
    for name in topics:
        model = await asyncio.to_thread(
            wait, lambda name=name: (m := running.model(name))["stopped"] and not m["ahead"] and m, "it stops and saves"
        )
        print(f"\n{model['stopped']}")
        assert (
            f"topic {name}: the record at offset 20 of partition 0 cannot be read (at 20 the log, which ends at 450, goes on with a batch of "
            in model["stopped"]
        )  # noqa: E501
        assert (model["covered"], model["events"]) == ({"0": [[0, 20]]}, 20)
        assert running.metrics()[f'perceptron_unexplained_gaps_total{{model="{name}"}}'] == 1
    assert running.model(healthy)["stopped"] is None


LENGTHS = {"longer": (1, 4), "much-longer": (0, 6), "negative": (0, 7), "shorter": (2, 0)}
"""Byte and bit of the length of the batch that begins at 20."""


async def test_a_damaged_length_stops_its_topic_alone(service: Any, kafka: Server, topic: str) -> None:
    """The broker has nothing to give from there on, for ever: no process ends of it, nobody else is held up."""
    topics = {f"{topic}-{name}": where for name, where in LENGTHS.items()}
    healthy = [f"{topic}-healthy-{i}" for i in range(2)]
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await client.start()
    try:
        for name in (*healthy, *topics):
            await create_topic(kafka, name)
            await create_topic(kafka, topic_of(name))
            await send(client, name, range(5))
        for name, (byte, bit) in topics.items():
            damage(kafka, name, 2, 8 + byte, bit)
        running = await asyncio.to_thread(service(*healthy, *topics, watchdog=3.0).up)
        waiting, sent, answered, began = set(topics), 5, 0, time.monotonic()
        while waiting or answered < 200:
            assert running.process.poll() is None, running.log.read_text()
            assert time.monotonic() < began + 60, waiting
            waiting = {name for name in waiting if not running.model(name)["stopped"]}
            for name in healthy:
                answer = running.http.post(f"/v1/models/{name}/predict", json={"features": {"n1": 1}})
                assert answer.status_code == 200
                answered += 1
                await send(client, name, range(sent, sent + 1))
            sent += 1
        for name in healthy:
            await asyncio.to_thread(wait, lambda name=name: running.model(name)["next"]["0"] == sent * RECORDS, "all")
    finally:
        await client.stop()
    print(f"{answered} predictions answered in {time.monotonic() - began:.1f} s")
    # The second is a fresh process, at the offset where the one before stopped.
    for fresh in range(repeated(2, 1)):
        if fresh:
            assert await asyncio.to_thread(running.stop) == 0
            await asyncio.to_thread(running.start(running.command).up)
        for name in topics:
            await asyncio.to_thread(wait, lambda name=name: running.model(name)["stopped"], "it stops")
            model = running.model(name)
            print(f"\n{model['stopped']}")
            assert re.search(rf"topic {name}: the record at offset (19|20) of partition 0 cannot be", model["stopped"])
            assert f"perceptron reset -t {name} --yes" in model["stopped"]
            assert (model["covered"], model["events"], model["ahead"]) == ({"0": [[0, 20]]}, 20, 0)
    assert all(running.model(name)["learning_here"] for name in healthy)
