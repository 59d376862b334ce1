"""The paths to the parts of an event, and what may stand there, as arrays for compiled loops.

And one compiled scan of a JSON text for the members at some paths, and how many values they contain. It parses no
value, and costs the same for each byte. It does not check that the text is JSON.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.columns.name_table import encode_names, same_bytes
from service.learning.events.compiled.json_tokens import ESCAPES, FALSE, HEX, NULL, TRUE
from service.learning.events.json_values import MAX_DEPTH, Path
from service.learning.jit import compiled, inlined

MAX_EXACT_INTEGER = 1 << 53
FEATURES, LABEL, WEIGHT, ID, WHERE = range(5)
"""The parts of an event. From WHERE on, each pointer of `where` is a part."""
PART, FIRST_CHILD, END_CHILD, NAME_END = range(4)
"""The columns of a tree's nodes."""
Paths = tuple[Path | None, ...]
"""Paths into a record; None for a part that the model does not have."""
Codes = dict[tuple[bool, Any], float]
"""A number for each of some values, such as the sign of a label, by (is it a literal, value): in Python true is 1."""
TOO_DEEP = -2
"""The end that a scan returns for a text that is nested too deeply."""

_QUOTE, _BACKSLASH, _LETTER_U = b'"\\u'
_KINDS = np.array([b'"[{]}:, \t\n\r'.find(c) for c in range(256)], np.int8)
"""The kind of a character: _STRING, _OPEN and so on; -1 is part of a number or a literal."""
_BEGIN, _END, _VALUES, _ITEMS = range(4)


class PathTree(NamedTuple):
    """The names on some paths as a tree. Node 0 is the whole value; the children of a node follow each other.

    A row of `nodes` has the number of the path that ends there or -1, the first child, the node after the last child,
    and the end of the node's name in `names`. The name begins at the end of the previous node's name.
    """

    nodes: NDArray[np.int64]
    names: NDArray[np.uint8]
    paths: Sequence[Path]
    """The path of each node."""
    ends: Sequence[int]
    """The node at which each path ends; -1 for None."""


@cache
def path_tree(paths: Paths) -> PathTree:
    """The tree of these paths. A path's number is its index here; of equal paths the first counts.

    >>> tree = path_tree((("a", "b"), None, ("a",)))
    >>> tree.nodes.tolist(), tree.ends
    ([[-1, 1, 2, 0], [2, 2, 3, 1], [0, 3, 3, 2]], [2, -1, 1])
    """
    nodes, rows = list[Path]([()]), list[tuple[int, int, int]]()
    for path in nodes:  # it grows
        size = len(path)
        inner = dict.fromkeys(p[: size + 1] for p in paths if p is not None and len(p) > size and p[:size] == path)
        rows.append((paths.index(path) if path in paths else -1, len(nodes), len(nodes) + len(inner)))
        nodes += inner
    names = encode_names([path[-1] if path else "" for path in nodes])
    ends = [-1 if path is None else nodes.index(path) for path in paths]
    return PathTree(np.column_stack([np.array(rows, np.int64), names.ends[1:]]), names.text, nodes, ends)


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


class MemberSpan(NamedTuple):
    """The position of a member's value in the text."""

    begin: int
    end: int
    values: int
    """Members of objects and elements of lists in the value, at any depth."""
    items: int
    """Members or elements of the value itself."""


def scan(
    raw: bytes, paths: Paths, commas: NDArray[np.int64] | None = None
) -> tuple[int, list[MemberSpan | None], Path | None]:
    """Find the values at these paths of an object; the result is right if the text is JSON.

    Returns the end of the text's first list or object (-1 if there is none, or TOO_DEEP), the value at each path (the
    first one if a name is repeated), and the first path that the text has twice. Fills `commas` with the offsets of the
    commas between the items of the outermost members that are on a path.
    """
    tree = path_tree(paths)
    spans = np.empty((len(tree.nodes), 4), np.int64)
    end, twice = _scan(raw, tree.nodes, tree.names, spans, np.empty(0, np.int64) if commas is None else commas)
    rows = [*spans.tolist(), (-1, -1, 0, 0)]
    members = [MemberSpan(*rows[node]) if rows[node][_END] >= 0 else None for node in tree.ends]
    return end, members, tree.paths[twice] if twice >= 0 else None


_STRING, _LIST, _OBJECT, _LIST_END, _OBJECT_END, _AFTER_NAME, _NEXT, _SPACE = range(8)


