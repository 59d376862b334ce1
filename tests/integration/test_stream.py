"""What metrics, the log and the commands say about odd timestamps, open transactions and quotas."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_both_topics, create_topic, event, perceptron, send, wait
from tests.integration.kept import Tool

EVENTS = [event({"a": i % 7}, i % 2) for i in range(250)]


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


@pytest.fixture
async def transactional(kafka: Server, topic: str) -> AsyncIterator[AIOKafkaProducer]:
    """A producer with an open transaction, which has no record yet."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic) as client:
        await client.begin_transaction()
        yield client


@pytest.mark.nightly
async def test_an_open_transaction_is_named_until_it_ends_and_nobody_waits_for_it(
    run: Run, kafka: Server, tool: Tool, producer: AIOKafkaProducer, transactional: AIOKafkaProducer, topic: str
) -> None:
    """The lag counts the records that it holds back; a model that was reset has caught up before them."""
    await create_both_topics(kafka, topic)
    await send(producer, topic, EVENTS[:50])
    await transactional.send_and_wait(topic, EVENTS[0])
    await send(producer, topic, EVENTS[50:])
    service = await asyncio.to_thread(run().up)
    line = "an open transaction since offset 50 of partition 0 holds 201 records back"
    await asyncio.to_thread(service.wait_for, 50)
    assert "open transaction" not in service.log.read_text()  # it may end soon
    await asyncio.to_thread(wait, lambda: line in service.log.read_text(), "the log names it")
    place = f'{{model="{topic}",partition="0",topic="{topic}"}}'
    gauges = [f"perceptron_{name}_records{place}" for name in ("lag", "open_transaction")]
    assert [service.metrics()[name] for name in gauges] == [201, 201]
    assert service.is_ok("/readyz")
    assert f"warn  topic {topic}: {line}" in (await tool("check")).stdout
    about = json.loads((await tool("inspect", "--json")).stdout)
    assert (about["lag"], line in about["lag_reason"]) == ({"0": 201}, True)
    reset = "reset", "-m", topic, "--keep-answering", "--yes", "--redis", service.redis_url
    assert (await asyncio.to_thread(perceptron, *reset)).returncode == 0
    caught_up = "the last version from before the reset answers no more"
    await asyncio.to_thread(wait, lambda: caught_up in service.log.read_text(), "it has caught up")
    await transactional.commit_transaction()
    await asyncio.to_thread(service.wait_for, 252)
    await asyncio.to_thread(wait, lambda: [service.metrics()[name] for name in gauges] == [0, 0], "it has ended")
    assert service.log.read_text().count("open transaction") == 1


@pytest.mark.nightly
async def test_a_transaction_at_the_beginning_of_a_log_is_not_an_empty_log(
    kafka: Server, tool: Tool, transactional: AIOKafkaProducer, topic: str
) -> None:
    await create_both_topics(kafka, topic)
    await transactional.send_and_wait(topic, EVENTS[0])
    line = f"topic {topic}: an open transaction since offset 0 of partition 0 holds 1 record back"
    checked = await tool("check")
    assert (checked.returncode, f"warn  {line}" in checked.stdout, "no records yet" in checked.stdout) == (
        0,
        True,
        False,
    )
    assert line in (await asyncio.to_thread(perceptron, "suggest", "-t", topic, "-b", kafka.address)).stderr
