"""Names to numbers and back: a hash table over one buffer of all names.

A hash is seeded by the process, and names are compared by their bytes. Names that were made to collide cost at most
`MAX_PROBES` each; names that get no slot within them are in a dictionary next to the table. So are all names if nothing
is compiled. In compiled loops a name is an offset and a size: its first byte is at `address + offset`.
"""

import secrets
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.jit import ENABLED, byte_at, compiled, inlined, word_at

SEED = np.uint64(secrets.randbits(64))
MAX_PROBES = 64
"""Slots in which a name is looked for."""
PADDING_BYTES = 8
"""Bytes after a name that may be read."""
_ONE, _PRIME = np.uint64(1), np.uint64(0x9E3779B97F4A7C15)
_SHIFT, _UPPER = np.uint64(29), np.uint64(32)
_NUMBER = np.uint64(0xFFFFFFFF)


class Utf8Names(Sequence[str]):
    """Names in UTF-8: name i is `text[ends[i]:ends[i + 1]]`. A string is made when it is read."""

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.int64], count: int) -> None:
        self.text, self.ends, self._count = text, ends, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: Any) -> Any:
        if not isinstance(part, slice):
            i = range(self._count)[part]
            return self[i : i + 1][0]
        first, last, _ = part.indices(self._count)
        ends = self.ends[first : max(first, last) + 1]
        raw = self.text[ends[0] : ends[-1]].tobytes()
        cuts = pairwise((ends - ends[0]).tolist())
        if raw.isascii():
            text = raw.decode()
            return [text[i:j] for i, j in cuts]
        return [raw[i:j].decode(errors="surrogatepass") for i, j in cuts]

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == other[:]

    __hash__ = None  # type: ignore[assignment]  # like a list


def encode_names(names: Sequence[str]) -> Utf8Names:
    """Names in UTF-8, with PADDING_BYTES after them."""
    parts: Sequence[str | bytes] = names
    text = "".join(names)
    if not text.isascii():  # the bytes of an ASCII name are its characters: a million take a fifth of the time
        parts = [name.encode(errors="surrogatepass") for name in names]
    ends = np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(names) + 1)
    raw = text.encode(errors="surrogatepass") + bytes(PADDING_BYTES)
    return Utf8Names(np.frombuffer(raw, np.uint8), ends, len(names))


class Table(NamedTuple):
    """The numbers of the names at one time, for compiled loops; it has no names that are added later.

    A slot has the upper half of a hash and a number, or is 0. Name i, from 1 to `last`, is at `text`, an address, from
    `ends[i - 1]` to `ends[i]`.
    """

    slots: NDArray[np.uint64]
    ends: NDArray[np.int64]
    text: int
    last: int
    slotless: dict[str, int]
    """The numbers of names that have no slot."""
    buffer: NDArray[np.uint8]
    """The array at the address `text`."""


class NameTable(Utf8Names):
    """Names, numbered from 1 in the order in which they are added; never removed.

    Another thread may look for names while some are added.

    >>> names = NameTable()
    >>> names.add(["a", "b"])
    >>> names[1], names.numbers_of(["b", "c"]).tolist()
    ('b', [2, 0])
    """

    def __init__(self) -> None:
        super().__init__(np.zeros(1024, np.uint8), np.zeros(64, np.int64), 0)
        self.table = Table(np.zeros(64, np.uint64), self.ends, self.text.ctypes.data, 0, {}, self.text)

    def add(self, names: Sequence[str]) -> None:
        """Give new names the next numbers."""
        more = names if isinstance(names, Utf8Names) else encode_names(names)
        before, begin, slots, slotless = self._count, int(self.ends[self._count]), self.table.slots, self.table.slotless
        ends = begin + more.ends[: len(more) + 1]
        count, end = before + len(more), int(ends[-1])
        self.text, self.ends = room(self.text, begin, end + PADDING_BYTES), room(self.ends, before + 1, count + 1)
        self.text[begin:end] = more.text[: end - begin]
        self.ends[before : count + 1] = ends
        self._count, address = count, self.text.ctypes.data
        numbers = np.arange(before + 1, count + 1)
        if 2 * count > len(slots):
            # `zeros` would not use huge pages, and lookups go all over the table.
            slots, slotless = np.full(2 << count.bit_length(), 0, np.uint64), {}
            numbers = np.arange(1, count + 1)
        if ENABLED:
            numbers = numbers[: _put(slots, self.ends, address, numbers, SEED)]
        slotless.update((self[number - 1], number) for number in numbers.tolist())
        self.table = Table(slots, self.ends, address, count, slotless, self.text)

    def numbers_of(self, names: Sequence[str]) -> NDArray[np.uint32]:
        """The number of each name, 0 for an unknown one."""
        table, numbers, unsure = self.table, np.zeros(len(names), np.uint32), len(names)
        if ENABLED:
            utf8 = encode_names(names)
            unsure = _find_all(*table[:4], utf8.text.ctypes.data, utf8.ends, SEED, numbers)
        if unsure:
            missing = np.flatnonzero(numbers == 0)
            numbers[missing] = [table.slotless.get(names[i], 0) for i in missing.tolist()]
        return numbers


def room(array: NDArray[Any], used: int, count: int) -> NDArray[Any]:
    """An array with room for at least `count` items that begins with the first `used` items of this one."""
    if count <= len(array):
        return array
    longer = np.empty((2 * count, *array.shape[1:]), array.dtype)
    longer[:used] = array[:used]
    return longer


