"""Standard scaling: a number is learned as its distance from the running mean, in running standard deviations.

Welford's sums of each column are state, part of the fold. An event first adds its numbers to the sums, then is scaled
by them, then scored and learned. A prediction is scaled by the sums and does not change them. Only numbers are scaled:
booleans and categories stay what they are, and an absent feature is 0 after scaling too.

    n ← n + 1,  d = x - mean,  mean ← mean + d/n,  M2 ← M2 + d·(x - mean)        (Welford 1962; Knuth, 4.2.2)
    (x - mean) / √(M2/n), and 0 where that variance is 0

The operations are +, ×, ÷ and √ in this order, so the same events give the same bits on any CPU.
"""

import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numba.extending import register_jitable

from service.learning.columns.columns import Batch, ColumnPairs, merge_equal
from service.learning.columns.hashing import ColumnMerger
from service.learning.identity import SUMS, Identity
from service.learning.jit.jit import compiled
from service.learning.kernel.kernel import Vector


def standard(x: float, n: float, mean: float, m2: float) -> float:
    """A number scaled by its column's sums; 0 if the column has no variance.

    >>> standard(4.0, 3.0, 2.0, 6.0), standard(4.0, 0.0, 0.0, 0.0)
    (1.414213562373095, 0.0)
    """
    variance = m2 / n if n > 0.0 else 0.0
    return (x - mean) / math.sqrt(variance) if variance > 0.0 else 0.0


register_jitable(standard)


class StandardScaler:
    """The sums of a model's columns, a row for each column, so that the sums of a column are next to each other."""

    def __init__(self, identity: Identity, columns: int = 0) -> None:
        self._identity = identity
        self._sums = np.zeros((columns, len(SUMS)))
        self._merger = ColumnMerger()
        self._kept = np.empty((3, 0))
        """For each value of the last batch the mean and M2 of its column before it, and the scaled value. Reused, since
        new memory for each batch takes a fifth of the time (measured)."""

    @classmethod
    def from_sums(cls, identity: Identity, sums: Iterable[Vector]) -> Self:
        """A scaler with a copy of these sums."""
        scaler = cls(identity)
        scaler._sums = np.stack(list(sums), axis=1)
        return scaler

    def arrays(self, columns: int) -> dict[str, Vector]:
        """The arrays to store, by name, of the first columns: views of the sums."""
        return dict(zip(SUMS, self._sums[:columns].T, strict=True))

    @property
    def used(self) -> int:
        """The number of columns that have had a number."""
        return int(np.count_nonzero(self._sums[:, 0]))

    def copy(self) -> "StandardScaler":
        """An independent copy."""
        return StandardScaler.from_sums(self._identity, self._sums.T)

    def make_room(self, columns: int) -> None:
        """Give the sums at least this many columns."""
        if (more := columns - len(self._sums)) > 0:
            self._sums = np.concatenate([self._sums, np.zeros((more, len(SUMS)))])

    def learn(self, batch: Batch) -> Batch:
        """Add the events of a batch to the sums, one after the other, and scale each; merge equal columns of an event.

        The result is valid until the next batch.
        """
        count = len(batch.values)
        if self._kept.shape[1] < count:
            self._kept = np.empty((3, count))
        scaled = self._kept[2, :count]
        _learn(batch.starts, batch.columns, batch.values, batch.numbers, self._sums, self._kept, scaled)
        return self._merged(batch, scaled)

    def scale(self, batch: Batch) -> Batch:
        """Scale the values of a batch, bit for bit as `value` does. The sums do not change."""
        n, mean, m2 = self._sums[batch.columns].T
        variance = np.divide(m2, n, out=np.zeros(len(n)), where=n > 0.0)
        spread = variance > 0.0
        distance = (batch.values - mean) / np.sqrt(np.where(spread, variance, 1.0))
        scaled = np.where(batch.numbers, np.where(spread, distance, 0.0), batch.values)
        return self._merged(batch, scaled)

    def _merged(self, batch: Batch, scaled: Vector) -> Batch:
        """The batch with these values; equal columns of one event are added up."""
        if self._identity.features != "hashed":  # other features have a column each
            return batch._replace(values=scaled)
        starts, columns = batch.starts.copy(), batch.columns.copy()
        count = self._merger.merge(starts, columns, scaled)
        return batch._replace(starts=starts, columns=columns[:count], values=scaled[:count])

    def undo(self, batch: Batch, first: int) -> None:
        """Restore the sums before event `first` of the batch that was learned last."""
        start = int(batch.starts[first])
        values = start + np.flatnonzero(batch.numbers[start:])
        columns, firsts, counts = np.unique(batch.columns[values], return_index=True, return_counts=True)
        self._sums[columns, 0] -= counts
        self._sums[columns, 1:] = self._kept[:2, values[firsts]].T

    def value(self, column: int, value: float) -> float:
        """The scaled value of a feature; only floats are numbers."""
        if value.__class__ is not float:
            return value
        sums = self._sums.item
        return standard(value, sums(column, 0), sums(column, 1), sums(column, 2))

    def merged(self, pairs: ColumnPairs) -> ColumnPairs:
        """Features with scaled values; equal columns are added up."""
        scaled = [(column, self.value(column, value)) for column, value in pairs]
        return merge_equal(scaled) if self._identity.features == "hashed" else scaled


@compiled
def _learn(starts: Any, columns: Any, values: Vector, numbers: Any, sums: Any, before: Any, scaled: Vector) -> None:
    """Add each event's numbers to the sums, then scale them. `before` keeps each column's mean and M2 for `undo`."""
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
