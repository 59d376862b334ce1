"""The parts of a partition's records that learning needs: offsets, timestamps and values."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from service.learning.events.value_buffer import ValueBuffer


class Records:
    """Records in the order of the log, whose offsets may have gaps.

    `offsets` and `timestamps` (milliseconds since 1970) are int64 arrays of one length; `values` are bytes in their
    content type, or None.

    >>> records = Records.of(7, [b"a", None, b"c"])
    >>> records.offsets.tolist(), list(records[1:].values), records.find(8)
    ([7, 8, 9], [None, b'c'], 1)
    """

    def __init__(self, offsets: NDArray[np.int64], timestamps: NDArray[np.int64], values: ValueBuffer) -> None:
        self.offsets, self.timestamps, self.values = offsets, timestamps, values

    @classmethod
    def of(cls, first: int, values: Sequence[bytes | None]) -> "Records":
        """Records with these values at contiguous offsets from `first` on, and with timestamp 0."""
        count = len(values)
        return Records(np.arange(first, first + count), np.zeros(count, np.int64), ValueBuffer.of(values))

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
