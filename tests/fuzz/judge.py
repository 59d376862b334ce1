"""The documents' rules for events and requests, in a few lines over the standard library's JSON.

A verdict is every rule that the bytes break, since the first to be named is the service's own choice. None broken
is accepted, and then what they hold is here too. Nothing here comes from what is judged but the names of the limits.
"""

import fnmatch
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from service.learning.identity import Identity

DEPTH, LARGEST, HEAVIEST, OBJECTS = 64, 1e30, 1e6, 16
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


def names(pointer: str) -> list[str]:
    return [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]


def at(value: Any, pointer: str) -> list[Any]:
    """All that stands at a pointer, which goes through objects; several values where a name on its way is not clear."""
    found = [value]
    for name in names(pointer):
        if len(found) > 1:
            break
        found = [inner for one in found if isinstance(one, Object) for inner in one.all(name)]
    return found


def less(value: Any, pointer: str) -> Any:
    """A value without what stands at this pointer."""
    if not isinstance(value, Object):
        return value
    first, *rest = names(pointer)
    inner = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in rest)
    return Object([(n, less(v, inner) if rest and n == first else v) for n, v in value.pairs if rest or n != first])


def size(value: Any) -> int:
    """Members of objects and values of lists, at any depth."""
    inner = [v for _, v in value.pairs] if isinstance(value, Object) else value if isinstance(value, list) else []
    return sum(1 + size(v) for v in inner)


def given(value: Any, identity: Identity) -> tuple[Features, set[str]]:
    """The features of what stands where an event has them."""
    faults = {"too-many-features"} if size(value) > identity.max_features else set()
    places = identity.event
    for pointer in (places.label, places.weight, places.id):
        if pointer is not None and pointer.startswith(places.features + "/"):
            value = less(value, pointer[len(places.features) :])
    if identity.features == "positional":
        found, more = positions(value, identity)
        return found, faults | more
    if not isinstance(value, Object):
        return [], faults | {"wrong-type"}
    pairs: list[tuple[str, float]] = []
    faults |= flatten(value, "", 1, identity, pairs)
    if len({n for n, _ in pairs}) < len(pairs):
        faults.add("duplicate-feature")
    if any(len(n.encode(errors="surrogatepass")) > identity.max_name_bytes for n, _ in pairs):
        faults.add("name-too-long")
    return pairs, faults


