"""What the documents say of events and requests, in a few lines over the standard library's JSON.

A verdict is every rule that the bytes break, since the first to be named is the service's own choice. None broken
is accepted, and then what they hold is here too. Nothing here comes from what is judged but the names of the limits.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from service.learning.identity import Identity

DEPTH, LARGEST, HEAVIEST = 64, 1e30, 1e6
WHITE = " \t\n\r"


class Object(NamedTuple):
    """A JSON object with all that it says, twice where it says so."""

    pairs: list[tuple[str, Any]]

    def all(self, name: str) -> list[Any]:
        return [value for n, value in self.pairs if n == name]


Features = list[tuple[str, float]] | list[float]


class Event(NamedTuple):
    features: Features
    y: float
    weight: float


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parsed(raw: bytes) -> tuple[Any, set[str]]:
    """The value that a text begins with, and what is wrong with the text."""
    constants: list[str] = []
    decoder = json.JSONDecoder(
        object_pairs_hook=Object,
        parse_int=lambda t: int(t[:1000]),  # too many digits for Python are too many for anybody
        parse_constant=lambda t: constants.append(t) or float(t),  # type: ignore[func-returns-value]
    )
    try:
        text = raw.decode().lstrip(WHITE)
        value, end = decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None, {"not-json"}
    faults = {"trailing-bytes"} if text[end:].strip(WHITE) else set()
    # What follows may be no text at all, and nested as deep as it likes.
    if constants or not sound(value, 1) or (faults and (text.count("[") + text.count("{") > DEPTH)):
        faults.add("not-json")
    return value, faults


def sound(value: Any, depth: int) -> bool:
    """Whether a value is nested no deeper than allowed and its strings are Unicode text."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, Object):
        return depth <= DEPTH and all(sound(n, depth) and sound(v, depth + 1) for n, v in value.pairs)
    if isinstance(value, list):
        return depth <= DEPTH and all(sound(v, depth + 1) for v in value)
    return True


def features(value: Any, identity: Identity) -> tuple[Features, set[str]]:
    listed = identity.features == "positional"
    if not isinstance(value, list if listed else Object):
        return [], {"wrong-type"}
    pairs = value.pairs if isinstance(value, Object) else []
    names: list[str] = [n for n, _ in pairs]
    items: Sequence[Any] = value if isinstance(value, list) else [v for _, v in pairs]
    faults = set()
    if listed and len(items) != identity.dimension:
        faults.add("wrong-length")
    if len(items) > identity.max_features:
        faults.add("too-many-features")
    if len(set(names)) < len(names):
        faults.add("duplicate-feature")
    if any(len(n.encode(errors="surrogatepass")) > identity.max_name_bytes for n in names):
        faults.add("name-too-long")
    for item in items:
        if not number(item):
            faults.add("wrong-type")
        elif isinstance(item, float) and not math.isfinite(item):
            faults.add("not-finite")
        elif not abs(item) < 1e31 or not abs(float(item)) <= LARGEST:
            faults.add("out-of-range")
    if faults:
        return [], faults
    floats = [float(item) for item in items]
    return floats if listed else list(zip(names, floats, strict=True)), faults


def sign(label: Any, labels: Any) -> float | None:
    negative, positive = ([labels[0]], [labels[1]]) if labels else ([-1, 0, False], [1, True])
    for y, known in ((-1.0, negative), (1.0, positive)):
        for one in known:
            alike = isinstance(one, bool) == isinstance(label, bool) and isinstance(one, str) == isinstance(label, str)
            if alike and one == label:
                return y
    return None


def event(raw: bytes | None, identity: Identity) -> tuple[Event | None, set[str]]:
    """The event that a record is, or the rules that it breaks."""
    if not raw:
        return None, {"empty"}
    if len(raw) > identity.max_record_bytes:
        return None, {"too-large"}
    value, faults = parsed(raw)
    if faults:
        return None, faults | _broken(value, identity)[1]
    return _broken(value, identity)


def _broken(value: Any, identity: Identity) -> tuple[Event | None, set[str]]:
    if not isinstance(value, Object):
        return None, {"wrong-type"}
    faults: set[str] = set()
    found = {name: value.all(name) for name in ("features", "label", "weight", "id")}
    if any(len(values) > 1 for values in found.values()):
        faults.add("duplicate-feature")
    if not found["features"] or not found["label"]:
        return None, faults | {"missing-field"}
    given, more = features(found["features"][0], identity)
    faults |= more
    label, y = found["label"][0], None
    if not number(label) and not isinstance(label, bool | str):
        faults.add("wrong-type")
    elif (y := sign(label, identity.labels)) is None:
        faults.add("unknown-label")
    weight = found["weight"][0] if found["weight"] else 1.0
    if not number(weight):
        faults.add("wrong-type")
    elif not 0.0 < weight <= HEAVIEST:
        faults.add("bad-weight")
    if found["id"] and not isinstance(found["id"][0], str):
        faults.add("wrong-type")
    if faults or y is None:
        return None, faults
    return Event(given, y, float(weight)), set()


def request(raw: bytes, identity: Identity, most: int) -> tuple[list[Features], bool, set[str]]:
    """The instances of a request's body, whether they came as a list, and the rules that it breaks."""
    value, faults = parsed(raw)
    if not isinstance(value, Object):
        return [], False, faults or {"wrong-type"}
    one, many = value.all("features"), value.all("instances")
    if len(one) > 1 or len(many) > 1:
        faults.add("duplicate-feature")
    if bool(one) == bool(many):
        return [], False, faults | {"missing-field"}
    listed = many[0] if many else [Object([("features", one[0])])]
    if not isinstance(listed, list):
        return [], True, faults | {"wrong-type"}
    if len(listed) > most:
        faults.add("too-large")
    rows = []
    for instance in listed:
        if not isinstance(instance, Object):
            faults.add("wrong-type")
            continue
        own = instance.all("features")
        if len(own) > 1:
            faults.add("duplicate-feature")
        if not own:
            faults.add("missing-field")
            continue
        row, more = features(own[0], identity)
        faults |= more
        rows.append(row)
    return rows, bool(many), faults
