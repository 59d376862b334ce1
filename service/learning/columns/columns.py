"""Feature names to columns of the weight vector, and back. Column 0 is the bias.

There are three feature modes, one class each. `assign_columns` says which columns the features of events have, and
which new names would get the next columns; `extend` gives the names these columns. `find` returns the known columns of
a request and counts its unknown features; `explain` returns their names too.
"""

import random
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, count
from typing import Any, NamedTuple, Protocol, Self

import mmh3
import numpy as np
from numpy.typing import NDArray

from service.learning.columns.name_table import NameTable, find_each, number_each
from service.learning.events.flatten import Features
from service.learning.events.read_events import FeatureRows, ReadEvents
from service.learning.identity import Identity
from service.learning.jit import compiled, word_at

_NO_FLAGS, _NO_NUMBERS = np.zeros(0, bool), np.zeros(0)
_PREPARED_COLUMNS = 1 << 16
"""Length of the array of columns that all slices of a positional model share: 256 kB."""
_MAX_CACHED_NAMES = 1 << 14
"""Names of requests whose columns are cached: 1 to 2 MB."""
_SAMPLED_NAMES = 4096
"""Names that are looked at to find the largest group: 10 ms."""
# Numbers of MurmurHash3:
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FIVE, _MORE, _MIX_1, _MIX_2 = (np.uint32(n) for n in (5, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35))
_13, _15, _16, _17, _19 = (np.uint32(n) for n in (13, 15, 16, 17, 19))
ColumnPairs = list[tuple[int, float]]


class Batch(NamedTuple):
    """Events as columns: event i has the columns and values from `starts[i]` to before `starts[i + 1]`.

    The bias (column 0, x0 = 1) is implied. `labels` are ±1, or with more than two labels the number of the class.
    """

    starts: NDArray[np.uint64]
    columns: NDArray[np.uint32]
    values: NDArray[np.float64]
    labels: NDArray[np.float64] = _NO_NUMBERS
    weights: NDArray[np.float64] = _NO_NUMBERS
    records: Sequence[int] = ()
    """The index of each event in the slice."""
    names: Sequence[str] = ()
    """The new names in order: their columns follow the columns in use."""
    ignored: Sequence[int] = ()
    """The event of each feature that gets no column, as all columns are in use."""
    numbers: NDArray[np.bool_] = _NO_FLAGS
    """Which values are numbers, if numbers are scaled: then equal columns are not merged yet."""

    def first(self, count: int) -> Self:
        """The first `count` events."""
        end = int(self.starts[count])
        later = int(self.columns.max(initial=0)) - int(self.columns[:end].max(initial=0))
        return self._replace(
            starts=self.starts[: count + 1],
            columns=self.columns[:end],
            values=self.values[:end],
            labels=self.labels[:count],
            weights=self.weights[:count],
            records=self.records[:count],
            names=self.names[: max(len(self.names) - later, 0)],
            ignored=[event for event in self.ignored if event < count],
        )


class Columns(Protocol):
    """The columns of one model, in any feature mode."""

    names: Sequence[str]
    """The names that have a column, from column 1 on."""

    def __len__(self) -> int:
        """Columns in use, the bias included: the length of the weight vector."""

    def decode(self, events: ReadEvents) -> Batch:
        """These events with columns. It changes nothing."""
        batch = self.assign_columns(events.features)
        return batch._replace(labels=events.labels, weights=events.weights, records=events.records)

    def assign_columns(self, features: FeatureRows | Sequence[Features]) -> Batch:
        """The features of events as a batch without labels, with columns as `find` returns them. It changes nothing."""
        return self._assign_to_rows(features) if isinstance(features, FeatureRows) else self._assign(features)

    def _assign(self, events: Sequence[Any]) -> Batch:
        """As `assign_columns`, for features from the careful reader."""

    def _assign_to_rows(self, feature_rows: FeatureRows) -> Batch:
        """As `assign_columns`, for features from the compiled reader."""

    def find(self, features: Any) -> tuple[ColumnPairs, int]:
        """(column, value) pairs in record order, and the number of unknown features.

        Equal columns are merged unless values are scaled.
        """

    def explain(self, features: Any) -> list[tuple[str, int, float, int]]:
        """Name, column, value as it was sent, and sign (1 or -1) of each known feature. Nothing is merged."""

    def name_of(self, column: int) -> str:
        """The name shown for a column > 0."""

    def column_of(self, name: str) -> int | None:
        """The column of a shown name, or None."""

    def extend(self, names: Sequence[str]) -> None:
        """Give these names the next columns."""


