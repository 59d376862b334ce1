"""Very many named columns: learner, replica and restart agree."""

import asyncio
import os
import random
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.conftest import Run, event, wait

pytestmark = pytest.mark.nightly

COLUMNS = int(os.environ.get("NAMES", "100000"))
"""`make scale` has a million."""


@pytest.mark.long
async def test_very_many_columns(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
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
        digest = (await asyncio.to_thread(learner.wait_for, records))["state_digest"]
        await asyncio.to_thread(wait, lambda: replica.model()["state_digest"] == digest, "the replica follows")
        return replica.model()

    model = await follow()
    assert (model["columns"], model["mistakes"]) == (COLUMNS + 1, learner.model()["mistakes"])

    events = COLUMNS // 500
    for columns in (5, 200):
        for _ in range(events):
            names = {f"name-{rng.randrange(COLUMNS)}": 1.0 for _ in range(columns)}
            await producer.send_and_wait(topic, event(names, rng.choice([0, 1])))
        records += events
        await follow()

    rows = [{"features": {f"name-{rng.randrange(COLUMNS + 50)}": rng.gauss(0, 1)}} for _ in range(1000)]
    question = {"instances": rows}
    answer, replica_answer = (service.predict(question).json() for service in (learner, replica))
    assert answer == replica_answer

    # A new process restores the snapshot.
    assert await asyncio.to_thread(learner.stop) == 0
    restarted = await asyncio.to_thread(run().up)
    model = await asyncio.to_thread(restarted.wait_for, records)
    assert model["state_digest"] == replica.model()["state_digest"]
