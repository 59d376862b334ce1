"""Large requests whose instances are all written alike: the same names in the same order, and only the numbers differ.

So most clients write them. Then one look at the first instance says what names there are, a compiled pass over the rest
compares everything but the numbers byte by byte, and msgspec reads these as one list. It is sure, or it is left to
`requests.pieces`, which gives the same by the whole format.
"""

import re
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.learning.compiled import compiled
from service.learning.features import Features, Flattener, certain, names_in
from service.learning.identity import MAX_VALUE
from service.serving.requests import LARGE, typed

NUMBERS = 10_000
"""Read at a time, so that nothing holds the interpreter for long."""
LONGEST = 32
"""Bytes of such a number and its comma, on average: the longest that a program writes has 24."""
_SPACE = rb"[ \t\n\r]*"
_FIRST = {
    bracket: re.compile(rb'%b\{%b"instances"%b:%b\[%b(\{%b"features"%b:%b%b%b\})' % (*[_SPACE] * 8, features, _SPACE))
    for bracket, features in ((list, rb"\[[^\[\]]*\]"), (dict, rb"\{[^{}]*\}"))
}
_BETWEEN = re.compile(rb"%b,%b" % (_SPACE, _SPACE))
_END = re.compile(rb"%b\]%b\}%b" % (_SPACE, _SPACE, _SPACE))
_NUMBER = re.compile(rb'("(?:[^"\\]|\\.)*")|[-+.0-9eE]+')
_HERE = b"\0"
"""Stands for a number in a template: JSON has no such byte."""
_ZERO, _NINE, _DOT, _MINUS, _PLUS, _SMALL_E, _LARGE_E, _COMMA = b"09.-+eE,"
_floats = msgspec.json.Decoder(list[float]).decode


class Alike(NamedTuple):
    """What every instance of a request has to look like."""

    features: Features
    """Those of the first."""
    begin: int
    end: int


def look(body: bytes, flattener: Flattener) -> Alike | None:
    """How the instances of a request look, if like the first; None where that is nothing simple."""
    identity = flattener.identity
    bracket = list if identity.features == "positional" else dict
    found = _FIRST[bracket].match(body, 0, LARGE) if flattener.plain else None
    if found is None:
        return None
    begin, end = found.span(1)
    try:
        (one,) = typed(b'{"instances":[%b]}' % body[begin:end], identity.features).instances
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    features: Features = one.features
    # As many colons as members: see `requests.read`.
    once = body.count(b":", begin, end) == 1 + names_in(features)
    return Alike(features, begin, end) if features and once and certain(features, identity) else None


def values(body: bytes, alike: Alike, max_instances: int) -> Iterator[NDArray[np.float64] | None]:
    """The values of the instances, some rows at a time, or at last None: they are not all alike, or too many.

    For a thread.
    """
    template = _NUMBER.sub(lambda part: part[1] or _HERE, body[alike.begin : alike.end])
    after = _BETWEEN.match(body, alike.end)
    width, at, count, more = len(alike.features), alike.begin, 0, True
    text = np.empty(min(len(body), LONGEST * NUMBERS) + 1, np.uint8)
    while more:
        asked = template, after[0] if after else b",", text, max(1, NUMBERS // width)
        at, rows, used, more = _read(body, at, *asked)
        count += rows
        try:
            numbers = array("d", _floats(b"[%b]" % text[: max(used - 1, 0)].tobytes()))
        except msgspec.MsgspecError:
            yield None
            return
        found = np.frombuffer(numbers).reshape(rows, width)
        if not rows or count > max_instances or not np.abs(found).max() <= MAX_VALUE:
            yield None
            return
        yield found
    if not _END.fullmatch(body, at):
        yield None


@compiled
def _read(body: bytes, at: int, template: bytes, between: bytes, text: Any, most: int) -> tuple[int, int, int, bool]:
    """Copy the numbers of at most so many instances, a comma behind each.

    Returns where it stopped, behind how many instances, how much text they have, and whether another one follows.
    """
    rows = used = 0
    end, size, room = at, len(body), len(text)
    while rows < most:
        i, begun = at, used
        for c in template:
            if c == 0:
                first = i
                while i < size and used < room - 1 and _of_number(body[i]):
                    text[used] = body[i]
                    i, used = i + 1, used + 1
                if i == first:
                    return end, rows, begun, False
                text[used] = _COMMA
                used += 1
            else:
                if i >= size or body[i] != c or used >= room - 1:
                    return end, rows, begun, False
                i += 1
        end, rows = i, rows + 1
        for c in between:
            if i >= size or body[i] != c:
                return end, rows, used, False
            i += 1
        at = i
    return at, rows, used, True


@compiled
def _of_number(c: int) -> bool:
    return _ZERO <= c <= _NINE or c in (_DOT, _MINUS, _PLUS, _SMALL_E, _LARGE_E)
