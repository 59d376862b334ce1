"""The last events as they came, for who looks at a model: a record, and points where it has two features alone.

Of this process, kept in no snapshot. It costs a slice some references, and an event nothing.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.learning.events.batch import Batch
from service.learning.identity import Identity

POINTS = 200
"""So many of the last events are kept, where a model has two features."""
PLANE = 3
"""The columns of such a model, with the bias."""
LARGEST_RECORD = 64 << 10
"""Bytes: a larger record is not kept."""


class Seen:
    """What of a learner's events is kept beside it.

    >>> seen = Seen(Identity())
    >>> two, features, one = np.array([0, 2], np.uint64), np.array([2, 1], np.uint64), np.ones(1)
    >>> seen.add(0, 7, [b"a record"], Batch(two, features, np.array([0.5, -1.0]), one, one, [0]), 3)
    >>> seen.record, seen.points
    (b'a record', [(-1.0, 0.5, 1.0)])
    """

    def __init__(self, identity: Identity) -> None:
        self.wanted = True
        """Whether a newer record is asked for: to take one of each slice would copy in vain."""
        self.record: bytes | None = None
        """The value of an event."""
        self.skipped: tuple[int, int] | None = None
        """Partition and offset of the last record that `where` passed over."""
        self._named = identity.features != "hashed"
        self._slices = deque[tuple[NDArray[np.float64], NDArray[np.float64]]]()
        self._count = 0

    def add(self, partition: int, first: int, records: Sequence[bytes | None], batch: Batch, columns: int) -> None:
        """A slice was read, of records from offset `first` on; the model has so many columns now."""
        if batch.skipped:
            self.skipped = partition, first + batch.skipped[-1]
        if not len(batch.records):
            return
        if self.wanted:
            value = records[batch.records[-1]]
            if value is not None and len(value) <= LARGEST_RECORD:
                self.record, self.wanted = value, False
        if columns == PLANE and self._named:
            self._keep(batch)

    def _keep(self, batch: Batch) -> None:
        begin = max(0, len(batch.labels) - POINTS)
        starts = batch.starts[begin:].astype(np.intp)
        within = slice(starts[0], starts[-1])
        values = np.zeros((len(starts) - 1, PLANE))
        values[np.repeat(np.arange(len(values)), np.diff(starts)), batch.columns[within].astype(np.intp)] = (
            batch.values[within]
        )
        self._slices.append((values, batch.labels[begin:].copy()))
        self._count += len(values)
        while self._count - len(self._slices[0][0]) >= POINTS:
            self._count -= len(self._slices.popleft()[0])

    @property
    def points(self) -> list[tuple[float, float, float]]:
        """Both features and the label, as a batch has it, of the last events, oldest first."""
        rows = [
            (*row, label)
            for values, labels in self._slices
            for row, label in zip(values[:, 1:].tolist(), labels.tolist(), strict=True)
        ]
        return rows[-POINTS:]
