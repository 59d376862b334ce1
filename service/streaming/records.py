"""Records of one partition with keys and headers, in one buffer; a single record becomes an object only on request."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from aiokafka.record.util import decode_varint
from numpy.typing import NDArray

from service.learning.events.content_types import form_of
from service.learning.events.value_buffer import ValueBuffer
from service.learning.records import Records
from service.streaming.kafka.fetching import record_framing as table

Headers = Sequence[tuple[str, bytes | None]]
"""Names and values. Bytes of a name that are not UTF-8 are surrogate escapes."""


class KafkaRecord(NamedTuple):
    """One record. `timestamp` is in milliseconds since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def value_of(record: KafkaRecord) -> bytes | None:
    """The record's value, wrapped as the content type in its headers requires."""
    value, headers = record.value, record.headers
    return form_of(headers)(value) if headers and value is not None else value


class KafkaRecords(Records):
    """Records in the buffer `data`. The table `rows` has the places of their parts, see `record_framing`."""

    def __init__(self, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        forms = rows[table.FORM]
        values = ValueBuffer(data, rows[table.VALUE], rows[table.VALUE_END], forms if forms.any() else None)
        super().__init__(rows[table.OFFSET], rows[table.TIMESTAMP], values)
        self._data, self._rows = data, rows

    def __getitem__(self, part: slice) -> Self:
        return type(self)(self._data, self._rows[:, part])

    def __iter__(self) -> Iterator[KafkaRecord]:
        return map(self.record, range(len(self)))

    def header_count(self, i: int) -> int:
        """The number of headers of the record at index `i`."""
        return int(self._rows[table.HEADER_COUNT, i])

    def record(self, i: int, with_headers: bool = True) -> KafkaRecord:
        """The record at index `i`; -1 is the last one."""
        offset, timestamp, key, key_end, value, value_end, headers, headers_end, count, _ = self._rows[:, i].tolist()
        data = self._data.data
        return KafkaRecord(
            offset,
            timestamp,
            None if key < 0 else bytes(data[key:key_end]),
            None if value < 0 else bytes(data[value:value_end]),
            _decode_headers(bytes(data[headers:headers_end]), count if with_headers else 0),
        )


def _decode_headers(data: bytes, count: int) -> Headers:
    headers, place = list[tuple[str, bytes | None]](), 0
    for _ in range(count):
        size, start = decode_varint(data, place)
        name = data[start : start + size].decode(errors="surrogateescape")
        size, start = decode_varint(data, start + size)
        place = start + max(size, 0)
        headers.append((name, None if size < 0 else data[start:place]))
    return tuple(headers)
