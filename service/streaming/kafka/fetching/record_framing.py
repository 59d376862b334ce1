"""Compiled loops that find the parts of records in an uncompressed batch of format 2.

A record is: length, attributes, timestamp and offset relative to the batch's, key, value, headers. Integers are zigzag
varints; a key or value with a negative length is null.
"""

import numpy as np
from numpy.typing import NDArray

from service.learning.columns.name_table import same_bytes
from service.learning.jit import byte_at, compiled

OFFSET, TIMESTAMP, KEY, KEY_END, VALUE, VALUE_END, HEADERS, HEADERS_END, HEADER_COUNT = range(9)
"""Rows of a record table, which has a column for each record. The position of a null key or value is -1."""
TABLE_ROWS = 9
MIN_RECORD_BYTES, SEMICOLON = 7, 59
"""The smallest record, and the byte that separates a header's value from its parameters."""
MAX_INT64 = (1 << 63) - 1


@compiled
def _varint(data: int, at: int, size: int) -> tuple[int, int]:
    """The zigzag integer at a position, and the position after it; the integer is 0 outside the data."""
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
def frame_records(
    data: int, size: int, at: int, shift: int, start: int, base: tuple[int, int, bool], offsets: tuple[int, int],
    record_table: NDArray[np.int64],
) -> tuple[int, int, int]:  # fmt: skip
    """Read as many records as the table has columns; returns the position after them, how many the table has now, and
    the offset after the last one.

    `data` is the address of `size` bytes; the records begin at the position `at`. `base` is the batch's first offset,
    and its first timestamp or, if the last member is true, the timestamp of all its records. Records before the offset
    `start` are skipped. `shift` is added to each position that is written. The returned position is -1 if a record is
    damaged, or if the offsets do not rise within `offsets`, a half-open range.
    """
    base_offset, base_timestamp, append_time = base
    count, (following, end) = 0, offsets
    for _ in range(record_table.shape[1]):
        length, begin = _varint(data, at, size)
        timestamp, at = _varint(data, begin + 1, size)  # after a byte of attributes
        offset, at = _varint(data, at, size)
        key_size, key = _varint(data, at, size)
        if key_size > size - key:
            return -1, count, following
        value_size, value = _varint(data, key + max(key_size, 0), size)
        if value_size > size - value:
            return -1, count, following
        value_end = value + max(value_size, 0)
        if value_end >= size:
            return -1, count, following
        headers, at = _varint(data, value_end, size)
        if headers < 0:
            return -1, count, following
        first = at
        for _ in range(headers):
            name_size, name = _varint(data, at, size)
            if not 0 <= name_size < size - name:
                return -1, count, following
            header_size, at = _varint(data, name + name_size, size)
            if header_size > size - at:
                return -1, count, following
            at += max(header_size, 0)
        if at - begin != length:
            return -1, count, following
        offset += base_offset
        if not following <= offset < end:
            return -1, count, following
        following = offset + 1
        if offset < start:
            continue
        record_table[OFFSET, count] = offset
        record_table[TIMESTAMP, count] = base_timestamp if append_time else base_timestamp + timestamp
        record_table[KEY, count] = -1 if key_size < 0 else key + shift
        record_table[KEY_END, count] = key + max(key_size, 0) + shift
        record_table[VALUE, count] = -1 if value_size < 0 else value + shift
        record_table[VALUE_END, count] = value_end + shift
        record_table[HEADERS, count] = first + shift
        record_table[HEADERS_END, count] = at + shift
        record_table[HEADER_COUNT, count] = headers
        count += 1
    return at, count, following


@compiled
def match_headers(
    data: int, record_table: NDArray[np.int64], texts: int, ends: NDArray[np.int64], matches: NDArray[np.int64]
) -> None:
    """Match the last header of each record whose name is text 0: the number of the text that it has, or else 0.

    Parameters after a `;` do not count. Text k is at the address `texts`, from `ends[k]` to `ends[k + 1]`. The records
    were framed: they are not damaged.
    """
    before, before_size, match = 0, -1, 0
    for i in range(len(matches)):
        begin, size = record_table[HEADERS, i], record_table[HEADERS_END, i] - record_table[HEADERS, i]
        # Most records with a match have the headers of the record before.
        if match == 0 or size != before_size or not same_bytes(data, begin, data, before, size):
            match, at = 0, begin
            while at < begin + size:
                name_size, name = _varint(data, at, begin + size)
                value_size, value = _varint(data, name + name_size, begin + size)
                at = value + max(value_size, 0)
                if name_size == ends[1] and same_bytes(data, name, texts, 0, name_size):
                    match = _find_text(data, value, value_size, texts, ends)
        before, before_size, matches[i] = begin, size, match


@compiled
def _find_text(data: int, begin: int, size: int, texts: int, ends: NDArray[np.int64]) -> int:
    """The number of the text that these bytes have up to their end or a `;`; 0 if there is none."""
    for k in range(1, len(ends) - 1):
        n = ends[k + 1] - ends[k]
        ends_after_text = size == n or (size > n and byte_at(data, begin + n) == SEMICOLON)
        if ends_after_text and same_bytes(data, begin, texts, ends[k], n):
            return k
    return 0
