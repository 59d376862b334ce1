"""Records with keys and headers, in one buffer; a single record becomes an object only on request.

Also a message, which becomes a record.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import decode_varint
from numpy.typing import NDArray

from service.learning.columns.name_table import PADDING_BYTES, Utf8Names, encode_names
from service.learning.events.value_formats import FORMATS, HEADER, ValueBuffer
from service.learning.records import PartitionId, Records
from service.streaming.kafka.fetching import record_framing as table

Headers = Sequence[tuple[str, bytes | None]]
"""Names and values. Bytes of a name that are not UTF-8 are surrogate escapes."""
_TEXTS = encode_names([HEADER, *(each.media_type for each in FORMATS[1:])])
"""The header that names a format, and what it is for each format."""


class KafkaRecord(NamedTuple):
    """One record. `timestamp` is in milliseconds since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Message(NamedTuple):
    """A message to send to a topic, with the headers in order."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int | None = None
    """Milliseconds since 1970; None is the time when it is sent. If the broker refuses it, the message has none."""

    @property
    def memory(self) -> int:
        """About how many bytes of memory it takes."""
        return 1000 + len(self.key or b"") + len(self.value or b"") + 150 * len(self.headers)

    @property
    def wire_size(self) -> int:
        """The most bytes of a batch that has only this message: the client and the broker limit this number."""
        return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(self.key, self.value, self.headers))


class KafkaRecords(Records):
    """Records in the buffer `data`. The record table has the positions of their parts, see `record_framing`."""

    def __init__(
        self,
        data: NDArray[np.uint8],
        record_table: NDArray[np.int64],
        format_numbers: NDArray[np.int64] | None,
        partitions: Sequence[PartitionId],
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        values = ValueBuffer(data, record_table[table.VALUE], record_table[table.VALUE_END], format_numbers)
        super().__init__(record_table[table.OFFSET], record_table[table.TIMESTAMP], values, partitions, numbers)
        self._record_table = record_table

    @classmethod
    def merged(cls, parts: Sequence["KafkaRecords"], keys: NDArray[np.int64]) -> "KafkaRecords":
        """The records of parts, each of one partition, in the order of their keys, then of the parts.

        Their bytes are in this order too, as the readers of values require.
        """
        if len(parts) == 1:
            return parts[0]
        order, partitions = np.argsort(keys, kind="stable"), [part.partitions[0] for part in parts]
        numbers = np.repeat(np.arange(len(parts)), [*map(len, parts)])[order]
        record_table = np.concatenate([part._record_table for part in parts], 1).take(order, 1)
        positions = record_table[table.KEY : table.HEADER_COUNT]
        begins, ends = np.where(positions < 0, positions[-1], positions).min(0), positions[-1].copy()
        cuts = zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True)
        raw = [part.values.data.data for part in parts]
        joined = b"".join([*(raw[number][begin:end] for number, begin, end in cuts), bytes(PADDING_BYTES)])
        positions += np.where(positions < 0, 0, np.cumsum(ends - begins) - ends)
        data = np.frombuffer(joined, np.uint8)
        return cls(data, record_table, find_formats(data, record_table), partitions, numbers)

    def __getitem__(self, part: slice) -> Self:
        formats, numbers = (None if a is None else a[part] for a in (self.values.format_numbers, self.numbers))
        return type(self)(self.values.data, self._record_table[:, part], formats, self.partitions, numbers)

    def __iter__(self) -> Iterator[KafkaRecord]:
        return map(self.record, range(len(self)))

    def header_values(self, name: str) -> dict[int, bytes]:
        """The value of the last header of this name in each record that has one, by the record's index."""
        record_table = np.ascontiguousarray(self._record_table)  # the layout for which the loop is compiled
        values = _find_header(self.values.data, record_table, encode_names([name]))
        if values is None:
            return {}
        data, rows = self.values.data.data, np.flatnonzero(values[0] >= 0)
        spans = zip(rows.tolist(), *values[:, rows].tolist(), strict=True)
        return {i: bytes(data[begin:end]) for i, begin, end in spans}

    def header_count(self, i: int) -> int:
        """The number of headers of the record at index `i`."""
        return int(self._record_table[table.HEADER_COUNT, i])

    def record(self, i: int, with_headers: bool = True) -> KafkaRecord:
        """The record at index `i`; -1 is the last one."""
        column, data = self._record_table[:, i].tolist(), self.values.data.data
        offset, timestamp, key, key_end, value, value_end, headers, headers_end, count = column
        return KafkaRecord(
            offset,
            timestamp,
            None if key < 0 else bytes(data[key:key_end]),
            None if value < 0 else bytes(data[value:value_end]),
            _decode_headers(bytes(data[headers:headers_end]), count if with_headers else 0),
        )


def _decode_headers(data: bytes, count: int) -> Headers:
    headers, position = list[tuple[str, bytes | None]](), 0
    for _ in range(count):
        size, start = decode_varint(data, position)
        name = data[start : start + size].decode(errors="surrogateescape")
        size, start = decode_varint(data, start + size)
        position = start + max(size, 0)
        headers.append((name, None if size < 0 else data[start:position]))
    return tuple(headers)


def find_formats(data: NDArray[np.uint8], record_table: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The number of the format of each record in `data`; None if no record has a header, so all are JSON."""
    if (values := _find_header(data, record_table, _TEXTS)) is None:
        return None
    numbers = np.empty(record_table.shape[1], np.int64)
    table.match_texts(data.ctypes.data, values, _TEXTS.text.ctypes.data, _TEXTS.ends, numbers)
    return numbers


def _find_header(data: NDArray[np.uint8], record_table: NDArray[np.int64], name: Utf8Names) -> NDArray[np.int64] | None:
    """Begins and ends, see `find_header`, of the header that the first of these texts names; None without headers."""
    if not record_table[table.HEADER_COUNT].any():
        return None
    values = np.empty((2, record_table.shape[1]), np.int64)
    table.find_header(data.ctypes.data, record_table, name.text.ctypes.data, int(name.ends[1]), values)
    return values
