"""Whole record batches instead of the client's object for each record: what a consumer polls that asks for them.

`internals` has the client take them. A record is made when one is asked for.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, Self

import google_crc32c
import numpy as np
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.legacy_records import LegacyRecordBatch, _LegacyRecordBatchPy
from numpy.typing import NDArray

from service.learning.events.content_types import FORMS, form_of
from service.learning.events.value_buffer import ValueBuffer
from service.streaming.framing import (
    FORM,
    HEADERS,
    LEAST_BYTES,
    OFFSET,
    ROWS,
    VALUE,
    VALUE_END,
    close,
    frame,
    headers_at,
)
from service.streaming.records import Record, Records

Headers = tuple[tuple[str, Any], ...]
"""Names, and values or None."""
FEW = 8
"""Records of a batch that the client makes as fast as we find them."""
HELD_TO = "0.14.0"
"""The version of the client that this was held to, record by record."""
COMPILED_CRC = google_crc32c.implementation == "c"
"""Where it is not, as on a platform that it has no wheel for, the client's is the faster one."""
BEHIND = bytes(8)
"""Behind the last value: a compiled loop reads eight bytes at a time."""
LENGTH_END, MAGIC, ATTRIBUTES, COUNT_BEGIN, COUNT_END = 12, 16, 21, 57, 61
"""Places in a batch: behind its length, which counts from there; the number of its format; what its checksum is of;
the number of its records, where its head ends.
"""


def in_batches(value: bytes) -> bytes:  # pragma: no cover - it is only looked at
    """A consumer with this as `value_deserializer` polls Records instead of lists of the client's objects."""
    return value


class WholeRecords(Records):
    """Records of one partition whose bytes are in one buffer; `rows` say where, see `framing`.

    `headers` has those of records, by offset, of which the buffer has none.
    """

    def __init__(self, data: NDArray[np.uint8], rows: NDArray[np.int64], headers: dict[int, Headers]) -> None:
        self._data, self._rows, self._headers = data, rows, headers

    def __len__(self) -> int:
        return len(self._rows[OFFSET])

    def __getitem__(self, part: slice) -> Self:
        return type(self)(self._data, self._rows[:, part], self._headers)

    def __iter__(self) -> Iterator[Record]:
        return map(self.record, range(len(self)))

    def record(self, i: int) -> "_Record":
        """Of the names of its headers all are UTF-8: whoever took it saw to that."""
        following = self._rows[HEADERS, i + 1] if i + 1 < len(self) else len(self._data)
        return _Record(self._data.data, self._rows[:, i].tolist(), int(following), self._headers)

    @property
    def offsets(self) -> list[int]:
        """Where each of them stands, ascending."""
        found: list[int] = self._rows[OFFSET].tolist()
        return found

    @property
    def values(self) -> ValueBuffer:
        """The value of each of them, as they came."""
        forms = self._rows[FORM]
        return ValueBuffer(self._data, self._rows[VALUE], self._rows[VALUE_END], forms if forms.any() else None)

    def find(self, offset: int) -> int:
        """How many of them stand before this offset."""
        return int(np.searchsorted(self._rows[OFFSET], offset))

    def within(self, size: int) -> int:
        """How many of them have values of so many bytes together at most; one at least."""
        begins, ends = self._rows[VALUE], self._rows[VALUE_END]
        if ends[-1] - begins[0] <= size:  # with all that is between them
            return len(self)
        sizes = np.cumsum(np.where(begins < 0, 0, ends - begins))
        return max(1, int(np.searchsorted(sizes, size, "right")))


class _Record:
    """One of them, of which headers may be very many, and seldom asked for."""

    def __init__(self, data: memoryview, row: list[int], following: int, headers: dict[int, Headers]) -> None:
        self.offset, self.timestamp, key, key_end, value, value_end, at, self._count, _ = row
        self.key = None if key < 0 else bytes(data[key:key_end])
        self.value = None if value < 0 else bytes(data[value:value_end])
        self._data, self._headers = data[at:following], headers

    @property
    def headers(self) -> Headers:
        if not self._count:
            return self._headers.get(self.offset, ())
        return headers_at(bytes(self._data), self._count)


