"""Several processes in one consumer group: each topic is learned by one of them, the others follow."""

import asyncio
import random
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import TAKEOVER_SECONDS, Run, Running, create_topic, event, wait
from tests.oracle import Fold


def learning(service: Running) -> list[str]:
    """The topics that this process learns."""
    return [model["model"] for model in service.http.get("/v1/models").json()["models"] if model["learning_here"]]


@pytest.mark.nightly
async def test_topics_are_spread_evenly_over_members_that_come_and_go(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """Twelve topics, one to four members, one killed: each topic is learned once, the spread within one of even."""
    topics = [f"{topic}-{i}" for i in range(12)]
    for name in topics:
        await create_topic(kafka, name)
        await create_topic(kafka, f"{name}.dead-letters")
    sent: dict[str, list[bytes]] = {name: [] for name in topics}
    rng = random.Random(4)
    group: list[Running] = []

    async def more() -> None:
        for i, name in enumerate(topics):
            events = [event({f"n{rng.randrange(20)}": rng.gauss(0, 1)}, rng.choice([0, 1])) for _ in range(30 * i + 30)]
            sent[name] += events
            for raw in events:
                await producer.send(name, raw)
        await producer.flush()

    def spread() -> bool:
        each = [learning(service) for service in group]
        loads = [len(own) for own in each]
        return sorted(name for own in each for name in own) == sorted(topics) and max(loads) - min(loads) <= 1

    flags = [flag for name in topics[1:] for flag in ("-t", name)]
    for members in (1, 2, 4):
        while len(group) < members:
            group.append(run("", *flags, topic=topics[0], create=False, session_timeout=TAKEOVER_SECONDS))
        for service in group:
            await asyncio.to_thread(service.up)
        await more()
        await asyncio.to_thread(wait, spread, f"{members} members learn as many topics each")
    group.pop(1).kill()
    await more()
    await asyncio.to_thread(wait, spread, "the three that are left have taken over")

    def followed(service: Running, name: str) -> Any:
        model = service.model(name)
        return model if (model["next"]["0"], model["ahead"]) == (len(sent[name]), 0) else None

    for name in topics:
        fold = Fold().fold(sent[name])
        for service in group:
            model = await asyncio.to_thread(wait, partial(followed, service, name), f"{name} is learned, and followed")
            assert (model["events"], model["mistakes"]) == (fold.events, fold.mistakes)
            weights = service.http.get(f"/v1/models/{name}/weights").json()
            assert [weights["bias"], *(w["weight"] for w in weights["weights"])] == fold.vector
