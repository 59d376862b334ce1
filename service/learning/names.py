"""Names to the numbers they were given, for compiled loops: a hash table over one buffer of all names.

A hash is seeded by the process and proves nothing: a name is what its bytes are. Names that somebody made to collide
cost no more than `MOST_PROBES` each; a name that is not found within them may still be there, and is looked for
elsewhere.
"""

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.learning.compiled import compiled
from service.learning.machine import byte_at, word_at

SEED = np.uint64(secrets.randbits(64))
MOST_PROBES = 64
BEHIND = 8
"""So many bytes behind a name are there and may be read."""
_ONE, _PRIME = np.uint64(1), np.uint64(0x9E3779B97F4A7C15)
_SHIFT, _UPPER = np.uint64(29), np.uint64(32)
_NUMBER = np.uint64(0xFFFFFFFF)


class Names:
    """Names by their numbers, from `first` on in the order in which they were added; never removed.

    `slots` have the upper half of a hash and a number each, 0 where there is none; name i is
    `text[ends[i - 1]:ends[i]]`, for i from 1 on.
    """

    def __init__(self) -> None:
        self._count = 0
        self.slots = np.zeros(64, np.uint64)
        self.ends = np.zeros(64, np.int64)
        self.text = np.zeros(1024, np.uint8)

    def __len__(self) -> int:
        return self._count

    def add(self, names: Sequence[str]) -> None:
        """Number these, which are new, on from the last: the first of all is 1."""
        parts: Sequence[str | bytes] = names
        text = "".join(names)
        if not text.isascii():  # else each name has as many bytes as letters, and a million take a fifth of the time
            parts = [name.encode(errors="surrogatepass") for name in names]
        more, count = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8), self._count + len(names)
        begin = int(self.ends[self._count])
        self.text = _room(self.text, begin + len(more) + BEHIND)
        self.ends = _room(self.ends, count + 1)
        self.text[begin : begin + len(more)] = more
        self.ends[self._count + 1 : count + 1] = begin + np.cumsum(np.fromiter(map(len, parts), np.int64))
        first = self._count + 1
        if 2 * count > len(self.slots):
            # Not `zeros`, whose memory lies in no huge pages: the names are looked for all over it.
            self.slots, first = np.full(2 << count.bit_length(), 0, np.uint64), 1
        self._count = count
        _put(self.slots, self.ends, self.text.ctypes.data, first, count, SEED)


def _room(array: NDArray[Any], count: int) -> NDArray[Any]:
    return array if count <= len(array) else np.concatenate([array, np.zeros(2 * count - len(array), array.dtype)])


@compiled
def hash_of(address: int, begin: int, end: int, h: np.uint64) -> np.uint64:
    """A hash of the bytes there from a seed `h` on, eight at a time; as many more are read behind them."""
    for i in range(begin, end, 8):
        word = word_at(address, i)
        if end - i < 8:
            word &= (_ONE << np.uint64(8 * (end - i))) - _ONE
        h = (h ^ word) * _PRIME
        h ^= h >> _UPPER
    h = (h ^ np.uint64(end - begin)) * _PRIME
    return h ^ (h >> _SHIFT)


@compiled
def same(address: int, begin: int, other: int, at: int, size: int) -> bool:
    """Whether so many bytes are the same; as many as eight more are read behind them."""
    for i in range(0, size, 8):
        differ = word_at(address, begin + i) ^ word_at(other, at + i)
        if size - i < 8:
            differ &= (_ONE << np.uint64(8 * (size - i))) - _ONE
        if differ != 0:
            return False
    return True


@compiled
def find(slots: Any, ends: Any, text: int, address: int, begin: int, size: int, h: np.uint64) -> Any:
    """The number of the name of this hash that begins there; 0 where there is none, and -1 where that is not sure.

    `text` is an address too.
    """
    mask = np.uint64(len(slots) - 1)
    at, upper = h & mask, h >> _UPPER
    for _ in range(MOST_PROBES):
        slot = slots[at]
        if slot == 0:
            return 0
        if slot >> _UPPER == upper:
            number = np.int64(slot & _NUMBER)
            start = ends[number - 1]
            if ends[number] - start == size and same(address, begin, text, start, size):
                return number
        at = (at + _ONE) & mask
    return -1


@compiled
def _put(slots: Any, ends: Any, text: int, first: int, last: int, seed: np.uint64) -> None:
    mask = np.uint64(len(slots) - 1)
    for number in range(first, last + 1):
        h = hash_of(text, ends[number - 1], ends[number], seed)
        at = h & mask
        for _ in range(MOST_PROBES):
            if slots[at] == 0:
                slots[at] = (h >> _UPPER) << _UPPER | np.uint64(number)
                break
            at = (at + _ONE) & mask


@compiled
def hash_each(address: int, names: Any, into: Any, seed: np.uint64) -> None:
    """Hashes of names by where they begin, as -1 - begin, and their sizes."""
    for i in range(len(names)):
        into[i] = hash_of(address, -1 - names[i, 0], names[i, 1] - 1 - names[i, 0], seed)


@compiled
def gather(data: int, scratch: int, names: Any, into: Any) -> None:
    """Names one behind another, each of which is in `data`, or in `scratch` where it begins below 0."""
    at = 0
    for i in range(len(names)):
        begin, address = names[i, 0], data
        if begin < 0:
            begin, address = -1 - begin, scratch
        for j in range(begin, begin + names[i, 1]):
            into[at] = byte_at(address, j)
            at += 1


@compiled
def find_each(
    slots: Any, ends: Any, text: int, data: int, scratch: int, names: Any, hashes: Any, into: Any
) -> tuple[int, int, np.uint64]:
    """The number of each name, which is in `data`, or in `scratch` where it begins below 0.

    Returns how many are 0, of how many that is not sure, and what stands where they were looked for: else that would
    not be looked at beforehand.
    """
    mask, unknown, unsure, touched = np.uint64(len(slots) - 1), 0, 0, np.uint64(0)
    # Of many names nothing is in a cache: all of one kind are asked for before the first is used, so that the memory
    # answers many at a time.
    for i in range(len(hashes)):
        into[i] = slots[hashes[i] & mask] & _NUMBER
    for i in range(len(hashes)):
        into[i] = ends[max(into[i], _ONE) - _ONE]
    for i in range(len(hashes)):
        touched ^= word_at(text, into[i])
    for i in range(len(hashes)):
        begin, address = names[i, 0], data
        if begin < 0:
            begin, address = -1 - begin, scratch
        number = find(slots, ends, text, address, begin, names[i, 1], hashes[i])
        unknown += number <= 0
        unsure += number < 0
        into[i] = max(number, 0)
    return unknown, unsure, touched
