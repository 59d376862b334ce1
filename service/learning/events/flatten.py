"""The flattener: the value at a model's `features` pointer to features, by flattened name or by position.

A number becomes a float. A boolean becomes the int 0 or 1. A string becomes part of the name, and its value is the int
that counts it. So the type of a value tells numbers from the others.

    {"user": {"age": 31, "country": "NL"}, "tags": ["a", "b", "a"], "size": [0.5, 2], "new": true, "from": null}
    user.age 31.0   user.country=NL 1   tags=a 2   tags=b 1   size.0 0.5   size.1 2.0   new 1

The objects of a list are flattened as one object each, and the values of equal names are added up:

    {"cart": [{"sku": "A", "qty": 2}, {"sku": "B", "qty": 1}], "params": [{"key": "source", "value": "ad"}]}
    cart.sku=A 1   cart.qty 3.0   cart.sku=B 1   params.source=ad 1

A type says what a value is, however it is written. A number may be written as a string. A category may be written as a
number or a boolean: equal numbers are one category. A time becomes categories of its hour and of its day in UTC. A
value that is null or an empty string is absent.
"""

import fnmatch
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET

from service.errors import Rejected
from service.learning.events import json_values
from service.learning.events.compiled import time_parsing
from service.learning.events.compiled.time_parsing import END_EPOCH, FIRST_EPOCH, NO_HOUR
from service.learning.events.json_values import Pairs, number_in, parse_pointer, to_pointer, wrong_type
from service.learning.events.text_hints import in_brackets
from service.learning.identity import MAX_VALUE, Identity, ValueType

Features = Mapping[str, float] | Sequence[float]
"""The features of one event or instance, as they are learned: values by name, or a list of values."""

_OBJECTS = {Pairs, None.__class__}
"""The types in a list of objects."""
MAX_OBJECT_DEPTH = 16
"""Nested objects, the outermost included."""
_EXPECTED = {
    "number": "a number, or a string that is a JSON number",
    "category": "a string, number or boolean",
    "time": f"a time: in ISO 8601, as a list from the year on, or as an epoch from {FIRST_EPOCH:g} on",
}
_BEYOND = 10**300
"""Beyond MAX_VALUE, but a double can hold it."""


def name_fits(name: str, identity: Identity) -> bool:
    """Whether a feature name is within the model's limit of UTF-8 bytes."""
    limit = identity.max_name_bytes
    return len(name) <= limit and (name.isascii() or len(name.encode(errors="surrogatepass")) <= limit)


