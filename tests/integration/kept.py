"""Models with kept versions, in a store and in a running service, and the commands rollback and verify."""

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots.head import Fingerprint, TopicIdentity
from service.snapshots.keeper import AcceptedSave, Keeper
from service.snapshots.redis.store import RedisStore
from tests.conftest import Running, event, in_threads, perceptron, send
from tests.partitions import P0
from tests.saving import FakeClock, keeper, new_learner

KEEP_OFTEN = "[snapshots]\nkeep_every = 0.2\n"
RNG = random.Random(11)


def random_events(count: int) -> list[bytes]:
    return [
        event({f"n{RNG.randrange(40)}": round(RNG.gauss(0, 1), 3) for _ in range(3)}, RNG.choice([0, 1]))
        for _ in range(count)
    ]


async def saved_thrice(store: RedisStore, topic: str) -> tuple[Keeper, Learner, FakeClock, list[bytes]]:
    """Save a model three times; its second version is kept."""
    clock, events = FakeClock(), random_events(30)
    saver, learner = keeper(store, topic, clock), new_learner()
    for i in (0, 10, 20):
        learner.apply(Records.from_values(i, events[i : i + 10]))
        assert isinstance(await saver.save(learner, {P0: Fingerprint(i + 9, 7, i)}, TopicIdentity("c")), AcceptedSave)
        clock.seconds += 1
    return saver, learner, clock, events


def kept_versions(service: Running) -> list[Any]:
    answer = service.http.get(f"/v1/models/{service.topic}/versions").raise_for_status()
    return list(answer.json()["versions"])


async def learn_and_keep(service: Running, producer: AIOKafkaProducer, events: list[bytes], step: int = 100) -> Any:
    """Send the events in steps, each kept as a version; return the versions."""
    for i in range(0, len(events), step):
        await send(producer, service.topic, events[i : i + step])
        await asyncio.to_thread(service.wait_for, i + step)
    return await asyncio.to_thread(kept_versions, service)


def newest_within(versions: list[Any], max_records: int) -> Any:
    """The newest kept version that has learned some records, but at most this many."""
    return [v for v in versions if 0 < v["next"]["0"] <= max_records][-1]


class Tool:
    """The command on this test's topic."""

    def __init__(self, topic: str, kafka: Server, redis: Server, cwd: Path) -> None:
        self._options = ("-t", topic, "-b", kafka.address, "--redis", f"redis://{redis.address}/0")
        self._cwd = cwd

    async def __call__(self, command: str, *flags: str, settings: Path | None = None) -> Any:
        config = ("-c", str(settings)) if settings else ()
        return await asyncio.to_thread(perceptron, *config, command, *self._options, *flags, cwd=self._cwd)

    async def roll_back(self, version: int, *flags: str) -> str:
        result = await self("rollback", "--to", str(version), "--yes", *flags)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    async def verify(self, code: int = 0, settings: Path | None = None) -> Any:
        """The result, or None if it says why it has none."""
        result = await self("verify", "--json", settings=settings)
        assert result.returncode == code, result.stdout + result.stderr
        return json.loads(result.stdout) if code in {0, 4} else None

    async def expect_error(self, code: int, *command: str) -> str:
        result = await self(*command)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (code, "", 1), result
        return str(result.stderr)


@contextlib.contextmanager
def constant_requests(service: Running) -> Iterator[None]:
    """Request /livez and predictions all the time; each must be answered within 5 s."""
    errors = list[str]()

    def ask(method: str, path: str, body: dict[str, Any] | None, stop: threading.Event) -> None:
        with httpx.Client(base_url=service.http.base_url, timeout=5) as client:
            while not stop.wait(0.005):
                try:
                    client.request(method, path, json=body).raise_for_status()
                except httpx.HTTPError as error:
                    errors.append(f"{path}: {error!r}")

    predict = "POST", f"/v1/models/{service.topic}/predict", {"features": {"a": 1}}
    with in_threads(partial(ask, "GET", "/livez", None), partial(ask, *predict)):
        yield
    assert errors == []
