"""Standard scaling: a number is learned as its distance from the running mean, in running standard deviations.

Welford's sums of each column are state, part of the fold. An event first adds its own numbers to them, then is scaled
by them, then scored and learned; a prediction is scaled by them and changes nothing. Only numbers are scaled: booleans
and categories stay what they are, and what is absent is 0 after scaling as before.

    n ← n + 1,  d = x - mean,  mean ← mean + d/n,  M2 ← M2 + d·(x - mean)        (Welford 1962; Knuth, 4.2.2)
    (x - mean) / √(M2/n), and 0 where that variance is 0

Only +, ×, ÷ and √ in this order, so the same events give the same bits on any CPU.
"""

import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numba.extending import register_jitable

from service.learning.columns.columns import Batch, ColumnPairs
from service.learning.identity import SUMS, Identity
from service.learning.jit.jit import compiled
from service.learning.kernel.kernel import Vector

MAX_COUNTED_COLUMNS = 1000
"""Columns that `StandardScaler.count_scaled_away` looks at; a service calls it often."""


def standard(x: float, n: float, mean: float, m2: float) -> float:
    """A number scaled by its column's sums; 0 if the column has no variance.

    >>> standard(4.0, 3.0, 2.0, 6.0), standard(4.0, 0.0, 0.0, 0.0)
    (1.414213562373095, 0.0)
    """
    variance = m2 / n if n > 0.0 else 0.0
    return (x - mean) / math.sqrt(variance) if variance > 0.0 else 0.0


register_jitable(standard)


class StandardScaler:
    """The sums of a model's columns, in rows of one column each: wide events wait for memory."""

    def __init__(self, identity: Identity, columns: int = 0) -> None:
        self._identity = identity
        self._sums = np.zeros((columns, len(SUMS)))
        self._places = np.zeros(0, np.int64)
        self._batch: Batch | None = None
        self._kept = np.empty((3, 0))
        """For each value of the last batch its column's mean and M2 before it, and the scaled value. New memory for
        each batch would cost a fifth of the work."""

    @classmethod
    def of(cls, identity: Identity, sums: Iterable[Vector]) -> Self:
        """A scaler with a copy of these sums."""
        scaler = cls(identity)
        scaler._sums = np.stack(list(sums), axis=1)
        return scaler

    def arrays(self, columns: int) -> dict[str, Vector]:
        """The arrays to store, by name, of the first columns."""
        return dict(zip(SUMS, np.ascontiguousarray(self._sums[:columns].T), strict=True))

    @property
    def used(self) -> int:
        """How many columns have had a number."""
        return int(np.count_nonzero(self._sums[:, 0]))

    def count_scaled_away(self, least: int, events: int) -> tuple[int, int]:
        """How many columns had a number in at least `least` but not all `events`, and how many of them only one.

        A number other than 0 that is always the same is scaled to 0, as if it were absent. The first LOOKED_AT columns
        are counted.
        """
        n, mean, m2 = self._sums[:MAX_COUNTED_COLUMNS].T
        some = (n >= least) & (n < events)
        return int(some.sum()), int((some & (m2 == 0.0) & (mean != 0.0)).sum())

    def copy(self) -> "StandardScaler":
        """The sums as they are now."""
        return StandardScaler.of(self._identity, self._sums.T)

    def make_room(self, columns: int) -> None:
        """Give the sums at least this many columns."""
        if (more := columns - len(self._sums)) > 0:
            self._sums = np.concatenate([self._sums, np.zeros((more, len(SUMS)))])

    def learn(self, batch: Batch) -> Batch:
        """Take in the events of a batch, one after the other, and scale each; equal columns of one event are merged.

        The result is valid until the next batch.
        """
        self._batch, count = batch, len(batch.values)
        if self._kept.shape[1] < count:
            self._kept = np.empty((3, count))
        scaled = self._kept[2, :count]
        _learn(batch.starts, batch.columns, batch.values, batch.numbers, self._sums, self._kept, scaled)
        return self._merged(batch, scaled)

    def scale(self, batch: Batch) -> Batch:
        """A batch with scaled values, the same bits as of `value`. The sums do not change."""
        n, mean, m2 = self._sums[batch.columns].T
        variance = np.divide(m2, n, out=np.zeros(len(n)), where=n > 0.0)
        spread = variance > 0.0
        distance = (batch.values - mean) / np.sqrt(np.where(spread, variance, 1.0))
        scaled = np.where(batch.numbers, np.where(spread, distance, 0.0), batch.values)
        return self._merged(batch, scaled)

    def _merged(self, batch: Batch, scaled: Vector) -> Batch:
        """A batch with these values; equal columns of one event are added up."""
        if self._identity.features != "hashed":  # only hashed names give an event a column twice
            return batch._replace(values=scaled)
        starts, columns = batch.starts.copy(), batch.columns.copy()
        if len(self._places) < len(self._sums):
            self._places = np.zeros(len(self._sums), np.int64)
        count = _merge(starts, columns, scaled, self._places)
        return batch._replace(starts=starts, columns=columns[:count], values=scaled[:count])

    def undo(self, first: int) -> None:
        """Forget the events of the last batch from this one on."""
        if (batch := self._batch) is not None:
            _undo(int(batch.starts[first]), batch.columns, batch.numbers, self._sums, self._kept)

    def value(self, column: int, value: float) -> float:
        """The scaled value of a feature; only floats are numbers."""
        if value.__class__ is not float:
            return value
        at = self._sums.item
        return standard(value, at(column, 0), at(column, 1), at(column, 2))

    def merged(self, pairs: ColumnPairs) -> ColumnPairs:
        """Features with scaled values, equal columns merged."""
        found: dict[int, float] = {}
        for column, value in pairs:
            scaled = self.value(column, value)
            found[column] = found[column] + scaled if column in found else scaled
        return list(found.items())


@compiled
def _learn(starts: Any, columns: Any, values: Vector, numbers: Any, sums: Any, before: Any, scaled: Vector) -> None:
    """Add each event's numbers to the sums, then scale them. `before` keeps each column's mean and M2 for `_undo`."""
    for i in range(len(starts) - 1):
        for j in range(starts[i], starts[i + 1]):
            if numbers[j]:
                own = sums[columns[j]]
                before[0, j], before[1, j] = own[1], own[2]
                own[0] += 1.0
                distance = values[j] - own[1]
                own[1] += distance / own[0]
                own[2] += distance * (values[j] - own[1])
        for j in range(starts[i], starts[i + 1]):
            own = sums[columns[j]]
            scaled[j] = standard(values[j], own[0], own[1], own[2]) if numbers[j] else values[j]


@compiled
def _undo(start: int, columns: Any, numbers: Any, sums: Any, before: Any) -> None:
    for j in range(len(columns) - 1, start - 1, -1):
        if numbers[j]:
            own = sums[columns[j]]
            own[0], own[1], own[2] = own[0] - 1.0, before[0, j], before[1, j]


@compiled
def _merge(starts: Any, columns: Any, values: Vector, places: Any) -> int:
    """Add up equal columns of one event in place, each where it is first; returns how many values are left.

    `places` has where a column was put last, perhaps in an earlier call: it counts only if the column is there.
    """
    at = 0
    for i in range(len(starts) - 1):
        begin, start = at, starts[i]
        starts[i] = at
        for j in range(start, starts[i + 1]):
            c = columns[j]
            if begin <= places[c] < at and columns[places[c]] == c:
                values[places[c]] += values[j]
            else:
                columns[at], values[at], places[c] = c, values[j], at
                at += 1
    starts[len(starts) - 1] = at
    return at
