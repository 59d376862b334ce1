"""Records of one partition with all that Kafka keeps of them, in one buffer; an object is made of one if asked for."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from aiokafka.record.util import decode_varint
from numpy.typing import NDArray

from service.learning.events.content_types import form_of
from service.learning.events.value_buffer import ValueBuffer
from service.learning.records import Records
from service.streaming.kafka.fetching.record_framing import (
    FORM,
    HEADER_COUNT,
    HEADERS,
    HEADERS_END,
    KEY,
    KEY_END,
    OFFSET,
    TIMESTAMP,
    VALUE,
    VALUE_END,
)

Headers = Sequence[tuple[str, bytes | None]]
"""Names and values. A name that is not UTF-8 has surrogate escapes."""


class KafkaRecord(NamedTuple):
    """One record. `timestamp` is in milliseconds since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def value_of(record: KafkaRecord) -> bytes | None:
    """The record's value, in the content type that its headers say."""
    value, headers = record.value, record.headers
    return form_of(headers)(value) if headers and value is not None else value


class KafkaRecords(Records):
    """Records whose bytes are in `data`; the table `rows` says where, see `record_framing`."""

    def __init__(self, data: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        forms = rows[FORM]
        values = ValueBuffer(data, rows[VALUE], rows[VALUE_END], forms if forms.any() else None)
        super().__init__(rows[OFFSET], rows[TIMESTAMP], values)
        self._data, self._rows = data, rows

    def __getitem__(self, part: slice) -> Self:
        return type(self)(self._data, self._rows[:, part])

    def __iter__(self) -> Iterator[KafkaRecord]:
        return map(self.record, range(len(self)))

    @property
    def size(self) -> int:
        """The bytes of the buffer."""
        return len(self._data)

    def header_count(self, i: int) -> int:
        """How many headers the record at index `i` has."""
        return int(self._rows[HEADER_COUNT, i])

    def record(self, i: int, with_headers: bool = True) -> KafkaRecord:
        """The record at index `i`; -1 is the last."""
        row = self._rows[:, i].tolist()
        data = self._data.data
        key = None if row[KEY] < 0 else bytes(data[row[KEY] : row[KEY_END]])
        value = None if row[VALUE] < 0 else bytes(data[row[VALUE] : row[VALUE_END]])
        count = row[HEADER_COUNT] if with_headers else 0
        headers = _decode_headers(bytes(data[row[HEADERS] : row[HEADERS_END]]), count) if count else ()
        return KafkaRecord(row[OFFSET], row[TIMESTAMP], key, value, headers)


def _decode_headers(data: bytes, count: int) -> Headers:
    headers, at = list[tuple[str, bytes | None]](), 0
    for _ in range(count):
        size, at = decode_varint(data, at)
        name, at = data[at : at + size].decode(errors="surrogateescape"), at + size
        size, at = decode_varint(data, at)
        headers.append((name, None if size < 0 else data[at : at + size]))
        at += max(size, 0)
    return tuple(headers)
