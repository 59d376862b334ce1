"""Partitions, and the parts of their records that learning needs: offsets, timestamps and values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.learning.events.value_buffer import ValueBuffer

T = TypeVar("T")


class PartitionId:
    """A partition of a model's log. `topic` is "" if the model has only one topic.

    As text it is the bare number then, else topic and number. Heads, answers and commands show this text.

    >>> sorted(map(PartitionId.from_text, ("10", "clicks-2", "9"))), str(PartitionId(2, "clicks"))
    ([PartitionId(9), PartitionId(10), PartitionId(2, 'clicks')], 'clicks-2')
    """

    __slots__ = ("number", "topic")

    def __init__(self, number: int, topic: str = "") -> None:
        self.number, self.topic = number, topic

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The partition that this text names; raises ValueError."""
        topic, _, number = text.rpartition("-")
        return cls(int(number), topic)

    @property
    def as_json(self) -> int | str:
        """This partition in JSON: a number if its topic is the model's only one, else text."""
        return str(self) if self.topic else self.number

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}" if self.topic else str(self.number)

    def __repr__(self) -> str:
        return f"PartitionId({self.number}{f', {self.topic!r}' if self.topic else ''})"

    def __hash__(self) -> int:
        return hash((self.topic, self.number))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionId) and (self.topic, self.number) == (other.topic, other.number)

    def __lt__(self, other: "PartitionId") -> bool:
        return (self.topic, self.number) < (other.topic, other.number)


Place = Callable[[int], tuple[PartitionId, int]]
"""Returns the partition and the offset of the record at an index of a slice."""


def by_text(figures: Mapping[PartitionId, T]) -> dict[str, T]:
    """These figures in the order of their partitions, by the partitions' text."""
    return {str(partition): figures[partition] for partition in sorted(figures)}


class Records:
    """Records in the order of the log, whose offsets may have gaps.

    `offsets` and `timestamps` (milliseconds since 1970) are int64 arrays of one length.

    >>> records = Records.from_values(7, [b"a", None, b"c"])
    >>> records.offsets.tolist(), list(records[1:].values), records.find(8)
    ([7, 8, 9], [None, b'c'], 1)
    """

    def __init__(self, offsets: NDArray[np.int64], timestamps: NDArray[np.int64], values: ValueBuffer) -> None:
        self.offsets, self.timestamps, self.values = offsets, timestamps, values

    @classmethod
    def from_values(cls, first: int, values: Sequence[bytes | None]) -> "Records":
        """Records with these values at contiguous offsets from `first` on, and with timestamp 0."""
        count, buffer = len(values), ValueBuffer.from_values(values)
        return Records(np.arange(first, first + count), np.zeros(count, np.int64), buffer)

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, part: slice) -> Self:
        return type(self)(self.offsets[part], self.timestamps[part], self.values[part])

    def within(self, max_bytes: int) -> int:
        """How many records from the first on have values of at most `max_bytes` in total; at least 1."""
        begins, ends = self.values.begins, self.values.ends
        if ends[-1] - begins[0] <= max_bytes:  # the bytes between the values included
            return len(self)
        sizes = np.cumsum(np.where(begins < 0, 0, ends - begins))
        return max(1, int(np.searchsorted(sizes, max_bytes, "right")))

    def find(self, offset: int) -> int:
        """The number of records before this offset."""
        return int(np.searchsorted(self.offsets, offset))

    def runs(self) -> Iterator[Self]:
        """The longest parts without a gap, in order."""
        gaps = np.flatnonzero(np.diff(self.offsets) != 1) + 1
        for start, end in pairwise([0, *gaps.tolist(), len(self)]):
            yield self[start:end]
