"""Dead letters and the limits of real topics: each is written, cut to what its topic takes, and says so."""

import asyncio
import random
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import DEADLINE, Run, configure, create_topic, event, perceptron, read_all, send

pytestmark = pytest.mark.nightly

MAX_HEADERS = 524_240
"""The number of empty headers of a record without key that fits Kafka's default limit."""
LIMITS = {"small": 600, "large": 12 << 20}


async def letters(kafka: Server, topic: str, count: int) -> list[Any]:
    """Wait for the letters of the topic's first records."""
    deadline = time.monotonic() + DEADLINE
    while True:
        by_key = {letter.key.decode(): letter for letter in await read_all(kafka, f"{topic}.dead-letters")}
        if len(by_key) == count:
            return [by_key[f"{topic}-0-{i}"] for i in range(count)]
        assert time.monotonic() < deadline, f"{len(by_key)} of {count} letters of {topic}"
        await asyncio.sleep(0.1)


async def test_a_letter_always_fits(run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str) -> None:
    """The record's headers fill the default limit, or the topic takes very little, or ten megabytes."""
    for name, limit in LIMITS.items():
        await create_topic(kafka, f"{topic}-{name}", max_message_bytes=str(12 << 20))
        await create_topic(kafka, f"{topic}-{name}.dead-letters", max_message_bytes=str(limit))
    flags = [flag for name in LIMITS for flag in ("-t", f"{topic}-{name}")]
    service = await asyncio.to_thread(run("", *flags).up)
    await producer.send_and_wait(topic, b"x", headers=[("", b"")] * MAX_HEADERS)
    await producer.send_and_wait(topic, event({"a": 1}, 1))
    value = random.Random(1).randbytes(10 << 20)
    async with AIOKafkaProducer(bootstrap_servers=kafka.address, max_request_size=12 << 20) as large_producer:
        await large_producer.send_and_wait(f"{topic}-large", value)
    for i in range(20):  # their batch is too large, though no record is
        await producer.send(f"{topic}-small", b"%d" % i)
    await send(producer, f"{topic}-small", [b"v" * 50_000], key=b"k" * 90, headers=[("ключ", b"7" * 100)])

    await asyncio.to_thread(service.wait_for, 2)
    [letter] = await letters(kafka, topic, 1)
    assert (letter.value, dict(letter.headers)["headers-omitted"]) == (b"x", b"%d" % MAX_HEADERS)
    [letter] = await letters(kafka, f"{topic}-large", 1)
    assert letter.value == value
    *short, long = await letters(kafka, f"{topic}-small", 21)
    assert [letter.value for letter in short] == [b"%d" % i for i in range(20)]
    headers = dict(long.headers)
    assert (headers["truncated-from"], headers["key-truncated-from"]) == (b"50000", b"90")
    assert not long.value.strip(b"v")


async def test_a_limit_that_is_lowered_and_raised_is_learned_from_the_refusal(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """The next letter is cut, later ones are whole again. `retry` does not send a letter that is cut."""
    name = f"{topic}.dead-letters"
    service = await asyncio.to_thread(run().up)
    for i, limit in enumerate((1_048_588, 30_000, 200_000)):
        await configure(kafka, name, max_message_bytes=limit)
        await producer.send_and_wait(topic, b"v" * 100_000)
        sizes = [len(letter.value) for letter in await letters(kafka, topic, i + 1)]
    assert (sizes[0], 29_000 < sizes[1] < 30_000, sizes[2]) == (100_000, True, 100_000)
    await producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(service.wait_for, 4)
    options = ("-t", topic, "-b", kafka.address)
    output = perceptron("dead-letters", "show", f"{topic}-0-1", *options).stdout
    assert "cut: the value was 100000 bytes" in output
    retry = perceptron("dead-letters", "retry", *(f"{topic}-0-{i}" for i in range(3)), *options)
    assert f"{topic}-0-1  left alone: it is not whole (the value was 100000 bytes)" in retry.stdout
    assert retry.stderr == f"2 of 3 sent again to {topic}\n"


async def test_a_letter_has_the_time_of_its_record_or_none(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """By default a topic refuses times more than an hour ahead of the broker's clock. Saves do not wait for that."""
    await create_topic(kafka, topic, message_timestamp_after_max_ms=str(1 << 62))
    service = await asyncio.to_thread(run().up)
    times = [1_500_000_000_000, 1 << 45, 1_600_000_000_000]
    for timestamp in times:
        await producer.send_and_wait(topic, b"x", timestamp_ms=timestamp)
        await asyncio.to_thread(service.wait_for, times.index(timestamp) + 1)
    assert [letter.timestamp for letter in await letters(kafka, topic, 3)] == [times[0], -1, times[2]]
    sums = {name: value for name, value in service.metrics().items() if "event_delay_seconds_sum" in name}
    assert all(value >= 0 for value in sums.values())
