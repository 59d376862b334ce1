"""What stands where the features are to the features of an event: flattened names, or positions, with their values.

For events and requests alike. Of a feature a number is its value as a float. What is no number is 1, or 0, or how
often it is there, and an int, so that it can be told from a number: a boolean, and a string, which is part of the name.

    {"user": {"age": 31, "country": "NL"}, "tags": ["a", "b", "a"], "size": [0.5, 2], "new": true, "from": null}
    user.age 31.0   user.country=NL 1   tags=a 2   tags=b 1   size.0 0.5   size.1 2.0   new 1
"""

import fnmatch
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from service.errors import Rejected
from service.learning.identity import MAX_VALUE, Identity, Mode
from service.learning.places import pointer_to, remove, shown, way
from service.learning.values import Members, kind, members

Features = Mapping[str, float] | Sequence[float]
"""Of one event or instance, as it is learned: values by name, or in their positions."""

MAX_DEPTH = 16
"""How many objects may stand within each other, the outermost included."""


def numbers_of(mode: Mode) -> Any:
    """The type that features are read as where they are plain numbers."""
    return list[float] if mode == "positional" else dict[str, float]


def names_in(features: Any) -> int:
    """How many members of an object these features are: colons in their text, where no name holds one."""
    return len(features) if features.__class__ is dict else 0


def certain(features: Any, identity: Identity) -> bool:
    """Whether numbers, as `numbers_of` says, are surely features within the limits; if not, `Flattener.of` says."""
    if identity.features == "positional":
        return len(features) == identity.dimension and max(map(abs, features), default=0.0) <= MAX_VALUE
    longest, largest = max(map(len, features), default=0), max(map(abs, features.values()), default=0.0)
    short = longest * 4 <= identity.max_name_bytes or all(name_fits(name, identity) for name in features)
    return bool(short and largest <= MAX_VALUE and len(features) <= identity.max_features)


def name_fits(name: str, identity: Identity) -> bool:
    """Whether a feature name is within the model's limit of UTF-8 bytes."""
    limit = identity.max_name_bytes
    return len(name) <= limit and (name.isascii() or len(name.encode(errors="surrogatepass")) <= limit)


class Flattener:
    """Makes features of what stands at a model's `features` pointer.

    >>> flattener = Flattener(Identity(max_name_bytes=12))
    >>> flattener.of({"age": 31, "user": {"new": True, "tags": ["a", "b", "a"]}, "gone": None})
    {'age': 31.0, 'user.new': 1, 'user.tags=a': 2, 'user.tags=b': 1}
    >>> flattener.of({"page": "/too/long"})
    Traceback (most recent call last):
    ...
    service.errors.Rejected: feature "page": a name is longer than 12 bytes
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        event = identity.event
        self.way = way(event.features)
        others = [way(pointer) for pointer in (event.label, event.weight, event.id) if pointer is not None]
        self._taken = [one[len(self.way) :] for one in others if one[: len(self.way)] == self.way]
        self.patterns = _patterns(event.only, event.without) if event.only or event.without else None

    @property
    def plain(self) -> bool:
        """Whether an object's members are all its features."""
        return not self._taken and self.patterns is None

    def own(self, value: Any, pointer: str = "") -> Any:
        """A parsed value without the parts of its event that stand within it and are no features."""
        for gone in self._taken:
            remove(value, gone, pointer)
        return value

    def of(self, value: Any, pointer: str = "") -> Features:
        """The features of a parsed value, which stands at `pointer`; raises Rejected with the first rule it breaks."""
        if value.__class__ is Rejected:
            raise value
        value = self.own(value, pointer)
        if self.identity.features == "positional":
            return self._positions(value, pointer)
        if members(value) is None:
            mode = self.identity.features
            raise Rejected(
                "wrong-type",
                f"{shown(pointer)} must be an object of names and values, since this model's features are {mode}; got "
                f"{kind(value)}",
                pointer,
            )
        found: dict[str, float] = {}
        self._take(value, "", found, pointer, 1)
        return found

    def _positions(self, value: Any, pointer: str) -> list[float]:
        dimension = self.identity.dimension
        if value.__class__ is not list:
            raise Rejected(
                "wrong-type",
                f"{shown(pointer)} must be a list of {dimension} numbers, since this model's features are positional; "
                f"got {kind(value)}",
                pointer,
            )
        if len(value) != dimension:
            detail = f"{shown(pointer)} must have {dimension} values, got {len(value)}"
            raise Rejected("wrong-length", detail, pointer)
        return [_number(one, str(i), pointer, str(i)) for i, one in enumerate(value)]

    def _take(self, value: Any, prefix: str, found: dict[str, float], pointer: str, depth: int) -> None:
        """Add the features of an object's members, whose names begin with `prefix`."""
        if depth > MAX_DEPTH:
            raise Rejected("wrong-type", f"objects stand more than {MAX_DEPTH} deep", pointer)
        text, limit, patterns = self.identity.text, self.identity.max_name_bytes, self.patterns
        seen: set[str] | None = set() if value.__class__ is Members else None
        feature: float
        for own, one in members(value) or ():
            name, form = prefix + own, one.__class__
            # Whatever becomes of it, so that no long name is made longer, again and again.
            if (len(name) > limit or not name.isascii()) and not name_fits(name, self.identity):
                raise _too_long(self.identity, name, pointer)
            if seen is not None:
                if own in seen:
                    raise _duplicate(name, pointer + pointer_to([own]))
                seen.add(own)
            if form is dict or form is Members:
                self._take(one, name + ".", found, pointer + pointer_to([own]), depth + 1)
                continue
            if form is list:
                self._take_list(one, name, found, pointer + pointer_to([own]))
                continue
            if patterns is not None and not patterns.take(name):
                continue
            if form is float or form is int:
                feature = float(one) if -MAX_VALUE <= one <= MAX_VALUE else _number(one, name, pointer, own)
            elif form is str:
                if text == "ignore":
                    continue
                if text == "reject":
                    raise _no_number(one, name, pointer, own)
                name, feature = f"{name}={one}", 1
                if (len(name) > limit or not name.isascii()) and not name_fits(name, self.identity):
                    raise _too_long(self.identity, prefix + own, pointer)
            elif one is None:
                continue
            elif form is bool:
                feature = int(one)
            else:  # what no JSON has
                raise _no_number(one, name, pointer, own)
            if name in found:
                raise _duplicate(name, pointer + pointer_to([own]))
            found[name] = feature

    def _take_list(self, values: list[Any], name: str, found: dict[str, float], pointer: str) -> None:
        """Add the features of a list: how often each string is in it, or each number or boolean by its position."""
        identity, patterns = self.identity, self.patterns or _ALL
        places = [f"{name}.{i}" for i in range(len(values))]
        whole = patterns.among(name)
        if patterns.out(name) or not (whole or any(map(patterns.among, places))):
            return
        forms = {float if one.__class__ is int else one.__class__ for one in values}
        own: dict[str, float] = {}
        if forms == {str} and identity.text != "reject":
            for one in values if whole and identity.text == "category" else ():
                category = f"{name}={one}"
                own[category] = own.get(category, 0) + 1
        elif forms in ({float}, {bool}):
            for i, (place, one) in enumerate(zip(places, values, strict=True)):
                if not patterns.out(place) and (whole or patterns.among(place)):
                    own[place] = int(one) if one.__class__ is bool else _number(one, place, pointer, str(i))
        elif forms:
            which = "numbers or booleans" if identity.text == "reject" else "numbers, booleans or strings"
            raise Rejected("wrong-type", f"feature {_quoted(name)} must be a list of {which}, all of a kind", pointer)
        for feature, value in own.items():
            if feature in found:
                raise _duplicate(feature, pointer)
            if not name_fits(feature, identity):
                raise _too_long(identity, name, pointer)
            found[feature] = value


