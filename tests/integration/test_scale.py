"""Very many named columns: what is written follows what changed, and every reader agrees, or says what is damaged."""

import asyncio
import os
import random
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.snapshots import codec
from service.snapshots.redis.store import key
from tests.conftest import Run, event, wait

pytestmark = pytest.mark.nightly

COLUMNS = int(os.environ.get("NAMES", "100000"))
"""`make scale` has a million."""


@pytest.mark.long
async def test_very_many_columns(run: Run, producer: AIOKafkaProducer, raw: Any, topic: str) -> None:
    learner = await asyncio.to_thread(run().up)
    replica = await asyncio.to_thread(run("", "--no-learn").up)
    rng = random.Random(6)
    width = 1000

    for i in range(COLUMNS // width):
        names = {f"name-{n}": 1.0 for n in range(i * width, (i + 1) * width)}
        await producer.send(topic, event(names, rng.choice([0, 1])))
    await producer.flush()
    records = COLUMNS // width
    model = await asyncio.to_thread(learner.wait_for, records)
    assert model["columns"] == COLUMNS + 1

    async def follow() -> Any:
        at = (await asyncio.to_thread(learner.wait_for, records))["state_digest"]
        return await asyncio.to_thread(wait, lambda: (m := replica.model())["state_digest"] == at and m, "it follows")

    followed = await follow()
    assert (followed["columns"], followed["mistakes"]) == (COLUMNS + 1, learner.model()["mistakes"])

    events = COLUMNS // 500
    for columns in (5, 200):
        for _ in range(events):
            names = {f"name-{rng.randrange(COLUMNS)}": 1.0 for _ in range(columns)}
            await producer.send_and_wait(topic, event(names, rng.choice([0, 1])))
        records += events
        await follow()

    asked = {"instances": [{"features": {f"name-{rng.randrange(COLUMNS + 50)}": rng.gauss(0, 1)}} for _ in range(1000)]}
    ours, theirs = (service.predict(asked).json() for service in (learner, replica))
    assert ours == theirs

    # Restored from scratch.
    assert await asyncio.to_thread(learner.stop) == 0
    again = await asyncio.to_thread(run().up)
    model = await asyncio.to_thread(again.wait_for, records)
    assert model["state_digest"] == replica.model()["state_digest"]

    # One bit of one blob.
    digest, found = await raw.hmget(key(topic), ["digest", "head"])
    head = codec.decode_head(found, digest.decode())
    blob = head.arrays["w"].base[7]
    data = bytearray(await raw.hget(key(topic), f"b:{blob}"))
    data[100] ^= 1
    await raw.hset(key(topic), f"b:{blob}", bytes(data))
    fresh = run("", "--no-learn")
    await asyncio.to_thread(wait, lambda: "not usable" in fresh.log.read_text(), "a reader who fetches it finds it")
    assert f"blob {blob[:12]} of version {head.version} does not match its digest" in fresh.log.read_text()
    assert fresh.predict({"features": {}}).status_code == 503
    assert replica.predict(asked).status_code == 200