class Named(Columns):
    """A name gets the next column when it is first seen, up to `cap` names; beyond it the feature is ignored.

    >>> columns = Named(cap=2)
    >>> batch = columns.assign_columns([{"a": 0.5, "b": 1.0}, {"c": 3.0, "a": 2.0}])
    >>> batch.columns.tolist(), batch.names, batch.ignored
    ([1, 2, 1], ['a', 'b'], [1])
    >>> columns.extend(batch.names)
    >>> columns.find({"b": 4.0, "c": 3.0})
    ([(2, 4.0)], 1)
    """

    def __init__(self, cap: int, scaled: bool = False) -> None:
        self.names: NameTable = NameTable()
        self._cap, self._scaled = cap, scaled
        self._cache: dict[str, int] = {}
        """Columns of names in requests: most requests have the same names."""

    def __len__(self) -> int:
        return len(self.names) + 1

    @property
    def free(self) -> int:
        """How many names can still get a column; initial weights may have more names than the cap."""
        return max(0, self._cap - len(self.names))

    @cached_property
    def largest_group(self) -> tuple[str, int]:
        """The prefix that goes on in the most ways, among the later half of the names, and how many names have it.

        What every event has came first, so it is not in that half. The prefix is `session=` of categories, `users.` of
        an object's members, or empty for the outermost names. The number is an estimate if there are more names than
        _SAMPLED_NAMES. It is computed once: ask when no column is free.

        >>> columns = Named(cap=5)
        >>> columns.extend(["offer", "in.day=1", "in.day=2", "in.id=a", "in.id=b", "in.id=c"])
        >>> columns.largest_group
        ('in.id=', 3)
        """
        numbers = range(len(self.names))
        sample = random.Random(0).sample(numbers, min(_SAMPLED_NAMES, len(numbers)))  # noqa: S311
        names = [self.names[i] for i in sorted(sample)]
        continuations = defaultdict[str, set[str]](set)
        for name in names[len(names) // 2 :]:
            path, is_category, category = name.partition("=")
            *outer, last = accumulate(path.split("."), "{}.{}".format)
            for prefix, longer in zip(["", *outer], [*outer, last], strict=True):
                continuations[prefix and prefix + "."].add(longer)
            if is_category:
                continuations[path + "="].add(category)
        prefix = max(continuations, key=lambda prefix: len(continuations[prefix]))
        share = sum(name.startswith(prefix) for name in names) / len(names)
        return prefix, round(share * len(numbers))

    def _assign(self, events: Sequence[Mapping[str, float]]) -> Batch:
        names = [*chain.from_iterable(events)]
        values = [*chain.from_iterable(features.values() for features in events)]
        numbers = np.array([*map(_is_number, values)], bool) if self._scaled else _NO_FLAGS
        starts, columns = np.cumsum([0, *map(len, events)], dtype=np.uint64), self.names.numbers_of(names)
        unknown = np.flatnonzero(columns == 0)
        batch = Batch(starts, columns, np.array(values, np.float64), numbers=numbers)
        return self._with_new(batch, unknown, [names[i] for i in unknown.tolist()])

    def _assign_to_rows(self, feature_rows: FeatureRows) -> Batch:
        columns, table = np.empty(len(feature_rows.values), np.uint32), self.names.table
        address, _, names, hashes = feature_rows[:4]
        missing, unsure = find_each(*table[:4], address, names, hashes, columns)
        numbers = feature_rows.is_number.copy() if self._scaled else _NO_FLAGS
        batch = Batch(feature_rows.starts, columns, feature_rows.values.copy(), numbers=numbers)
        if not missing:
            return batch
        unknown = np.flatnonzero(columns == 0)
        slots = np.zeros(2 << missing.bit_length(), np.uint64)
        firsts = np.empty(min(missing, self.free), np.int64)
        if not unsure:
            new = number_each(address, names, hashes, unknown, slots, firsts, len(self), columns)
            if new >= 0 and columns.all():
                return batch._replace(names=feature_rows.names_of(firsts[:new]))
        return self._with_new(batch, unknown, feature_rows.names_of(unknown)[:])

    def _with_new(self, batch: Batch, unknown: NDArray[np.intp], names: Sequence[str]) -> Batch:
        """The batch with new columns, at most `free`, for the features at the indices `unknown` by these names."""
        starts, columns, values, numbers = batch.starts, batch.columns, batch.values, batch.numbers
        slotless = self.names.table.slotless
        new = [*dict.fromkeys(name for name in names if name not in slotless)][: self.free]
        next_columns = dict(zip(new, count(len(self)), strict=False))
        columns[unknown] = [next_columns.get(name) or slotless.get(name, 0) for name in names]
        ignored = np.flatnonzero(columns == 0)
        events: list[int] = (np.searchsorted(starts, ignored, "right") - 1).tolist()
        starts = starts - np.searchsorted(ignored, starts).astype(np.uint64)
        columns, values = np.delete(columns, ignored), np.delete(values, ignored)
        numbers = np.delete(numbers, ignored) if self._scaled else numbers
        return Batch(starts, columns, values, names=new, ignored=events, numbers=numbers)

    def _look_up(self, features: Mapping[str, float]) -> list[int]:
        """The column of each feature, 0 if it has none. Columns are cached from now on."""
        columns: list[int] = self.names.numbers_of([*features]).tolist()
        if len(self._cache) > _MAX_CACHED_NAMES:
            self._cache = {}
        self._cache.update((name, column) for name, column in zip(features, columns, strict=True) if column)
        return columns

    def find(self, features: Mapping[str, float]) -> tuple[ColumnPairs, int]:
        cached: list[Any] = [*map(self._cache.get, features)]
        if all(cached):
            return [*zip(cached, features.values(), strict=True)], 0
        pairs = [pair for pair in zip(self._look_up(features), features.values(), strict=True) if pair[0]]
        return pairs, len(features) - len(pairs)

    def explain(self, features: Mapping[str, float]) -> list[tuple[str, int, float, int]]:
        terms = zip(features, self._look_up(features), features.values(), strict=True)
        return [(name, column, value, 1) for name, column, value in terms if column]

    def name_of(self, column: int) -> str:
        name: str = self.names[column - 1]
        return name

    def column_of(self, name: str) -> int | None:
        return int(self.names.numbers_of([name])[0]) or None

    def extend(self, names: Sequence[str]) -> None:
        if len(names):
            self.names.add(names)


class _Numbered(Columns):
    """Columns that are shown as "0", "1" and so on. No names are kept."""

    def __init__(self, count: int, scaled: bool) -> None:
        self.names: Sequence[str] = []
        self._count, self._scaled = count, scaled

    def __len__(self) -> int:
        return self._count + 1

    def name_of(self, column: int) -> str:
        return str(column - 1)

    def column_of(self, name: str) -> int | None:
        is_number = name.isascii() and name.isdigit() and len(name) < 10
        return int(name) + 1 if is_number and int(name) < self._count else None

    def extend(self, names: Sequence[str]) -> None:
        """No column has a name."""


class Positional(_Numbered):
    """The i-th value of a list of `dimension` belongs to column i + 1."""

    def __init__(self, dimension: int, scaled: bool = False) -> None:
        super().__init__(dimension, scaled)
        self._prepared = self._columns(_PREPARED_COLUMNS // max(dimension, 1))

    def _columns(self, events: int) -> NDArray[np.uint32]:
        return np.tile(np.arange(1, self._count + 1, dtype=np.uint32), events)

    def _assign(self, events: Sequence[list[float]]) -> Batch:
        values = array("d")
        for features in events:
            values.fromlist(features)
        starts = np.arange(len(events) + 1, dtype=np.uint64) * np.uint64(self._count)
        return self._batch(starts, np.frombuffer(values, np.float64))

    def _assign_to_rows(self, feature_rows: FeatureRows) -> Batch:
        return self._batch(feature_rows.starts, feature_rows.values.copy())

    def _batch(self, starts: NDArray[np.uint64], values: NDArray[np.float64]) -> Batch:
        columns = self._prepared[: len(values)]
        if len(columns) < len(values):
            columns = self._columns(len(starts) - 1)
        return Batch(starts, columns, values, numbers=np.ones(len(values), bool) if self._scaled else _NO_FLAGS)

    def find(self, features: Sequence[float]) -> tuple[ColumnPairs, int]:
        return list(enumerate(features, 1)), 0

    def explain(self, features: Sequence[float]) -> list[tuple[str, int, float, int]]:
        return [(str(i), i + 1, value, 1) for i, value in enumerate(features)]


class Hashed(_Numbered):
    """Column 1 + |h| mod 2^bits with h = murmur3_32(name, seed 0), value times h's sign (scikit-learn's FeatureHasher)."""  # noqa: E501

    def __init__(self, bits: int, scaled: bool = False) -> None:
        super().__init__(1 << bits, scaled)
        self._merger = ColumnMerger()

    def _assign(self, events: Sequence[Mapping[str, float]]) -> Batch:
        rows = [self.find(features)[0] for features in events]
        starts = np.cumsum([0, *map(len, rows)], dtype=np.uint64)
        columns = np.array([column for row in rows for column, _ in row], np.uint32)
        values = [value for row in rows for _, value in row]
        numbers = np.array([*map(_is_number, values)], bool) if self._scaled else _NO_FLAGS
        return Batch(starts, columns, np.array(values, np.float64), numbers=numbers)

    def _assign_to_rows(self, feature_rows: FeatureRows) -> Batch:
        columns, values = np.empty(len(feature_rows.values), np.uint32), feature_rows.values.copy()
        _hash_to_columns(feature_rows.address, feature_rows.names, feature_rows.is_number, self._count, columns, values)
        if self._scaled:
            return Batch(feature_rows.starts, columns, values, numbers=feature_rows.is_number.copy())
        starts = feature_rows.starts.copy()
        count = self._merger.merge(starts, columns, values)
        return Batch(starts, columns[:count], values[:count])

    def find(self, features: Mapping[str, float]) -> tuple[ColumnPairs, int]:
        pairs = [(column, sign * value) for _, column, value, sign in self.explain(features)]
        return pairs if self._scaled else merge_equal(pairs), 0

    def explain(self, features: Mapping[str, float]) -> list[tuple[str, int, float, int]]:
        return [
            (name, 1 + abs(h := mmh3.hash(name)) % self._count, value, 1 if h >= 0 else -1)
            for name, value in features.items()
        ]

    def column_of(self, name: str) -> int | None:
        """The column that a feature name hashes to."""
        return 1 + abs(mmh3.hash(name)) % self._count


@compiled
def _mixed(k: np.uint32) -> np.uint32:
    k = np.uint32(k * _C1)
    k = np.uint32(k << _15) | np.uint32(k >> _17)
    return np.uint32(k * _C2)


@compiled
def _murmur(address: int, begin: int, size: int) -> Any:
    """MurmurHash3 (x86, 32 bits, seed 0) of `size` bytes, as a signed number. Up to eight bytes after them are read."""
    h = np.uint32(0)
    for i in range(begin, begin + size - 3, 4):
        h ^= _mixed(np.uint32(word_at(address, i)))
        h = np.uint32(h << _13) | np.uint32(h >> _19)
        h = np.uint32(h * _FIVE + _MORE)
    rest = size & 3  # with no bytes left this mixes in 0, which changes nothing
    h ^= _mixed(np.uint32(word_at(address, begin + size - rest) & ((1 << 8 * rest) - 1)))
    h ^= np.uint32(size)
    h ^= h >> _16
    h = np.uint32(h * _MIX_1)
    h ^= h >> _13
    h = np.uint32(h * _MIX_2)
    h ^= h >> _16
    return np.int64(np.int32(h))


@compiled
def _hash_to_columns(address: int, names: Any, is_number: Any, count: int, columns: Any, values: Any) -> None:
    """Fill in the columns of features, and give values their signs. `count` is a power of two."""
    for j in range(len(columns)):
        h, value = _murmur(address, names[j, 0], names[j, 1]), values[j]
        columns[j] = 1 + (abs(h) & (count - 1))
        negative = -value if is_number[j] else 0.0 - value  # a count has no -0
        values[j] = negative if h < 0 else value


class ColumnMerger:
    """Adds up equal columns of an event, each at its first place."""

    def __init__(self) -> None:
        self._latest, self._turn = np.zeros((64, 2), np.int64), np.zeros(1, np.int64)

    def merge(self, starts: NDArray[np.uint64], columns: NDArray[np.uint32], values: NDArray[np.float64]) -> int:
        """Merge the columns of events in place, so that `starts` move; returns how many values are left."""
        if 2 * (longest := int(np.diff(starts).max(initial=0))) > len(self._latest):
            self._latest = np.zeros((2 << longest.bit_length(), 2), np.int64)
        return int(_merge(self._latest, self._turn, starts, columns, values))


@compiled
def _merge(latest: Any, turn: Any, starts: Any, columns: Any, values: Any) -> int:
    """As `ColumnMerger.merge`.

    The number of rows of `latest` is a power of two, at least twice that of an event's values: a row has the event that
    used this slot last, as `turn` counts them, and the value's index.
    """
    end, mask = 0, np.uint64(len(latest) - 1)
    for i in range(len(starts) - 1):
        turn[0] += 1
        first = starts[i]
        starts[i] = end
        for j in range(first, starts[i + 1]):
            column, value = columns[j], values[j]
            slot = np.uint64(column) & mask
            while latest[slot, 0] == turn[0] and columns[latest[slot, 1]] != column:
                slot = (slot + np.uint64(1)) & mask
            if latest[slot, 0] == turn[0]:
                values[latest[slot, 1]] += value
            else:
                latest[slot, 0], latest[slot, 1], columns[end], values[end] = turn[0], end, column, value
                end += 1
    starts[len(starts) - 1] = end
    return end


def _is_number(value: float) -> bool:
    """Whether a feature is a number: a boolean or a count of strings is an int, see `events.flatten`."""
    return value.__class__ is float


def merge_equal(pairs: ColumnPairs) -> ColumnPairs:
    """These pairs with the values of equal columns added up, at the first place of each column."""
    if len(dict(pairs)) == len(pairs):  # most events have no equal columns
        return pairs
    merged: dict[int, float] = {}
    for column, value in pairs:
        merged[column] = merged[column] + value if column in merged else value
    return list(merged.items())


def columns_for(identity: Identity) -> Columns:
    """The columns of a model with this identity."""
    scaled = identity.scale != "none"
    if identity.features == "positional":
        return Positional(identity.dimension or 0, scaled)
    if identity.features == "hashed":
        return Hashed(identity.bits or 0, scaled)
    return Named(identity.max_columns or 0, scaled)
