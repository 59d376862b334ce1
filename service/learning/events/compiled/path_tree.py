"""The paths to the parts of an event, and what may stand there, as arrays for compiled loops."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.columns.name_table import encode_names, same_bytes
from service.learning.events.compiled.json_tokens import FALSE, NULL, TRUE
from service.learning.events.json_pointer import Path
from service.learning.jit.jit import compiled, inlined

MAX_EXACT_INTEGER = 1 << 53
FEATURES, LABEL, WEIGHT, ID, WHERE = range(5)
"""The parts of an event. From WHERE on, each pointer of `where` is a part."""
PART, FIRST_CHILD, END_CHILD, NAME_END = range(4)
"""The columns of a tree's nodes."""
Paths = tuple[Path | None, ...]
"""Paths into a record; None for a part that the model does not have."""


Codes = dict[tuple[bool, Any], float]
"""A number for each of some values, such as the sign of a label, by (is it a literal, value): in Python true is 1."""


class PathTree(NamedTuple):
    """The names on some paths as a tree. Node 0 is the whole value; the children of a node follow each other.

    A row of `nodes` has the number of the path that ends there or -1, the first child, the node after the last child,
    and the end of the node's name in `names`. The name begins at the end of the previous node's name.
    """

    nodes: NDArray[np.int64]
    names: NDArray[np.uint8]
    paths: Sequence[Path]
    """The path of each node."""


def path_tree(paths: Sequence[Path | None]) -> PathTree:
    """The tree of these paths. A path's number is its index here; of equal paths the first counts.

    >>> path_tree([("a", "b"), None, ("a",)]).nodes.tolist()
    [[-1, 1, 2, 0], [2, 2, 3, 1], [0, 3, 3, 2]]
    """
    nodes, rows = list[Path]([()]), list[tuple[int, int, int]]()
    for path in nodes:  # it grows
        size = len(path)
        inner = dict.fromkeys(p[: size + 1] for p in paths if p is not None and len(p) > size and p[:size] == path)
        rows.append((paths.index(path) if path in paths else -1, len(nodes), len(nodes) + len(inner)))
        nodes += inner
    names = encode_names([path[-1] if path else "" for path in nodes])
    return PathTree(np.column_stack([np.array(rows, np.int64), names.ends[1:]]), names.text, nodes)


class UnsupportedError(Exception):
    """Only the careful reader reads the events of this identity."""


def expected_values(parts: Sequence[Codes]) -> tuple[NDArray[Any], ...]:
    """The values that may stand at each part, and the code of each, as `json_parser.parse_values` takes them.

    Raises UnsupportedError.
    """
    numbers, strings = list[tuple[float, float]](), list[tuple[str, float]]()
    firsts, literals = [(0, 0)], np.full((len(parts), 3), math.nan)
    for part, codes in enumerate(parts):
        for (is_literal, value), code in codes.items():
            if is_literal:
                literals[part, {None: NULL, False: FALSE, True: TRUE}[value]] = code
            elif isinstance(value, str):
                strings.append((value, code))
            elif abs(value) > MAX_EXACT_INTEGER:
                raise UnsupportedError
            else:
                numbers.append((float(value), code))
        firsts.append((len(numbers), len(strings)))
    texts = encode_names([string for string, _ in strings])
    string_codes, pairs = np.array([code for _, code in strings], float), np.array(numbers, float).reshape(-1, 2)
    return np.array(firsts, np.int64).T.copy(), pairs, texts.ends, string_codes, literals, texts.text


@compiled
def child_of(node: int, data: int, begin: int, size: int, nodes: Any, names: int) -> int:
    """The child of a node whose name stands at `begin`, or -1."""
    for child in range(nodes[node, FIRST_CHILD], nodes[node, END_CHILD]):
        start = nodes[child - 1, NAME_END]
        if nodes[child, NAME_END] - start == size and same_bytes(data, begin, names, start, size):
            return child
    return -1


@compiled
def is_leaf(nodes: Any, node: int) -> bool:
    """Whether no path goes through this node; -1 is a node that is not in the tree."""
    return node < 0 or bool(nodes[node, FIRST_CHILD] == nodes[node, END_CHILD])


@inlined
def code_of_number(part: int, value: float, firsts: Any, numbers: Any) -> Any:
    """The code of a number at a part, or NaN."""
    for k in range(firsts[0, part], firsts[0, part + 1]):
        if numbers[k, 0] == value:
            return numbers[k, 1]
    return math.nan


@inlined
def code_of_string(part: int, data: int, begin: int, size: int, firsts: Any, ends: Any, texts: int, codes: Any) -> Any:
    """The code of a string at a part, or NaN."""
    for k in range(firsts[1, part], firsts[1, part + 1]):
        if ends[k + 1] - ends[k] == size and same_bytes(data, begin, texts, ends[k], size):
            return codes[k]
    return math.nan
