"""Records of one partition as a batch: what `Log.poll` gives, and what everybody takes who learns.

Learning needs their offsets and values alone. A single record is asked for where it became a dead letter, or is to be
recognised later. So what stands behind may be the client's objects, as here, or whole record batches.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Protocol, Self

from service.learning.events.content_types import form_of


class Record(Protocol):
    """A Kafka record, as far as learning needs it."""

    @property
    def offset(self) -> int:
        """Where it stands in its partition."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""

    @property
    def key(self) -> bytes | None:
        """Whatever its producer gave it."""

    @property
    def value(self) -> bytes | None:
        """An event, if it is one."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """In the order in which they were given."""


def value_of(record: Record) -> bytes | None:
    """Its value, in the form that its headers say."""
    value, headers = record.value, record.headers
    return form_of(headers)(value) if headers and value is not None else value


class Records:
    """Records of one partition in order, whose offsets need not follow on each other.

    >>> from collections import namedtuple
    >>> record = namedtuple("record", "offset timestamp key value headers")
    >>> records = Records([record(offset, 0, None, b"{}", ()) for offset in (7, 8, 10)])
    >>> [run.offsets for run in records.runs()], records[records.find(8) :].offsets
    ([[7, 8], [10]], [8, 10])
    """

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, part: slice) -> Self:
        return type(self)(self._records[part])

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def record(self, i: int) -> Record:
        """The i-th of them; -1 is the last."""
        return self._records[i]

    @property
    def offsets(self) -> list[int]:
        """Where each of them stands, ascending."""
        return [record.offset for record in self._records]

    @property
    def values(self) -> Sequence[bytes | None]:
        """The value of each of them, in its form."""
        return [value_of(record) for record in self._records]

    def within(self, size: int) -> int:
        """How many of them have values of so many bytes together at most; one at least."""
        sizes = accumulate(len(value or b"") for value in self.values)
        return max(1, sum(so_far <= size for so_far in sizes))

    def find(self, offset: int) -> int:
        """How many of them stand before this offset."""
        return bisect_left(self._records, offset, key=lambda record: record.offset)

    def runs(self) -> Iterator[Self]:
        """Cut where offsets do not follow on each other."""
        if not self or self.record(-1).offset - self.record(0).offset == len(self) - 1:
            yield self
            return
        offsets = self.offsets
        start = 0
        for i in range(1, len(offsets) + 1):
            if i == len(offsets) or offsets[i] != offsets[i - 1] + 1:
                yield self[start:i]
                start = i


def records_of(polled: "Records | Sequence[Record]") -> Records:
    """What a consumer polled of one partition, whichever way it unpacks."""
    return polled if isinstance(polled, Records) else Records(polled)