class _Patterns(NamedTuple):
    """Which flattened names are meant: as in a shell, where names are no paths, so that `*` stands for dots as well."""

    among: Callable[[str], Any]
    """Is it one of `only`, or are there none?"""
    out: Callable[[str], Any]
    """Is it one of `without`?"""

    def take(self, name: str) -> bool:
        return bool(self.among(name)) and not self.out(name)


@cache
def _patterns(only: tuple[str, ...], without: tuple[str, ...]) -> _Patterns:
    # No pattern at all would find the empty name.
    match = (re.compile("|".join(map(fnmatch.translate, some)) or "(?!)").match for some in (only or ("*",), without))
    return _Patterns(*match)


_ALL = _patterns((), ())


def _number(value: Any, name: str, pointer: str, own: str) -> float:
    """A number within the limits as a float; raises Rejected. It is the member `own` of what stands at `pointer`."""
    if value.__class__ is not float and value.__class__ is not int:
        raise _no_number(value, name, pointer, own)
    try:
        number = float(value)  # which is what it is learned as
    except OverflowError:
        number = 2.0 * MAX_VALUE
    if not math.isfinite(number):
        raise Rejected("not-finite", f"feature {_quoted(name)} is not a finite number", pointer + pointer_to([own]))
    if abs(number) > MAX_VALUE:
        detail = f"feature {_quoted(name)} is beyond ±{MAX_VALUE:g}"
        raise Rejected("out-of-range", detail, pointer + pointer_to([own]))
    return number


def _no_number(value: Any, name: str, pointer: str, own: str) -> Rejected:
    detail = f"feature {_quoted(name)} must be a number, got {kind(value)}"
    return Rejected("wrong-type", detail, pointer + pointer_to([own]))


def _duplicate(name: str, pointer: str) -> Rejected:
    return Rejected("duplicate-feature", f"feature {_quoted(name)} is given twice", pointer)


def _too_long(identity: Identity, name: str, pointer: str) -> Rejected:
    # Not all of it: it may be as long as the record.
    detail = f"feature {_quoted(name[:40])}: a name is longer than {identity.max_name_bytes} bytes"
    return Rejected("name-too-long", detail, pointer)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
