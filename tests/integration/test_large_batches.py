"""Batches that are small in the log and very large in memory, in each codec, on a real broker."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.batches import CODECS, build_batch_of_values, send_batch
from tests.conftest import Run, Running, create_topic, event, perceptron, wait
from tests.integration.kept import constant_requests

pytestmark = pytest.mark.nightly

MIB = 1 << 20
BATCHES = 25


def memory(service: Running, field: str = "VmRSS") -> int:
    """The memory of the process in MiB: now, or the maximum with VmHWM."""
    [line] = [x for x in Path(f"/proc/{service.process.pid}/status").read_text().splitlines() if x.startswith(field)]
    return int(line.split()[1]) // 1024


async def test_a_too_large_batch_stops_its_topic_alone(
    run: Run, plain_producer: AIOKafkaProducer, kafka: Server, redis: Server, topic: str
) -> None:
    """The stop names the offsets for a rollback. Memory stays bounded, and other topics and answers continue."""
    names = {codec: f"{topic}-{codec}" for codec in CODECS}
    for name in names.values():
        await create_topic(kafka, name, max_message_bytes=str(4 * MIB))  # snappy packs to a twentieth
    flags = [flag for name in names.values() for flag in ("-t", name)]
    service = await asyncio.to_thread(run("[snapshots]\nkeep_every = 0.2", *flags).up)
    for name in names.values():
        for i in range(3):
            await plain_producer.send_and_wait(name, event({"a": i}, i % 2))
    await asyncio.to_thread(wait, lambda: all(service.model(n)["version"] >= 2 for n in names.values()), "saved")
    base = memory(service)
    with constant_requests(service):
        for codec, name in names.items():
            raw = build_batch_of_values(codec, [(bytes(20 * MIB), []), (event({"b": 1}, 1), []), (bytes(20 * MIB), [])])
            assert len(raw) < (4 * MIB if codec == "snappy" else MIB // 2)
            for _ in range(1 if codec == "snappy" else BATCHES):
                await send_batch(plain_producer, name, raw)
        await asyncio.to_thread(wait, lambda: all(service.model(n)["stopped"] for n in names.values()), "each stops")

    for name in names.values():
        reason = service.model(name)["stopped"]
        assert "record at offset 3 of partition 0 cannot be read (its batch unpacks to more than 16,777,216 " in reason
        assert f"`perceptron rollback -m {name} --to VERSION --resume-at 0:6 --yes`" in reason
        assert service.model(name)["events"] == 3
    await plain_producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(service.wait_for, 1)
    growth = memory(service, "VmHWM") - base
    assert growth < 200
    name = names["snappy"]
    version = service.http.get(f"/v1/models/{name}/versions").json()["versions"][-1]["version"]
    rollback = ["rollback", "-t", name, "--to", str(version), "--resume-at", "0:6", "--yes"]
    options = ("-b", kafka.address, "--redis", f"redis://{redis.address}/0")
    result = await asyncio.to_thread(perceptron, *rollback, *options)
    assert result.returncode == 0, result.stderr
    await plain_producer.send_and_wait(name, event({"a": 1}, 1))
    await asyncio.to_thread(wait, lambda: service.model(name)["covered"] == {"0": [[0, 3], [6, 7]]}, "it goes on")


async def test_many_batches_within_the_limit_are_not_in_memory_together(
    run: Run, plain_producer: AIOKafkaProducer, topic: str
) -> None:
    """The batches have 375 MiB together. They are unpacked one by one, and the event loop turns in between."""
    service = await asyncio.to_thread(run().up)
    await plain_producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(service.wait_for, 1)
    base = memory(service)
    raw = build_batch_of_values("zstd", [(bytes(15 * MIB), []), (event({"b": 1}, 1), [])])
    many_headers = build_batch_of_values("zstd", [(b"x", [("", b"")] * 200_000)] * 10)
    with constant_requests(service):
        for batch in [raw] * BATCHES + [many_headers]:
            await send_batch(plain_producer, topic, batch)
        await asyncio.to_thread(service.wait_for, 1 + 2 * BATCHES + 10)
    growth = memory(service, "VmHWM") - base
    assert service.model()["events"] == 1 + BATCHES
    assert growth < 300
