"""The careful reader: one value by every rule of docs/events.md. Only this reader words a rejection.

A compiled scan finds the members that the model's pointers name, counts their values and checks the depth. So the
standard library parses only those members of a record, and never more values than the model allows. msgspec checks that
the rest is JSON, without making objects of it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from service.errors import Rejected
from service.learning.events import json_values
from service.learning.events.compiled.json_scan import TOO_DEEP, MemberSpan, scan
from service.learning.events.compiled.path_tree import FEATURES, ID, LABEL, WEIGHT, WHERE, Codes, Paths
from service.learning.events.content_types import DoubleVector, MessagePack, doubles, unpack
from service.learning.events.flatten import Features, Flattener
from service.learning.events.json_pointer import parse_pointer, quoted_name, to_pointer
from service.learning.events.json_values import MAX_DEPTH, WHITE, Pairs
from service.learning.identity import MAX_WEIGHT, Identity, listed

_NOT_FINITE = ((b"NaN", b"[ ]"), (b"-Infinity", b"[       ]"), (b"Infinity", b"[      ]"))
"""Numbers that only the standard library reads, and text of the same length that msgspec reads too."""
_check = msgspec.json.Decoder(msgspec.Raw).decode
"""Raises MsgspecError unless a text is JSON. It takes 1 ms for 1 MiB (measured) and makes no objects."""


class Event(NamedTuple):
    """An event as it is learned."""

    features: Features
    sign: float
    """±1, or the number of the label's class."""
    weight: float


class ParsedValues:
    """The values at some paths of an object, UNSET if a path leads to none: parsed values, or members of a text."""

    def __init__(self, values: Sequence[Any], raw: bytes = b"", not_finite: Rejected | None = None) -> None:
        self.values, self._raw = values, raw
        self.not_finite = not_finite
        """The fault of a text with a NaN or an infinity. It is raised unless the member has a more exact fault."""

    def whole(self, i: int, max_values: int, pointer: str) -> Any:
        """The value at path i, which stands at `pointer`; raises Rejected if it has more than `max_values` values."""
        value = self.values[i]
        is_text = value.__class__ is MemberSpan
        if (value.values if is_text else _count(value)) > max_values:
            raise Rejected("too-many-features", f"more features than the limit, which is {max_values}", pointer)
        return json_values.parse_checked(self._raw[value.begin : value.end]) if is_text else value

    def scalar(self, i: int) -> Any:
        """The value at path i. A list or an object may come back empty."""
        value = self.values[i]
        if value.__class__ is not MemberSpan:
            return value
        text = self._raw[value.begin : value.end].strip(WHITE)
        return [] if text[:1] == b"[" else Pairs() if text[:1] == b"{" else json_values.parse_checked(text)


def text_values(raw: bytes, paths: Paths, pointer: str = "", commas: NDArray[np.int64] | None = None) -> ParsedValues:
    """The values at these paths of the JSON object at `pointer`; raises Rejected. `commas` as in `scan`."""
    first = raw.lstrip(WHITE)[:1]
    if first not in (b"{", b"["):
        raise _no_object(json_values.type_name(json_values.parse(raw)), pointer)
    end, members, repeated_path = scan(raw, paths, commas)
    not_finite = _check_json(raw, end)
    if first == b"[":
        raise _no_object("a list", pointer)
    if repeated_path is not None:
        raise json_values.repeated(repeated_path[-1], pointer + to_pointer(repeated_path))
    return ParsedValues([UNSET if member is None else member for member in members], raw, not_finite)


def values_of(raw: bytes, paths: Paths) -> ParsedValues:
    """The values at these paths of an object in JSON or MessagePack; raises Rejected."""
    if raw.__class__ is not MessagePack:
        return text_values(raw, paths)
    value = unpack(raw)
    if value.__class__ is not Pairs:
        raise _no_object(json_values.type_name(value), "")
    return ParsedValues([UNSET if path is None else json_values.value_at(value, path, "") for path in paths])


