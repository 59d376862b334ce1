"""Arrays, names and runs as blobs: a reader restores exactly what was saved, however saves were spaced."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from service.snapshots import blobs


def restore_array(
    encoded: blobs.Encoded, store: dict[str, bytes], previous: blobs.Encoded = blobs.NO_ARRAY
) -> blobs.Encoded:
    """The array that a reader restores from the blobs it requests."""
    deltas = [name for name, _ in encoded.deltas]
    parts = {name: store[name] for name in blobs.missing_array_blobs(encoded.base, deltas, previous)}
    return blobs.decode_array(encoded.base, deltas, parts, len(encoded.values), previous)


def assert_same_array(a: blobs.Encoded, b: blobs.Encoded) -> None:
    assert a.values.tobytes() == b.values.tobytes()
    assert (a.blocks, a.base, [name for name, _ in a.deltas]) == (b.blocks, b.base, [name for name, _ in b.deltas])
    assert [c.tolist() for _, c in a.deltas] == [c.tolist() for _, c in b.deltas]


steps = st.lists(
    st.tuples(st.integers(0, 9000), st.lists(st.tuples(st.floats(0, 1), st.floats(-9, 9)), max_size=20)), max_size=12
)


@settings(max_examples=100)
@given(steps, st.data())
def test_any_history_of_saves_is_restored_bit_for_bit(history: Any, data: st.DataObject) -> None:
    """The array grows and changes, and some saves fail: the store has the array of the last accepted save.

    A reader that follows some saves, or all, has the same array.
    """
    array, last_accepted, reader_array, store = np.zeros(1), blobs.NO_ARRAY, blobs.NO_ARRAY, dict[str, bytes]()
    for growth, changes in history:
        array = np.concatenate([array, np.zeros(growth)])
        for position, value in changes:
            array[int(position * (len(array) - 1))] = value
        encoded, new = blobs.encode_array(array.copy(), last_accepted)
        store |= new
        if data.draw(st.booleans()):
            last_accepted = encoded
            array_read = restore_array(encoded, store)
            assert_same_array(encoded, array_read)
            if data.draw(st.booleans()):
                reader_array = restore_array(encoded, store, reader_array)
                assert_same_array(encoded, reader_array)
            assert array_read.values.tobytes() == array.tobytes()
            full, _ = blobs.encode_array(array, blobs.NO_ARRAY)
            assert encoded.blocks == full.blocks == full.base, "the state digest does not see how blobs are cut"
            lengths = [len(columns) for _, columns in encoded.deltas]
            assert lengths == sorted(set(lengths), reverse=True)
            assert sum(lengths) * blobs.DELTA.itemsize * 4 <= max(1, len(encoded.base)) * blobs.BLOCK_COLUMNS * 8


def test_a_save_writes_in_proportion_to_what_changed() -> None:
    """A save of a million columns, of which a hundred changed, writes kilobytes and keeps few deltas."""
    rng = np.random.default_rng(1)
    array = rng.normal(size=1_000_000)
    encoded, new = blobs.encode_array(array.copy(), blobs.NO_ARRAY)
    assert sum(map(len, new.values())) == 8_000_000
    written_bytes = []
    for _ in range(50):
        array[rng.integers(0, len(array), 100)] += 1
        encoded, new = blobs.encode_array(array.copy(), encoded)
        written_bytes.append(sum(map(len, new.values())))
        assert len(encoded.deltas) <= 10
    assert sum(written_bytes) / len(written_bytes) < 100 * blobs.DELTA.itemsize * 10
    assert blobs.encode_array(array, encoded)[1] == {}
    array[:] = -0.0
    encoded, new = blobs.encode_array(array.copy(), encoded)
    assert not encoded.deltas
    assert blobs.encode_array(np.zeros(len(array)), encoded)[0].blocks != encoded.blocks, (
        "-0.0 is another state than 0.0"
    )


@given(st.lists(st.tuples(st.integers(0, 2 * blobs.BLOCK_RUNS), st.booleans()), max_size=6))
@settings(max_examples=30)
def test_runs_are_cut_once_and_all_are_restored(steps: list[tuple[int, bool]]) -> None:
    """The last run may grow until another follows; a reader that follows some of the saves has all runs."""
    runs: blobs.Runs = []
    names, reader_names, reader_runs, store = list[str](), list[str](), blobs.Runs(), dict[str, bytes]()
    for growth, follow in steps:
        if runs:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        length = len(runs)
        runs += [(i % 8, i, i + 1) for i in range(length, length + growth)]
        names, tail, new = blobs.encode_runs(runs, names)
        assert len(tail) <= blobs.BLOCK_RUNS
        store |= new
        assert blobs.decode_runs(names, tail, store, [], []) == runs
        if follow:
            parts = {name: store[name] for name in blobs.later_blobs(names, reader_names)}
            reader_runs = blobs.decode_runs(names, tail, parts, reader_names, reader_runs)
            reader_names = names
            assert reader_runs == runs


def test_a_reader_of_runs_follows_a_store_that_was_rolled_back() -> None:
    """The earlier head has fewer blobs of runs than the reader, all of them the reader's own."""
    runs = [(i % 2, i, i + 1) for i in range(3 * blobs.BLOCK_RUNS)]
    earlier_names, tail, store = blobs.encode_runs(runs[: 2 * blobs.BLOCK_RUNS], [])
    later_names, _, _ = blobs.encode_runs(runs, earlier_names)
    assert len(later_names) > len(earlier_names) > 0
    parts = {name: store[name] for name in blobs.later_blobs(earlier_names, later_names)}
    assert blobs.decode_runs(earlier_names, tail, parts, later_names, runs) == runs[: 2 * blobs.BLOCK_RUNS]
