"""Compiled loops that find the parts of records in an uncompressed batch of format 2.

A record is: length, attributes, timestamp and offset relative to the batch's, key, value, headers. Integers are zigzag
varints; a key or value with a negative length is null.
"""

import numpy as np
from numpy.typing import NDArray

from service.learning.events.content_types import HEADER, TYPES
from service.learning.jit.intrinsics import byte_at
from service.learning.jit.jit import compiled

OFFSET, TIMESTAMP, KEY, KEY_END, VALUE, VALUE_END, HEADERS, HEADERS_END, HEADER_COUNT, FORM = range(10)
"""Rows of the table of records. The place of a null key or value is -1. FORM is the number of its content type."""
ROWS = 10
MIN_RECORD_BYTES, SEMICOLON = 7, 59
"""The smallest record, and the byte that separates a media type from its parameters."""
MAX_INT64 = (1 << 63) - 1
_CONTENT_TYPE = np.frombuffer(HEADER.encode(), np.uint8)
_TYPES = tuple(np.frombuffer(name.encode(), np.uint8) for name in TYPES)


@compiled
def _varint(data: int, at: int, size: int) -> tuple[int, int]:
    """The zigzag integer at a place, and the place after it; the integer is 0 outside the data."""
    if 0 <= at < size:
        byte = byte_at(data, at)
        if byte < 128:  # the usual case
            return (byte >> 1) ^ -(byte & 1), at + 1
    value = shift = 0
    while 0 <= at < size and shift < 70:
        byte = byte_at(data, at)
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return ((value >> 1) & MAX_INT64) ^ -(value & 1), at


@compiled
def _is_media_type(data: int, at: int, size: int, text: NDArray[np.uint8]) -> bool:
    """Whether these bytes are the text, with or without parameters after it."""
    if size < len(text) or (size > len(text) and byte_at(data, at + len(text)) != SEMICOLON):
        return False
    same = True
    for i in range(len(text)):
        same &= byte_at(data, at + i) == text[i]
    return same


@compiled
def _form(data: int, at: int, size: int) -> int:
    """The number of the content type with this name, as in `content_types.FORMS`."""
    for i in range(len(_TYPES)):
        if _is_media_type(data, at, size, _TYPES[i]):
            return i + 1
    return 0


@compiled
def frame_records(
    data: int, size: int, at: int, shift: int, start: int, base: tuple[int, int, bool], rows: NDArray[np.int64]
) -> tuple[int, int]:
    """Read as many records as `rows` has columns; returns the place after them, and how many were written to `rows`.

    `data` is the address of `size` bytes; the records begin at the place `at`. `base` is the batch's first offset, and
    its first timestamp or, if the last member is true, the timestamp of all its records. Records before the offset
    `start`, and records whose offset goes back, are skipped. `shift` is added to each place that is written. The
    returned place is -1 if a record is damaged.
    """
    base_offset, base_timestamp, append_time = base
    count = 0
    for _ in range(rows.shape[1]):
        length, begin = _varint(data, at, size)
        _, at = _varint(data, begin, size)  # attributes
        timestamp, at = _varint(data, at, size)
        offset, at = _varint(data, at, size)
        key_size, key = _varint(data, at, size)
        if key_size > size - key:
            return -1, count
        value_size, value = _varint(data, key + max(key_size, 0), size)
        if value_size > size - value:
            return -1, count
        value_end = value + max(value_size, 0)
        if value_end >= size:
            return -1, count
        headers, at = _varint(data, value_end, size)
        if headers < 0:
            return -1, count
        first, form = at, 0
        for _ in range(headers):
            name_size, name = _varint(data, at, size)
            if not 0 <= name_size < size - name:
                return -1, count
            header_size, at = _varint(data, name + name_size, size)
            if header_size > size - at:
                return -1, count
            if name_size == len(_CONTENT_TYPE) and _is_media_type(data, name, name_size, _CONTENT_TYPE):
                form = _form(data, at, max(header_size, 0))
            at += max(header_size, 0)
        if at - begin != length:
            return -1, count
        offset += base_offset
        if offset < start:
            continue
        start = offset + 1
        rows[OFFSET, count] = offset
        rows[TIMESTAMP, count] = base_timestamp if append_time else base_timestamp + timestamp
        rows[KEY, count] = -1 if key_size < 0 else key + shift
        rows[KEY_END, count] = key + max(key_size, 0) + shift
        rows[VALUE, count] = -1 if value_size < 0 else value + shift
        rows[VALUE_END, count] = value_end + shift
        rows[HEADERS, count] = first + shift
        rows[HEADERS_END, count] = at + shift
        rows[HEADER_COUNT, count] = headers
        rows[FORM, count] = form
        count += 1
    return at, count
