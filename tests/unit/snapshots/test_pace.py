"""When a save is due, a version is kept, and the recorded order is cut, by a clock that the test moves."""

from typing import Any

import pytest

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots import keeper as keepers
from service.snapshots.blobs import BLOCK_RUNS
from service.snapshots.head import TopicIdentity
from service.snapshots.keeper import AcceptedSave, Keeper
from tests.conftest import event
from tests.partitions import P0, P1
from tests.saving import FakeClock, keeper, learn, new_learner, save, simulated_store


class Clock(FakeClock):
    """A clock whose wall time may be wrong."""

    error = 0.0

    def time(self) -> float:
        return super().time() + self.error


class SlowStore:
    """A store whose next commit takes `seconds`."""

    def __init__(self, clock: FakeClock) -> None:
        self._store, self._clock = simulated_store()[0], clock
        self.seconds, self.missing_since = 0.0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, *arguments: Any) -> Any:
        self._clock.seconds += self.seconds
        return await self._store.commit(*arguments)


def pause(k: Keeper, learner: Learner, clock: FakeClock) -> float:
    """Seconds until the next save is due."""
    learn(learner, "a")
    start = clock.seconds
    while not k.due(learner):
        clock.seconds += 0.01
    return clock.seconds - start


async def test_after_the_store_hung_saves_are_as_often_as_before() -> None:
    clock = Clock()
    store = SlowStore(clock)
    k, learner = keeper(store, "t", clock), new_learner()
    pauses = []
    for seconds in (0.001, 0.001, 5.0, 0.001, 0.001):
        store.seconds = seconds
        await save(k, learner)
        pauses.append(pause(k, learner, clock))
    assert max(pauses) < 0.2, pauses
    for seconds in (0.05, 0.05):  # a store that is slow each time sets the pace
        store.seconds = seconds
        await save(k, learner)
        slow = pause(k, learner, clock)
    assert slow == pytest.approx(4.2, abs=0.1)


@pytest.mark.parametrize(("models", "seconds"), [(7, 0.84), (14, 1.68), (600, 10.0)])
async def test_many_models_of_a_process_share_a_tenth_of_its_time(models: int, seconds: float) -> None:
    clock = Clock()
    store = SlowStore(clock)
    k, learner = keeper(store, "t", clock, budget=keepers.SaveBudget(lambda: models)), new_learner()
    store.seconds = 0.01
    for _ in range(2):  # the lesser of two costs counts
        await save(k, learner)
        interval = pause(k, learner, clock)
    assert interval == pytest.approx(seconds, abs=0.02)


@pytest.mark.parametrize("error", [86400.0 * 3650, -86400.0 * 3650])
async def test_a_wall_clock_that_is_wrong_for_seconds_keeps_no_version_back(error: float) -> None:
    """The clock is ten years ahead or behind while a version is kept, in this process and in one that takes over."""
    for takes_over in (False, True):
        clock = Clock()
        store = SlowStore(clock)
        k, learner = keeper(store, "t", clock, keep_every=300.0), new_learner()
        await save(k, learner)
        clock.error = error
        earlier = (await _save_more(k, learner, clock, 350.0))[-1].head.kept
        assert len(earlier) <= 3
        clock.error = 0.0
        if takes_over:
            k = keeper(store, "t", clock, keep_every=300.0)
            learner = await k.restore() or learner
        later = (await _save_more(k, learner, clock, 3000.0))[-1].head.kept
        recent = [v for v in later if v not in earlier and abs(v.saved_at - clock.time()) < 4000]
        assert 9 <= len(recent) <= 11, (takes_over, later)


async def _save_more(k: Keeper, learner: Learner, clock: FakeClock, seconds: float) -> list[AcceptedSave]:
    saves, end = [], clock.seconds + seconds
    while clock.seconds < end:
        clock.seconds += 10.0
        learn(learner, "a")
        saves.append(await save(k, learner))
    return saves


@pytest.mark.parametrize("keep", [0, pytest.param(2, marks=pytest.mark.nightly)])
async def test_the_recorded_order_of_partitions_has_a_bound(keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version is kept when the order becomes long, so that `verify` begins there; with `keep = 0`, only that one."""
    max_runs = 2 * BLOCK_RUNS
    monkeypatch.setattr(keepers, "MAX_RUNS", max_runs)
    clock = Clock()
    store = SlowStore(clock)
    k = keeper(store, "t", clock, keep=keep, keep_every=1e9)
    learner = Learner(Identity())
    learner.begin({P0: 0, P1: 0})
    longest, kept_versions = 0, set[int]()
    for turn in range(12 * BLOCK_RUNS):
        learner.apply(Records.from_values(turn // 2, [event({"a": 1.0}, turn % 2)], (P0, P1)[turn % 2]))
        if turn % 256 == 0:
            save = await k.save(learner, {}, TopicIdentity("cluster"))
            assert isinstance(save, AcceptedSave)
            longest = max(longest, len(save.head.run_blobs))
            kept_versions.update(version.version for version in save.head.kept)
            assert len(save.head.kept) <= max(keep, 1)
    assert longest <= 3
    assert len(kept_versions) >= 4
    restored: Any = await keeper(store, "t", clock).restore()
    assert 0 < len(restored.runs) <= max_runs
