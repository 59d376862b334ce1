"""The cost of idle processes, and how soon they notice a change."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaProducer
from redis import Redis

from service.embedded.servers import Server
from service.serving.models import OWN_SECONDS, POLL_SECONDS
from service.snapshots.redis.connection import MAX_CONNECTIONS
from service.snapshots.redis.store import key
from tests.conftest import Run, Running, create_topic, event, wait

pytestmark = pytest.mark.nightly

TOPICS = 100
SECONDS = 10.0


@pytest.fixture
def redis_client(redis: Server) -> Iterator[Any]:
    with Redis(host="127.0.0.1", port=redis.port) as client:
        yield client


async def test_idle_models_are_looked_at_together_and_followed_at_once(
    run: Run, kafka: Server, producer: AIOKafkaProducer, redis_client: Any, topic: str
) -> None:
    """A hundred topics need as many commands and connections as one, and one damaged model affects no other."""
    names = [f"{topic}-{i}" for i in range(TOPICS)]
    await asyncio.gather(*(create_topic(kafka, name) for name in names))
    for name in names:
        await producer.send(name, event({"a": 1.0}, 1))
    await producer.flush()
    connected = redis_client.info("clients")["connected_clients"]
    flags = [flag for name in names for flag in ("-t", name)]
    learner = run("", *flags[2:], topic=names[0])
    await asyncio.to_thread(learner.up)

    def all_learned(service: Running) -> bool:
        return all(service.model(name)["next"]["0"] == 1 for name in names)

    await asyncio.to_thread(wait, lambda: all_learned(learner), "all are learned")
    replica = run("", "--no-learn", *flags[2:], topic=names[0], create=False)
    await asyncio.to_thread(replica.up)
    await asyncio.to_thread(wait, lambda: all_learned(replica), "all are followed")

    start, reads = time.monotonic(), redis_client.info("stats")["total_reads_processed"]
    cpu_times = [psutil.Process(service.process.pid).cpu_times() for service in (learner, replica)]
    await asyncio.sleep(SECONDS)  # the time that is measured
    seconds, reads_after = time.monotonic() - start, redis_client.info("stats")["total_reads_processed"]
    for service, earlier in zip((learner, replica), cpu_times, strict=True):
        later = psutil.Process(service.process.pid).cpu_times()
        share = (later.user + later.system - earlier.user - earlier.system) / seconds
        assert share <= 0.02
    connections = redis_client.info("clients")["connected_clients"] - connected
    assert (reads_after - reads) / seconds <= 1.2 * (1 / POLL_SECONDS + 1 / OWN_SECONDS) + 2
    assert connections <= 2 * MAX_CONNECTIONS

    redis_client.rename(key(names[0]), "aside")
    redis_client.rpush(key(names[0]), "no hash")
    try:
        for number in range(2, 12):
            await producer.send_and_wait(names[1], event({"a": 1.0}, number % 2))

            def is_followed(number: int = number) -> bool:
                return bool(replica.model(names[1])["next"]["0"] == number)

            await asyncio.to_thread(wait, is_followed, "it is learned, saved and followed")
        assert replica.model(names[0])["next"]["0"] == 1
    finally:
        redis_client.rename("aside", key(names[0]))


async def test_an_idle_learner_sees_within_two_seconds_that_its_model_was_reset(
    run: Run, producer: AIOKafkaProducer, redis_client: Any, topic: str
) -> None:
    service = run()
    await asyncio.to_thread(service.up)
    await producer.send_and_wait(topic, event({"a": 1.0}, 1))
    await asyncio.to_thread(service.wait_for, 1)
    delays = []
    for count in (1, 2, 3):
        redis_client.delete(key(topic))
        start = time.monotonic()

        def learns_again(count: int = count) -> bool:
            times_logged = service.log.read_text().count("learning the log again from its start")
            return times_logged == count and bool(redis_client.exists(key(topic)))

        await asyncio.to_thread(wait, learns_again, "it learns again")
        delays.append(time.monotonic() - start)
        await asyncio.to_thread(service.wait_for, 1)
    assert sorted(delays)[1] < 2.0, delays
