"""Looks over a record's bytes, compiled: how deep it is nested, where its known members stand, is a name there twice.

It reads no value. It costs the same for each byte, whatever the bytes are, where a parser makes an object of each
bracket: so a record that is of no use costs the event loop little.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.compiled import compiled

MAX_DEPTH = 64
"""JSON nested deeper is refused: parsers recurse, and how far depends on who calls them."""

WHITE = b" \t\n\r"
# What the standard library takes for JSON and msgspec does not, and what both take in its place; lengths stay.
_NOT_FINITE = ((b"NaN", b"[ ]"), (b"-Infinity", b"[       ]"), (b"Infinity", b"[      ]"))
_SURROGATES = ((b"\\ud", b"\\u0"), (b"\\uD", b"\\u0"))
_skip = msgspec.json.Decoder(msgspec.Raw).decode

_START, _END, _ITEMS, _PARTS = range(4)
_QUOTE, _BACKSLASH, _COLON, _COMMA, _LETTER_U = b'"\\:,u'
_BRACKET, _BRACKET_END, _BRACE, _BRACE_END = b"[]{}"
_SPACE, _TAB, _NEWLINE, _RETURN = WHITE
_PRIME, _HASH = 1099511628211, (1 << 63) - 1
_ZERO, _NINE, _SMALL_A, _SMALL_F, _LARGE_A, _LARGE_F = b"09afAF"


class Member(NamedTuple):
    """Where a member's value stands in the record."""

    start: int
    end: int
    items: int
    """Members of an object or values of a list."""
    parts: int
    """Its commas, lists and objects at any depth, itself among them."""


class Scan(NamedTuple):
    """What a record's text looks like."""

    deepest: int
    """The most lists and objects open at once."""
    end: int
    """Behind the first list or object of the text, or -1."""
    parts: int
    """Commas, lists and objects at any depth."""
    twice: str | None
    """Which of the known members the outermost object gives twice first."""
    members: dict[str, Member]
    """The known members of the outermost object, where each is given first."""


def scan(raw: bytes, names: tuple[str, ...] = ()) -> Scan:
    """Look over JSON text for the members of these `names` (ASCII) in its outermost object.

    Of what is no JSON `deepest` means something, and `end` where a list or object ends there.
    """
    found = np.full((len(names), 4), -1)
    deepest, end, parts, again = _scan(raw, _table(names), found)
    rows = zip(names, found.tolist(), strict=True)
    members = {name: Member(*row) for name, row in rows if row[_START] >= 0}
    return Scan(deepest, end, parts, names[again] if again >= 0 else None, members)


def distinct(raw: bytes) -> bool:
    """Whether no object in JSON text has a member twice; of names that are escaped or nested deep it is not sure."""
    return bool(_distinct(raw, 4 << raw.count(b":").bit_length()))


def elements(raw: bytes, within: Member) -> list[tuple[int, int]]:
    """Where each of a list's `within.items` values stands: what is between its commas, or its brackets."""
    begin, end = raw.index(b"[", within.start) + 1, raw.rindex(b"]", within.start, within.end)
    commas = np.full(max(within.items - 1, 0), end)
    _commas(raw, begin, end, commas)
    edges = [begin - 1, *commas.tolist(), end]
    return [(edges[i] + 1, edges[i + 1]) for i in range(within.items)]


@cache
def _table(names: tuple[str, ...]) -> NDArray[np.int64]:
    """The names' characters, a row each; behind each name is a zero at least, which no name has."""
    table = np.zeros((len(names), 1 + max(map(len, names), default=0)), np.int64)
    for row, name in zip(table, names, strict=True):
        row[: len(name)] = list(name.encode())
    return table


def look(raw: bytes, names: tuple[str, ...] = ()) -> Scan:
    """What the text of a list or object looks like; raises Rejected where it is no JSON, as `parse` of all of it would.

    Of what is not finite it says nothing: that is for those who know what it stands for.
    """
    found = scan(raw, names)
    if found.deepest > MAX_DEPTH:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    try:
        raw.decode()
        _skip(raw)
    except UnicodeDecodeError as error:
        raise Rejected("not-json", f"not UTF-8 at byte {error.start}") from None
    except msgspec.MsgspecError as error:
        finite = _replaced(raw, _NOT_FINITE)
        if _is_json(finite):
            return found
        whole = _replaced(finite, _SURROGATES)
        if _is_json(whole):
            raise Rejected("not-json", "half of a surrogate pair in a string") from None
        more = raw[found.end :].lstrip(WHITE)
        if found.end >= 0 and more and _is_json(whole[: found.end]):
            raise Rejected("trailing-bytes", f"more bytes follow the event at byte {len(raw) - len(more)}") from None
        raise Rejected("not-json", str(error)) from None
    return found


def refuse_constants(raw: bytes) -> None:
    """Raise Rejected where text that `look` takes has a NaN or an infinity, which are no JSON."""
    try:
        _skip(raw)
    except msgspec.MsgspecError as error:
        raise Rejected("not-json", str(error)) from None