class Flattener:
    """Flattens the value at a model's `features` pointer.

    >>> from service.learning.events.json_values import parse
    >>> flattener = Flattener(Identity(max_name_bytes=12))
    >>> flattener.flatten(parse(b'{"age": 31, "user": {"new": true, "tags": ["a", "b", "a"]}, "gone": null}'))
    {'age': 31.0, 'user.new': 1, 'user.tags=a': 2, 'user.tags=b': 1}
    >>> flattener.flatten(parse(b'{"page": "/too/long"}'))
    Traceback (most recent call last):
    ...
    service.errors.Rejected: feature "page": a name is longer than 12 bytes
    """

    def __init__(self, identity: Identity, reads_objects: bool = True) -> None:
        """Without `reads_objects` a list of objects is rejected, as by releases up to 0.2."""
        self.identity, self._reads_objects = identity, reads_objects
        event = identity.event
        self.path = parse_pointer(event.features)
        parts = [parse_pointer(pointer) for pointer in (event.label, event.weight, event.id) if pointer is not None]
        self.excluded = [part[len(self.path) :] for part in parts if part[: len(self.path)] == self.path]
        """The paths of the event's other parts within its features. They are not features."""
        self.patterns = _patterns(event.only, event.without) if event.only or event.without else None
        self.type_of = type_patterns(event.types or ())
        """Returns the type of a flattened name, or None."""
        self.reads_by_name = self.patterns is not None or bool(event.types)
        """Whether the name of a value decides how it is read."""
        self.converts = bool(event.types or event.nan) or identity.text == "number"
        """Whether a value may be read as another than it is in the record."""

    def exclude(self, value: Any, pointer: str = "") -> Any:
        """Remove the event's other parts from a parsed value, in place, and return it."""
        for *outer, last in self.excluded:
            inner = json_values.value_at(value, tuple(outer), pointer)
            if inner.__class__ is Pairs:
                inner[:] = [member for member in inner if member[0] != last]
        return value

    def flatten(self, value: Any, pointer: str = "") -> Features:
        """The features of the parsed value at `pointer`; raises Rejected with the first rule it breaks."""
        value = self.exclude(value, pointer)
        if self.identity.features == "positional":
            return self._positions(value, pointer)
        if value.__class__ is not Pairs:
            expected = f"an object of names and values (this model's features are {self.identity.features})"
            raise wrong_type(value, expected, pointer)
        features: dict[str, float] = {}
        self._add_object(value, "", features, pointer, 1)
        return features

    def _positions(self, value: Any, pointer: str) -> list[float]:
        dimension = self.identity.dimension
        if value.__class__ is not list:
            raise wrong_type(value, f"a list of {dimension} numbers (this model's features are positional)", pointer)
        if len(value) != dimension:
            detail = f"{json_values.quoted_name(pointer)} must have {dimension} values, got {len(value)}"
            raise Rejected("wrong-length", detail, pointer)
        return [finite_number(item, str(i), pointer, str(i)) for i, item in enumerate(value)]

    def _add_object(
        self, pairs: Pairs, prefix: str, features: dict[str, float], pointer: str, depth: int, whole: bool = False
    ) -> None:
        """Add the features of an object's members, whose names begin with `prefix`.

        `whole` selects all members, except those in `without`.
        """
        if depth > MAX_OBJECT_DEPTH:
            raise Rejected("wrong-type", f"objects are nested more than {MAX_OBJECT_DEPTH} deep", pointer)
        text, patterns, limit = self.identity.text, self.patterns, self.identity.max_name_bytes
        own_names: set[str] = set()  # set[str]() takes five times as long
        for own, value in pairs:
            name, kind = prefix + own, value.__class__
            # Checked before the value is read: a long name must not be copied for each inner name.
            if len(name) > limit or not name.isascii():
                _check_length(name, self.identity, name, pointer)
            if own in own_names:
                raise _duplicate(name, pointer + to_pointer([own]))
            own_names.add(own)
            if kind is Pairs:
                self._add_object(value, name + ".", features, pointer + to_pointer([own]), depth + 1, whole)
            elif kind is list:
                self._add_list(value, name, features, pointer + to_pointer([own]), depth, whole)
            elif value is not None and (patterns is None or patterns.select(name, whole)):
                if self.converts and (ends := self._convert(value, name, pointer, own)) is not None:
                    self._add({name + end: x for end, x in ends.items()}, name, features, pointer + to_pointer([own]))
                    continue
                if kind is not str or text == "reject":
                    feature = int(value) if kind is bool else finite_number(value, name, pointer, own)
                elif text == "ignore":
                    continue
                else:
                    name, feature = f"{name}={value}", 1
                    _check_length(name, self.identity, prefix + own, pointer)
                if name in features:
                    raise _duplicate(name, pointer + to_pointer([own]))
                features[name] = feature

    def _add_list(
        self, values: list[Any], name: str, features: dict[str, float], pointer: str, depth: int, whole: bool
    ) -> None:
        """Add the features of a list in an object of this depth.

        They are the count of each string, each number or boolean by its position, or the members of its objects.
        """
        identity, patterns = self.identity, self.patterns or _ALL
        if patterns.excluded(name):
            return
        whole = whole or bool(patterns.included(name))
        kinds = set(map(type, values))
        if Pairs in kinds and self._reads_objects and identity.event.nan:
            kinds = {value.__class__ for value in values if not is_nan(value)}
        if Pairs in kinds and self._reads_objects and kinds <= _OBJECTS:
            self._add_objects(values, name, features, pointer, depth, whole)
            return
        item_names = [f"{name}.{i}" for i in range(len(values))]
        if not (whole or any(map(patterns.included, item_names))):
            return
        if self.converts:
            if kind := self.type_of(name):
                self._add(self._typed_list(values, kind, name, pointer, whole), name, features, pointer)
                return
            if identity.event.nan:
                present = [i for i, value in enumerate(values) if not is_nan(value)]
                item_names, values = [item_names[i] for i in present], [values[i] for i in present]
            numbers = [number_in(value) if value.__class__ is str else None for value in values]
            if identity.text == "number" and None not in numbers:
                values = numbers
        kinds = {float if value.__class__ is int else value.__class__ for value in values}
        own: dict[str, float] = {}
        if kinds == {str} and identity.text != "reject":
            for value in values if whole and identity.text != "ignore" else ():
                category = f"{name}={value}"
                own[category] = own.get(category, 0) + 1
        elif kinds in ({float}, {bool}):
            for item, value in zip(item_names, values, strict=True):
                if not patterns.excluded(item) and (whole or patterns.included(item)):
                    position = item[len(name) + 1 :]
                    own[item] = int(value) if value.__class__ is bool else finite_number(value, item, pointer, position)
        elif kinds:
            expected = f"numbers, booleans{'' if identity.text == 'reject' else ', strings'} or objects"
            raise Rejected("wrong-type", f"feature {quoted(name)} must be a list of {expected} of one kind", pointer)
        self._add(own, name, features, pointer)

    def _add_objects(
        self, values: list[Any], name: str, features: dict[str, float], pointer: str, depth: int, whole: bool
    ) -> None:
        """Add the features of a list of objects: the sums of what its elements have under the same names."""
        sums: dict[str, float] = {}
        for i, element in enumerate(values):
            own: dict[str, float] = {}
            if element.__class__ is Pairs:
                self._add_object(_as_member(element), name + ".", own, f"{pointer}/{i}", depth + 1, whole)
            for feature, number in own.items():
                sums[feature] = sums[feature] + number if feature in sums else number
        for feature, number in sums.items():
            if feature in features:
                raise _duplicate(feature, pointer)
            if abs(number) > MAX_VALUE:
                raise Rejected("out-of-range", f"feature {quoted(feature)} is beyond ±{MAX_VALUE:g}, summed", pointer)
            features[feature] = number

    def _add(self, own: Mapping[str, float], name: str, features: dict[str, float], pointer: str) -> None:
        """Add the features of the value at `pointer`, which has this name."""
        for feature, number in own.items():
            if feature in features:
                raise _duplicate(feature, pointer)
            _check_length(feature, self.identity, name, pointer)
            features[feature] = number

    def _convert(self, value: Any, name: str, pointer: str, *own: str) -> Mapping[str, float] | None:
        """The features of a single value by what follows its name; None if it is read as it is in the record."""
        if self.identity.event.nan and is_nan(value):
            return {}
        kind = self.type_of(name)
        if kind is None and self.identity.text == "number" and value.__class__ is str and number_in(value) is not None:
            kind = "number"
        return typed_ends(value, kind, name, pointer, *own) if kind else None

    def _typed_list(
        self, values: list[Any], kind: ValueType, name: str, pointer: str, whole: bool
    ) -> Mapping[str, float]:
        """The features of a list: one time, the count of each category, or each number by its position."""
        patterns, own = self.patterns or _ALL, dict[str, float]()
        if kind == "time":
            ends = typed_ends(values, kind, name, pointer) if whole and values else {}
            return {name + end: x for end, x in ends.items()}
        for i, value in enumerate(values):
            item = f"{name}.{i}"
            selected = whole or (kind == "number" and patterns.included(item))
            if (kind == "number" and patterns.excluded(item)) or (self.identity.event.nan and is_nan(value)):
                continue
            for end, x in typed_ends(value, kind, item, pointer, str(i)).items() if selected else ():
                feature = name + end if end else item
                own[feature] = own[feature] + x if feature in own else x
        return own


