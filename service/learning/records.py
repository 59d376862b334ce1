"""Partitions, and the parts of their records that learning needs: offsets, timestamps and values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.learning.events.value_formats import ValueBuffer

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
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionId) and self.number == other.number and self.topic == other.topic

    def __lt__(self, other: "PartitionId") -> bool:
        return (self.topic, self.number) < (other.topic, other.number)


P0 = PartitionId(0)
"""The only partition of many topics."""
Place = Callable[[int], tuple[PartitionId, int]]
"""Returns the partition and the offset of the record at an index of a slice."""


def by_text(figures: Mapping[PartitionId, T]) -> dict[str, T]:
    """These figures in the order of their partitions, by the partitions' text."""
    return {str(partition): figures[partition] for partition in sorted(figures)}


@dataclass(eq=False, repr=False)
class Records:
    """Records of one partition, or of several, in the order in which they are learned.

    `offsets` and `timestamps` (milliseconds since 1970) are int64 arrays of one length. The offsets of a partition
    rise, and may have gaps.

    >>> records = Records.from_values(7, [b"a", None, b"c"], PartitionId(2))
    >>> records.offsets.tolist(), list(records[1:].values), records.find(8), records.place(0)
    ([7, 8, 9], [None, b'c'], 1, (PartitionId(2), 7))
    """

    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    values: ValueBuffer
    partitions: Sequence[PartitionId]
    numbers: NDArray[np.int64] | None = None
    """The index of each record's partition in `partitions`; None if all are of the first one."""

    @classmethod
    def from_values(cls, first: int, values: Sequence[bytes | None], partition: PartitionId = P0) -> "Records":
        """Records with these values at contiguous offsets from `first` on, and with timestamp 0."""
        count, buffer = len(values), ValueBuffer.from_values(values)
        return Records(np.arange(first, first + count), np.zeros(count, np.int64), buffer, [partition])

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, part: slice) -> Self:
        numbers = None if self.numbers is None else self.numbers[part]
        return type(self)(self.offsets[part], self.timestamps[part], self.values[part], self.partitions, numbers)

    def place(self, i: int) -> tuple[PartitionId, int]:
        """The partition and the offset of the record at index `i`."""
        return self.partitions[0 if self.numbers is None else self.numbers[i]], self.offsets.item(i)

    def of_each(self, figure: Callable[[PartitionId], int]) -> NDArray[np.int64]:
        """The figure of each record's partition."""
        figures = np.array([*map(figure, self.partitions)])
        return np.repeat(figures, len(self)) if self.numbers is None else figures[self.numbers]

    def starts(self) -> list[tuple[PartitionId, int]]:
        """The first offset of each partition."""
        first = [0] if self.numbers is None else np.unique(self.numbers, return_index=True)[1].tolist()
        return [*map(self.place, first)]

    def ends(self, count: int) -> list[int]:
        """The indices, among the first records, of those after which another partition follows, and of the last one."""
        if self.numbers is None:
            return [count - 1] if count else []
        return np.flatnonzero(np.diff(self.numbers[:count], append=-1)).tolist()

    def within(self, max_bytes: int) -> int:
        """How many records from the first on have values of at most `max_bytes` in total; at least 1."""
        begins, ends = self.values.begins, self.values.ends
        if ends[-1] - begins[0] <= max_bytes:  # the bytes between the values included
            return len(self)
        sizes = np.cumsum(np.where(begins < 0, 0, ends - begins))
        return max(1, int(np.searchsorted(sizes, max_bytes, "right")))

    def find(self, offset: int) -> int:
        """The number of records before this offset, if all are of one partition."""
        return int(np.searchsorted(self.offsets, offset))
