"""Feature hashing, compiled: names to columns by MurmurHash3, as `columns.Hashed` says, and equal columns merged."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.learning.jit.intrinsics import word_at
from service.learning.jit.jit import compiled

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FIVE, _MORE, _MIX_1, _MIX_2 = (np.uint32(n) for n in (5, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35))
_13, _15, _16, _17, _19 = (np.uint32(n) for n in (13, 15, 16, 17, 19))


@compiled
def _mixed(k: np.uint32) -> np.uint32:
    k = np.uint32(k * _C1)
    k = np.uint32(k << _15) | np.uint32(k >> _17)
    return np.uint32(k * _C2)


@compiled
def murmur(address: int, begin: int, size: int) -> Any:
    """MurmurHash3 (x86, 32 bits, seed 0) of `size` bytes, as a signed number. Up to eight bytes after them are read."""
    h = np.uint32(0)
    for i in range(begin, begin + size - 3, 4):
        h ^= _mixed(np.uint32(word_at(address, i)))
        h = np.uint32(h << _13) | np.uint32(h >> _19)
        h = np.uint32(h * _FIVE + _MORE)
    rest = size & 3  # with no bytes left this mixes in 0, which changes nothing
    h ^= _mixed(np.uint32(word_at(address, begin + size - rest) & ((1 << 8 * rest) - 1)))
    h ^= np.uint32(size)
    h ^= h >> _16
    h = np.uint32(h * _MIX_1)
    h ^= h >> _13
    h = np.uint32(h * _MIX_2)
    h ^= h >> _16
    return np.int64(np.int32(h))


@compiled
def hash_to_columns(address: int, names: Any, is_number: Any, count: int, columns: Any, values: Any) -> None:
    """Fill in the columns of features, and give values their signs. `count` is a power of two."""
    for j in range(len(columns)):
        h, value = murmur(address, names[j, 0], names[j, 1]), values[j]
        columns[j] = 1 + (abs(h) & (count - 1))
        negative = -value if is_number[j] else 0.0 - value  # a count has no -0
        values[j] = negative if h < 0 else value


class ColumnMerger:
    """Adds up equal columns of an event, each at its first place."""

    def __init__(self) -> None:
        self._latest, self._turn = np.zeros((64, 2), np.int64), np.zeros(1, np.int64)

    def merge(self, starts: NDArray[np.uint64], columns: NDArray[np.uint32], values: NDArray[np.float64]) -> int:
        """Merge the columns of events in place, so that `starts` move; returns how many values are left."""
        if 2 * (longest := int(np.diff(starts).max(initial=0))) > len(self._latest):
            self._latest = np.zeros((2 << longest.bit_length(), 2), np.int64)
        return int(_merge(self._latest, self._turn, starts, columns, values))


@compiled
def _merge(latest: Any, turn: Any, starts: Any, columns: Any, values: Any) -> int:
    """As `ColumnMerger.merge`.

    The number of rows of `latest` is a power of two, at least twice that of an event's values: a row has the event that
    used this slot last, as `turn` counts them, and the value's index.
    """
    end, mask = 0, np.uint64(len(latest) - 1)
    for i in range(len(starts) - 1):
        turn[0] += 1
        first = starts[i]
        starts[i] = end
        for j in range(first, starts[i + 1]):
            column, value = columns[j], values[j]
            slot = np.uint64(column) & mask
            while latest[slot, 0] == turn[0] and columns[latest[slot, 1]] != column:
                slot = (slot + np.uint64(1)) & mask
            if latest[slot, 0] == turn[0]:
                values[latest[slot, 1]] += value
            else:
                latest[slot, 0], latest[slot, 1], columns[end], values[end] = turn[0], end, column, value
                end += 1
    starts[len(starts) - 1] = end
    return end
