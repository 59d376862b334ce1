"""Names and the numbers they were given, both ways: a hash table over one buffer of all names.

A hash is seeded by the process and proves nothing: a name is what its bytes are. Names that somebody made to collide
cost no more than `MOST_PROBES` each; those that get no slot within them are in a dictionary beside the table, as are
all where nothing is compiled.
"""

import secrets
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from service.learning.jit.intrinsics import byte_at, leading_zeros, word_at
from service.learning.jit.jit import ENABLED, compiled, inlined

SEED = np.uint64(secrets.randbits(64))
MOST_PROBES = 64
BEHIND = 8
"""So many bytes behind a name are there and may be read."""
_ONE, _PRIME = np.uint64(1), np.uint64(0x9E3779B97F4A7C15)
_SHIFT, _UPPER = np.uint64(29), np.uint64(32)
_NUMBER = np.uint64(0xFFFFFFFF)


class Utf8Names(Sequence[str]):
    """Names in UTF-8, the i-th as `text[ends[i]:ends[i + 1]]`: each is made a string when it is asked for."""

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.int64], count: int) -> None:
        self.text, self.ends, self._count = text, ends, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, of: int) -> str: ...
    @overload
    def __getitem__(self, of: slice) -> list[str]: ...
    def __getitem__(self, of: int | slice) -> str | list[str]:
        if not isinstance(of, slice):
            i = range(self._count)[of]
            begin, end = self.ends[i : i + 2].tolist()
            return self.text[begin:end].tobytes().decode(errors="surrogatepass")
        first, last, _ = of.indices(self._count)
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

    __hash__ = None  # type: ignore[assignment]  # as of a list


def encode_names(names: Sequence[str]) -> Utf8Names:
    """These, with BEHIND bytes more."""
    parts: Sequence[str | bytes] = names
    text = "".join(names)
    if not text.isascii():  # else each name has as many bytes as letters, and a million take a fifth of the time
        parts = [name.encode(errors="surrogatepass") for name in names]
    ends = np.zeros(len(names) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=ends[1:])
    return Utf8Names(np.frombuffer(text.encode(errors="surrogatepass") + bytes(BEHIND), np.uint8), ends, len(names))


class Table(NamedTuple):
    """What names are known by at one time: those that are added later are none, though they be there.

    `slots` have the upper half of a hash and a number each, 0 where there is none, and stand where its first bits say;
    name i is at `text` (an address) from `ends[i - 1]` to `ends[i]`, for i from 1 to `known`. So much is for compiled
    loops.
    """

    slots: NDArray[np.uint64]
    ends: NDArray[np.int64]
    text: int
    known: int
    slotless: dict[str, int]
    """The numbers of names that have no slot."""
    letters: NDArray[np.uint8]
    """What `text` is the address of."""


class NameTable(Utf8Names):
    """Names and their numbers from 1 on, in the order in which they were added; never removed.

    Another thread may look for names while some are added.

    >>> names = Names()
    >>> names.add(["a", "b"])
    >>> names[1], names.numbers_of(["b", "c"]).tolist()
    ('b', [2, 0])
    """

    def __init__(self) -> None:
        super().__init__(np.zeros(1024, np.uint8), np.zeros(64, np.int64), 0)
        self.table = Table(np.zeros(64, np.uint64), self.ends, self.text.ctypes.data, 0, {}, self.text)

    def add(self, names: Sequence[str]) -> None:
        """Number these, which are new, on from the last."""
        more = names if isinstance(names, Utf8Names) else encode_names(names)
        known, begin, slots, slotless = self._count, int(self.ends[self._count]), self.table.slots, self.table.slotless
        sizes = more.ends[: len(more) + 1]
        count, end = known + len(more), begin + int(sizes[-1])
        self.text, self.ends = room(self.text, begin, end + BEHIND), room(self.ends, known + 1, count + 1)
        self.text[begin:end] = more.text[: end - begin]
        self.ends[known + 1 : count + 1] = begin + sizes[1:]
        self._count, address = count, self.text.ctypes.data
        left = np.arange(known + 1, count + 1)
        if 2 * count > len(slots):
            left = np.concatenate([np.array([*slotless.values()], np.int64), left])
            # Not `zeros`, whose memory lies in no huge pages: the names are looked for all over it.
            old, slots, slotless = slots, np.full(2 << count.bit_length(), 0, np.uint64), {}
            if ENABLED and not _move(old, slots):
                slots[:], left = 0, np.arange(1, count + 1)
        if ENABLED:
            left = left[: _put(slots, self.ends, address, left, SEED)]
        slotless.update((self[number - 1], number) for number in left.tolist())
        self.table = Table(slots, self.ends, address, count, slotless, self.text)

    def numbers_of(self, names: Sequence[str]) -> NDArray[np.uint32]:
        """The number of each of these, 0 where it has none."""
        table, numbers, unsure = self.table, np.zeros(len(names), np.uint32), len(names)
        if ENABLED:
            found = encode_names(names)
            unsure = _find_all(*table[:4], found.text.ctypes.data, found.ends, SEED, numbers)
        if unsure:
            without = np.flatnonzero(numbers == 0)
            numbers[without] = [table.slotless.get(names[i], 0) for i in without.tolist()]
        return numbers


def room(array: NDArray[Any], used: int, count: int) -> NDArray[Any]:
    """An array with at least `count` places that begins with the `used` values of this one."""
    if count <= len(array):
        return array
    longer = np.empty((2 * count, *array.shape[1:]), array.dtype)
    longer[:used] = array[:used]
    return longer


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
def same_bytes(address: int, begin: int, other: int, at: int, size: int) -> bool:
    """Whether so many bytes are the same; as many as eight more are read behind them."""
    for i in range(0, size, 8):
        differ = word_at(address, begin + i) ^ word_at(other, at + i)
        if size - i < 8:
            differ &= (_ONE << np.uint64(8 * (size - i))) - _ONE
        if differ != 0:
            return False
    return True


