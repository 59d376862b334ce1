"""Large requests whose instances are all written alike: the same names in the same order, and only the numbers differ.

So most clients write them. Then one look at the first instance says what names there are, a compiled pass over the rest
compares everything but the numbers byte by byte, and msgspec reads these as one list. It is sure, or it is left to
`requests.pieces`, which gives the same by the whole format.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.learning.classifier import Classifier
from service.learning.compiled import compiled
from service.learning.features import Features, Flattener, certain, names_in
from service.learning.identity import MAX_VALUE
from service.learning.learner import Learner
from service.learning.scale import Scaler
from service.serving.requests import LARGE, typed

NUMBERS = 10_000
"""Read at a time, so that nothing holds the interpreter for long."""
MOST_DIGITS = 15
"""Of a number that is read here; fewer than 2^53."""
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
_POWERS = 10.0 ** np.arange(MOST_DIGITS + 1)
_WHITE = b" ", b"\t", b"\n", b"\r"
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
    after, width = _BETWEEN.match(body, alike.end), len(alike.features)
    at, count, more = alike.begin, 0, body[-1:] in (b"}", *_WHITE)
    text = np.empty(len(body), np.uint8)  # numbers and commas in place of what stands between them: no more
    while more:
        found = np.empty((max(1, NUMBERS // width), width))
        odd = np.empty(found.size, np.intp)
        at, rows, strange, used, more = _read(
            body, at, template, after[0] if after else b",", found.ravel(), text, odd, len(found)
        )
        count += rows
        found = found[:rows]
        try:
            if strange:
                found.ravel()[odd[:strange]] = _floats(b"[%b]" % text[: used - 1].tobytes())
        except msgspec.MsgspecError:
            rows = 0
        if not rows or count > max_instances or not np.abs(found).max() <= MAX_VALUE:
            yield None
            return
        yield found
    if not _END.fullmatch(body, at):
        yield None


class Gathered(NamedTuple):
    """What instances with these very features need of a model, as it is in this turn of the loop."""

    by: Classifier
    weights: NDArray[np.float64]
    """The bias's, then those of the known features, a row for each column."""
    known: NDArray[np.intp]
    """Places of the known features among all."""
    signs: NDArray[np.float64]
    scaler: Scaler | None
    """Of the known features, each a column."""
    firsts: NDArray[np.intp]
    """Places of the known features that are the first of their columns, among the known ones."""
    more: list[tuple[int, int]]
    """Of the others to which first one they are to be added, and their places."""
    unknown: int

    def meet(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of rows with these features, as the weights meet them."""
        x = values[:, self.known] * self.signs
        if self.scaler:
            x = self.scaler.rows(x)
        if not self.more:
            return x
        merged = x[:, self.firsts]
        for to, other in self.more:
            merged[:, to] += x[:, other]
        return merged


def gather(learner: Learner, by: Classifier, features: Features) -> Gathered:
    """What the model is for instances with these features."""
    names = list(features) if isinstance(features, Mapping) else list(map(str, range(len(features))))
    place = {name: i for i, name in enumerate(names)}
    known, columns, signs = [], [], []
    for name, column, _, sign in learner.columns.explain(features):
        known.append(place[name])
        columns.append(column)
        signs.append(sign)
    order: dict[int, int] = {}
    firsts: list[int] = []
    more = []
    for i, column in enumerate(columns):
        if column in order:
            more.append((order[column], i))
        else:
            order[column] = len(firsts)
            firsts.append(i)
    return Gathered(
        by, by.served_at(np.array([0, *order], np.intp)), np.array(known, np.intp), np.array(signs),
        learner.scaler and learner.scaler.at(np.array(columns, np.intp)), np.array(firsts, np.intp), more,
        len(names) - len(known),
    )  # fmt: skip


@compiled
def _read(
    body: bytes, at: int, template: bytes, between: bytes, values: Any, text: Any, odd: Any, most: int
) -> tuple[int, int, int, int, bool]:
    """Read the numbers of at most so many instances of a body that does not end with a number.

    Of those that are not simple the text is copied, a comma behind each, and which ones they are. Returns where it
    stopped, behind how many instances, how many such numbers and how much text there is, and whether more may follow.
    """
    rows = strange = used = number = 0
    end, size = at, len(body)
    while rows < most:
        i, strange_before, used_before = at, strange, used
        for c in template:
            if c != 0:
                if i >= size or body[i] != c:
                    return end, rows, strange_before, used_before, False
                i += 1
                continue
            if i >= size:
                return end, rows, strange_before, used_before, False
            first = i
            values[number], i = _simple(body, i)
            if i < 0:
                i, odd[strange] = first, number
                while _of_number(body[i]):
                    text[used] = body[i]
                    i, used = i + 1, used + 1
                if i == first:
                    return end, rows, strange_before, used_before, False
                text[used] = _COMMA
                strange, used = strange + 1, used + 1
            number += 1
        end, rows = i, rows + 1
        for c in between:
            if i >= size or body[i] != c:
                return end, rows, strange, used, False
            i += 1
        at = i
    return at, rows, strange, used, True


@compiled
def _simple(body: bytes, i: int) -> tuple[float, int]:
    """A number of few digits and no exponent, and where it ends, or -1 where it is none.

    Its digits as an integer and the power of ten are floats exactly, so that their quotient is rounded rightly.
    """
    negative = body[i] == _MINUS
    i += negative
    first, digits = i, 0
    while _ZERO <= body[i] <= _NINE and i - first <= MOST_DIGITS:
        digits = 10 * digits + (body[i] - _ZERO)
        i += 1
    whole, decimals = i - first, 0
    if body[i] == _DOT:
        i += 1
        while _ZERO <= body[i] <= _NINE and whole + decimals <= MOST_DIGITS:
            digits = 10 * digits + (body[i] - _ZERO)
            i, decimals = i + 1, decimals + 1
        if decimals == 0:
            return 0.0, -1
    if whole == 0 or (whole > 1 and body[first] == _ZERO) or whole + decimals > MOST_DIGITS or _of_number(body[i]):
        return 0.0, -1
    value = digits / _POWERS[decimals]
    # As it is read elsewhere, where an integer has no negative zero.
    return -value if negative and (digits > 0 or decimals > 0) else value, i


@compiled
def _of_number(c: int) -> bool:
    return _ZERO <= c <= _NINE or c in (_DOT, _MINUS, _PLUS, _SMALL_E, _LARGE_E)