@compiled
def hash_of(address: int, begin: int, end: int, h: np.uint64) -> np.uint64:
    """A hash of the bytes from `begin` to `end`, with the seed `h`. Up to PADDING_BYTES after them are read."""
    for i in range(begin, end, 8):
        word = word_at(address, i)
        if end - i < 8:
            word &= (_ONE << np.uint64(8 * (end - i))) - _ONE
        h = (h ^ word) * _PRIME
        h ^= h >> _UPPER
    h = (h ^ np.uint64(end - begin)) * _PRIME
    return h ^ (h >> _SHIFT)


@compiled
def same_bytes(address: int, begin: int, other: int, other_begin: int, size: int) -> bool:
    """Whether `size` bytes at two positions are the same. Up to PADDING_BYTES after them are read."""
    for i in range(0, size, 8):
        differ = word_at(address, begin + i) ^ word_at(other, other_begin + i)
        if size - i < 8:
            differ &= (_ONE << np.uint64(8 * (size - i))) - _ONE
        if differ != 0:
            return False
    return True


@inlined
def probes(slots: Any) -> int:
    """The number of slots to probe. It is a variable because numba unrolls a loop over a constant, which is slower."""
    return min(MAX_PROBES, len(slots))


@compiled
def find(slots: Any, ends: Any, text: int, last: int, address: int, begin: int, size: int, h: np.uint64) -> Any:
    """The number of the name with the hash `h` at `begin`; 0 if it is unknown, -1 if that is not certain.

    The first four arguments are the first four members of a `Table`.
    """
    mask, upper = np.uint64(len(slots) - 1), h >> _UPPER
    index = h & mask
    for _ in range(probes(slots)):
        slot = slots[index]
        if slot == 0:
            return 0
        if slot >> _UPPER == upper:
            number = np.int64(slot & _NUMBER)
            if number <= last:
                start = ends[number - 1]
                if ends[number] - start == size and same_bytes(address, begin, text, start, size):
                    return number
        index = (index + _ONE) & mask
    return -1


@compiled
def _put(slots: Any, ends: Any, text: int, numbers: Any, seed: np.uint64) -> int:
    """Give slots to names. Returns how many get none; their numbers are moved to the front of `numbers`."""
    mask, slotless = np.uint64(len(slots) - 1), 0
    for number in numbers:
        h = hash_of(text, ends[number - 1], ends[number], seed)
        index = h & mask
        for _ in range(probes(slots)):
            if slots[index] == 0:
                slots[index] = (h >> _UPPER) << _UPPER | np.uint64(number)
                break
            index = (index + _ONE) & mask
        else:
            numbers[slotless] = number
            slotless += 1
    return slotless


@compiled
def hash_each(address: int, names: Any, into: Any, seed: np.uint64) -> None:
    """The hashes of names, each an offset and a size."""
    for i in range(len(names)):
        into[i] = hash_of(address, names[i, 0], names[i, 0] + names[i, 1], seed)


@compiled
def copy_bytes(address: int, begin: int, size: int, into: Any, end: int) -> int:
    """Append bytes to the used part of an array, which has this end; returns the new end."""
    for j in range(size):
        into[end + j] = byte_at(address, begin + j)
    return end + size


@compiled
def gather_names(address: int, names: Any, into: Any) -> None:
    """Copy names one after another."""
    end = 0
    for i in range(len(names)):
        end = copy_bytes(address, names[i, 0], names[i, 1], into, end)


@compiled
def find_each(slots: Any, ends: Any, text: int, last: int, address: int, names: Any, hashes: Any, into: Any) -> Any:
    """The number of each name, 0 for an unknown one; returns how many are 0, and how many of these are not certain."""
    unknown, unsure = 0, 0
    for i in range(len(hashes)):
        number = find(slots, ends, text, last, address, names[i, 0], names[i, 1], hashes[i])
        unknown += number <= 0
        unsure += number < 0
        into[i] = max(number, 0)
    return unknown, unsure


@compiled
def _find_all(slots: Any, ends: Any, text: int, last: int, address: int, cuts: Any, seed: np.uint64, into: Any) -> int:
    """As `find_each`, for names without hashes that end at `cuts`; returns how many are not certain."""
    unsure = 0
    for i in range(len(into)):
        h = hash_of(address, cuts[i], cuts[i + 1], seed)
        number = find(slots, ends, text, last, address, cuts[i], cuts[i + 1] - cuts[i], h)
        unsure += number < 0
        into[i] = max(number, 0)
    return unsure


@compiled
def number_each(
    address: int, names: Any, hashes: Any, unnumbered: Any, slots: Any, firsts: Any, number: int, into: Any
) -> int:
    """Number the names at the indices `unnumbered`, from `number` on, at most as many as `firsts` has room for.

    Fills `firsts` with the index at which each new name comes first. `slots` are zeros, at least twice as many as
    indices. Returns how many names got a number, or -1 if too many collide to be certain.
    """
    mask, count = np.uint64(len(slots) - 1), 0
    for i in unnumbered:
        begin, size, upper, index = names[i, 0], names[i, 1], hashes[i] >> _UPPER, hashes[i] & mask
        for _ in range(probes(slots)):
            slot = slots[index]
            if slot == 0:
                if count < len(firsts):
                    firsts[count], into[i] = i, number + count
                    count += 1
                    slots[index] = upper << _UPPER | np.uint64(count)
                break
            new = np.int64(slot & _NUMBER) - 1
            start, length = names[firsts[new], 0], names[firsts[new], 1]
            if slot >> _UPPER == upper and length == size and same_bytes(address, begin, address, start, size):
                into[i] = number + new
                break
            index = (index + _ONE) & mask
        else:
            return -1
    return count