@inlined
def _place_of(h: np.uint64, slots: Any) -> np.uint64:
    """Where a hash is looked for first, by its first bits: of names that are in order another table has that order."""
    return h >> np.uint64(leading_zeros(np.uint64(len(slots))) + 1)


@inlined
def probes(slots: Any) -> int:
    """How many slots are looked at. A loop of a number that a compiler knows is written out, and far slower."""
    return min(MOST_PROBES, len(slots))


@compiled
def find(slots: Any, ends: Any, text: int, known: int, address: int, begin: int, size: int, h: np.uint64) -> Any:
    """The number of the name of this hash that begins there; 0 where there is none, and -1 where that is not sure.

    The first four are a `Table`'s.
    """
    mask, upper = np.uint64(len(slots) - 1), h >> _UPPER
    at = _place_of(h, slots)
    for _ in range(probes(slots)):
        slot = slots[at]
        if slot == 0:
            return 0
        if slot >> _UPPER == upper:
            number = np.int64(slot & _NUMBER)
            if number <= known:
                start = ends[number - 1]
                if ends[number] - start == size and same_bytes(address, begin, text, start, size):
                    return number
        at = (at + _ONE) & mask
    return -1


@compiled
def _put(slots: Any, ends: Any, text: int, numbers: Any, seed: np.uint64) -> int:
    """Give slots to names; the numbers of those that get none come first then, and it returns how many they are."""
    mask, without = np.uint64(len(slots) - 1), 0
    for number in numbers:
        h = hash_of(text, ends[number - 1], ends[number], seed)
        at = _place_of(h, slots)
        for _ in range(probes(slots)):
            if slots[at] == 0:
                slots[at] = (h >> _UPPER) << _UPPER | np.uint64(number)
                break
            at = (at + _ONE) & mask
        else:
            numbers[without] = number
            without += 1
    return without


@compiled
def _move(slots: Any, into: Any) -> bool:
    """Give what has slots those of an empty table, one after the other; whether all got one.

    No name is looked at: it is a matter of 10 milliseconds for a million names instead of 50.
    """
    mask = np.uint64(len(into) - 1)
    for slot in slots[slots != 0]:
        at = _place_of(slot, into)
        for _ in range(probes(into)):
            if into[at] == 0:
                into[at] = slot
                break
            at = (at + _ONE) & mask
        else:
            return False
    return True


@compiled
def hash_each(address: int, names: Any, into: Any, seed: np.uint64) -> None:
    """Hashes of names by where they begin, as -1 - begin, and their sizes."""
    for i in range(len(names)):
        into[i] = hash_of(address, -1 - names[i, 0], names[i, 1] - 1 - names[i, 0], seed)


@compiled
def gather_names(data: int, scratch: int, names: Any, into: Any) -> None:
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
    slots: Any, ends: Any, text: int, known: int, data: int, scratch: int, names: Any, hashes: Any, into: Any
) -> tuple[int, int]:
    """The number of each name, which is in `data`, or in `scratch` where it begins below 0.

    Returns how many numbers are 0, and how many of these are not sure.
    """
    unknown, unsure = 0, 0
    for i in range(len(hashes)):
        begin, address = names[i, 0], data
        if begin < 0:
            begin, address = -1 - begin, scratch
        number = find(slots, ends, text, known, address, begin, names[i, 1], hashes[i])
        unknown += number <= 0
        unsure += number < 0
        into[i] = max(number, 0)
    return unknown, unsure


@compiled
def _find_all(slots: Any, ends: Any, text: int, known: int, address: int, cuts: Any, seed: np.uint64, into: Any) -> int:
    """The number of each name, 0 for an unknown one; returns how many of them are not certain.

    To be short with a few names, not with many.
    """
    unsure = 0
    for i in range(len(into)):
        h = hash_of(address, cuts[i], cuts[i + 1], seed)
        number = find(slots, ends, text, known, address, cuts[i], cuts[i + 1] - cuts[i], h)
        unsure += number < 0
        into[i] = max(number, 0)
    return unsure


@compiled
def number_each(
    data: int, scratch: int, names: Any, hashes: Any, at: Any, slots: Any, firsts: Any, number: int, into: Any
) -> int:
    """Number names that have none, in the order of these places `at`, from `number` on, no more than `firsts` has room.

    Into `firsts` goes where each comes first. `slots` are empty, and twice as many as places. Returns how many names
    got a number, or -1 where that is not sure: too many collide.
    """
    mask, count = np.uint64(len(slots) - 1), 0
    for i in at:
        upper, place = hashes[i] >> _UPPER, hashes[i] & mask
        for _ in range(probes(slots)):
            slot = slots[place]
            if slot == 0:
                if count < len(firsts):
                    firsts[count], into[i] = i, number + count
                    count += 1
                    slots[place] = upper << _UPPER | np.uint64(count)
                break
            known = np.int64(slot & _NUMBER) - 1
            if slot >> _UPPER == upper and _alike(data, scratch, names, i, firsts[known]):
                into[i] = number + known
                break
            place = (place + _ONE) & mask
        else:
            return -1
    return count


@compiled
def _alike(data: int, scratch: int, names: Any, i: int, j: int) -> bool:
    begin, address, other, beside = names[i, 0], data, names[j, 0], data
    if begin < 0:
        begin, address = -1 - begin, scratch
    if other < 0:
        other, beside = -1 - other, scratch
    size = names[i, 1]
    return bool(size == names[j, 1] and same_bytes(address, begin, beside, other, size))
