"""Several processes in one group: one learns a topic, the others follow, and whoever is behind is refused."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.snapshots.rollback import current_head
from service.snapshots.store import RedisStore
from tests.conftest import TAKEOVER_SECONDS, Running, both_stores, create_topic, event, wait
from tests.oracle import Fold, same


@pytest.fixture
def group() -> Iterator[list[Running]]:
    """Processes of a test, ended with it."""
    started: list[Running] = []
    yield started
    for service in started:
        service.http.close()
        if service.process.poll() is None:
            service.process.send_signal(signal.SIGCONT)
            service.kill()


@both_stores
async def test_a_hung_learner_is_replaced_and_refused_when_it_wakes(
    kafka: Server,
    redis: Server,
    store: RedisStore,
    producer: AIOKafkaProducer,
    topic: str,
    tmp_path: Path,
    group: list[Running],
) -> None:
    """SIGSTOP past the session timeout: the standby takes over, and what the zombie had learned unsaved is dropped.

    Its save is refused; or it sees the other's head first, as where it was stopped in a save, which times out when it
    wakes. Then it follows.
    """
    for _ in range(2):
        one = Running(
            topic, kafka.address, redis.address, tmp_path, "", "--create-topics", session_timeout=TAKEOVER_SECONDS
        )
        group.append(await asyncio.to_thread(one.up))
    rng = random.Random(3)
    events: list[bytes] = []
    ended = asyncio.Event()

    async def stream() -> None:
        while not ended.is_set():
            for _ in range(20):
                x = {f"n{n}": round(rng.gauss(0, 1), 3) for n in rng.sample(range(200), 5)}
                events.append(event(x, rng.choice([0, 1])))
                await producer.send(topic, events[-1])
            await asyncio.sleep(0.01)

    def learners() -> list[Running]:
        return [s for s in group if s.model()["learning_here"]]

    def ahead() -> Any:
        return model if (model := learner.model())["ahead"] else None

    async def saved() -> int:
        found = await current_head(store, topic)
        return found[0].version if found else 0

    streaming = asyncio.create_task(stream())
    await asyncio.to_thread(wait, lambda: any(s.model()["events"] > 1000 for s in learners()), "one of them learns")
    (learner,) = await asyncio.to_thread(learners)
    standby = next(s for s in group if s is not learner)
    await asyncio.to_thread(wait, lambda: standby.model()["version"] > 1, "the other follows")
    assert standby.model()["learning_here"] is False
    version = 0
    while version != await saved():  # else a save was under way that is accepted, and nothing is left to refuse
        learner.process.send_signal(signal.SIGCONT)
        version = (await asyncio.to_thread(wait, ahead, "it is ahead of its snapshot"))["version"]
        learner.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    await asyncio.to_thread(wait, lambda: standby.model()["learning_here"], "it takes over", TAKEOVER_SECONDS + 2)
    taken = time.monotonic() - stopped
    caught_up = len(events)
    await asyncio.to_thread(wait, lambda: standby.model()["next"]["0"] >= caught_up, "it learns what was missed")
    learner.process.send_signal(signal.SIGCONT)
    await asyncio.to_thread(wait, learner.rewinds, "the zombie's state is dropped")
    await asyncio.to_thread(wait, lambda: len(learners()) == 1, "one of them learns again")
    ended.set()
    await streaming
    await producer.flush()
    fold = Fold().fold(events)
    for service in group:
        model = await asyncio.to_thread(service.wait_for, len(events))
        same(fold, model, service.weights())
    assert standby.rewinds() == 0
    print(f"\ntaken over after {taken:.1f} s; {len(events)} events")


async def test_topics_are_spread_evenly_over_members_that_come_and_go(
    kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path, group: list[Running]
) -> None:
    """Twelve topics, one to four members, one killed: each topic is learned once, the spread within one of even."""
    topics = [f"{topic}-{i}" for i in range(12)]
    for name in topics:
        await create_topic(kafka, name)
        await create_topic(kafka, f"{name}.dead-letters")
    sent: dict[str, list[bytes]] = {name: [] for name in topics}
    rng = random.Random(4)

    async def more() -> None:
        for i, name in enumerate(topics):
            for _ in range(30 * (i + 1)):
                raw = event({f"n{rng.randrange(20)}": round(rng.gauss(0, 1), 2)}, rng.choice([0, 1]))
                sent[name].append(raw)
                await producer.send(name, raw)
        await producer.flush()

    def spread(members: int) -> bool:
        alive = [s for s in group if s.process.poll() is None]
        learning = Counter(
            m["model"] for s in alive for m in s.http.get("/v1/models").json()["models"] if m["learning_here"]
        )
        loads = [sum(m["learning_here"] for m in s.http.get("/v1/models").json()["models"]) for s in alive]
        return (
            len(alive) == members
            and sorted(learning) == sorted(topics)
            and set(learning.values()) == {1}
            and max(loads) - min(loads) <= 1
        )

    for members in (1, 2, 4):
        while len(group) < members:
            group.append(
                Running(
                    topics[0],
                    kafka.address,
                    redis.address,
                    tmp_path,
                    "",
                    topics=topics[1:],
                    session_timeout=TAKEOVER_SECONDS,
                )
            )
        for service in group:
            await asyncio.to_thread(service.up)
        await more()
        await asyncio.to_thread(wait, partial(spread, members), f"{members} members learn as many topics each")
    group[1].kill()
    await more()
    await asyncio.to_thread(wait, lambda: spread(3), "the three that are left have taken over")
    for name in topics:
        fold = Fold().fold(sent[name])
        for service in (group[0], group[2], group[3]):

            def there(service: Running = service, name: str = name) -> bool:
                model = service.model(name)
                return bool(model["next"]["0"] == len(sent[name]) and model["ahead"] == 0)

            await asyncio.to_thread(wait, there, f"{name} is learned, and followed")
            about = service.model(name)
            assert (about["events"], about["mistakes"]) == (fold.events, fold.mistakes)
            weights = service.http.get(f"/v1/models/{name}/weights").json()
            assert [weights["bias"], *(w["weight"] for w in weights["weights"])] == fold.vector