@compiled
def _scan(raw: bytes, nodes: Any, names: Any, spans: Any, commas: Any) -> tuple[int, int]:  # noqa: PLR0915
    """Scan a text to the end of its first list or object in one pass; returns the end, and the node of a repeated path.

    Fills in a row of `spans` for each node: begin, end, values, items.
    """
    objects, members = np.full(MAX_DEPTH + 2, -1), np.full(MAX_DEPTH + 2, -1)
    items = np.zeros(MAX_DEPTH + 2, np.int64)
    """By depth: the node of the open object, the node of its current member, the items so far."""
    i, depth, values, first, last, cuts, twice = 0, 0, 0, 0, 0, 0, -1
    members[0], opened = 0, False
    spans[:] = -1
    while i < len(raw):
        kind = _KINDS[raw[i]]
        i += 1
        if kind >= _SPACE:
            continue
        if opened:
            opened = False
            if kind not in (_LIST_END, _OBJECT_END):
                values, items[depth] = values + 1, 1
        if kind < 0:
            while i < len(raw) and _KINDS[raw[i]] < 0:
                i += 1
            continue
        if kind == _STRING:
            first = i
            while i < len(raw) and raw[i] != _QUOTE:
                i += 2 if raw[i] == _BACKSLASH else 1
            last = min(i, len(raw))
            i += 1
        elif kind in (_LIST, _OBJECT):
            if depth == MAX_DEPTH:
                return TOO_DEEP, twice
            depth += 1
            objects[depth] = members[depth - 1] if kind == _OBJECT else -1
            members[depth], items[depth], opened = -1, 0, True
        elif kind == _AFTER_NAME:
            node = -1 if objects[depth] < 0 else _child(raw, first, last, objects[depth], nodes, names)
            members[depth] = node
            if node >= 0 and spans[node, _BEGIN] >= 0:
                twice, members[depth] = node if twice < 0 else twice, -1
            elif node >= 0:
                spans[node, _BEGIN], spans[node, _VALUES], items[depth + 1] = i, values, 0
        elif depth > 0:
            node = members[depth]
            if node >= 0:
                spans[node, _END], spans[node, _VALUES] = i - 1, values - spans[node, _VALUES]
                spans[node, _ITEMS], members[depth] = items[depth + 1], -1
            if kind == _NEXT:
                if depth == 2 and members[1] >= 0 and cuts < len(commas):
                    commas[cuts] = i - 1
                    cuts += 1
                values, items[depth] = values + 1, items[depth] + 1
            else:
                depth -= 1
                if depth == 0:
                    spans[0, _BEGIN], spans[0, _END], spans[0, _VALUES], spans[0, _ITEMS] = 0, i, values, items[1]
                    return i, twice
    return -1, twice


@compiled
def _child(raw: bytes, first: int, last: int, node: int, nodes: Any, names: Any) -> int:
    """The child of a node whose name is the string from `first` to `last`, or -1."""
    for child in range(nodes[node, FIRST_CHILD], nodes[node, END_CHILD]):
        if _is_name(raw, first, last, names, nodes[child - 1, NAME_END], nodes[child, NAME_END]):
            return child
    return -1


@compiled
def _is_name(raw: bytes, i: int, last: int, names: Any, j: int, end: int) -> bool:
    """Whether the string from i to `last`, its escapes resolved, is the name from j to `end` in UTF-8."""
    while i < last:
        code, following, escaped = np.int64(raw[i]), 0, raw[i] == _BACKSLASH
        i += 1
        if escaped and i < last:
            code = ESCAPES[raw[i]]
            i += 1
            if raw[i - 1] == _LETTER_U:
                code, i = _hexadecimal(raw, i, last), i + 4
                if 0xD800 <= code < 0xDC00 and i + 1 < last and raw[i] == _BACKSLASH and raw[i + 1] == _LETTER_U:
                    code, i = 0x10000 + ((code & 0x3FF) << 10 | _hexadecimal(raw, i + 2, last) & 0x3FF), i + 6
                if code >= 0x80:
                    following = 1 if code < 0x800 else 2 if code < 0x10000 else 3
        # An escaped character as UTF-8: its first byte, then six bits in each following byte.
        first = code if following == 0 else (0xF0 << 3 - following) & 0xFF | code >> 6 * following
        for k in range(following, -1, -1):
            byte = first if k == following else 0x80 | (code >> 6 * k) & 0x3F
            if j == end or names[j] != byte:
                return False
            j += 1
    return bool(j == end)


@compiled
def _hexadecimal(raw: bytes, i: int, last: int) -> int:
    """The number that four hexadecimal digits make; any number if they are not digits, as the text is not JSON then."""
    code = 0
    for k in range(i, min(i + 4, last)):
        code = 16 * code + HEX[raw[k]]
    return code