class Taken:
    """What one poll takes of a partition, `left` records more at most."""

    def __init__(self, most: int) -> None:
        self.left = most
        self._data, self._rows = bytearray(), list[NDArray[np.int64]]()
        self._ones, self._headers = list[tuple[int, ...]](), dict[int, Headers]()

    def records(self) -> WholeRecords:
        """All that was taken; nothing is taken after it."""
        self._gather()
        self._data += BEHIND
        rows = np.concatenate(self._rows, 1) if self._rows else np.empty((ROWS, 0), np.int64)
        rows = np.ascontiguousarray(rows)  # or what is compiled for such rows is compiled anew
        data = np.frombuffer(self._data, np.uint8)
        close(data, rows[VALUE_END])
        data.flags.writeable = False  # of one type with others, for what is compiled
        return WholeRecords(data, rows, self._headers)

    def take(self, batch: "Batch", following: int) -> int | None:
        """Take the next records of a batch, from this offset on: that of the last one, None where none was there.

        Raises CorruptRecordException and UnicodeDecodeError, as the client does.
        """
        count = min(self.left, batch.left, (len(batch.records) - batch.at) // LEAST_BYTES + 1)
        rows = np.empty((ROWS, count), np.int64)
        end, found, odd = frame(
            batch.address, len(batch.records), batch.at, len(self._data) - batch.at, following, batch.base, rows
        )
        if end < 0:
            raise CorruptRecordException("Found invalid record structure")
        rows = rows[:, :found]
        self._data += batch.records.data[batch.at : end]
        batch.at, batch.left = end, batch.left - count
        self.left -= found
        self._gather()
        self._rows.append(rows)
        if odd:
            for record in WholeRecords(np.frombuffer(self._data, np.uint8), rows, {}):
                _ = record.headers  # raises
        return int(rows[OFFSET, -1]) if found else None

    def take_one(self, record: Any) -> None:
        """Take a record as the client makes it."""
        key, value, at = record.key, record.value, len(self._data)
        middle = at + len(key or b"")
        end = middle + len(value or b"")
        self._data += b"%b%b\0" % (key or b"", value or b"")
        if record.headers:
            self._headers[record.offset] = tuple(record.headers)
        form = FORMS.index(form_of(record.headers)) if record.headers else 0
        timestamp = -1 if record.timestamp is None else record.timestamp
        begins = -1 if key is None else at, -1 if value is None else middle
        self._ones.append((record.offset, timestamp, begins[0], middle, begins[1], end, end, 0, form))
        self.left -= 1

    def _gather(self) -> None:
        if self._ones:
            self._rows.append(np.array(self._ones, np.int64).T)
            self._ones = []


class Part(NamedTuple):
    """Records of a batch that were taken, as the client is to see them: one, at the offset of the last."""

    offset: int


class Owner(Protocol):
    """Who reads batches: what it takes now, and the offset that it goes on at."""

    taken: Taken
    next_fetch_offset: int


class Batch(_DefaultRecordBatchPy):
    """One of format 2, whose records are taken as `owner` says, not iterated over."""

    def __init__(self, raw: memoryview, owner: Owner) -> None:
        super().__init__(raw[:COUNT_END])  # which it copies
        self._buffer, self._owner = raw, owner

    def validate_crc(self) -> bool:
        """As the client's, which takes fourteen times as long."""
        if not COMPILED_CRC:
            return bool(super().validate_crc())
        # What it reads may not be writable, and is no memoryview.
        return bool(google_crc32c.value(np.frombuffer(self._buffer, np.uint8, offset=ATTRIBUTES)) == self.crc)

    def __iter__(self) -> Iterator[Part]:
        self._maybe_uncompress()
        self.records: NDArray[np.uint8] = np.frombuffer(self._buffer, np.uint8)
        self.address = self.records.ctypes.data
        self.at, self.left = self._pos, self._num_records
        appended = self.timestamp_type == self.LOG_APPEND_TIME
        self.base = self.base_offset, self.max_timestamp if appended else self.first_timestamp, appended
        while self.left > 0:
            if (offset := self._owner.taken.take(self, self._owner.next_fetch_offset)) is not None:
                yield Part(offset)
        if self.at != len(self.records):
            raise CorruptRecordException(f"{len(self.records) - self.at} unconsumed bytes after all records consumed")


def end_of(data: bytes | memoryview, at: int) -> int:
    """Where the batch that begins here ends, which is behind the data where it is not there whole."""
    behind = at + LENGTH_END
    return behind + int.from_bytes(data[behind - 4 : behind], signed=True) if behind <= len(data) else behind


class Batches:
    """Those of a fetch, as the client's MemoryRecords gives them."""

    def __init__(self, data: bytes | memoryview, owner: Owner) -> None:
        self._data, self._owner, self._at = memoryview(data), owner, 0

    def has_next(self) -> bool:
        """Whether another one is there whole."""
        return end_of(self._data, self._at) <= len(self._data)

    def next_batch(self) -> Any:
        """The next one; raises CorruptRecordException."""
        raw = self._data[self._at : end_of(self._data, self._at)]
        magic = raw[MAGIC] if len(raw) > MAGIC else 0
        new = 2 <= magic < 128
        if len(raw) < (COUNT_END if new else LENGTH_END + _LegacyRecordBatchPy.RECORD_OVERHEAD_V0):
            raise CorruptRecordException("a batch is smaller than its head")
        self._at += len(raw)
        if not new:
            return LegacyRecordBatch(raw, magic)
        few = int.from_bytes(raw[COUNT_BEGIN:COUNT_END]) <= FEW
        return DefaultRecordBatch(raw) if few else Batch(raw, self._owner)
