"""Batches whose offsets, counts or length are wrong under a right checksum, or where no checksum covers them."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded import servers
from service.embedded.servers import Server
from tests.batches import impossible_batch, send_batch
from tests.conftest import DEADLINE, Running, create_both_topics, event, one_line, perceptron, wait
from tests.faults.test_log_faults import batches, flip, segment

pytestmark = pytest.mark.nightly

RECORDS = 10
"""Records of a batch."""


def events(batch: int) -> list[bytes]:
    return [event({f"n{i % 3}": float(batch + i)}, i % 2) for i in range(RECORDS)]


async def send(producer: AIOKafkaProducer, topic: str, numbers: range) -> None:
    """Send a batch for each of these numbers to the topic's only partition."""
    for number in numbers:
        batch = producer.create_batch()
        for i, raw in enumerate(events(number)):
            assert batch.append(key=b"%d-%d" % (number, i), value=raw, timestamp=None)
        await (await producer.send_batch(batch, topic, partition=0))


def damage(kafka: Server, topic: str, batch: int, byte: int, bit: int) -> None:
    """Flip one bit in the first bytes of a batch, in the broker's log file."""
    path = segment(kafka, topic)
    flip(path, batches(path.read_bytes())[batch][2] + byte, bit)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker only for this file: after a kill it cannot start with such a log."""
    with servers.start_kafka(tmp_path_factory.mktemp("damaged")) as server:
        yield server


@pytest.fixture
def service(kafka: Server, redis: Server, topic: str, tmp_path: Path) -> Iterator[Any]:
    """Start services on several topics; they are killed at the end."""
    started: list[Running] = []

    def start(*topics: str, watchdog: float = 60.0) -> Running:
        started.append(Running("", kafka.address, redis.address, tmp_path, "", "-g", f"g-{topic}", topics=topics,
                               watchdog=watchdog))  # fmt: skip
        return started[-1]

    yield start
    for running in started:
        running.close()


BASES = {
    "4": (7, 4), "28": (7, 3), "beyond": (2, 0), "negative": (0, 7)
}  # fmt: skip
"""The byte and bit to flip in the batch that begins at 20, by the base offset that it then states."""
MISPLACED = "at (19|20) the log(, which ends at 450,)? goes on with a batch of offsets "
LENGTHS = {"longer": (1, 4), "shorter": (2, 0)}
"""The byte and bit to flip in its length, by the effect."""


async def create(producer: AIOKafkaProducer, kafka: Server, topic: str, batches: int, policy: str = "delete") -> None:
    """Create a topic with this number of batches, and its dead-letter topic."""
    await create_both_topics(kafka, topic, cleanup_policy=policy)
    await send(producer, topic, range(batches))


async def up_again(running: Running, restarted: bool) -> None:
    """Wait until a service is ready, first stopped and started again if `restarted`."""
    if restarted:
        assert await asyncio.to_thread(running.stop) == 0
        running.start(running.command)
    await asyncio.to_thread(running.up)


def wait_until_learned(running: Running, topic: str, records: int) -> None:
    wait(lambda: running.model(topic)["next"]["0"] == records, "the healthy topic is learned")


def wait_until_stopped(running: Running, topic: str, words: str) -> None:
    """Wait until learning of a topic stops before the damage, and all earlier records are saved."""
    assert running.process.poll() is None, running.log.read_text()
    wait(lambda: running.model(topic)["stopped"] and not running.model(topic)["ahead"], "it stops and saves")
    model = running.model(topic)
    assert re.search(rf"topic {topic}: the record at offset (19|20) of partition 0 {words}", model["stopped"])
    assert f"`perceptron reset -m {topic} --yes`" in model["stopped"]
    assert (model["covered"], model["events"]) == ({"0": [[0, 20]]}, 20)


async def test_a_flipped_base_offset_stops_learning(
    service: Any, plain_producer: AIOKafkaProducer, kafka: Server, redis: Server, topic: str
) -> None:
    """This holds for every wrong base offset, and for a new process, whose first fetch begins there."""
    topics = {f"{topic}-{name}": place for name, place in BASES.items()}
    topics |= {f"{topic}-compact-{name}": BASES[name] for name in ("28", "beyond")}
    healthy = f"{topic}-healthy"
    await create(plain_producer, kafka, healthy, 45)
    for name, place in topics.items():
        await create(plain_producer, kafka, name, 45, "compact" if "compact" in name else "delete")
        damage(kafka, name, 2, *place)
    running = service(healthy, *topics)
    for restarted in (False, True):
        await up_again(running, restarted)
        await asyncio.to_thread(wait_until_learned, running, healthy, 450)
        for name in topics:
            if restarted and "compact" in name:  # a compacted topic may lack records before the first fetch
                continue
            await asyncio.to_thread(wait_until_stopped, running, name, rf"cannot be read \({MISPLACED}")
            assert running.metrics()[f'perceptron_unexplained_gaps_total{{model="{name}"}}'] == 1
        assert running.model(healthy)["stopped"] is None
    damage(kafka, healthy, 2, *BASES["4"])
    result = perceptron("verify", "-t", healthy, "-b", kafka.address, "--redis", f"redis://{redis.address}/0")
    assert result.returncode == 1
    assert re.search(f"{MISPLACED}4 to 13", one_line(result.stderr))


async def test_a_damaged_length_stops_its_topic_alone(
    service: Any, plain_producer: AIOKafkaProducer, kafka: Server, topic: str
) -> None:
    """The broker returns nothing after the damage. The process and its other topics continue."""
    topics = {f"{topic}-{name}": place for name, place in LENGTHS.items()}
    healthy = [f"{topic}-healthy-{i}" for i in range(2)]
    for name in (*healthy, *topics):
        await create(plain_producer, kafka, name, 5)
    for name, (byte, bit) in topics.items():
        damage(kafka, name, 2, 8 + byte, bit)
    running = await asyncio.to_thread(service(*healthy, *topics, watchdog=3.0).up)
    waiting, batch_count, answers, began = set(topics), 5, 0, time.monotonic()
    while waiting or answers < 200:
        assert running.process.poll() is None, running.log.read_text()
        assert time.monotonic() < began + DEADLINE, waiting
        waiting = {name for name in waiting if not running.model(name)["stopped"]}
        for name in healthy:
            answer = running.http.post(f"/v1/models/{name}/predict", json={"features": {"n1": 1}})
            assert answer.status_code == 200
            answers += 1
            await send(plain_producer, name, range(batch_count, batch_count + 1))
        batch_count += 1
    for restarted in (False, True):  # the second process begins where the first stopped
        await up_again(running, restarted)
        for name in topics:
            await asyncio.to_thread(wait_until_stopped, running, name, r"cannot be read \(")
        for name in healthy:
            await asyncio.to_thread(wait_until_learned, running, name, batch_count * RECORDS)


async def test_a_batch_with_impossible_offsets_stops_learning(
    service: Any, plain_producer: AIOKafkaProducer, kafka: Server, topic: str
) -> None:
    """A broker takes such a batch. Nothing of it is learned, neither at once nor by a process that starts there."""
    deltas = {"far": [*range(5), *range(1005, 1010)], "equal": [0] * 10, "falling": [*range(9, -1, -1)]}
    names = {f"{topic}-{kind}": each for kind, each in deltas.items()}
    for name, each in names.items():
        await create(plain_producer, kafka, name, 2)
        assert await send_batch(plain_producer, name, impossible_batch(each, 9, 10, events(0)[0])) == 20
        await send(plain_producer, name, range(3, 5))
    running = service(*names)
    for restarted in (False, True):
        await up_again(running, restarted)
        for name in names:
            await asyncio.to_thread(wait_until_stopped, running, name, r"cannot be read \(its batch has a damaged")
            assert "--resume-at 0:30" in running.model(name)["stopped"]
