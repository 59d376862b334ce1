"""Three labels in a log, which `perceptron verify` learns again."""

import random
from typing import Any

from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.learner import Learner
from service.learning.records import Records
from service.settings.load import load
from service.snapshots.head import Source
from service.snapshots.keeper import Saved
from service.snapshots.store import RedisStore
from service.tools import verify
from tests.conftest import create_topic, event
from tests.saving import keeper

LABELS = ["p", "q", "r"]


def events() -> list[bytes]:
    """Which of three is largest, but for those that are near."""
    r, found = random.Random(5), list[bytes]()
    while len(found) < 120:
        x = {name: round(r.uniform(-1, 1), 3) for name in LABELS}
        first, second, _ = sorted(x, key=lambda name: -x[name])
        if x[first] - x[second] > 0.2:
            found.append(event(x, first))
    return found


async def test_classes_are_replayed(kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str) -> None:
    raws = events()
    await create_topic(kafka, topic)
    for raw in raws:
        await producer.send(topic, raw)
    await producer.flush()
    about: dict[str, Any] = {"model": {"labels": LABELS, "average": True, "start": "random:3"}, "topics": [topic]}
    about |= {"redis": {"url": f"redis://{redis.address}/0"}, "kafka": {"bootstrap_servers": kafka.address}}
    settings = load(None, about)
    learner = Learner(settings.of(topic).identity())
    learner.begin({0: 0})
    learner.apply(0, Records.of(0, raws))
    async with RedisStore(f"redis://{redis.address}/0") as store:
        assert isinstance(await keeper(store, topic).save(learner, {}, Source("cluster")), Saved)
        found = await verify._verify(settings, topic)
        assert (found["equal"], found["events"], found["replayed_events"]) == (True, 120, 120)
        altering = keeper(store, topic)
        altered = await altering.restore()
        assert altered
        altered._w[2, 1] += 2.0**-40
        altered.counts.confusion[0][2] += 1
        altered.counts.confusion[1][2] -= 1
        assert isinstance(await altering.save(altered, {}, Source("cluster")), Saved)
        found = await verify._verify(settings, topic)
    assert not found["equal"]
    name = learner.columns.names[1]
    confusion, weights = found["differences"]
    assert confusion == "confusion"
    assert weights.startswith(f"w/1: 1 of 4 columns, such as {name}: ")