class _Patterns(NamedTuple):
    """Selects flattened names by shell patterns, in which `*` also matches dots."""

    included: Callable[[str], Any]
    """Whether a pattern in `only` matches a name, or there is no `only`."""
    excluded: Callable[[str], Any]
    """Whether a pattern in `without` matches a name."""

    def select(self, name: str, whole: bool = False) -> bool:
        return (whole or bool(self.included(name))) and not self.excluded(name)


def type_patterns(types: Sequence[tuple[str, ValueType]]) -> Callable[[str], ValueType | None]:
    """A function that returns the type of a flattened name: that of the first pattern that matches, or None."""
    matches = [(re.compile(fnmatch.translate(pattern)).match, kind) for pattern, kind in types]
    return lambda name: next((kind for match, kind in matches if match(name)), None)


@cache
def _patterns(only: tuple[str, ...], without: tuple[str, ...]) -> _Patterns:
    # An empty pattern would match the empty name.
    match = (re.compile("|".join(map(fnmatch.translate, p)) or "(?!)").match for p in (only or ("*",), without))
    return _Patterns(*match)


_ALL = _patterns((), ())


def _as_member(element: Pairs) -> Pairs:
    """An element of a list: if it has only a `key` or `name` and a `value`, an object with that value by that name.

    A value that is an object with one member that is not null stands for this member.
    """
    members = dict(element) if len(element) == 2 else {}
    key, value = members.get("key", members.get("name")), members.get("value", UNSET)
    if key.__class__ is not str or value is UNSET:
        return element
    if value.__class__ is Pairs and len(dict(value)) == len(value):
        present = [inner for _, inner in value if inner is not None]
        value = present[0] if len(present) == 1 else value
    return Pairs([(key, value)])


