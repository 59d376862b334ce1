"""Where the parts of an event stand, and what may stand there, as arrays that a compiled loop looks them up in."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.learning.compiled import compiled
from service.learning.names import BEHIND, same
from service.learning.tokens import FALSE, TRUE

MOST_EXACT = 1 << 53
FEATURES, LABEL, WEIGHT, ID, WHERE = range(5)
"""What stands at a place; behind them one for each pointer of `where`."""


class UnsuitedError(Exception):
    """The identity is one whose events only `events` reads."""


def wanted(places: Sequence[dict[tuple[bool, Any], float]]) -> tuple[Any, ...]:
    """What may stand at each place, and the code of each, as `read` takes it; raises UnsuitedError.

    By (is it a boolean, value), as `events.label_signs` has them.
    """
    numbers, strings = list[tuple[float, float]](), list[tuple[bytes, float]]()
    firsts, literals = [(0, 0)], np.full((len(places), 3), math.nan)
    for place, codes in enumerate(places):
        own = list[tuple[float, float]]()
        for (is_bool, value), code in codes.items():
            if is_bool:
                literals[place, TRUE if value else FALSE] = code
            elif isinstance(value, str):
                strings.append((value.encode(errors="surrogatepass"), code))
            elif abs(value) > MOST_EXACT:
                raise UnsuitedError
            else:
                own.append((float(value), code))
        numbers += sorted(own)
        firsts.append((len(numbers), len(strings)))
    ends, text = _text([string for string, _ in strings])
    return (
        np.array(firsts, np.int64).T.copy(), np.array(numbers, float).reshape(-1, 2), ends,
        np.array([code for _, code in strings], float), text, literals,
    )  # fmt: skip


def ways(places: Sequence[tuple[str, ...] | None]) -> tuple[Any, Any]:
    """The names on the way to each place, as `read` takes them: a tree of nodes, of which the first is the record.

    A node has its place or -1, its first child and the node behind the last, and where its name ends. Raises
    UnsuitedError where a way goes through another place than features.
    """
    paths, rows = list[tuple[str, ...]]([()]), list[tuple[int, int, int]]()
    for path in paths:
        at = [place for place, one in enumerate(places) if one == path]
        beyond = dict.fromkeys(
            one[: len(path) + 1]
            for one in places
            if one is not None and len(one) > len(path) and one[: len(path)] == path
        )
        if len(at) > 1 or (at and at[0] != FEATURES and beyond):
            raise UnsuitedError
        rows.append((at[0] if at else -1, len(paths), len(paths) + len(beyond)))
        paths += beyond
    ends, text = _text([path[-1].encode(errors="surrogatepass") if path else b"" for path in paths])
    return np.column_stack([np.array(rows, np.int64), ends[1:]]), text


def _text(parts: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Where each ends, from 0 on, and all of them joined, with room behind."""
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return ends, np.frombuffer(b"".join(parts) + bytes(BEHIND), np.uint8)


@compiled
def child_of(node: int, data: int, begin: int, size: int, nodes: Any, names: int) -> int:
    """The node that a member of this name leads to, or -1."""
    for child in range(nodes[node, 1], nodes[node, 2]):
        start = nodes[child - 1, 3]
        if nodes[child, 3] - start == size and same(data, begin, names, start, size):
            return child
    return -1


@compiled
def is_leaf(nodes: Any, node: int) -> bool:
    """Whether no member of the object at this node matters by itself."""
    return bool(nodes[node, 1] == nodes[node, 2])


@compiled
def code_of_number(place: int, value: float, firsts: Any, numbers: Any) -> Any:
    """The code of a number at a place, or NaN."""
    low, high = firsts[0, place], firsts[0, place + 1]
    while low < high:
        middle = (low + high) // 2
        if numbers[middle, 0] < value:
            low = middle + 1
        else:
            high = middle
    return numbers[low, 1] if low < firsts[0, place + 1] and numbers[low, 0] == value else math.nan


@compiled
def code_of_string(
    place: int, data: int, begin: int, size: int, firsts: Any, ends: Any, strings: int, codes: Any
) -> Any:
    """The code of a string at a place, or NaN."""
    for k in range(firsts[1, place], firsts[1, place + 1]):
        if ends[k + 1] - ends[k] == size and same(data, begin, strings, ends[k], size):
            return codes[k]
    return math.nan
