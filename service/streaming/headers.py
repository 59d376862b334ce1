"""How many headers unpacked records have, found without parsing them: compiled, since they may be millions."""

import numpy as np
from numpy.typing import NDArray

from service.learning.compiled import compiled


def most_headers(records: bytes | bytearray, least_bytes: int) -> int:
    """The largest number of headers that a record (of format 2, of at least so many bytes) says it has."""
    return int(_most_headers(np.frombuffer(records, np.uint8), least_bytes))


@compiled
def _varint(data: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """Kafka's zigzag integer at this place, and the place behind it."""
    value = shift = 0
    while at < len(data) and shift < 63:
        byte = int(data[at])
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return (value >> 1) ^ -(value & 1), at


@compiled
def _most_headers(data: NDArray[np.uint8], least: int) -> int:
    at = most = 0
    while 0 <= at < len(data):
        length, begin = _varint(data, at)
        if length < 0:  # damaged: who parses it says so
            break
        at = begin + length
        if length < least:
            continue
        begin += 1  # attributes
        for _ in range(2):  # timestamp, offset
            _, begin = _varint(data, begin)
        for _ in range(2):  # key, value
            size, begin = _varint(data, begin)
            begin += max(0, size)
        if not 0 <= begin < len(data):
            break
        most = max(most, _varint(data, begin)[0])
    return most
