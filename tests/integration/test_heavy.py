"""Events as heavy as the limits allow delay no request."""

import asyncio
import itertools
import json
import os

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, event, wait
from tests.integration.kept import constant_requests

pytestmark = pytest.mark.nightly

EVENTS = int(os.environ.get("HEAVY", "60"))
RESULTS = ("failed", "refused")
NAMES = [f"sensor:{i:05d}:{'x' * 72}" for i in range(10_000)]


def heavy_event(i: int) -> bytes:
    """10,000 features in a little less than 1 MiB, and two unknown members."""
    features = {name: (i * j % 1999 - 999) / 1024 for j, name in enumerate(NAMES)}
    return event(features, i % 2, ts="2026-01-01T12:00:01Z", source={"host": "a:1", "tags": ["x:y"]})


@pytest.mark.parametrize("bad", [False, True], ids=["accepted", "rejected"])
async def test_heavy_events_delay_no_request(run: Run, kafka: Server, topic: str, bad: bool) -> None:
    service = await asyncio.to_thread(run().up)
    values = [heavy_event(i) for i in range(20)]
    if bad:
        values = [json.dumps({**json.loads(value), "label": "?"}, separators=(",", ":")).encode() for value in values]
    assert all(1_000_000 < len(value) < 1 << 20 for value in values), sorted(map(len, values))
    async with AIOKafkaProducer(
        bootstrap_servers=kafka.address, compression_type="zstd", max_request_size=64 << 20, max_batch_size=16 << 20
    ) as producer:
        await producer.send_and_wait(topic, event({NAMES[0]: 1}, 1))
        await asyncio.to_thread(service.wait_for, 1)
        with constant_requests(service):
            futures = [await producer.send(topic, value) for value in itertools.islice(itertools.cycle(values), EVENTS)]
            await asyncio.gather(*futures)
            await asyncio.to_thread(
                wait, lambda: service.model()["next"]["0"] == EVENTS + 1, "all is learned", 60 + EVENTS / 4
            )
    metrics = service.metrics()
    results = [metrics[f'perceptron_snapshots_total{{model="{topic}",result="{name}"}}'] for name in RESULTS]
    assert results == [0, 0]
    assert metrics[f'perceptron_slice_duration_seconds_count{{model="{topic}"}}'] > EVENTS / 4
    assert "no longer learning" not in service.log.read_text()