def _replaced(raw: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    for old, new in pairs:
        raw = raw.replace(old, new)
    return raw


def _is_json(raw: bytes) -> bool:
    try:
        _skip(raw)
    except msgspec.MsgspecError:
        return False
    return True


@compiled
def _scan(raw: bytes, names: NDArray[np.int64], found: NDArray[np.int64]) -> tuple[int, int, int, int]:
    depth = deepest = first = last = parts = i = 0
    end = again = member = -1
    listed, size = False, len(raw)
    while i < size:
        c = raw[i]
        if listed and depth == 2 and found[member, _ITEMS] == 0 and c != _BRACKET_END:
            found[member, _ITEMS] = c not in (_SPACE, _TAB, _NEWLINE, _RETURN)
        if c == _QUOTE:
            first = i = i + 1
            while i < size and raw[i] != _QUOTE:
                if raw[i] == _BACKSLASH:
                    i += 1
                i += 1
            last = i
        elif c in (_BRACKET, _BRACE):
            depth += 1
            deepest = max(deepest, depth)
            parts += 1
            if member >= 0 and depth == 2:
                listed = c == _BRACKET
        elif c in (_BRACKET_END, _BRACE_END):
            depth -= 1
            if depth == 0 and end < 0:
                end = i + 1
        elif c == _COLON and depth == 1:
            member, listed = _member(raw, first, last, names), False
            if member >= 0 and found[member, _START] >= 0:
                again, member = again if again >= 0 else member, -1
            elif member >= 0:
                found[member, _START], found[member, _ITEMS], found[member, _PARTS] = i + 1, 0, parts
        elif member >= 0 and depth == 2 and c == (_COMMA if listed else _COLON):
            found[member, _ITEMS] += 1
        if member >= 0 and (depth == 0 or (depth == 1 and c == _COMMA)):
            found[member, _END], found[member, _PARTS] = i, parts - found[member, _PARTS]
            member, listed = -1, False
        parts += c == _COMMA
        i += 1
    return deepest, end, parts, again


@compiled
def _distinct(raw: bytes, slots: int) -> bool:
    """By a table of `slots`, a power of two: one for each object and name, a hash that is theirs alone or not sure."""
    table, open_ = np.zeros(slots, np.int64), np.zeros(MAX_DEPTH + 1, np.int64)
    objects = depth = first = last = i = 0
    escaped, size = False, len(raw)
    while i < size:
        c = raw[i]
        if c == _QUOTE:
            first, escaped = i + 1, False
            i += 1
            while i < size and raw[i] != _QUOTE:
                if raw[i] == _BACKSLASH:
                    i, escaped = i + 1, True
                i += 1
            last = i
        elif c in (_BRACKET, _BRACE):
            depth += 1
            if depth > MAX_DEPTH:
                return False
            objects += 1
            open_[depth] = objects
        elif c in (_BRACKET_END, _BRACE_END):
            depth -= 1
        elif c == _COLON:
            if escaped:
                return False
            # Fowler, Noll and Vo's hash of the object's number and the name, never 0.
            h = (int(open_[depth]) * _PRIME) & _HASH
            for j in range(first, last):
                h = ((h ^ raw[j]) * _PRIME) & _HASH
            h |= 1
            at = (h >> 20) & (slots - 1)
            while table[at] != 0:
                if table[at] == h:
                    return False
                at = (at + 1) & (slots - 1)
            table[at] = h
        i += 1
    return True


@compiled
def _commas(raw: bytes, i: int, end: int, commas: NDArray[np.int64]) -> None:
    """Where the first commas of a list's own stand: JSON from `i` to `end`, what is between its brackets."""
    depth = count = 0
    while i < end and count < len(commas):
        c = raw[i]
        if c == _QUOTE:
            i += 1
            while i < end and raw[i] != _QUOTE:
                i += 2 if raw[i] == _BACKSLASH else 1
        elif c in (_BRACKET, _BRACE):
            depth += 1
        elif c in (_BRACKET_END, _BRACE_END):
            depth -= 1
        elif c == _COMMA and depth == 0:
            commas[count] = i
            count += 1
        i += 1


@compiled
def _member(raw: bytes, first: int, last: int, names: NDArray[np.int64]) -> int:
    """Which of the names the string there is, its characters escaped or not; else -1."""
    for name in range(len(names)):
        i, j, alike = first, 0, True
        while alike and i < last:
            c = raw[i]
            if c == _BACKSLASH:
                alike, c = i + 5 < last and raw[i + 1] == _LETTER_U, 0
                for digit in range(i + 2, i + 6) if alike else range(0):
                    c = 16 * c + _hexadecimal(raw[digit])
                i += 5
            i += 1
            alike = alike and c != 0 and c == names[name, j]
            j += 1
        if alike and names[name, j] == 0:
            return name
    return -1


@compiled
def _hexadecimal(c: int) -> int:
    if _ZERO <= c <= _NINE:
        return c - _ZERO
    if _SMALL_A <= c <= _SMALL_F:
        return c - _SMALL_A + 10
    return c - _LARGE_A + 10 if _LARGE_A <= c <= _LARGE_F else 1 << 20
