"""The log as it is: compaction, a client that hangs, the log of another cluster."""

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from service.embedded import servers
from service.embedded.servers import Server
from tests.conftest import DEADLINE, Run, Running, create_topic, event, read_all, trim, wait
from tests.oracle import Fold, same

pytestmark = pytest.mark.nightly


async def test_a_topic_that_was_compacted_is_learned_as_what_is_left_of_it(run: Run, kafka: Server, topic: str) -> None:
    """Where the cleaner took records there are gaps, for ever, whatever the policy says later.

    They are covered, counted and said once, and nothing is lost of what is there.
    """
    small = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01", "delete_retention_ms": "0"}
    await create_topic(kafka, topic, 1, cleanup_policy="compact", **small)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await client.start()

    async def after(more: int) -> list[Any]:
        # The segment that is written to is never compacted: each try begins another, with a key of its own.
        await client.send_and_wait(topic, event({"more": 1}, 1), key=b"more%d" % more)
        return await read_all(kafka, topic)

    for i in range(40):
        await client.send_and_wait(topic, event({f"n{i % 4}": i}, i % 2), key=b"k%d" % (i % 4))
    deadline, more = time.monotonic() + 90, 1
    while len(left := await after(more)) > 4 + more:  # until nothing is left that the cleaner may take later
        assert time.monotonic() < deadline, f"the cleaner left {len(left) - more} records of 4 keys"
        await asyncio.sleep(0.5)
        more += 1
    await client.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.address)
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": "delete"})])
    await admin.close()
    service = await asyncio.to_thread(run("", "--start-at", "earliest").up)
    model = await asyncio.to_thread(service.wait_for, left[-1].offset + 1)
    assert left[-1].offset > len(left)
    same(Fold().fold(r.value for r in left), model, service.weights())
    assert service.metrics()[f'perceptron_offset_gaps_total{{model="{topic}"}}'] >= 1
    assert service.log.read_text().count("offsets without a batch") == 1


WATCHDOG_SECONDS = 15.0
"""Longer than two looks at a broker that has just started, which may answer late, and than finding it again takes."""
STUCK = """
import asyncio, pathlib
from service.streaming.kafka.fetching.fetcher import Fetcher
request = Fetcher._request
async def hang(self, *arguments):
    if pathlib.Path(TRIGGER).exists():
        pathlib.Path(TRIGGER + "-seen").touch()
        await asyncio.sleep(3600)  # what was seen after some restarts of a broker: a fetch that never ends
    await request(self, *arguments)
Fetcher._request = hang
from service.cli.app import main
main()
"""


@pytest.mark.long
async def test_a_client_that_hangs_ends_the_process_and_an_absent_broker_does_not(topic: str, tmp_path: Path) -> None:
    """The watchdog: the broker answers and has more, and nothing came for its time. Then a fresh process goes on."""
    for folder in ("kafka", "redis"):
        (tmp_path / folder).mkdir()
    hang = tmp_path / "hang"
    with servers.start_kafka(tmp_path / "kafka") as own, servers.start_redis(tmp_path / "redis") as redis:
        client = AIOKafkaProducer(bootstrap_servers=own.address, request_timeout_ms=120_000)
        await client.start()
        service = Running(topic, own.address, redis.address, tmp_path, "", "--create-topics", watchdog=WATCHDOG_SECONDS)
        service.kill()
        service.start([sys.executable, "-c", STUCK.replace("TRIGGER", repr(str(hang))), *service.command[3:]])
        try:
            await asyncio.to_thread(service.up)
            await client.send_and_wait(topic, event({"a": 1}, 1))
            await asyncio.to_thread(service.wait_for, 1)
            own.kill()
            await asyncio.sleep(WATCHDOG_SECONDS + 2.0)  # the outage itself
            assert service.process.poll() is None
            await asyncio.to_thread(own.start)
            await client.send_and_wait(topic, event({"a": 1}, 0))
            await asyncio.to_thread(service.wait_for, 2)
            hang.touch()
            # A fetch that is under way would still bring what is sent now.
            await asyncio.to_thread(wait, Path(f"{hang}-seen").exists, "it hangs")
            await client.send_and_wait(topic, event({"a": 1}, 1))
            assert await asyncio.to_thread(service.process.wait, DEADLINE) == 1
            said = service.log.read_text()
            assert f"topic {topic}: Kafka at {own.address} answers and has more records, but none came for" in said
            assert "Traceback" not in said
            hang.unlink()
            fresh = await asyncio.to_thread(service.start(service.command).up)
            assert (await asyncio.to_thread(fresh.wait_for, 3))["events"] == 3
        finally:
            await client.stop()
            service.kill()
            service.http.close()


def learned(service: Running, topic: str, events: int) -> bool:
    model = service.model(topic)
    return (model["events"], model["ahead"]) == (events, 0)


def stopped(service: Running, topic: str) -> Any:
    return service.model(topic)["stopped"]


async def test_another_clusters_model_is_never_gone_on_with(
    kafka: Server, producer: AIOKafkaProducer, redis: Server, topic: str, tmp_path: Path
) -> None:
    """Two clusters, one Redis. The offsets fit in all: nothing was learned yet; the last record learned is gone, or is
    there; the settings are others. What is said advises nobody to forget what is somebody else's."""
    empty, same, settings = (f"{topic}-{kind}" for kind in ("empty", "same", "settings"))
    topics = (empty, same, settings)
    (tmp_path / "kafka").mkdir()
    with servers.start_kafka(tmp_path / "kafka") as own:
        client = AIOKafkaProducer(bootstrap_servers=own.address)
        await client.start()

        def first() -> Running:
            return Running(topic, own.address, redis.address, tmp_path, "", "--create-topics", topics=topics).up()

        service = await asyncio.to_thread(first)
        for name in (topic, same, settings):
            for i in range(5):
                await client.send_and_wait(name, event({"a": i}, i % 2), timestamp_ms=1000 + i)
        for name in topics:
            await asyncio.to_thread(wait, partial(learned, service, name, 0 if name == empty else 5), "it is saved")
        await asyncio.to_thread(service.wait_for, 5)
        assert await asyncio.to_thread(service.stop) == 0
        service.http.close()
        for name in (topic, *topics):
            await create_topic(kafka, name)
            for i in range(8):
                what = event({"a": i} if name == same else {"b": i}, i % 2)
                await producer.send_and_wait(name, what, timestamp_ms=1000 + i)
        await trim(kafka, topic, 5)
        text = f"[models.{settings}]\neta = 0.5"
        other = Running(topic, kafka.address, redis.address, tmp_path, text, "--create-topics", topics=topics)
        try:
            await asyncio.to_thread(other.up)
            for name, events in ((topic, 5), (empty, 0), (same, 5), (settings, 5)):
                said = await asyncio.to_thread(wait, partial(stopped, other, name), "it does not learn")
                assert said.startswith(f"model {name} was learned from Kafka cluster ")
                assert other.model(name)["events"] == events
                assert not any(word in said for word in ("reset", "rollback", "recreated", "trimmed"))
            assert "reset" not in other.log.read_text()
        finally:
            other.kill()
            other.http.close()
        # Where it was learned it is gone on with.
        await client.send_and_wait(empty, event({"a": 1}, 1))
        await client.stop()
        back = await asyncio.to_thread(first)
        await asyncio.to_thread(wait, lambda: back.model(empty)["events"] == 1, "it is learned")
        assert (back.model()["events"], back.model()["stopped"]) == (5, None)
        back.kill()
        back.http.close()
