"""A keeper, a learner, a store in memory, and a clock that a test moves."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from service.errors import DependencyError
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots import head as heads
from service.snapshots.head import Fingerprint
from service.snapshots.keeper import AcceptedSave, Keeper
from tests.checks import learner_of
from tests.conftest import event
from tests.simulation.log import SimulatedLog
from tests.simulation.world import Redis, SimulatedStore, World


class FakeClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def time(self) -> float:
        return 1_700_000_000 + self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


async def here(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def keeper(store: Any, model: str, clock: FakeClock | None = None, **more: Any) -> Keeper:
    return Keeper(model, store, clock or FakeClock(), here, **more)


def fresh() -> Learner:
    return learner_of(Identity())


def learn(learner: Learner, *names: str) -> None:
    raws = [event({name: 1.5}, 1) for name in names]
    learner.apply(0, Records.of(learner.next[0], raws))


async def save(k: Keeper, learner: Learner) -> AcceptedSave:
    saved = await k.save(learner, {0: Fingerprint(learner.next[0] - 1, 7, 9)}, heads.Source("cluster"))
    assert isinstance(saved, AcceptedSave)
    return saved


class Driven:
    """A simulated log or store whose calls all complete; a call that cannot go on waits."""

    def __init__(self, simulated: SimulatedLog | SimulatedStore) -> None:
        self._simulated = simulated

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._simulated, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def through(*arguments: Any) -> Any:
            coroutine: Coroutine[Any, Any, Any] = found(*arguments)
            while True:
                try:
                    step = coroutine.send(None)
                except StopIteration as end:
                    return end.value
                while not step.ready():  # noqa: ASYNC110 - a part of the scheduler
                    await asyncio.sleep(0)

        return through


def simulated_store(fields: dict[str, bytes] | None = None) -> tuple[Driven, Redis]:
    """The simulator's store without faults, and what it holds: at first the fields of a model, or none."""
    world = World(0)
    world.faulty, world.redis.state = False, fields or {}
    return Driven(SimulatedStore(world, "one")), world.redis


class Losing:
    """A store whose chosen call loses its reply, after it was carried out or before."""

    def __init__(self, store: Any, call: str, carried_out: bool) -> None:
        self._store, self._call, self._carried_out = store, call, carried_out

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name != self._call:
            return method

        async def lost(*arguments: Any) -> None:
            self._call = ""
            if self._carried_out:
                await method(*arguments)
            raise DependencyError("the reply was lost")

        return lost
