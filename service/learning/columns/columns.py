"""Feature names to columns of the weight vector, and back. Column 0 is the bias.

Three feature modes, one class each, with the same operations: `place` says which columns the features of events have,
and which new names would get the next ones; `extend` gives them; `find` gives the known columns of a request and counts
the unknown; `explain` keeps their names.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain, count
from typing import Any, NamedTuple, Protocol

import mmh3
import numpy as np
from numpy.typing import NDArray

from service.learning.columns.hashing import hash_to_columns
from service.learning.columns.name_table import NameTable, find_each, number_each
from service.learning.events.compiled.row_reader import FeatureRows
from service.learning.identity import Identity

_NO_FLAGS = np.zeros(0, bool)
_KEPT = 1 << 16
"""Columns of lists of values that are at hand, 256 kB: those of a slice are the same as of the last one."""
_ASKED = 1 << 14
"""So many names of requests are at hand, a megabyte or two."""
ColumnPairs = list[tuple[int, float]]


class Placed(NamedTuple):
    """The features of events as rows: event i has `columns[starts[i]:starts[i+1]]` and the values beside them."""

    starts: NDArray[np.uint64]
    columns: NDArray[np.uint32]
    values: NDArray[np.float64]
    names: Sequence[str]
    """The new names, whose columns follow upon those in use, in their order."""
    ignored: Sequence[tuple[int, str, float]]
    """Event, name and value of each feature that gets no column."""
    numbers: NDArray[np.bool_]
    """Which of the values are numbers, where they are to be scaled: then equal columns are not merged yet."""


class Columns(Protocol):
    """What the learner needs to know of a feature mode."""

    @property
    def names(self) -> Sequence[str]:
        """Those that were given, in the order of their columns from 1 on."""

    def __len__(self) -> int:
        """Columns in use, the bias included: the length of the weight vector."""

    def place(self, events: Sequence[Any]) -> Placed:
        """Columns and values of the features of events, as `find` has them. It changes nothing."""

    def place_rows(self, rows: FeatureRows) -> Placed:
        """The same of features as a compiled loop found them."""

    def find(self, features: Any) -> tuple[ColumnPairs, int]:
        """(column, value) pairs in record order, and the number of unknown features.

        Equal columns are merged where values are not scaled.
        """

    def explain(self, features: Any) -> list[tuple[str, int, float, int]]:
        """Name, column and value of each known feature, as given: not merged; and the sign, by which it is learned."""

    def name_of(self, column: int) -> str:
        """The name shown for a column > 0."""

    def column_of(self, name: str) -> int | None:
        """The column of a shown name, or None."""

    def extend(self, names: Sequence[str]) -> None:
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
        self.names = NameTable()
        self._cap, self._scaled = cap, scaled
        self._asked: dict[str, int] = {}
        """Columns of what requests named: most name what others did."""

    def __len__(self) -> int:
        return len(self.names) + 1

    @property
    def _room(self) -> int:
        """So many names may come; given weights may have more than the cap."""
        return max(0, self._cap - len(self.names))

    def place(self, events: Sequence[Mapping[str, float]]) -> Placed:
        names = [*chain.from_iterable(events)]
        values = [*chain.from_iterable(features.values() for features in events)]
        numbers = np.array([*map(_is_number, values)], bool) if self._scaled else _NO_FLAGS
        starts, columns = np.cumsum([0, *map(len, events)], dtype=np.uint64), self.names.numbers_of(names)
        at = np.flatnonzero(columns == 0)
        placed = Placed(starts, columns, np.array(values, np.float64), (), (), numbers)
        return self._with_new(placed, at, [names[i] for i in at.tolist()])

    def place_rows(self, rows: FeatureRows) -> Placed:
        columns, table = np.empty(len(rows.values), np.uint32), self.names.table
        places = rows.data.ctypes.data, rows.scratch.ctypes.data, rows.names, rows.hashes
        unknown, unsure = find_each(*table[:4], *places, columns)
        numbers = rows.is_number.copy() if self._scaled else _NO_FLAGS
        placed = Placed(rows.starts, columns, rows.values.copy(), (), (), numbers)
        if not unknown:
            return placed
        at = np.flatnonzero(columns == 0)
        slots = np.zeros(2 << len(at).bit_length(), np.uint64)
        firsts = np.empty(min(len(at), self._room), np.int64)
        new = -1 if unsure else number_each(*places, at, slots, firsts, len(self), columns)
        if new >= 0 and columns.all():
            return placed._replace(names=rows.names_of(firsts[:new]))
        return self._with_new(placed, at, rows.names_of(at)[:])

    def _with_new(self, placed: Placed, at: NDArray[np.intp], names: Sequence[str]) -> Placed:
        """With columns for features that the table has not, at these places with these names."""
        starts, columns, values, _, _, numbers = placed
        known = self.names.table.slotless
        new = [*dict.fromkeys(name for name in names if name not in known)][: self._room]
        given = dict(zip(new, count(len(self)), strict=False))
        columns[at] = [given.get(name) or known.get(name, 0) for name in names]
        ignored = list[tuple[int, str, float]]()
        if len(without := np.flatnonzero(columns == 0)):
            events, nameless = np.searchsorted(starts, without, "right") - 1, np.array(names, object)[columns[at] == 0]
            ignored = [*zip(events.tolist(), nameless, values[without].tolist(), strict=True)]
            starts = starts - np.searchsorted(without, starts).astype(np.uint64)
            columns, values = np.delete(columns, without), np.delete(values, without)
            numbers = np.delete(numbers, without) if self._scaled else numbers
        return Placed(starts, columns, values, new, ignored, numbers)

    def _look_up(self, features: Mapping[str, float]) -> list[int]:
        """The column of each of these features, 0 where it has none; those that have are at hand from now on."""
        columns: list[int] = self.names.numbers_of([*features]).tolist()
        if len(self._asked) > _ASKED:
            self._asked = {}
        self._asked.update((name, column) for name, column in zip(features, columns, strict=True) if column)
        return columns

    def find(self, features: Mapping[str, float]) -> tuple[ColumnPairs, int]:
        asked: list[Any] = [*map(self._asked.get, features)]
        if all(asked):
            return [*zip(asked, features.values(), strict=True)], 0
        pairs = [pair for pair in zip(self._look_up(features), features.values(), strict=True) if pair[0]]
        return pairs, len(features) - len(pairs)

    def explain(self, features: Mapping[str, float]) -> list[tuple[str, int, float, int]]:
        known = zip(features, self._look_up(features), features.values(), strict=True)
        return [(name, column, value, 1) for name, column, value in known if column]

    def name_of(self, column: int) -> str:
        return self.names[column - 1]

    def column_of(self, name: str) -> int | None:
        return int(self.names.numbers_of([name])[0]) or None

    def extend(self, names: Sequence[str]) -> None:
        if len(names):
            self.names.add(names)


class _Numbered:
    """Columns shown as "0", "1", …: there are no names to keep."""

    def __init__(self, count: int) -> None:
        self.names: Sequence[str] = []
        self._count = count

    def __len__(self) -> int:
        return self._count + 1

    def name_of(self, column: int) -> str:
        return str(column - 1)

    def column_of(self, name: str) -> int | None:
        if not (name.isascii() and name.isdigit() and len(name) < 10) or int(name) >= self._count:
            return None
        return int(name) + 1

    def extend(self, names: Sequence[str]) -> None:
        """There are none to be given."""


class Positional(_Numbered):
    """The i-th value of a list of `dimension` belongs to column i + 1."""

    def __init__(self, dimension: int, scaled: bool = False) -> None:
        super().__init__(dimension)
        self._scaled = scaled
        self._repeated = self._columns(_KEPT // max(dimension, 1))

    def _columns(self, events: int) -> NDArray[np.uint32]:
        return np.tile(np.arange(1, self._count + 1, dtype=np.uint32), events)

    def place(self, events: Sequence[list[float]]) -> Placed:
        values = array("d")
        for features in events:
            values.fromlist(features)
        starts = np.arange(len(events) + 1, dtype=np.uint64) * np.uint64(self._count)
        return self._placed(starts, np.frombuffer(values, np.float64))

    def place_rows(self, rows: FeatureRows) -> Placed:
        return self._placed(rows.starts, rows.values.copy())

    def _placed(self, starts: NDArray[np.uint64], values: NDArray[np.float64]) -> Placed:
        columns = self._repeated[: len(values)]
        if len(columns) < len(values):
            columns = self._columns(len(starts) - 1)
        return Placed(starts, columns, values, (), (), np.ones(len(values), bool) if self._scaled else _NO_FLAGS)

    def find(self, features: Sequence[float]) -> tuple[ColumnPairs, int]:
        return list(enumerate(features, 1)), 0

    def explain(self, features: Sequence[float]) -> list[tuple[str, int, float, int]]:
        return [(str(i), i + 1, value, 1) for i, value in enumerate(features)]


class Hashed(_Numbered):
    """Column 1 + |h| mod 2^bits with h = murmur3_32(name, seed 0), value times h's sign (scikit-learn's FeatureHasher)."""  # noqa: E501

    def __init__(self, bits: int, scaled: bool = False) -> None:
        super().__init__(1 << bits)
        self._scaled = scaled
        self._seen, self._turn = np.zeros((64, 2), np.int64), np.zeros(1, np.int64)

    def place(self, events: Sequence[Mapping[str, float]]) -> Placed:
        starts, columns, values, numbers = array("Q", [0]), array("I"), array("d"), array("B")
        for features in events:
            pairs, _ = self.find(features)
            columns.fromlist([column for column, _ in pairs])
            values.fromlist([value for _, value in pairs])
            if self._scaled:
                numbers.extend(_is_number(value) for _, value in pairs)
            starts.append(len(columns))
        rows = np.frombuffer(starts, np.uint64), np.frombuffer(columns, np.uint32), np.frombuffer(values, np.float64)
        return Placed(*rows, (), (), np.frombuffer(numbers, np.bool_))

    def place_rows(self, rows: FeatureRows) -> Placed:
        if 2 * (longest := int(np.diff(rows.starts).max(initial=0))) > len(self._seen):
            self._seen = np.zeros((2 << longest.bit_length(), 2), np.int64)
        starts, columns, values = rows.starts.copy(), np.empty(len(rows.values), np.uint32), np.empty(len(rows.values))
        count = hash_to_columns(
            rows.data.ctypes.data, rows.scratch.ctypes.data, rows.names, rows.values, rows.is_number, self._count,
            not self._scaled, self._seen, self._turn, starts, columns, values,
        )  # fmt: skip
        return Placed(
            starts, columns[:count], values[:count], (), (), rows.is_number.copy() if self._scaled else _NO_FLAGS
        )

    def find(self, features: Mapping[str, float]) -> tuple[ColumnPairs, int]:
        if self._scaled:
            return [(column, sign * value) for _, column, value, sign in self.explain(features)], 0
        merged: dict[int, float] = {}
        for _, column, value, sign in self.explain(features):
            merged[column] = merged[column] + sign * value if column in merged else sign * value
        return list(merged.items()), 0

    def explain(self, features: Mapping[str, float]) -> list[tuple[str, int, float, int]]:
        count = self._count
        return [
            (name, 1 + abs(h := mmh3.hash(name)) % count, value, 1 if h >= 0 else -1)
            for name, value in features.items()
        ]

    def column_of(self, name: str) -> int | None:
        """The column that a feature name hashes to."""
        return 1 + abs(mmh3.hash(name)) % self._count


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
