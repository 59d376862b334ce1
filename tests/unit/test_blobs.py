"""Arrays as bases and deltas: whatever was saved in whatever steps is what is taken up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import SnapshotDamaged
from service.snapshots.blobs import (
    BLOCK_COLUMNS,
    BLOCK_NAMES,
    BLOCK_RUNS,
    DELTA,
    NOTHING,
    Laid,
    LaidNames,
    Runs,
    lay,
    lay_names,
    lay_runs,
    needed,
    needed_names,
    needed_runs,
    take_up,
    take_up_names,
    take_up_runs,
)


def again(laid: Laid, store: dict[str, bytes], before: Laid = NOTHING) -> Laid:
    """What a reader takes up who gets the blobs it asks for, and no others."""
    deltas = [name for name, _ in laid.deltas]
    found = {name: store[name] for name in needed(laid.base, deltas, before)}
    return take_up(laid.base, deltas, found, len(laid.values), before)


def same(a: Laid, b: Laid) -> None:
    assert a.values.tobytes() == b.values.tobytes()
    assert (a.blocks, a.base, [name for name, _ in a.deltas]) == (b.blocks, b.base, [name for name, _ in b.deltas])
    assert [c.tolist() for _, c in a.deltas] == [c.tolist() for _, c in b.deltas]


steps = st.lists(
    st.tuples(st.integers(0, 9000), st.lists(st.tuples(st.floats(0, 1), st.floats(-9, 9)), max_size=20)), max_size=12
)


@settings(max_examples=100)
@given(steps, st.data())
def test_any_history_of_saves_is_taken_up_bit_for_bit(history: Any, data: Any) -> None:
    """Growing, changing, failing now and then: what the store has is the array of the last accepted save.

    A reader who follows, some saves or all, has it too.
    """
    array, accepted, followed, store = np.zeros(1), NOTHING, NOTHING, dict[str, bytes]()
    for growth, changes in history:
        array = np.concatenate([array, np.zeros(growth)])
        for where, value in changes:
            array[int(where * (len(array) - 1))] = value
        laid, new = lay(array, accepted)
        store |= new
        if data.draw(st.booleans()):
            accepted = laid
            taken = again(laid, store)
            same(laid, taken)
            if data.draw(st.booleans()):
                followed = again(laid, store, followed)
                same(laid, followed)
            assert taken.values.tobytes() == array.tobytes()
            whole, _ = lay(array, NOTHING)
            assert laid.blocks == whole.blocks == whole.base, "the state digest does not see how blobs are cut"
            lengths = [len(columns) for _, columns in laid.deltas]
            assert lengths == sorted(set(lengths), reverse=True)
            assert sum(lengths) * DELTA.itemsize * 4 <= max(1, len(laid.base)) * BLOCK_COLUMNS * 8


def test_bytes_follow_what_changed() -> None:
    """A million columns, a hundred changed a save: kilobytes, not megabytes, and few deltas."""
    rng = np.random.default_rng(1)
    array = rng.normal(size=1_000_000)
    laid, new = lay(array, NOTHING)
    assert sum(map(len, new.values())) == 8_000_000
    written = []
    for _ in range(200):
        array[rng.integers(0, len(array), 100)] += 1
        laid, new = lay(array, laid)
        written.append(sum(map(len, new.values())))
        assert len(laid.deltas) <= 10
    assert sum(written) / len(written) < 100 * DELTA.itemsize * 10
    array += 1
    laid, new = lay(array, laid)
    assert not laid.deltas
    assert sum(map(len, new.values())) == 8_000_000


def test_minus_zero_is_another_state_than_zero() -> None:
    laid, _ = lay(np.array([0.0, 1.0]), NOTHING)
    other, new = lay(np.array([-0.0, 1.0]), laid)
    assert new
    assert other.blocks != laid.blocks


def test_nothing_changed_is_nothing_written() -> None:
    array = np.ones(10)
    laid, _ = lay(array, NOTHING)
    assert lay(array, laid)[1] == {}


def test_what_does_not_fit_is_damage() -> None:
    laid, store = lay(np.ones(10), NOTHING)
    with pytest.raises(SnapshotDamaged, match="10 columns where the head says 9"):
        take_up(laid.base, [], store, 9)
    array = np.zeros(BLOCK_COLUMNS)
    laid, store = lay(array, NOTHING)
    array[BLOCK_COLUMNS - 1] = 1
    laid, new = lay(array, laid)
    with pytest.raises(SnapshotDamaged, match="beyond"):
        take_up([], [name for name, _ in laid.deltas], store | new, 5)


@given(st.lists(st.tuples(st.integers(0, 3 * BLOCK_NAMES), st.booleans()), max_size=5))
@settings(max_examples=30)
def test_names_are_cut_once_and_fetched_once(steps: list[tuple[int, bool]]) -> None:
    laid, store = LaidNames(0, []), dict[str, bytes]()
    followed, known = LaidNames(0, []), list[str]()
    for count, follow in sorted(steps):
        names = [f"ñ{i}" for i in range(count)]
        laid, new = lay_names(names, laid)
        store |= new
        assert take_up_names(laid.blobs, store, LaidNames(0, []), []) == names
        assert laid == lay_names(names, LaidNames(0, []))[0]
        if follow:
            found = {name: store[name] for name in needed_names(laid.blobs, followed)}
            known += take_up_names(laid.blobs, found, followed, known)
            followed = laid
            assert known == names


def test_names_of_another_history_are_refused() -> None:
    laid, store = lay_names(["a", "b"], LaidNames(0, []))
    with pytest.raises(SnapshotDamaged, match="not those of the snapshot before"):
        take_up_names(laid.blobs, store, LaidNames(1, ["other"]), ["c"])


@given(st.lists(st.tuples(st.integers(0, 2 * BLOCK_RUNS), st.booleans()), max_size=6))
@settings(max_examples=30)
def test_runs_are_cut_once_and_none_is_lost(steps: list[tuple[int, bool]]) -> None:
    """The last run may grow until another follows; a reader who follows now and then has them all."""
    runs: Runs = []
    laid, followed, known, store = list[str](), list[str](), Runs(), dict[str, bytes]()
    for more, follow in steps:
        if runs:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        at = len(runs)
        runs += [(i % 8, i, i + 1) for i in range(at, at + more)]
        laid, rest, new = lay_runs(runs, laid)
        assert len(rest) <= BLOCK_RUNS
        store |= new
        assert take_up_runs(laid, rest, store, [], []) == runs
        if follow:
            known = take_up_runs(laid, rest, {n: store[n] for n in needed_runs(laid, followed)}, followed, known)
            followed = laid
            assert known == runs


def test_a_reader_of_runs_follows_a_store_that_was_rolled_back() -> None:
    """The earlier head has fewer blobs of runs than the reader, all of them the reader's own."""
    runs = [(i % 2, i, i + 1) for i in range(3 * BLOCK_RUNS)]
    early, rest, store = lay_runs(runs[: 2 * BLOCK_RUNS], [])
    later, _, _ = lay_runs(runs, early)
    assert len(later) > len(early) > 0
    found = {name: store[name] for name in needed_runs(early, later)}
    assert take_up_runs(early, rest, found, later, runs) == runs[: 2 * BLOCK_RUNS]
