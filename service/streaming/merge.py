"""Merges the partitions of a log by the timestamps of their records, in steps of time.

Within a step come the partitions in their order, each in the order of its offsets. A record of an earlier step comes as
soon as it is there. A record that is far ahead of the next one of its partition belongs to the step of that one. So a
record waits until the next one of its partition is there, or the partition is at its end.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from service.learning.records import PartitionId
from service.streaming.records import KafkaRecords

MERGED_RECORDS = 4000
"""The records of a merged part at most: to copy more of them would hold the event loop."""


class Merge:
    """The records of a log that were polled, and that wait for their turn.

    >>> merge = Merge([PartitionId(0), PartitionId(1)], window=1000, step=10)
    """

    def __init__(self, partitions: Sequence[PartitionId], window: int, step: int) -> None:
        """`partitions` are in their order. A record is far ahead if it is more than `window` ms later."""
        self.partitions = partitions
        self._window, self._step_ms = window, step
        self._waiting: dict[PartitionId, list[KafkaRecords]] = {partition: [] for partition in self.partitions}
        self._step = np.iinfo(np.int64).min
        """The last step of which a record came."""

    @property
    def short(self) -> list[PartitionId]:
        """The partitions of which at most one record waits: to go on, their next records are needed."""
        return [partition for partition in self.partitions if sum(map(len, self._waiting[partition])) < 2]

    @property
    def waiting(self) -> bool:
        """Whether a record waits."""
        return any(self._waiting.values())

    def is_empty(self, partition: PartitionId) -> bool:
        """Whether no record of this partition waits."""
        return not self._waiting[partition]

    def add(self, polled: Mapping[PartitionId, KafkaRecords]) -> None:
        """Add records that follow those that were added before."""
        for partition, records in polled.items():
            self._waiting[partition].append(records)

    def take(self, at_end: Collection[PartitionId]) -> Iterator[KafkaRecords]:
        """The records whose turn it is, in order.

        `at_end` are the partitions of which no more records exist now.
        """
        steps = [self._steps(partition, partition in at_end) for partition in self.partitions]
        open_ends = [i for i, partition in enumerate(self.partitions) if partition not in at_end]
        # The next record of a partition that is not at its end belongs to the step of its last one at the earliest.
        limits = [(int(steps[i][-1]) if len(steps[i]) else self._step, i) for i in open_ends]
        limit, last = min(limits, default=(np.iinfo(np.int64).max, len(steps)))
        counts = [int(np.searchsorted(each, limit, "right" if i <= last else "left")) for i, each in enumerate(steps)]
        keys = np.concatenate([each[:count] for each, count in zip(steps, counts, strict=True)])
        self._step = int(keys.max(initial=self._step))
        numbers = np.repeat(np.arange(len(counts)), counts)
        order = np.lexsort((numbers, keys))
        for start in range(0, len(order), MERGED_RECORDS):
            rows = np.sort(order[start : start + MERGED_RECORDS])
            counts = np.bincount(numbers[rows]).tolist()
            parts = [part for p, count in zip(self.partitions, counts, strict=False) for part in self._first(p, count)]
            yield KafkaRecords.merged(parts, keys[rows])

    def _steps(self, partition: PartitionId, is_at_end: bool) -> NDArray[np.int64]:
        """The step of each record that waits, as far as it is known."""
        if self.is_empty(partition):
            return np.zeros(0, np.int64)
        times = np.concatenate([records.timestamps for records in self._waiting[partition]])
        following = np.append(times[1:], times[-1:])
        own = np.where(times > following + self._window, following, times) // self._step_ms
        known = own if is_at_end else own[:-1]
        return np.maximum(np.maximum.accumulate(known), self._step)

    def _first(self, partition: PartitionId, count: int) -> Iterator[KafkaRecords]:
        """Take the first records of a partition that wait."""
        waiting = self._waiting[partition]
        while count > 0:
            part = waiting[0][:count]
            waiting[0] = waiting[0][count:]
            if not len(waiting[0]):
                waiting.pop(0)
            count -= len(part)
            yield part
