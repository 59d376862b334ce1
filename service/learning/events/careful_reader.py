"""The careful reader: one value by every rule of docs/events.md. Only it and the modules that it calls reject."""

import math
from codecs import BOM_UTF8
from typing import Any

from msgspec import UNSET

from service.errors import Rejected
from service.learning.events.compiled.path_tree import FEATURES, ID, LABEL, WEIGHT, WHERE, Codes
from service.learning.events.flatten import Features, Flattener
from service.learning.events.json_values import parse_pointer, quoted_name, wrong_type
from service.learning.events.read_events import Event
from service.learning.events.text_hints import encoding_hint, label_hint
from service.learning.events.value_formats import JSON, ParsedValues, ValueFormat
from service.learning.identity import MAX_WEIGHT, Identity, listed


class CarefulReader:
    """Reads the events of one model, one at a time, in any format.

    >>> reader = CarefulReader(Identity())
    >>> reader.read(b'{"features": {"a": true}, "label": 0, "time": [12, 30]}')
    Event(features={'a': 1}, label=-1.0, weight=1.0, id=None)
    >>> reader.read(b'{"features": {"a": 1}, "label": 2}')
    Traceback (most recent call last):
    ...
    service.errors.Rejected: 'label' must be one of -1, 0, false, 1, true
    """

    def __init__(self, identity: Identity, labels: bool = False, as_before: bool = False) -> None:
        """`labels` reads records that are labels instead of events.

        `as_before` reads records as releases up to 0.2 did: without lists of objects or a byte order mark.
        """
        self.identity, event, join = identity, identity.event, identity.join or None
        self.flattener, self._as_before = Flattener(identity, not as_before), as_before
        self.signs = label_signs(identity)
        self.label_value: float | None = None
        """The label of each label record, if it does not stand in them."""
        self.where = join.where if join and labels else event.where
        pointers = [event.features, event.label, event.weight, event.id, *self.where]
        if join and labels:
            pointers[:4] = None, join.label, None, join.id
            if join.label_value is not None:
                self.label_value = self.signs[isinstance(join.label_value, bool), join.label_value]
        self.pointers = pointers
        self.paths = tuple(None if pointer is None else parse_pointer(pointer) for pointer in pointers)
        self.skips_others = join is not None and not join.own_topic and not labels
        self.skips_unlabelled = identity.unlabelled == "skip" and not labels
        self.may_lack_label = (join is not None and not labels) or self.skips_unlabelled
        required = (FEATURES, True), (ID, identity.needs_ids), (LABEL, not self.may_lack_label)
        self._required = [part for part, needed in required if needed and pointers[part] is not None]
        self._null_label = self.may_lack_label or labels
        self._where = list(enumerate(self.where.values(), WHERE))

    def read(self, raw: bytes | None, value_format: ValueFormat = JSON) -> Event | None:
        """The event of a record, None if `where` skips it; raises Rejected with the first rule it breaks."""
        if not raw:
            if self.where:
                return None  # in a change feed this means that a row was deleted
            raise Rejected("empty", "the record has no value")
        if len(raw) > self.identity.max_record_bytes:
            raise Rejected("too-large", f"{len(raw)} bytes; the limit is {self.identity.max_record_bytes}")
        if self._as_before and value_format is JSON and raw.startswith(BOM_UTF8):
            raise Rejected("not-json", "it begins with a byte order mark")
        if value_format is JSON and (hint := encoding_hint(raw)):
            raise Rejected("not-json", hint)
        values, event = value_format.parse(raw, self.paths, self.identity), None
        is_ours = all(any(same_value(values.scalar(i), v) for v in allowed) for i, allowed in self._where)
        if is_ours and not self._skips(values):
            for part in self._required:
                if values.scalar(part) is UNSET:
                    place = self.pointers[part] or ""
                    raise Rejected("missing-field", f"{quoted_name(place)} is missing", place)
            features: Features = ()
            if (pointer := self.pointers[FEATURES]) is not None:
                whole = values.whole(FEATURES, self.identity.max_features, pointer)
                features = self.flattener.flatten(whole, pointer)
            label, weight = self._label(values.scalar(LABEL)), self._weight(values.scalar(WEIGHT))
            event = Event(features, label, weight, self._id(values))
        if values.not_finite is not None:
            raise values.not_finite
        return event

    def _skips(self, values: ParsedValues) -> bool:
        """Whether a record is not an event of this model, though `where` accepts it."""
        no_label = self.skips_unlabelled and values.scalar(LABEL) in (UNSET, None)
        return no_label or (self.skips_others and values.scalar(FEATURES) is UNSET)

    def _label(self, label: Any) -> float:
        pointer = self.pointers[LABEL]
        if pointer is None:
            return self.label_value or 0.0
        if self._null_label and (label is UNSET or label is None):
            return math.nan
        if not isinstance(label, bool | int | float | str):
            raise wrong_type(label, "a number, boolean or string", pointer)
        if (isinstance(label, bool), label) not in self.signs:
            expected = [value for _, value in self.signs]
            hint = label_hint(label, expected)
            raise Rejected("unknown-label", f"{quoted_name(pointer)} must be one of {listed(expected)}{hint}", pointer)
        return self.signs[isinstance(label, bool), label]

    def _weight(self, weight: Any) -> float:
        pointer = self.identity.event.weight or ""
        if weight is UNSET:
            return 1.0
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise wrong_type(weight, "a number", pointer)
        if not 0.0 < weight <= MAX_WEIGHT:
            raise Rejected("bad-weight", f"{quoted_name(pointer)} must be in (0, {MAX_WEIGHT:g}]", pointer)
        return float(weight)

    def _id(self, values: ParsedValues) -> str | None:
        value, pointer = values.scalar(ID), self.pointers[ID] or ""
        if value is UNSET:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:  # noqa: PLR0124 - NaN
            raise wrong_type(value, "a string or a number", pointer)
        if self.identity.needs_ids and isinstance(value, float):
            raise wrong_type(value, "a string or an integer", pointer)
        return value if isinstance(value, str) else values.number_text(ID)


def same_value(value: Any, expected: Any) -> bool:
    """Whether a parsed value equals `expected`. Numbers are compared by value, and a boolean is not a number."""
    return bool((value.__class__ is bool) == (expected.__class__ is bool) and value == expected)


def label_signs(identity: Identity) -> Codes:
    """The sign of each label of the model, or the number of its class."""
    if identity.labels is None:
        return {(False, -1): -1.0, (False, 0): -1.0, (True, False): -1.0, (False, 1): 1.0, (True, True): 1.0}
    signs = range(identity.classes) if identity.multiclass else (-1.0, 1.0)
    spelled = zip(identity.spelled_labels, signs, strict=True)
    return {(isinstance(x, bool), x): float(sign) for spellings, sign in spelled for x in spellings}
