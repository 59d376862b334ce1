"""Very many named columns: what is written follows what changed, and every reader agrees, or says what is damaged."""

import asyncio
import os
import random
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from service.snapshots import codec
from service.snapshots.store import key
from tests.conftest import Run, event, wait

COLUMNS = int(os.environ.get("NAMES", "100000"))
"""`make scale` has a million."""


@pytest.mark.long
async def test_very_many_columns(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    learner = await asyncio.to_thread(run().up)
    replica = await asyncio.to_thread(run("", "--no-learn").up)
    rng = random.Random(6)
    width = 1000

    def written() -> tuple[float, float]:
        metrics = learner.metrics()
        saves = metrics[f'perceptron_snapshots_total{{model="{topic}",result="accepted"}}']
        return metrics[f'perceptron_snapshot_bytes_total{{model="{topic}"}}'], saves

    started = time.monotonic()
    for i in range(COLUMNS // width):
        names = {f"name-{n}": 1.0 for n in range(i * width, (i + 1) * width)}
        await producer.send(topic, event(names, rng.choice([0, 1])))
    await producer.flush()
    records = COLUMNS // width
    model = await asyncio.to_thread(learner.wait_for, records)
    assert model["columns"] == COLUMNS + 1
    print(f"\n{COLUMNS:,} columns in {time.monotonic() - started:.1f} s: {written()[0] / 1e6:.0f} MB in all")

    async def follow() -> Any:
        at = (await asyncio.to_thread(learner.wait_for, records))["state_digest"]
        began = time.monotonic()
        there = await asyncio.to_thread(wait, lambda: (m := replica.model())["state_digest"] == at and m, "it follows")
        return there, time.monotonic() - began

    followed, seconds = await follow()
    assert (followed["columns"], followed["mistakes"]) == (COLUMNS + 1, learner.model()["mistakes"])
    print(f"followed after {seconds:.1f} s")

    events = COLUMNS // 500
    for columns in (5, 200):
        before, saves = written()
        began = time.monotonic()
        for _ in range(events):
            names = {f"name-{rng.randrange(COLUMNS)}": 1.0 for _ in range(columns)}
            await producer.send_and_wait(topic, event(names, rng.choice([0, 1])))
        records += events
        await asyncio.to_thread(learner.wait_for, records)
        took = time.monotonic() - began
        after, saved = written()
        changed = 12 * columns * events
        print(
            f"{events / took:.0f} events a second, {columns} columns each: {(after - before) / took / 1e3:,.0f} kB a "
            f"second in {(saved - saves) / took:.1f} saves a second; what changed is {changed / took / 1e3:,.0f} kB"
        )
        _, seconds = await follow()
        print(f"followed after {seconds:.2f} s")

    # The same answers at the same digest.
    asked = [{f"name-{rng.randrange(COLUMNS + 50)}": rng.gauss(0, 1) for _ in range(20)} for _ in range(1000)]
    for features in asked:
        ours, theirs = (s.predict({"features": features}).json() for s in (learner, replica))
        assert ours == theirs
    digests = {s.model()["state_digest"] for s in (learner, replica)}
    assert len(digests) == 1

    # Restored from scratch.
    assert await asyncio.to_thread(learner.stop) == 0
    began = time.monotonic()
    again = await asyncio.to_thread(run().up)
    model = await asyncio.to_thread(again.wait_for, records)
    print(f"restored, and ready, {time.monotonic() - began:.1f} s after its start")
    assert {model["state_digest"]} == digests

    # One bit of one blob.
    client: Any = Redis.from_url(replica.redis_url)
    digest, found = await client.hmget(key(topic), ["digest", "head"])
    head = codec.decode(found, digest.decode())
    blob = head.arrays["w"].base[7]
    data = bytearray(await client.hget(key(topic), f"b:{blob}"))
    data[100] ^= 1
    await client.hset(key(topic), f"b:{blob}", bytes(data))
    fresh = run("", "--no-learn")
    await asyncio.to_thread(wait, lambda: "not usable" in fresh.log.read_text(), "a reader who fetches it finds it")
    print(fresh.log.read_text().splitlines()[-1])
    assert f"blob {blob[:12]} of version {head.version} does not match its digest" in fresh.log.read_text()
    assert fresh.predict({"features": {}}).status_code == 503
    assert replica.predict({"features": asked[0]}).status_code == 200
    await client.aclose()
