"""The row reader drives the compiled parser over a buffer of values.

Where the parser declines a value, the careful reader is asked, and the pass goes on after it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from service.learning.columns.name_table import (
    BEHIND,
    SEED,
    NameTable,
    Utf8Names,
    encode_names,
    gather_names,
    hash_each,
    room,
)
from service.learning.events.compiled import json_parser
from service.learning.events.compiled.path_tree import UnsupportedError, expected_values, path_tree
from service.learning.events.flatten import Features, Flattener
from service.learning.events.json_pointer import Path, parse_pointer
from service.learning.events.value_buffer import ValueBuffer

KEPT_FEATURES = 600_000
"""Buffers for at most as many features are kept for the next slice. An event of 1 MiB needs 524,416."""
MAX_KEYS = 1 << 16
"""Names for which it is remembered whether the patterns select them."""

Read = tuple[Features, float, float]
"""An event as the careful reader reads it: features, the label's sign, weight."""


class FeatureRows(NamedTuple):
    """Event i has the features `starts[i]` to before `starts[i + 1]`.

    `names` has the begin and the size of each feature's name: in `data`, or if it begins below 0 at -1 - begin of
    `scratch`. `hashes` are those of the names. Positional features have `values` alone.
    """

    data: NDArray[np.uint8]
    scratch: NDArray[np.uint8]
    names: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    values: NDArray[np.float64]
    is_number: NDArray[np.bool_]
    starts: NDArray[np.uint64]
    signs: NDArray[np.float64]
    weights: NDArray[np.float64]
    records: NDArray[np.int64]
    """The place of each event among the values."""
    skipped: NDArray[np.int64]
    """The places of the values that `where` passes over."""

    def names_of(self, features: NDArray[np.int64]) -> Utf8Names:
        """The names of these features."""
        names = self.names[features]
        ends = np.concatenate([[0], names[:, 1].cumsum()])
        gathered = np.empty(ends[-1] + BEHIND, np.uint8)
        gather_names(self.data.ctypes.data, self.scratch.ctypes.data, names, gathered)
        return Utf8Names(gathered, ends, len(names))


