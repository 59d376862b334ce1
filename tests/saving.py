"""A keeper, a learner, a store in memory, and a clock that a test sets."""

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
from tests.partitions import P0
from tests.simulation.log import SimulatedLog
from tests.simulation.world import Redis, SimulatedStore, World


class FakeClock:
    """A clock whose time changes only by `sleep` and by the test."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def time(self) -> float:
        return 1_700_000_000 + self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


async def run_here(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def keeper(store: Any, model: str, clock: FakeClock | None = None, **options: Any) -> Keeper:
    return Keeper(model, store, clock or FakeClock(), run_here, **options)


def new_learner() -> Learner:
    return learner_of(Identity())


def learn(learner: Learner, *names: str) -> None:
    raws = [event({name: 1.5}, 1) for name in names]
    learner.apply(Records.from_values(learner.next[P0], raws))


async def save(k: Keeper, learner: Learner) -> AcceptedSave:
    result = await k.save(learner, {P0: Fingerprint(learner.next[P0] - 1, 7, 9)}, heads.TopicIdentity("cluster"))
    assert isinstance(result, AcceptedSave)
    return result


class SteppedCalls:
    """A simulated log or store as asyncio sees it: each call runs through its steps, and waits until each is ready."""

    def __init__(self, simulated: SimulatedLog | SimulatedStore) -> None:
        self._simulated = simulated

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._simulated, name)
        if not asyncio.iscoroutinefunction(attribute):
            return attribute

        async def run_steps(*arguments: Any) -> Any:
            coroutine: Coroutine[Any, Any, Any] = attribute(*arguments)
            while True:
                try:
                    step = coroutine.send(None)
                except StopIteration as end:
                    return end.value
                while not step.ready():  # noqa: ASYNC110 - this is the scheduler
                    await asyncio.sleep(0)

        return run_steps


def simulated_store(fields: dict[str, bytes] | None = None) -> tuple[SteppedCalls, Redis]:
    """The simulator's store without faults, and its Redis, which holds these fields of one model."""
    world = World(0)
    world.faulty, world.redis.state = False, fields or {}
    return SteppedCalls(SimulatedStore(world, "one")), world.redis


class ReplyLosingStore:
    """A store that raises DependencyError once, at the first call of one method, after the call or in place of it."""

    def __init__(self, store: Any, call: str, carried_out: bool) -> None:
        self._store, self._call, self._carried_out = store, call, carried_out

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name != self._call:
            return method

        async def lose_reply(*arguments: Any) -> None:
            self._call = ""
            if self._carried_out:
                await method(*arguments)
            raise DependencyError("the reply was lost")

        return lose_reply
