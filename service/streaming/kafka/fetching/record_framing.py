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
def find_header(
    data: int, record_table: NDArray[np.int64], name: int, name_bytes: int, values: NDArray[np.int64]
) -> None:
    """Find the last header of each record that has the name at this address: the begin of its value, and the end.

    The begin is -1 if there is no such header, or if its value is null. The records were framed: they are not damaged.
    """
    before, size_before = 0, -1
    for i in range(values.shape[1]):
        begin, end = record_table[HEADERS, i], record_table[HEADERS_END, i]
        size = end - begin
        # Most records with such a header have the headers of the record before.
        if size == size_before and values[0, i - 1] >= 0 and same_bytes(data, begin, data, before, size):
            values[0, i], values[1, i] = values[0, i - 1] + begin - before, values[1, i - 1] + begin - before
        else:
            values[0, i], at = -1, begin
            while at < end:
                own_bytes, own_name = _varint(data, at, end)
                value_bytes, value = _varint(data, own_name + own_bytes, end)
                at = value + max(value_bytes, 0)
                if own_bytes == name_bytes and same_bytes(data, own_name, name, 0, name_bytes):
                    values[0, i], values[1, i] = value if value_bytes >= 0 else -1, at
        before, size_before = begin, size


@compiled
def match_texts(
    data: int, values: NDArray[np.int64], texts: int, ends: NDArray[np.int64], matches: NDArray[np.int64]
) -> None:
    """Find the number of the text that each value has up to its end or a `;`; it is 0 if there is none.

    Text k, of 1 or more, is at the address `texts`, from `ends[k]` to `ends[k + 1]`.
    """
    for i in range(len(matches)):
        begin, size, matches[i] = values[0, i], values[1, i] - values[0, i], 0
        for k in range(1, len(ends) - 1 if begin >= 0 else 0):
            n = ends[k + 1] - ends[k]
            ends_after_text = size == n or (size > n and byte_at(data, begin + n) == SEMICOLON)
            if ends_after_text and same_bytes(data, begin, texts, ends[k], n):
                matches[i] = k