def flatten(value: Object, prefix: str, depth: int, identity: Identity, pairs: list[tuple[str, float]]) -> set[str]:
    """Add a feature for each value in an object; returns what is wrong with them."""
    faults = {"wrong-type"} if depth > OBJECTS else set()
    if len({n for n, _ in value.pairs}) < len(value.pairs):
        faults.add("duplicate-feature")

    def among(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    only, without = identity.event.only or ("*",), identity.event.without
    for own, v in value.pairs:
        name = prefix + own
        if len(name.encode(errors="surrogatepass")) > identity.max_name_bytes:
            faults.add("name-too-long")
        if isinstance(v, Object):
            faults |= flatten(v, name + ".", depth + 1, identity, pairs) if depth <= OBJECTS else set()
            continue
        inner = [f"{name}.{i}" for i in range(len(v))] if isinstance(v, list) else []
        if v is None or among(name, without) or not any(among(n, only) for n in (name, *inner)):
            continue
        values = v if isinstance(v, list) else [v]
        types = {"number" if number(one) else type(one).__name__ for one in values}
        if len(types) > 1 or not types <= {"number", "bool", "str"} or ("str" in types and identity.text == "reject"):
            faults.add("wrong-type")
        elif types == {"str"}:
            if not among(name, only):
                continue
            counted = Counter(f"{name}={one}" for one in values)
            pairs += list(counted.items()) if identity.text == "category" else []
        else:
            for n, one in zip(inner if isinstance(v, list) else [name], values, strict=True):
                if not among(n, without) and (among(n, only) or among(name, only)):
                    faults |= figure(one)
                    pairs.append((n, 0.0 if figure(one) else float(one) if number(one) else int(one)))
    return faults


def figure(value: Any) -> set[str]:
    """The fault of a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"not-finite"}
    return set() if abs(value) < 1e31 and abs(float(value)) <= LARGEST else {"out-of-range"}


def positions(value: Any, identity: Identity) -> tuple[Features, set[str]]:
    """The features of a list of numbers."""
    if not isinstance(value, list):
        return [], {"wrong-type"}
    faults = {"wrong-length"} if len(value) != identity.dimension else set()
    for item in value:
        faults |= figure(item) if number(item) else {"wrong-type"}
    return [] if faults else [float(item) for item in value], faults


def sign(label: Any, labels: Any) -> float | None:
    negative, positive = ([labels[0]], [labels[1]]) if labels else ([-1, 0, False], [1, True])
    for y, known in ((-1.0, negative), (1.0, positive)):
        if any(same(label, one) for one in known):
            return y
    return None


def same(value: Any, one: Any) -> bool:
    """Whether they are one number, boolean or string."""
    alike = isinstance(one, bool) == isinstance(value, bool) and isinstance(one, str) == isinstance(value, str)
    return bool(alike and one == value)


def event(raw: bytes | None, identity: Identity) -> tuple[Event | None, set[str]]:
    """The event that a record is, or the rules that it breaks; neither where it is passed over."""
    if not raw:
        return None, set() if identity.event.where else {"empty"}
    if len(raw) > identity.max_record_bytes:
        return None, {"too-large"}
    value, faults = parsed(raw)
    event, more = _broken(value, identity)
    return (None, faults | more) if faults else (event, more)


def _broken(value: Any, identity: Identity) -> tuple[Event | None, set[str]]:
    if not isinstance(value, Object):
        return None, {"wrong-type"}
    places = identity.event
    pointers = (places.features, places.label, places.weight, places.id)
    found = [at(value, pointer) if pointer is not None else [] for pointer in pointers]
    asked = {pointer: at(value, pointer) for pointer in places.where}
    faults: set[str] = set()
    if any(len(values) > 1 for values in (*found, *asked.values())):
        faults.add("duplicate-feature")
    if not all(any(same(one, v) for v in places.where[pointer] for one in ones) for pointer, ones in asked.items()):
        return None, faults
    if not found[0] or not found[1]:
        return None, faults | {"missing-field"}
    of_it, more = given(found[0][0], identity)
    faults |= more
    label, y = found[1][0], None
    if not number(label) and not isinstance(label, bool | str):
        faults.add("wrong-type")
    elif (y := sign(label, identity.labels)) is None:
        faults.add("unknown-label")
    weight = found[2][0] if found[2] else 1.0
    if not number(weight):
        faults.add("wrong-type")
    elif not 0.0 < weight <= HEAVIEST:
        faults.add("bad-weight")
    if found[3] and not isinstance(found[3][0], str) and not number(found[3][0]):
        faults.add("wrong-type")
    if faults or y is None:
        return None, faults
    return Event(of_it, y, float(weight)), set()


def request(raw: bytes, identity: Identity, most: int) -> tuple[list[Features], bool, set[str]]:
    """The instances of a request's body, whether they came as a list, and the rules that it breaks."""
    value, faults = parsed(raw)
    if not isinstance(value, Object):
        return [], False, faults or {"wrong-type"}
    forms = {name: value.all(name) for name in ("features", "instances", "event", "events")}
    if any(len(ones) > 1 for ones in forms.values()):
        faults.add("duplicate-feature")
    if (there := sum(map(bool, forms.values()))) != 1:
        return [], False, faults | {"wrong-type" if there else "missing-field"}
    ((form, (one, *_)),) = ((name, ones) for name, ones in forms.items() if ones)
    many = form in ("instances", "events")
    listed = one if many else [Object([("features", one)]) if form == "features" else one]
    if not isinstance(listed, list):
        return [], True, faults | {"wrong-type"}
    if len(listed) > most:
        faults.add("too-large")
    rows = []
    for instance in listed:
        if not isinstance(instance, Object):
            faults.add("wrong-type")
            continue
        own = at(instance, identity.event.features if "event" in form else "/features")
        if len(own) > 1:
            faults.add("duplicate-feature")
        if not own:
            faults.add("missing-field")
            continue
        row, more = given(own[0], identity)
        faults |= more
        rows.append(row)
    return rows, many, faults
