"""The latest events, for display: one raw record, and 2-D points for models with two features.

A process keeps them in memory. No snapshot has them.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from service.learning.columns.columns import Batch
from service.learning.events.value_formats import JSON, ValueBuffer
from service.learning.identity import Identity
from service.learning.records import PartitionId

KEPT_EVENTS = 200
"""The number of events that are kept for a model with two features."""
KEPT_IDS = 1000
"""The number of ids that are kept. Those of a thousand events in ten thousand are looked at."""
PLANE_COLUMNS = 3
"""The columns of a model with two features, the bias included."""
MAX_RECORD_BYTES = 64 << 10
"""Bytes: a larger record is not kept."""


class LastEvents:
    """The last events of a learner.

    >>> last = LastEvents(Identity())
    >>> starts, columns, ones = np.array([0, 2], np.uint64), np.array([2, 1], np.uint64), np.ones(1)
    >>> records = ValueBuffer.from_values([b"a record"])
    >>> last.add(records, Batch(starts, columns, np.array([0.5, -1.0]), ones, ones, [0]), 3)
    >>> last.record, last.points.tolist()
    (b'a record', [[-1.0, 0.5, 1.0]])
    """

    def __init__(self, identity: Identity) -> None:
        self.record: bytes | None = None
        """The value of the last event, or of an earlier one if that is too large."""
        self.record_format = JSON
        self.skipped: tuple[PartitionId, int] | None = None
        """Partition and offset of the last record that `where` passed over."""
        self.ids = deque[str](maxlen=KEPT_IDS)
        self.points = np.zeros((0, PLANE_COLUMNS))
        """A row for each of the last events, oldest first: both features, and the label as a batch has it."""
        self._named = identity.features != "hashed"

    def add_ids(self, ids: Sequence[str | None]) -> None:
        """Add the ids of events, if they have some."""
        if len(ids) and ids[len(ids) - 1] is not None:
            last = (ids[i] for i in range(max(0, len(ids) - KEPT_IDS), len(ids)))
            self.ids.extend(id_ for id_ in last if id_ is not None)

    def add(self, records: ValueBuffer, batch: Batch, columns: int) -> None:
        """Add a slice of records; the model has this many columns now."""
        if not len(batch.records):
            return
        value = records[batch.records[-1]]
        if value is not None and len(value) <= MAX_RECORD_BYTES:
            self.record, self.record_format = value, records.format_at(batch.records[-1])
        if columns == PLANE_COLUMNS and self._named:
            starts = batch.starts[-KEPT_EVENTS - 1 :].astype(np.intp)
            features = slice(starts[0], starts[-1])
            points = np.zeros((len(starts) - 1, PLANE_COLUMNS))
            events = np.repeat(np.arange(len(points)), np.diff(starts))
            points[events, batch.columns[features].astype(np.intp) - 1] = batch.values[features]
            points[:, -1] = batch.labels[-KEPT_EVENTS:]
            self.points = np.concatenate([self.points, points])[-KEPT_EVENTS:]
