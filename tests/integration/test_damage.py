"""One damaged record or blob is named, and does not end the process."""

import asyncio
import json
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.snapshots.redis.store import key
from service.streaming.records import KafkaRecord
from tests.batches import add_checksum, build_batch, send_batch
from tests.conftest import Run, event, read_all, until, wait
from tests.integration.kept import Tool

pytestmark = pytest.mark.nightly


async def send_with_odd_header(producer: AIOKafkaProducer, topic: str, value: bytes) -> int:
    """Send a record with a header name that is not UTF-8, which Kafka allows."""
    raw = build_batch(0, [KafkaRecord(0, 1_700_000_000_000, None, value, (("zz9qzz", b"1"),))])
    return await send_batch(producer, topic, add_checksum(raw.replace(b"zz9qzz", b"caf\xe9zz")))


async def test_a_header_name_that_is_not_utf_8_does_not_stop_learning(
    run: Run, plain_producer: AIOKafkaProducer, kafka: Server, topic: str
) -> None:
    """The record is learned. A dead letter of it has the name in hexadecimal, and says so."""
    service = await asyncio.to_thread(run().up)
    await plain_producer.send_and_wait(topic, event({"a": 1}, 1))
    await send_with_odd_header(plain_producer, topic, event({"a": 1}, 0))
    offset = await send_with_odd_header(plain_producer, topic, b"no event")
    await plain_producer.send_and_wait(topic, event({"b": 1}, 1))
    model = await asyncio.to_thread(service.wait_for, 4)
    assert (model["events"], model["rejected"], model["stopped"]) == (3, {"not-json": 1}, None)
    [letter] = await read_all(kafka, f"{topic}.dead-letters")
    assert (letter.key, letter.value) == (f"{topic}-0-{offset}".encode(), b"no event")
    headers = dict(letter.headers)
    assert (headers["header-names-in-hex"], headers[b"caf\xe9zz".hex()]) == (b"1", b"1")


async def test_a_damaged_blob_is_logged_once_with_the_ways_out(
    run: Run, tool: Tool, producer: AIOKafkaProducer, raw_redis: Any, topic: str
) -> None:
    """The process looks at it again, and continues when the blob is repaired, or after a rollback."""
    settings = "[snapshots]\nkeep_every = 0.1\nkeep = 50\n"
    service = await asyncio.to_thread(run(settings).up)
    for i in range(4):
        await producer.send_and_wait(topic, event({f"n{i}": i + 1}, i % 2))
        await asyncio.to_thread(service.wait_for, i + 1)
    assert await asyncio.to_thread(service.stop) == 0
    head = json.loads(await raw_redis.hget(key(topic), "head"))
    version, earlier_head = head["kept"][0]["version"], json.loads(await raw_redis.hget(key(topic), "v:2"))
    blob = next(name for name in head["names"] if name not in earlier_head["names"])
    content = await raw_redis.hget(key(topic), f"b:{blob}")

    await raw_redis.hset(key(topic), f"b:{blob}", b"x" + content[1:])
    restarted = run(settings)

    async def count_calls() -> int:
        return int((await raw_redis.info("commandstats"))["cmdstat_hmget"]["calls"])

    async def has_looked_again() -> bool:
        return await count_calls() >= calls + 4

    calls = await count_calls()
    await asyncio.to_thread(wait, lambda: "learning stopped" in restarted.log.read_text(), "it stops")
    await until(has_looked_again, "it looks at the blob again")
    log = restarted.log.read_text()
    assert log.count("learning stopped") == 1, "it is logged once, though the process looks at it again"
    assert f"blob {blob[:12]} of version {head['version']} does not match its digest" in log
    assert f"`perceptron rollback -m {topic} --to VERSION --yes`" in log
    assert f"`perceptron reset -m {topic} --yes`" in log
    await raw_redis.hset(key(topic), f"b:{blob}", content)
    await asyncio.to_thread(restarted.up)
    # The follower may find the head good before the learner looks at it again.
    await asyncio.to_thread(wait, lambda: restarted.wait_for(4)["stopped"] is None, "it goes on")
    assert await asyncio.to_thread(restarted.stop) == 0
    await raw_redis.hset(key(topic), f"b:{blob}", b"x" + content[1:])
    third = run(settings)
    await tool.roll_back(version)
    await asyncio.to_thread(third.up)
    model = await asyncio.to_thread(third.wait_for, 4)
    assert (model["events"], model["stopped"]) == (4, None)
