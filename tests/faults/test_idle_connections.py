"""A load balancer drops idle connections silently, as Azure's does after four minutes."""

import asyncio
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Running, event, read_all, wait
from tests.faults.proxy import KafkaProxy

pytestmark = pytest.mark.nightly

IDLE_SECONDS = 20.0
MAX_SECONDS = 15.0


async def test_a_dead_letter_and_its_save_come_soon_though_the_producer_idled(
    own_kafka: Server, kafka_proxy: KafkaProxy, redis: Server, topic: str, tmp_path: Path
) -> None:
    """The connection that writes dead letters is idle for a long time; later requests on it are lost."""
    kafka_proxy.max_idle_seconds = IDLE_SECONDS
    service = Running(topic, kafka_proxy.address, redis.address, tmp_path, "", "--create-topics")
    try:
        await asyncio.to_thread(service.up)
        async with AIOKafkaProducer(bootstrap_servers=own_kafka.address) as client:
            await client.send_and_wait(topic, b"no event")  # its dead letter opens the connection
            await asyncio.to_thread(service.wait_for, 1)
            await asyncio.sleep(IDLE_SECONDS + 1.0)  # the fault itself
            await client.send_and_wait(topic, event({"a": 1}, 1))
            await client.send_and_wait(topic, b"no event either")
            started = time.monotonic()

            def is_saved() -> bool:
                """The counters in the metrics are those of the last accepted head."""
                sample = f'perceptron_rejected_events_total{{model="{topic}",reason="not-json"}}'
                return service.metrics().get(sample) == 2

            await asyncio.to_thread(wait, is_saved, "it is saved")
            letters = await read_all(own_kafka, f"{topic}.dead-letters")
        assert [letter.value for letter in letters] == [b"no event", b"no event either"]
        assert time.monotonic() - started < MAX_SECONDS
        assert service.process.poll() is None
    finally:
        kafka_proxy.max_idle_seconds = float("inf")
        service.close()
