"""Standard scaling: a number is learned as its distance from the running mean, in running standard deviations.

Welford's sums of each column are state, part of the fold. An event first adds its numbers to the sums, then is scaled
by them, then scored and learned. A prediction is scaled by the sums and does not change them. Only numbers are scaled:
booleans and categories stay what they are, and an absent feature is 0 after scaling too.

    n ← n + 1,  d = x - mean,  mean ← mean + d/n,  M2 ← M2 + d·(x - mean)        (Welford 1962; Knuth, 4.2.2)
    (x - mean) / √(M2/n), and 0 where that variance is 0

With `clip`, a number counts as at most so many deviations from the mean, for the sums as for learning. A column is
clipped if it has had ten numbers and has variance. A wild value can so be in the sums only if it is among the first
ones. Therefore a column also has the sums of its newest numbers, which begin again each time its count has doubled. If
their variance is then less than a quarter of the column's, they become the column's sums.

The operations are +, ×, ÷ and √ in this order, so the same events give the same bits on any CPU.
"""

import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numba.extending import register_jitable

from service.learning.columns.columns import Batch, ColumnMerger, ColumnPairs, merge_equal
from service.learning.identity import Identity
from service.learning.jit import compiled
from service.learning.kernel.kernel import Vector

MIN_CLIPPED = 10.0
"""The numbers that a column has had before it is clipped."""
MAX_VARIANCE_RATIO = 4.0
"""A column's variance is at most this times that of its newest numbers, or the older ones are forgotten."""
JUMP_FACTOR = 100.0
"""A column's variance jumps if the square of a number's distance from the mean is at least this times M2."""
MIN_SCALED_JUMP = math.sqrt(99.0)
"""The smallest scaled value of a jump after 100 numbers. It is nearly the root of their count."""


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
        self._identity, self._clip = identity, identity.clip or None
        self._sums = np.zeros((columns, len(identity.sums)))
        self._merger = ColumnMerger()
        self._before, self._scaled = self._sums[:0], np.empty(0)
        """For each value of the last batch the sums of its column before it, and the scaled value. Reused, since new
        memory for each batch takes a fifth of the time (measured)."""
        self.jumps: list[tuple[int, int]] = []
        """Event and column of each number of the last batch that made the variance of its column jump."""

    @classmethod
    def from_sums(cls, identity: Identity, sums: Iterable[Vector]) -> Self:
        """A scaler with a copy of these sums."""
        scaler = cls(identity)
        scaler._sums = np.stack(list(sums), axis=1)
        return scaler

    def arrays(self, columns: int) -> dict[str, Vector]:
        """The arrays to store, by name, of the first columns: views of the sums."""
        return dict(zip(self._identity.sums, self._sums[:columns].T, strict=True))

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
            self._sums = np.concatenate([self._sums, np.zeros((more, self._sums.shape[1]))])

    def learn(self, batch: Batch) -> Batch:
        """Add the events of a batch to the sums, one after the other, and scale each; merge equal columns of an event.

        The result is valid until the next batch.
        """
        count = len(batch.values)
        if len(self._scaled) < count:
            self._before, self._scaled = np.empty((count, self._sums.shape[1])), np.empty(count)
        scaled = self._scaled[:count]
        largest = _learn(*batch[:3], batch.numbers, self._sums, self._before, scaled, self._clip)
        self.jumps = self._jumps_of(batch, scaled) if largest >= MIN_SCALED_JUMP and self._clip is None else []
        return self._merged(batch, scaled)

    def _jumps_of(self, batch: Batch, scaled: Vector) -> list[tuple[int, int]]:
        """The jumps of a batch: see `jumps`."""
        large = np.flatnonzero(batch.numbers & (np.abs(scaled) >= MIN_SCALED_JUMP))
        _, mean, m2 = self._before[large].T
        large = large[((batch.values[large] - mean) ** 2 >= JUMP_FACTOR * m2) & (m2 > 0.0)]
        events = np.searchsorted(batch.starts, large, "right") - 1
        return [*zip(events.tolist(), batch.columns[large].tolist(), strict=True)]

    def scale(self, batch: Batch) -> Batch:
        """Scale the values of a batch, bit for bit as `value` does. The sums do not change."""
        n, mean, m2 = self._sums[batch.columns].T[:3]
        variance = np.divide(m2, n, out=np.zeros(len(n)), where=n > 0.0)
        spread = variance > 0.0
        distance = (batch.values - mean) / np.sqrt(np.where(spread, variance, 1.0))
        if self._clip is not None:
            distance = np.where(n < MIN_CLIPPED, distance, distance.clip(-self._clip, self._clip))
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
        columns, firsts = np.unique(batch.columns[values], return_index=True)
        self._sums[columns] = self._before[values[firsts]]

    def value(self, column: int, value: float) -> float:
        """The scaled value of a feature; only floats are numbers."""
        if value.__class__ is not float:
            return value
        scaled, clip = self.unclipped(column, value), self._clip
        return scaled if clip is None or self._sums.item(column, 0) < MIN_CLIPPED else min(max(scaled, -clip), clip)

    def unclipped(self, column: int, value: float) -> float:
        """The scaled value of a number, as it is without `clip`."""
        sums = self._sums.item
        return standard(value, sums(column, 0), sums(column, 1), sums(column, 2))

    def merged(self, pairs: ColumnPairs) -> ColumnPairs:
        """Features with scaled values; equal columns are added up."""
        scaled = [(column, self.value(column, value)) for column, value in pairs]
        return merge_equal(scaled) if self._identity.features == "hashed" else scaled


