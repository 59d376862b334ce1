"""What metrics, the log and the commands say about odd timestamps, open transactions and quotas."""

import asyncio
import time

from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_topic, event


async def test_only_times_that_producers_set_and_that_have_come_count_in_the_delay(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    await create_topic(kafka, topic, message_timestamp_after_max_ms=str(1 << 62))
    service, now = await asyncio.to_thread(run().up), int(1000 * time.time())
    for i, timestamp in enumerate((-1, 0, 2 * now, 1000 * now, now + 5_000, now), 1):
        await producer.send_and_wait(topic, event({"a": 1}, 1), timestamp_ms=timestamp)
        await asyncio.to_thread(service.wait_for, i)
    metrics, label = service.metrics(), f'{{model="{topic}"}}'
    assert metrics[f"perceptron_event_delay_seconds_count{label}"] == 2
    assert 0 < metrics[f"perceptron_event_delay_seconds_sum{label}"] < 60
    assert metrics[f"perceptron_future_records_total{label}"] == 2