class CarefulReader:
    """Reads the events of one model, one at a time, in any form.

    >>> reader = CarefulReader(Identity())
    >>> reader.read(b'{"features": {"a": true}, "label": 0, "time": [12, 30]}')
    Event(features={'a': 1}, sign=-1.0, weight=1.0)
    >>> reader.read(b'{"features": {"a": 1}, "label": 2}')
    Traceback (most recent call last):
    ...
    service.errors.Rejected: 'label' must be one of -1, 0, false, 1, true
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.flattener = Flattener(identity)
        self.signs = label_signs(identity)
        event = identity.event
        pointers = [event.features, event.label, event.weight, event.id, *event.where]
        self.paths = tuple(None if pointer is None else parse_pointer(pointer) for pointer in pointers)
        self._where = list(enumerate(event.where.values(), WHERE))

    def read(self, raw: bytes | None) -> Event | None:
        """The event of a record, None if `where` skips it; raises Rejected with the first rule it breaks."""
        pointers = self.identity.event
        if not raw:
            if pointers.where:
                return None  # in a change feed this means that a row was deleted
            raise Rejected("empty", "the record has no value")
        if len(raw) > self.identity.max_record_bytes:
            raise Rejected("too-large", f"{len(raw)} bytes; the limit is {self.identity.max_record_bytes}")
        values, event = self._values(raw), None
        if all(any(same_value(values.scalar(i), v) for v in allowed) for i, allowed in self._where):
            label = values.scalar(LABEL)
            for value, pointer in ((values.scalar(FEATURES), pointers.features), (label, pointers.label)):
                if value is UNSET:
                    raise Rejected("missing-field", f"{quoted_name(pointer)} is missing", pointer)
            features = self.flattener.of(
                values.whole(FEATURES, self.identity.max_features, pointers.features), pointers.features
            )
            event = Event(features, self._sign(label), self._weight(values.scalar(WEIGHT)))
            self._check_id(values.scalar(ID))
        if values.not_finite is not None:
            raise values.not_finite
        return event

    def _values(self, raw: bytes) -> ParsedValues:
        """The values at the paths of the parts, then at the paths of `where`."""
        if raw.__class__ is not DoubleVector:
            return values_of(raw, self.paths)
        dimension, mode = self.identity.dimension or 0, self.identity.features
        if mode != "positional":
            raise Rejected("wrong-type", f"a vector has no names, and this model's features are {mode}")
        if len(raw) != 8 * (dimension + 1):
            expected = f"{dimension} values and a label, of 8 bytes each"
            raise Rejected("wrong-length", f"expected {expected}; got {len(raw)} bytes")
        *features, label = doubles(raw)
        return ParsedValues([features, label, *[UNSET] * (len(self.paths) - 2)])

    def _sign(self, label: Any) -> float:
        pointer = self.identity.event.label
        if not isinstance(label, bool | int | float | str):
            raise json_values.wrong_type(label, "a number, boolean or string", pointer)
        if (isinstance(label, bool), label) not in self.signs:
            expected = self.identity.labels or (-1, 0, False, 1, True)
            raise Rejected("unknown-label", f"{quoted_name(pointer)} must be one of {listed(expected)}", pointer)
        return self.signs[isinstance(label, bool), label]

    def _weight(self, weight: Any) -> float:
        pointer = self.identity.event.weight or ""
        if weight is UNSET:
            return 1.0
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise json_values.wrong_type(weight, "a number", pointer)
        if not 0.0 < weight <= MAX_WEIGHT:
            raise Rejected("bad-weight", f"{quoted_name(pointer)} must be in (0, {MAX_WEIGHT:g}]", pointer)
        return float(weight)

    def _check_id(self, id_: Any) -> None:
        pointer = self.identity.event.id or ""
        if id_ is not UNSET and (isinstance(id_, bool) or not isinstance(id_, str | int | float)):
            raise json_values.wrong_type(id_, "a string or a number", pointer)


def same_value(value: Any, expected: Any) -> bool:
    """Whether a parsed value equals `expected`. Numbers are compared by value, and a boolean is not a number."""
    return bool((value.__class__ is bool) == (expected.__class__ is bool) and value == expected)


def label_signs(identity: Identity) -> Codes:
    """The sign of each label of the model, or the number of its class."""
    if identity.labels is None:
        return {(False, -1): -1.0, (False, 0): -1.0, (True, False): -1.0, (False, 1): 1.0, (True, True): 1.0}
    signs = range(identity.classes) if identity.multiclass else (-1.0, 1.0)
    return {(isinstance(x, bool), x): float(sign) for x, sign in zip(identity.labels, signs, strict=True)}


def _no_object(kind: str, pointer: str) -> Rejected:
    return Rejected("wrong-type", f"expected an object, got {kind}", pointer)


def _count(value: Any) -> int:
    """The members of objects and the elements of lists in a parsed value, at any depth."""
    return sum(1 + _count(inner) for inner in json_values.inner_values(value))


def _check_json(raw: bytes, end: int) -> Rejected | None:
    """Raise Rejected unless a list or an object is JSON. `end` is the end that its scan returned.

    If only a NaN or an infinity is wrong, the fault is returned: the member may have a more exact one.
    """
    if end == TOO_DEEP:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise Rejected("not-json", f"not UTF-8 at byte {error.start}") from None
    if (reason := _fault(raw)) is None:
        return None
    finite = raw
    for old, new in _NOT_FINITE:
        finite = finite.replace(old, new)
    if _fault(finite) is None:
        return Rejected("not-json", reason)
    following = raw[end:].lstrip(WHITE)
    if end >= 0 and following and _fault(finite[:end]) is None:
        raise Rejected("trailing-bytes", f"more bytes follow the event at byte {len(raw) - len(following)}")
    raise Rejected("not-json", reason)


def _fault(raw: bytes) -> str | None:
    """The reason why a text is not JSON; None if it is."""
    try:
        _check(raw)
    except msgspec.MsgspecError as error:
        return str(error)
    return None