def _duplicate(name: str, pointer: str) -> Rejected:
    return Rejected("duplicate-feature", f"feature {quoted(name)} is given twice", pointer)


def _check_length(feature: str, identity: Identity, name: str, pointer: str) -> None:
    """Raise Rejected if the name of a feature is too long. The message has the start of `name`, without a category."""
    if not name_fits(feature, identity):
        detail = f"feature {quoted(name[:40])}: a name is longer than {identity.max_name_bytes} bytes"
        raise Rejected("name-too-long", detail, pointer)


def is_nan(value: Any) -> bool:
    """Whether a value is NaN, or the string."""
    return value == "NaN" if value.__class__ is str else value.__class__ is float and math.isnan(value)


def typed_ends(value: Any, kind: ValueType, name: str, pointer: str, *own: str) -> Mapping[str, float]:
    """The features of a value of this type, by what follows its name; raises Rejected if it has another type.

    The value stands at the path `own` of the value at `pointer`.

    >>> typed_ends("31.50", "number", "amount", ""), typed_ends(90210.0, "category", "zip", "")
    ({'': 31.5}, {'=90210': 1})
    >>> typed_ends("2026-08-20T13:45:04+00:30", "time", "at", ""), typed_ends("", "time", "at", "")
    ({'.hour=13': 1, '.weekday=4': 1}, {})
    """
    if value is None or value == "":
        return {}
    is_text = value.__class__ is str
    number = number_in(value) if is_text else value if value.__class__ in {int, float} else None
    if kind == "time":
        day, hour = divmod(_hour_of_week(value, number), 32)
        if day:
            return ({} if hour == NO_HOUR else {f".hour={hour}": 1}) | {f".weekday={day}": 1}
    elif kind == "category" and (is_text or value.__class__ is bool):
        return {f"={value if is_text else json.dumps(value)}": 1}
    elif number is not None:
        feature = finite_number(number, name, pointer, *own)
        return {"": feature} if kind == "number" else {f"={int(number) if number == int(number) else number}": 1}
    expected = f"{_EXPECTED[kind]}{in_brackets(value)}"
    raise Rejected("wrong-type", f"feature {quoted(name)} must be {expected}", pointer + to_pointer(own))


def _hour_of_week(value: Any, number: float | None) -> Any:
    """The hour and day of a time, as `time_parsing` has them; 0 if the value, or the number in it, is not a time."""
    if value.__class__ is list:
        return _hour_of_list(value)
    text = np.frombuffer((value if value.__class__ is str else "").encode() + bytes(16), np.uint8)
    hour_of_week = time_parsing.parse_iso_8601(text.ctypes.data, 0, len(text) - 16)
    if hour_of_week == 0 and number is not None and FIRST_EPOCH <= number < END_EPOCH:
        return time_parsing.epoch_hour(int(number))
    return hour_of_week


def _hour_of_list(values: list[Any]) -> Any:
    """The same for `[year, month, day, hour, minute, second, nanosecond]`, or for the first three or more of them."""
    ends = (10_000, 13, 32, 24, 60, 61, 1e9)
    in_range = (x.__class__ in {int, float} and 0 <= x < end for x, end in zip(values, ends, strict=False))
    if not 3 <= len(values) <= len(ends) or not all(in_range) or any(x != int(x) for x in values[:5]):
        return 0
    year, month, day, hour, minute = map(int, (*values, 0, 0)[:5])
    return time_parsing.date_hour(year, month, day, 60 * hour + minute, len(values) > 3)


def finite_number(value: Any, name: str, pointer: str, *own: str) -> float:
    """A number as a double; raises Rejected if it breaks a rule. It is at the path `own` of the value at `pointer`."""
    if value.__class__ is int:
        value = float(max(-_BEYOND, min(value, _BEYOND)))
    if value.__class__ is not float:
        reason, problem = "wrong-type", f"must be a number, got {json_values.type_name(value)}"
    elif not math.isfinite(value):
        reason, problem = "not-finite", "is not a finite number"
    elif abs(value) > MAX_VALUE:
        reason, problem = "out-of-range", f"is beyond ±{MAX_VALUE:g}"
    else:
        return float(value)
    raise Rejected(reason, f"feature {quoted(name)} {problem}", pointer + to_pointer(own))


def quoted(name: str) -> str:
    """A name as messages show it."""
    return json.dumps(name, ensure_ascii=False)
