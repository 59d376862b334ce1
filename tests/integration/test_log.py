"""A compacted log, a client that hangs, the log of another cluster, and a log that does not go back as far."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from redis import Redis

from service.embedded import servers
from service.embedded.servers import Server
from service.snapshots.redis.store import key
from tests.conftest import DEADLINE, Run, Running, configure, create_topic, event, read_all, trim, wait
from tests.oracle import Fold, assert_model_is_fold

pytestmark = pytest.mark.nightly


async def test_a_compacted_topic_is_learned_as_the_records_that_remain(
    run: Run, kafka: Server, plain_producer: AIOKafkaProducer, topic: str
) -> None:
    """Gaps of the cleaner stay, whatever the policy is later. They are covered, counted and logged once."""
    small = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01", "delete_retention_ms": "0"}
    await create_topic(kafka, topic, 1, cleanup_policy="compact", **small)

    async def append_and_read(extra: int) -> list[Any]:
        # The newest segment is never compacted: each try begins another one, with a key of its own.
        await plain_producer.send_and_wait(topic, event({"more": 1}, 1), key=b"more%d" % extra)
        return await read_all(kafka, topic)

    for i in range(40):
        await plain_producer.send_and_wait(topic, event({f"n{i % 4}": i}, i % 2), key=b"k%d" % (i % 4))
    deadline, extra = time.monotonic() + 90, 1
    while len(records := await append_and_read(extra)) > 4 + extra:  # the cleaner may take more
        assert time.monotonic() < deadline, f"the cleaner left {len(records) - extra} records of 4 keys"
        await asyncio.sleep(0.5)
        extra += 1
    await configure(kafka, topic, cleanup_policy="delete")
    service = await asyncio.to_thread(run("", "--start-at", "earliest").up)
    model = await asyncio.to_thread(service.wait_for, records[-1].offset + 1)
    assert records[-1].offset > len(records)
    assert_model_is_fold(Fold().fold(r.value for r in records), model, service.weights())
    assert service.metrics()[f'perceptron_offset_gaps_total{{model="{topic}"}}'] >= 1
    assert service.log.read_text().count("offsets without a batch") == 1


WATCHDOG_SECONDS = 15.0
"""Longer than a client needs to find a restarted broker again, which may answer late."""
HANGING_SERVICE = """
import asyncio, pathlib
from service.streaming.kafka.fetching.fetcher import Fetcher
request = Fetcher._request
async def hang(self, *arguments):
    if pathlib.Path(TRIGGER).exists():
        pathlib.Path(TRIGGER + "-seen").touch()
        await asyncio.sleep(3600)  # a fetch that never ends, as seen after restarts of a broker
    await request(self, *arguments)
Fetcher._request = hang
from service.cli.app import main
main()
"""


@pytest.mark.long
async def test_a_client_that_hangs_ends_the_process_and_an_absent_broker_does_not(topic: str, tmp_path: Path) -> None:
    """If the broker has more and nothing comes for the watchdog's time, the process ends, and a new one continues."""
    hang = tmp_path / "hang"
    with (
        servers.start_kafka(tmp_path) as kafka,
        servers.start_redis(tmp_path) as redis,
        contextlib.closing(
            Running(topic, kafka.address, redis.address, tmp_path, "", "--create-topics", watchdog=WATCHDOG_SECONDS)
        ) as service,
    ):
        service.kill()
        service.start([sys.executable, "-c", HANGING_SERVICE.replace("TRIGGER", repr(str(hang))), *service.command[3:]])
        async with AIOKafkaProducer(bootstrap_servers=kafka.address, request_timeout_ms=120_000) as client:
            await asyncio.to_thread(service.up)
            await client.send_and_wait(topic, event({"a": 1}, 1))
            await asyncio.to_thread(service.wait_for, 1)
            kafka.kill()
            await asyncio.sleep(WATCHDOG_SECONDS + 2.0)  # the outage itself
            assert service.process.poll() is None
            await asyncio.to_thread(kafka.start)
            await client.send_and_wait(topic, event({"a": 1}, 0))
            await asyncio.to_thread(service.wait_for, 2)
            hang.touch()
            # A fetch in progress would still bring a record that is sent now.
            await asyncio.to_thread(wait, Path(f"{hang}-seen").exists, "it hangs")
            await client.send_and_wait(topic, event({"a": 1}, 1))
            assert await asyncio.to_thread(service.process.wait, DEADLINE) == 1
            log = service.log.read_text()
            assert f"topic {topic}: Kafka at {kafka.address} answers and has more records, but none came for" in log
            assert "Traceback" not in log
            hang.unlink()
            restarted = await asyncio.to_thread(service.start(service.command).up)
            assert (await asyncio.to_thread(restarted.wait_for, 3))["events"] == 3


async def test_a_model_of_another_cluster_is_never_continued(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Two clusters with the same records share a Redis. No message advises to forget somebody else's model."""
    with servers.start_kafka(tmp_path) as other_kafka:
        first = await asyncio.to_thread(run(kafka_address=other_kafka.address).up)
        async with AIOKafkaProducer(bootstrap_servers=other_kafka.address) as client:
            for i in range(5):
                await client.send_and_wait(topic, event({"a": i}, i % 2), timestamp_ms=1000 + i)
        await asyncio.to_thread(first.wait_for, 5)
        assert await asyncio.to_thread(first.stop) == 0
        await create_topic(kafka, topic)
        for i in range(8):
            await producer.send_and_wait(topic, event({"a": i}, i % 2), timestamp_ms=1000 + i)
        second = await asyncio.to_thread(run().up)
        reason = await asyncio.to_thread(wait, lambda: second.model()["stopped"], "it does not learn")
        assert reason.startswith(f"model {topic} was learned from Kafka cluster ")
        assert second.model()["events"] == 5
        assert not any(word in reason for word in ("reset", "rollback", "recreated", "trimmed"))
        assert "reset" not in second.log.read_text()
        # A process of the other cluster continues.
        restarted = await asyncio.to_thread(run(kafka_address=other_kafka.address).up)
        assert ((await asyncio.to_thread(restarted.wait_for, 5))["events"], restarted.model()["stopped"]) == (5, None)


async def test_the_reason_of_a_stop_stays(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """Redis gets an older copy back, and the log does not go back as far. The older version answers meanwhile."""
    service = await asyncio.to_thread(run().up)
    with Redis(host="127.0.0.1", port=redis.port) as client:
        for records in (3, 6):
            for _ in range(3):
                await producer.send_and_wait(topic, event({"a": 1}, 1))
            version = (await asyncio.to_thread(service.wait_for, records))["version"]
            if records == 3:
                older, copy = version, client.dump(key(topic))
        await trim(kafka, topic, 5)
        client.restore(key(topic), 0, copy, replace=True)
    await asyncio.to_thread(wait, lambda: service.model()["version"] == older, "the older version answers")
    await asyncio.to_thread(wait, lambda: service.model()["stopped"], "it stops")
    for _ in range(20):
        assert "the log was trimmed or the topic recreated" in service.model()["stopped"]
        await asyncio.sleep(0.1)  # the reason vanished after 0.3 s
    assert service.log.read_text().count("learning stopped") == 1
