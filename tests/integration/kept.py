"""Models with kept versions, in a store and in a running service, and the commands rollback and verify."""

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots.head import Fingerprint, Source
from service.snapshots.keeper import AcceptedSave, Keeper
from service.snapshots.redis.store import RedisStore
from tests.conftest import Running, event, perceptron
from tests.saving import FakeClock, keeper, new_learner

KEEPING = "[snapshots]\nkeep_every = 0.2\n"
RNG = random.Random(11)


def some_events(count: int) -> list[bytes]:
    return [
        event({f"n{RNG.randrange(40)}": round(RNG.gauss(0, 1), 3) for _ in range(3)}, RNG.choice([0, 1]))
        for _ in range(count)
    ]


async def saved_thrice(store: RedisStore, topic: str) -> tuple[Keeper, Learner, FakeClock, list[bytes]]:
    """A model with three versions, of which the second is kept."""
    clock, events = FakeClock(), some_events(30)
    ours, learner = keeper(store, topic, clock), new_learner()
    for i in (0, 10, 20):
        learner.apply(0, Records.of(i, events[i : i + 10]))
        assert isinstance(await ours.save(learner, {0: Fingerprint(i + 9, 7, i)}, Source("c")), AcceptedSave)
        clock.seconds += 1
    return ours, learner, clock, events


async def send(producer: AIOKafkaProducer, topic: str, events: list[bytes]) -> None:
    for raw in events:
        await producer.send(topic, raw, partition=0)
    await producer.flush()


def kept(service: Running) -> list[Any]:
    answer = service.http.get(f"/v1/models/{service.topic}/versions").raise_for_status()
    return list(answer.json()["versions"])


async def learn_and_keep(service: Running, producer: AIOKafkaProducer, events: list[bytes], step: int = 100) -> Any:
    """Send the events in steps, each kept as a version; return the versions."""
    for i in range(0, len(events), step):
        await send(producer, service.topic, events[i : i + step])
        await asyncio.to_thread(service.wait_for, i + step)
    return await asyncio.to_thread(kept, service)


def middle(versions: list[Any], max_records: int) -> Any:
    """The newest kept version that has learned some records, but at most this many."""
    return [v for v in versions if 0 < v["next"]["0"] <= max_records][-1]


class Tool:
    """The command on this test's topic."""

    def __init__(self, topic: str, kafka: Server, redis: Server, cwd: Path) -> None:
        self._where = ("-t", topic, "-b", kafka.address, "--redis", f"redis://{redis.address}/0")
        self._cwd = cwd

    async def __call__(self, command: str, *flags: str, settings: Path | None = None) -> Any:
        before = ("-c", str(settings)) if settings else ()
        return await asyncio.to_thread(perceptron, *before, command, *self._where, *flags, cwd=self._cwd)

    async def back(self, version: int, *flags: str) -> str:
        done = await self("rollback", "--to", str(version), "--yes", *flags)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    async def verify(self, code: int = 0, settings: Path | None = None) -> Any:
        """The result, or None if it says why it has none."""
        done = await self("verify", "--json", settings=settings)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if code in {0, 4} else None

    async def refused(self, code: int, *command: str) -> str:
        done = await self(*command)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
        return str(done.stderr)


@contextlib.contextmanager
def asked_all_the_time(service: Running) -> Iterator[None]:
    """Request /livez and predictions all the time; each is answered within 5 s."""
    over, wrong = threading.Event(), list[str]()

    def ask(method: str, path: str, body: Any) -> None:
        with httpx.Client(base_url=service.http.base_url, timeout=5) as client:
            while not over.wait(0.005):
                try:
                    client.request(method, path, json=body).raise_for_status()
                except httpx.HTTPError as error:
                    wrong.append(f"{path}: {error!r}")

    predict = "POST", f"/v1/models/{service.topic}/predict", {"features": {"a": 1}}
    threads = [threading.Thread(target=ask, args=one) for one in (("GET", "/livez", None), predict)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
