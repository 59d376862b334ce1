"""How records stand in an unpacked batch of format 2, by compiled loops: where their parts are, how many headers.

A record: length, attributes, timestamp and offset beyond the batch's own, key, value, headers; integers are zigzag
varints, and what has a length below 0 is null. What is refused here the client refuses too.
"""

import numpy as np
from aiokafka.record.util import decode_varint
from numpy.typing import NDArray

from service.learning.compiled import compiled
from service.learning.events.content_types import HEADER, TYPES
from service.learning.machine import byte_at

OFFSET, TIMESTAMP, KEY, KEY_END, VALUE, VALUE_END, HEADERS, COUNT, FORM = range(9)
"""Rows of what is known of records. A key or a value that is null begins at -1; COUNT headers begin at HEADERS. FORM is
the value's, by its number."""
ROWS = 9
LEAST_BYTES, SEMICOLON = 7, 59
"""Of a record, and what parameters are behind."""
MOST = (1 << 63) - 1
_HEADER = np.frombuffer(HEADER.encode(), np.uint8)
_VECTOR, _PACKED = (np.frombuffer(name.encode(), np.uint8) for name in TYPES)


def most_headers(records: bytes | bytearray, least_bytes: int) -> int:
    """The largest number of headers that a record (of format 2, of at least so many bytes) says it has."""
    return int(_most_headers(np.frombuffer(records, np.uint8).ctypes.data, len(records), least_bytes))


@compiled
def _varint(data: int, at: int, size: int) -> tuple[int, int]:
    """Kafka's zigzag integer at this place, and the place behind it; 0 where that is none of the data's."""
    if 0 <= at < size:
        byte = byte_at(data, at)
        if byte < 128:  # as nearly all are
            return (byte >> 1) ^ -(byte & 1), at + 1
    value = shift = 0
    while 0 <= at < size and shift < 70:
        byte = byte_at(data, at)
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return ((value >> 1) & MOST) ^ -(value & 1), at


@compiled
def _most_headers(data: int, end: int, least: int) -> int:
    at = most = 0
    while 0 <= at < end:
        length, begin = _varint(data, at, end)
        if length < 0:  # damaged: who parses it says so
            break
        at = begin + length
        if length < least:
            continue
        begin += 1  # attributes
        for _ in range(2):  # timestamp, offset
            _, begin = _varint(data, begin, end)
        for _ in range(2):  # key, value
            size, begin = _varint(data, begin, end)
            begin += max(0, size)
        if not 0 <= begin < end:
            break
        most = max(most, _varint(data, begin, end)[0])
    return most


@compiled
def _is(data: int, at: int, size: int, text: NDArray[np.uint8]) -> bool:
    """Whether so many bytes begin with this text, with nothing but parameters behind it."""
    if size < len(text) or (size > len(text) and byte_at(data, at + len(text)) != SEMICOLON):
        return False
    same = True
    for i in range(len(text)):
        same &= byte_at(data, at + i) == text[i]
    return same


@compiled
def _form(data: int, at: int, size: int) -> int:
    return 1 if _is(data, at, size, _VECTOR) else 2 if _is(data, at, size, _PACKED) else 0


@compiled
def frame(
    data: int, size: int, at: int, shift: int, following: int, base: tuple[int, int, bool], rows: NDArray[np.int64]
) -> tuple[int, int, bool]:
    """Find as many records as `rows` has columns, from `at` on: the place behind them, how many, and if names are odd.

    `data` is the address of `size` bytes. `base` is the batch's first offset, and its first timestamp or, where the
    last is true, the one of all of its records. What stands before the offset `following` is passed over, as is what
    goes back. Places are given `shift` further on. Odd is a header's name that may be no UTF-8. The place is -1 where
    what is there is no record.
    """
    base_offset, base_timestamp, appended = base
    found, odd = 0, False
    for _ in range(rows.shape[1]):
        length, begin = _varint(data, at, size)
        _, at = _varint(data, begin, size)  # attributes
        timestamp, at = _varint(data, at, size)
        offset, at = _varint(data, at, size)
        key_size, key = _varint(data, at, size)
        if key_size > size - key:
            return -1, found, odd
        value_size, value = _varint(data, key + max(key_size, 0), size)
        if value_size > size - value:
            return -1, found, odd
        value_end = value + max(value_size, 0)
        if value_end >= size:
            return -1, found, odd
        headers, at = _varint(data, value_end, size)
        if headers < 0:
            return -1, found, odd
        null, first, form = value_size < 0, at, 0
        for _ in range(headers):
            name_size, name = _varint(data, at, size)
            if not 0 <= name_size < size - name:
                return -1, found, odd
            for i in range(name, name + name_size):
                odd |= byte_at(data, i) > 127
            value_size, at = _varint(data, name + name_size, size)
            if value_size > size - at:
                return -1, found, odd
            if name_size == len(_HEADER) and _is(data, name, name_size, _HEADER):
                form = _form(data, at, max(value_size, 0))
            at += max(value_size, 0)
        if at - begin != length:
            return -1, found, odd
        offset += base_offset
        if offset < following:
            continue
        following = offset + 1
        rows[OFFSET, found] = offset
        rows[TIMESTAMP, found] = base_timestamp if appended else base_timestamp + timestamp
        rows[KEY, found] = -1 if key_size < 0 else key + shift
        rows[KEY_END, found] = key + max(key_size, 0) + shift
        rows[VALUE, found] = -1 if null else value + shift
        rows[VALUE_END, found] = value_end + shift
        rows[HEADERS, found] = first + shift
        rows[COUNT, found] = headers
        rows[FORM, found] = form
        found += 1
    return at, found, odd


@compiled
def close(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
    """Let a control character stand behind each value, where a scanner is to stop: the number of headers is known."""
    for end in ends:
        if data[end] >= 32:
            data[end] = 0


def headers_at(data: bytes, count: int) -> tuple[tuple[str, bytes | None], ...]:
    """So many headers that these bytes begin with; raises UnicodeDecodeError.

    A record may have hundreds of thousands, most with lengths of one byte: those are read here.
    """
    found, at = list[tuple[str, bytes | None]](), 0
    for _ in range(count):
        size, name = (data[at] >> 1, at + 1) if data[at] < 128 else decode_varint(data, at)
        end = name + size
        size, at = (data[end] >> 1 ^ -(data[end] & 1), end + 1) if data[end] < 128 else decode_varint(data, end)
        found.append((data[name:end].decode(), None if size < 0 else data[at : at + size]))
        at += max(size, 0)
    return tuple(found)
