"""When a save is due, a version kept, and the recorded order cut: on a clock that the test moves."""

from typing import Any

import pytest

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots import keeper as keepers
from service.snapshots.blobs import BLOCK_RUNS
from service.snapshots.head import Source
from service.snapshots.keeper import AcceptedSave
from tests.conftest import event
from tests.saving import FakeClock, keeper, learn, new_learner, save, simulated_store


class Clock(FakeClock):
    """Its wall clock may be wrong."""

    wrong = 0.0

    def time(self) -> float:
        return super().time() + self.wrong


class Hanging:
    """A store of which the next commit waits so long."""

    def __init__(self, clock: FakeClock) -> None:
        self._store, self._clock = simulated_store()[0], clock
        self.seconds, self.missing_since = 0.0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, *arguments: Any) -> Any:
        self._clock.seconds += self.seconds
        return await self._store.commit(*arguments)


def pause(k: Any, learner: Learner, clock: FakeClock) -> float:
    """Seconds until the next save is due."""
    learn(learner, "a")
    started = clock.seconds
    while not k.due(learner):
        clock.seconds += 0.01
    return clock.seconds - started


async def test_after_the_store_hung_saves_are_as_often_as_before() -> None:
    clock = Clock()
    store = Hanging(clock)
    k, learner = keeper(store, "t", clock), new_learner()
    pauses = []
    for seconds in (0.001, 0.001, 5.0, 0.001, 0.001):
        store.seconds = seconds
        await save(k, learner)
        pauses.append(pause(k, learner, clock))
    assert max(pauses) < 0.2, pauses
    for seconds in (0.05, 0.05):  # one that is slow each time is paced by it
        store.seconds = seconds
        await save(k, learner)
        slow = pause(k, learner, clock)
    assert slow == pytest.approx(4.2, abs=0.1)


@pytest.mark.parametrize(("models", "seconds"), [(7, 0.84), (14, 1.68), (600, 10.0)])
async def test_many_models_of_a_process_share_a_tenth_of_its_time(models: int, seconds: float) -> None:
    clock = Clock()
    store = Hanging(clock)
    k, learner = keeper(store, "t", clock, budget=keepers.SaveBudget(lambda: models)), new_learner()
    store.seconds = 0.01
    for _ in range(2):  # the lesser of two costs counts
        await save(k, learner)
        found = pause(k, learner, clock)
    assert found == pytest.approx(seconds, abs=0.02)


@pytest.mark.parametrize("wrong", [86400.0 * 3650, -86400.0 * 3650])
async def test_a_wall_clock_that_is_wrong_for_seconds_keeps_no_version_back(wrong: float) -> None:
    """Ten years ahead, or behind, while one version is kept; in this process, and in one that takes over."""
    for takes_over in (False, True):
        clock = Clock()
        store = Hanging(clock)
        k, learner = keeper(store, "t", clock, keep_every=300.0), new_learner()
        await save(k, learner)
        clock.wrong = wrong
        kept = (await _save_more(k, learner, clock, 350.0))[-1].head.kept
        assert len(kept) <= 3
        clock.wrong = 0.0
        if takes_over:
            k = keeper(store, "t", clock, keep_every=300.0)
            learner = await k.restore() or learner
        after = (await _save_more(k, learner, clock, 3000.0))[-1].head.kept
        since = [one for one in after if one not in kept and abs(one.saved_at - clock.time()) < 4000]
        assert 9 <= len(since) <= 11, (takes_over, after)


async def _save_more(k: Any, learner: Learner, clock: FakeClock, seconds: float) -> list[AcceptedSave]:
    saved, until = [], clock.seconds + seconds
    while clock.seconds < until:
        clock.seconds += 10.0
        learn(learner, "a")
        saved.append(await save(k, learner))
    return saved


@pytest.mark.parametrize("keep", [0, pytest.param(2, marks=pytest.mark.nightly)])
async def test_the_recorded_order_of_interleaved_partitions_has_a_bound(
    keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version is kept where it becomes long, so that `verify` begins there; with `keep = 0` one, and no other."""
    most = 2 * BLOCK_RUNS
    monkeypatch.setattr(keepers, "MAX_RUNS", most)
    clock = Clock()
    store = Hanging(clock)
    k = keeper(store, "t", clock, keep=keep, keep_every=1e9)
    learner = Learner(Identity())
    learner.begin({0: 0, 1: 0})
    longest, kept = 0, set[int]()
    for turn in range(12 * BLOCK_RUNS):
        learner.apply(turn % 2, Records.of(turn // 2, [event({"a": 1.0}, turn % 2)]))
        if turn % 256 == 0:
            saved = await k.save(learner, {}, Source("cluster"))
            assert isinstance(saved, AcceptedSave)
            longest = max(longest, len(saved.head.run_blobs))
            kept.update(version.version for version in saved.head.kept)
            assert len(saved.head.kept) <= max(keep, 1)
    assert longest <= 3
    assert len(kept) >= 4
    restored = await keeper(store, "t", clock).restore()
    assert restored is not None
    assert 0 < len(restored.runs) <= most