@compiled
def _learn(
    starts: Any, columns: Any, values: Vector, numbers: Any, sums: Any, before: Any, scaled: Vector, clip: float | None
) -> float:
    """Add each event's numbers to the sums, then scale them. `before` keeps each column's sums for `undo`.

    Returns the largest scaled number by size. It is compiled once with a clip, and once without.
    """
    largest = touched = 0.0
    for i in range(len(starts) - 1):
        if clip is not None:  # rows are six numbers long: to bring them into the cache first saves a fifth (measured)
            for j in range(starts[i], starts[i + 1]):
                touched += sums[columns[j], 0] + sums[columns[j], 5]
        for j in range(starts[i], starts[i + 1]):
            x = values[j]
            if numbers[j]:
                own = sums[columns[j]]
                before[j, 0], before[j, 1], before[j, 2] = own[0], own[1], own[2]
                if clip is not None:
                    before[j, 3], before[j, 4], before[j, 5] = own[3], own[4], own[5]
                    if (own[3] >= MIN_CLIPPED) & (2.0 * own[3] >= own[0]):  # the column's count has doubled
                        if 0.0 < MAX_VARIANCE_RATIO * (own[5] / own[3]) < own[2] / own[0]:
                            own[0], own[1], own[2] = own[3], own[4], own[5]
                        own[3], own[4], own[5] = 0.0, 0.0, 0.0
                    distance = x - own[1]
                    if (distance * distance * own[0] > clip * clip * own[2]) & (own[2] > 0.0) & (own[0] >= MIN_CLIPPED):
                        x = own[1] + math.copysign(clip * math.sqrt(own[2] / own[0]), distance)
                    own[3] += 1.0
                    distance = x - own[4]
                    own[4] += distance / own[3]
                    own[5] += distance * (x - own[4])
                own[0] += 1.0
                distance = x - own[1]
                own[1] += distance / own[0]
                own[2] += distance * (x - own[1])
            scaled[j] = x
        for j in range(starts[i], starts[i + 1]):
            if numbers[j]:
                own = sums[columns[j]]
                scaled[j] = standard(scaled[j], own[0], own[1], own[2])
                # A second number of the same column and event changes the sums by which the first is scaled.
                if clip is not None and (abs(scaled[j]) > clip) & (own[0] >= MIN_CLIPPED):
                    scaled[j] = math.copysign(clip, scaled[j])
                largest = max(largest, abs(scaled[j]))
    return largest + min(touched, 0.0)  # no sum is negative