class RowReader:
    """Reads the events or the instances of one model; raises UnsupportedError if only the careful reader can."""

    def __init__(
        self,
        flattener: Flattener,
        paths: list[Path | None],
        expected: list[dict[tuple[bool, Any], float]],
        max_bytes: int,
        labelled: bool,
    ) -> None:
        """`paths` lead to the parts of a value, from FEATURES on; `expected` says what may stand there."""
        identity, parts = flattener.identity, [path for path in paths if path is not None]
        within = any(path[: len(part)] == part for part in parts[1:] for path in parts if path != part)
        if within or len(set(parts)) < len(parts) or (identity.dimension or 0) > identity.max_features:
            raise UnsupportedError
        tree = path_tree(paths)
        firsts, numbers, ends, codes, strings, literals = expected_values(expected)
        self._paths = tree.nodes, tree.names.ctypes.data
        self._expected = firsts, numbers, ends, codes, strings.ctypes.data, literals
        self._kept = tree.names, strings
        """The arrays that the compiled loop knows by address."""
        self._patterns = flattener.patterns
        self._keys, self._selected = NameTable(), np.zeros(64, np.bool_)
        self._limits = (
            max_bytes, identity.max_features, identity.max_name_bytes,
            (identity.dimension or 0) if identity.features == "positional" else -1,
            ("category", "ignore", "reject").index(identity.text), self._patterns is not None, labelled,
        )  # fmt: skip
        self._table = np.zeros((4 * json_parser.MAX_MEMBERS, 2), np.uint64)
        self._state = np.zeros(9, np.int64)
        self._drop_buffers()

    @classmethod
    def of_events(cls, flattener: Flattener, signs: dict[tuple[bool, Any], float]) -> Self:
        """Reads the records of a model, whose labels have these signs."""
        event = flattener.identity.event
        pointers = [event.features, event.label, event.weight, event.id, *event.where]
        paths = [None if pointer is None else parse_pointer(pointer) for pointer in pointers]
        allowed = [{(value.__class__ is bool, value): 1.0 for value in values} for values in event.where.values()]
        return cls(flattener, paths, [{}, signs, {}, {}, *allowed], flattener.identity.max_record_bytes, True)

    @classmethod
    def of_instances(cls, flattener: Flattener, path: Path, max_bytes: int) -> Self:
        """Reads instances whose features stand at `path`. The other parts of an event there are no features."""
        event = flattener.identity.event
        paths: list[Path | None] = [path]
        for pointer in (event.label, event.weight, event.id):
            part = None if pointer is None else parse_pointer(pointer)
            within = part is not None and part[: len(flattener.path)] == flattener.path
            paths.append((*path, *part[len(flattener.path) :]) if part is not None and within else None)
        return cls(flattener, paths, [{}] * len(paths), max_bytes, False)

    def _drop_buffers(self) -> None:
        """Drop the buffers. Views handed out earlier stay valid."""
        self._scratch = np.empty(0, np.uint8)
        self._features: tuple[NDArray[Any], ...] = (
            np.empty((0, 2), np.int64), np.empty(0, np.uint64), np.empty(0), np.empty(0, np.bool_)
        )  # fmt: skip
        """Places of names, hashes, values, and whether these are numbers."""

    def read(
        self, values: ValueBuffer, otherwise: Callable[[int], Read | None], enough: Callable[[], bool] | None = None
    ) -> FeatureRows:
        """The events among these values.

        For a value that the parser declines `otherwise` is called, which returns the event or None. After it `enough`
        says whether to leave the rest; usual values take no time.
        """
        max_bytes, _, _, dimension, *_ = self._limits
        count = len(values)
        size = int(values.ends[-1] - values.begins[0]) if count else 0
        if size > max_bytes:  # with what stands between the values, which may be much
            size = int(np.clip(values.ends - values.begins, 0, max_bytes).sum())
        state = self._state
        state[: json_parser.GENERATION] = 0
        # A member takes four bytes at least, and makes two features at most.
        self._make_room(min(size // 4 + 64, count * max(dimension, 2 * json_parser.MAX_MEMBERS)), 2 * size + 4096)
        data, begins, ends = _with_room(values)
        events = np.empty((2, count)), np.zeros((3, count + 1), np.int64)
        while state[json_parser.NEXT] < count:
            keys = self._keys.table[:4]
            json_parser.parse_values(
                data.ctypes.data, begins, ends, *self._limits, SEED, self._paths, self._expected, keys, self._selected,
                self._table, state, self._scratch, self._features, events,
            )  # fmt: skip
            if state[json_parser.STATUS] == json_parser.USUAL:
                break
            if state[json_parser.STATUS] == json_parser.UNKNOWN_KEY and len(self._keys) < MAX_KEYS:
                begin, end = state[[json_parser.KEY, json_parser.KEY_SIZE]].tolist()
                self._remember(_name_at(data, self._scratch, begin, end))
                continue
            record = int(state[json_parser.NEXT])
            state[json_parser.NEXT] += 1
            if (read := otherwise(record)) is not None:
                self._append(read, record, events)
            if enough is not None and enough():
                return self._rows(data, events, record + 1)
        return self._rows(data, events, count)

    def _rows(
        self, data: NDArray[np.uint8], events: tuple[NDArray[np.float64], NDArray[np.int64]], before: int
    ) -> FeatureRows:
        """The events among the records before this one."""
        (signs, weights), (starts, records, passed_over) = events
        n = int(np.searchsorted(records[: self._state[json_parser.EVENTS]], before))
        skipped = int(np.searchsorted(passed_over[: self._state[json_parser.SKIPPED]], before))
        features = int(starts[n])
        names, hashes, values, is_number = (part[:features] for part in self._features)
        rows = FeatureRows(
            data, self._scratch, names, hashes, values, is_number, starts[: n + 1].astype(np.uint64), signs[:n],
            weights[:n], records[:n], passed_over[:skipped],
        )  # fmt: skip
        if len(self._features[0]) > KEPT_FEATURES:
            self._drop_buffers()
        return rows

    def _remember(self, key: str) -> None:
        """Remember whether the patterns select a name."""
        assert self._patterns is not None  # noqa: S101 - without patterns each name is selected
        self._keys.add([key])
        if len(self._selected) <= len(self._keys):
            self._selected = np.concatenate([self._selected, np.zeros_like(self._selected)])
        self._selected[len(self._keys)] = self._patterns.select(key)

    def _append(self, read: Read, record: int, events: tuple[NDArray[np.float64], NDArray[np.int64]]) -> None:
        state, (found, sign, weight) = self._state, read
        n, at, used = (int(state[i]) for i in (json_parser.EVENTS, json_parser.VALUES, json_parser.SCRATCH))
        end = at + len(found)
        given = encode_names([*found] if isinstance(found, dict) else [])
        more = int(given.ends[-1])
        self._make_room(end, used + more)
        names, hashes, values, is_number = self._features
        if isinstance(found, dict):
            self._scratch[used : used + more] = given.text[:more]
            names[at:end, 0], names[at:end, 1] = -1 - used - given.ends[:-1], np.diff(given.ends)
            hash_each(self._scratch.ctypes.data, names[at:end], hashes[at:end], SEED)
            values[at:end] = [*found.values()]
            is_number[at:end] = [value.__class__ is float for value in found.values()]
        else:
            values[at:end] = found
        (figures, places) = events
        figures[:, n], places[0, n + 1], places[1, n] = (sign, weight), end, record
        state[json_parser.EVENTS], state[json_parser.VALUES], state[json_parser.SCRATCH] = n + 1, end, used + more

    def _make_room(self, features: int, scratch: int) -> None:
        self._features = tuple(room(part, self._state[json_parser.VALUES], features) for part in self._features)
        self._scratch = room(self._scratch, self._state[json_parser.SCRATCH], scratch + BEHIND)


def _name_at(data: NDArray[np.uint8], scratch: NDArray[np.uint8], begin: int, size: int) -> str:
    """A name in `data`, or if it begins below 0 in `scratch`."""
    text = data[begin : begin + size] if begin >= 0 else scratch[-1 - begin : size - 1 - begin]
    return text.tobytes().decode(errors="surrogatepass")


def _with_room(values: ValueBuffer) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The buffer of these values, where they begin and end. BEHIND zeros are at its end, where every scan stops."""
    data, begins, ends = values.data, values.begins, values.ends
    end = int(ends[-1]) if len(values) else 0
    if end + BEHIND <= len(data) and not data[-BEHIND:].any():
        return data, begins, ends
    first = max(int(begins.min(initial=end)), 0)
    data = np.concatenate([data[first:end], np.zeros(BEHIND, np.uint8)])
    return data, np.where(begins < 0, -1, begins - first), ends - first
