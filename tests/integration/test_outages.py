"""A service that starts before Kafka and Redis do."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded import servers
from tests.conftest import Running, event, wait


@pytest.mark.nightly
@pytest.mark.long
async def test_a_service_that_starts_before_its_servers_waits_for_them(topic: str, tmp_path: Path) -> None:
    """Until then it is alive, not ready, and names each once. With both it learns; without Kafka it answers."""
    with servers.start_kafka(tmp_path) as kafka, servers.start_redis(tmp_path) as redis:
        kafka.kill()
        redis.kill()
        start = time.time()
        service = Running(topic, kafka.address, redis.address, tmp_path, "", "--create-topics")

        def logged(text: str) -> bool:
            return text in service.log.read_text()

        def missing_since(dependency: str) -> float:
            """The time since which a dependency has been missing, or 0."""
            return service.metrics()[f'perceptron_missing_since_timestamp_seconds{{dependency="{dependency}"}}']

        with contextlib.closing(service):
            await asyncio.to_thread(wait, lambda: service.is_ok("/livez"), "it is alive")
            assert service.http.get("/readyz").status_code == 503
            detail = service.predict({"features": {}}).json()["detail"]
            assert detail.startswith("no snapshot could be read yet: Redis")
            message = f"Redis at {redis.address}/0: Connection refused"
            await asyncio.to_thread(wait, lambda: logged(message), "Redis is named")
            assert start < missing_since("redis") < time.time()
            await asyncio.to_thread(redis.start)
            message = f"Kafka at {kafka.address}: Connection refused"
            await asyncio.to_thread(wait, lambda: logged(message) and missing_since("kafka"), "Kafka is named")
            assert missing_since("redis") == 0
            assert service.log.read_text().count(redis.address) == 1
            await asyncio.to_thread(kafka.start)
            await asyncio.to_thread(service.up)
            async with AIOKafkaProducer(bootstrap_servers=kafka.address) as client:
                await client.send_and_wait(topic, event({"a": 2}, 1))
            await asyncio.to_thread(service.wait_for, 1)
            assert await asyncio.to_thread(service.stop) == 0
            kafka.kill()
            await asyncio.to_thread(service.start(service.command).up)
            assert service.predict({"features": {"a": 2}}).json()["score"] == 5.0
            assert (service.model()["events"], service.model()["learning_here"]) == (1, False)
            await asyncio.to_thread(kafka.start)
            await asyncio.to_thread(wait, lambda: service.model()["learning_here"], "it learns again by itself")
            assert (missing_since("kafka"), missing_since("redis")) == (0, 0)
            assert await asyncio.to_thread(service.stop) == 0
            assert not logged("Traceback")
