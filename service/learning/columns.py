"""Feature names to columns of the weight vector, and back. Column 0 is the bias.

Three feature modes, one class each, with the same operations: `place` says which columns the features of events have,
and which new names would get the next ones; `extend` gives them; `find` gives the known columns of a request and counts
the unknown; `explain` keeps their names.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import mmh3
import numpy as np
from numpy.typing import NDArray

from service.learning.compiled import ENABLED
from service.learning.hashing import hash_to_columns
from service.learning.identity import Identity
from service.learning.names import Names, find_each
from service.learning.rows import Rows

_NO_FLAGS = np.zeros(0, bool)
_KEPT = 1 << 16
"""Columns of lists of values that are at hand, half a megabyte: those of a slice are the same as of the last one."""
Pairs = list[tuple[int, float]]


class Placed(NamedTuple):
    """The features of events as rows: event i has `columns[starts[i]:starts[i+1]]` and the values beside them."""

    starts: NDArray[np.uint64]
    columns: NDArray[np.uint64]
    values: NDArray[np.float64]
    names: Sequence[str]
    """The new names, whose columns follow upon those in use, in their order."""
    ignored: Sequence[tuple[int, str, float]]
    """Event, name and value of each feature that gets no column."""
    numbers: NDArray[np.bool_]
    """Which of the values are numbers, where they are to be scaled: then equal columns are not merged yet."""


class Columns(Protocol):
    """What the learner needs to know of a feature mode."""

    names: list[str]

    def __len__(self) -> int:
        """Columns in use, the bias included: the length of the weight vector."""

    def place(self, events: Sequence[Any]) -> Placed:
        """Columns and values of the features of events, as `find` has them. It changes nothing."""

    def place_rows(self, rows: Rows) -> Placed:
        """The same of features as a compiled loop found them."""

    def find(self, features: Any) -> tuple[Pairs, int]:
        """(column, value) pairs in record order, and the number of unknown features.

        Equal columns are merged where values are not scaled.
        """

    def explain(self, features: Any) -> list[tuple[str, int, float]]:
        """Name, column and value of each known feature, as given: not merged."""

    def name_of(self, column: int) -> str:
        """The name shown for a column > 0."""

    def column_of(self, name: str) -> int | None:
        """The column of a shown name, or None."""

    def extend(self, names: Iterable[str]) -> None:
        """Give these names the next columns."""


class Named:
    """A name gets the next column when it is first seen, up to `cap` names; beyond it the feature is ignored.

    >>> columns = Named(cap=2)
    >>> placed = columns.place([{"a": 0.5, "b": 1.0}, {"c": 3.0, "a": 2.0}])
    >>> placed.columns.tolist(), placed.names, placed.ignored
    ([1, 2, 1], ['a', 'b'], [(1, 'c', 3.0)])
    >>> columns.extend(placed.names)
    >>> columns.find({"b": 4.0, "c": 3.0})
    ([(2, 4.0)], 1)
    """

    def __init__(self, cap: int, scaled: bool = False) -> None:
        self.names: list[str] = []
        self._cap, self._scaled = cap, scaled
        self._column: dict[str, int] = {}
        self._known = Names()
        """The same names, for compiled loops."""

    def __len__(self) -> int:
        return len(self.names) + 1

    def place(self, events: Sequence[Mapping[str, float]]) -> Placed:
        starts, columns, values, numbers = array("Q", [0]), array("Q"), array("d"), array("B")
        new: dict[str, int] = {}
        ignored: list[tuple[int, str, float]] = []
        known = self._column.__getitem__
        for i, features in enumerate(events):
            try:
                columns.fromlist(list(map(known, features)))
                values.fromlist(list(features.values()))
                if self._scaled:
                    numbers.extend(map(_is_number, features.values()))
            except KeyError:
                for name, value in features.items():
                    column = self._column.get(name) or new.get(name)
                    if column is None:
                        if len(self.names) + len(new) >= self._cap:
                            ignored.append((i, name, value))
                            continue
                        column = new[name] = len(self) + len(new)
                    columns.append(column)
                    values.append(value)
                    if self._scaled:
                        numbers.append(_is_number(value))
            starts.append(len(columns))
        return _placed(starts, columns, values, numbers, list(new), ignored)

    def place_rows(self, rows: Rows) -> Placed:
        columns = np.empty(len(rows.values), np.uint64)
        unknown, unsure, _ = find_each(
            self._known.slots, self._known.ends, self._known.text.ctypes.data, rows.data.ctypes.data,
            rows.scratch.ctypes.data, rows.names, rows.hashes, columns,
        )  # fmt: skip
        starts, values, numbers = rows.starts, rows.values.copy(), rows.is_number.copy() if self._scaled else _NO_FLAGS
        new, ignored = list[str](), list[tuple[int, str, float]]()
        if unknown:
            at = np.flatnonzero(columns == 0)
            names, known = rows.names_of(at), self._column
            fresh = (name for name in names if name not in known) if unsure else names
            new = [*dict.fromkeys(fresh)][: self._cap - len(self.names)]
            given = dict(zip(new, count(len(self)), strict=False))
            columns[at] = [given.get(name) or known.get(name, 0) for name in names]
            if len(without := np.flatnonzero(columns == 0)):
                events, nameless = np.searchsorted(starts, without, "right") - 1, rows.names_of(without)
                ignored = [*zip(events.tolist(), nameless, values[without].tolist(), strict=True)]
                starts = starts - np.searchsorted(without, starts).astype(np.uint64)
                columns, values = np.delete(columns, without), np.delete(values, without)
                numbers = np.delete(numbers, without) if self._scaled else numbers
        return Placed(starts, columns, values, new, ignored, numbers)

    def find(self, features: Mapping[str, float]) -> tuple[Pairs, int]:
        get = self._column.get  # once: a thread may ask while names come and go
        pairs = [(column, value) for name, value in features.items() if (column := get(name)) is not None]
        return pairs, len(features) - len(pairs)

    def explain(self, features: Mapping[str, float]) -> list[tuple[str, int, float]]:
        get = self._column.get
        return [(name, column, value) for name, value in features.items() if (column := get(name)) is not None]

    def name_of(self, column: int) -> str:
        return self.names[column - 1]

    def column_of(self, name: str) -> int | None:
        return self._column.get(name)

    def extend(self, names: Iterable[str]) -> None:
        known = len(self.names)
        self.names += names
        more = self.names[known:]
        self._column.update(zip(more, range(known + 1, len(self)), strict=True))
        if more and ENABLED:
            self._known.add(more)


class _Numbered:
    """Columns shown as "0", "1", …: there are no names to keep."""

    def __init__(self, count: int) -> None:
        self.names: list[str] = []
        self._count = count

    def __len__(self) -> int:
        return self._count + 1

    def name_of(self, column: int) -> str:
        return str(column - 1)

    def column_of(self, name: str) -> int | None:
        if not (name.isascii() and name.isdigit() and len(name) < 10) or int(name) >= self._count:
            return None
        return int(name) + 1

    def extend(self, names: Iterable[str]) -> None:
        """There are none to be given."""


class Positional(_Numbered):
    """The i-th value of a list of `dimension` belongs to column i + 1."""

    def __init__(self, dimension: int, scaled: bool = False) -> None:
        super().__init__(dimension)
        self._scaled = scaled
        self._all = np.arange(1, dimension + 1, dtype=np.uint64)
        self._repeated = np.tile(self._all, _KEPT // max(dimension, 1))

    def place(self, events: Sequence[list[float]]) -> Placed:
        values = array("d")
        for features in events:
            values.fromlist(features)
        starts = np.arange(len(events) + 1, dtype=np.uint64) * np.uint64(self._count)
        return self._placed(starts, np.frombuffer(values, np.float64))

    def place_rows(self, rows: Rows) -> Placed:
        return self._placed(rows.starts, rows.values.copy())

    def _placed(self, starts: NDArray[np.uint64], values: NDArray[np.float64]) -> Placed:
        columns = self._repeated[: len(values)]
        if len(columns) < len(values):
            columns = np.tile(self._all, len(starts) - 1)
        return Placed(starts, columns, values, (), (), np.ones(len(values), bool) if self._scaled else _NO_FLAGS)

    def find(self, features: Sequence[float]) -> tuple[Pairs, int]:
        return list(enumerate(features, 1)), 0

    def explain(self, features: Sequence[float]) -> list[tuple[str, int, float]]:
        return [(str(i), i + 1, value) for i, value in enumerate(features)]


class Hashed(_Numbered):
    """Column 1 + |h| mod 2^bits with h = murmur3_32(name, seed 0), value times h's sign (scikit-learn's FeatureHasher)."""  # noqa: E501

    def __init__(self, bits: int, scaled: bool = False) -> None:
        super().__init__(1 << bits)
        self._scaled = scaled
        self._seen, self._turn = np.zeros((64, 2), np.int64), np.zeros(1, np.int64)

    def place(self, events: Sequence[Mapping[str, float]]) -> Placed:
        starts, columns, values, numbers = array("Q", [0]), array("Q"), array("d"), array("B")
        for features in events:
            pairs, _ = self.find(features)
            columns.fromlist([column for column, _ in pairs])
            values.fromlist([value for _, value in pairs])
            if self._scaled:
                numbers.extend(_is_number(value) for _, value in pairs)
            starts.append(len(columns))
        return _placed(starts, columns, values, numbers)

    def place_rows(self, rows: Rows) -> Placed:
        if 2 * (longest := int(np.diff(rows.starts).max(initial=0))) > len(self._seen):
            self._seen = np.zeros((2 << longest.bit_length(), 2), np.int64)
        starts, columns, values = rows.starts.copy(), np.empty(len(rows.values), np.uint64), np.empty(len(rows.values))
        count = hash_to_columns(
            rows.data.ctypes.data, rows.scratch.ctypes.data, rows.names, rows.values, rows.is_number, self._count,
            not self._scaled, self._seen, self._turn, starts, columns, values,
        )  # fmt: skip
        return Placed(
            starts, columns[:count], values[:count], (), (), rows.is_number.copy() if self._scaled else _NO_FLAGS
        )

    def find(self, features: Mapping[str, float]) -> tuple[Pairs, int]:
        if self._scaled:
            return [(column, value) for _, column, value in self.explain(features)], 0
        merged: dict[int, float] = {}
        for _, column, value in self.explain(features):
            merged[column] = merged[column] + value if column in merged else value
        return list(merged.items()), 0

    def explain(self, features: Mapping[str, float]) -> list[tuple[str, int, float]]:
        count = self._count
        hashed = [(name, value, mmh3.hash(name)) for name, value in features.items()]
        return [(name, 1 + abs(h) % count, value if h >= 0 else -value) for name, value, h in hashed]

    def column_of(self, name: str) -> int | None:
        """The column that a feature name hashes to."""
        return 1 + abs(mmh3.hash(name)) % self._count


def _placed(
    starts: "array[int]",
    columns: "array[int]",
    values: "array[float]",
    numbers: "array[int]",
    names: Sequence[str] = (),
    ignored: Sequence[tuple[int, str, float]] = (),
) -> Placed:
    rows = np.frombuffer(starts, np.uint64), np.frombuffer(columns, np.uint64), np.frombuffer(values, np.float64)
    return Placed(*rows, names, ignored, np.frombuffer(numbers, np.bool_))


def _is_number(value: float) -> bool:
    """Of a feature: what is no number is an int, see `features`."""
    return value.__class__ is float


def columns_for(identity: Identity) -> Columns:
    """The columns of a model with this identity."""
    scaled = identity.scale != "none"
    if identity.features == "positional":
        return Positional(identity.dimension or 0, scaled)
    if identity.features == "hashed":
        return Hashed(identity.bits or 0, scaled)
    return Named(identity.max_columns or 0, scaled)
