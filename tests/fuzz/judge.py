"""The documents' rules for events and requests, in a few lines over the standard library's JSON.

A verdict is the set of all rules that the bytes break, since the service may name any of them. Bytes that break none
are accepted, and the verdict has their content. Nothing here comes from the service except the names of the limits.
"""

import datetime
import fnmatch
import json
import math
import re
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from service.learning.identity import Identity, JoinRules

MAX_DEPTH, MAX_VALUE, MAX_WEIGHT, MAX_OBJECT_DEPTH = 64, 1e30, 1e6, 16
WHITESPACE = " \t\n\r"
POSTED: dict[str, Any] = {"id": "/id", "label": "/label", "label_value": None, "where": {}}
"""The places in a label that is posted, whatever those in the model's label records are."""


class Object(NamedTuple):
    """A JSON object with all of its members, including duplicate names."""

    pairs: list[tuple[str, Any]]

    def all(self, name: str) -> list[Any]:
        return [value for n, value in self.pairs if n == name]


Features = list[tuple[str, float]] | list[float]


class Event(NamedTuple):
    features: Features
    y: float
    """NaN without a label."""
    weight: float
    id: str | None


Faults = set[tuple[str, str]]
"""The pointer of a part that breaks a rule, and the reason."""
Verdict = tuple[Event | None, Faults]


def at(pointer: str, reasons: Iterable[str]) -> Faults:
    return {(pointer, reason) for reason in reasons}


def explains(faults: Faults, pointer: str, reason: str) -> bool:
    """Whether one of these faults has this reason, and the pointer is that of its part, or of a value in it."""
    is_inner = reason in ("wrong-type", "duplicate-feature", "not-finite", "out-of-range", "name-too-long")
    parts = [part for part, own in faults if own == reason]
    return any(pointer == part or (is_inner and pointer.startswith(f"{part}/")) for part in parts)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse(raw: bytes, finite: bool = True, nan: bool = False) -> tuple[Any, set[str]]:
    """The value at the beginning of a text, and the faults of the text.

    Infinities are a fault if `finite`, and so is NaN unless `nan`.
    """
    constants: list[str] = []
    decoder = json.JSONDecoder(
        object_pairs_hook=Object,
        parse_int=lambda t: int(t[:1000]),  # a number with more digits than Python parses is out of range anyway
        parse_constant=lambda t: constants.append(t) or float(t),  # type: ignore[func-returns-value]
    )
    try:
        text = raw.decode("utf-8-sig").lstrip(WHITESPACE)
        value, end = decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None, {"not-json"}
    faults = {"trailing-bytes"} if text[end:].strip(WHITESPACE) else set()
    # The bytes after the value may be anything, and nested to any depth.
    if (
        (finite and {*constants} - ({"NaN"} if nan else set()))
        or not is_valid(value, 1)
        or (faults and (text.count("[") + text.count("{") > MAX_DEPTH))
    ):
        faults.add("not-json")
    return value, faults


def is_valid(value: Any, depth: int) -> bool:
    """Whether a value is nested no deeper than allowed and its strings are Unicode text."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    if isinstance(value, Object):
        return depth <= MAX_DEPTH and all(is_valid(n, depth) and is_valid(v, depth + 1) for n, v in value.pairs)
    if isinstance(value, list):
        return depth <= MAX_DEPTH and all(is_valid(v, depth + 1) for v in value)
    return True


def names(pointer: str) -> list[str]:
    return [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]


def values_at(value: Any, pointer: str) -> list[Any]:
    """All values at a pointer, which goes through objects; several if a name on its way occurs more than once."""
    values = [value]
    for name in names(pointer):
        if len(values) > 1:
            break
        values = [inner for container in values if isinstance(container, Object) for inner in container.all(name)]
    return values


def remove(value: Any, pointer: str) -> Any:
    """A value without its part at this pointer."""
    if not isinstance(value, Object):
        return value
    first, *remaining = names(pointer)
    inner = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in remaining)
    return Object([(n, remove(v, inner) if n == first else v) for n, v in value.pairs if remaining or n != first])


def size(value: Any) -> int:
    """Members of objects and values of lists, at any depth."""
    inner = [v for _, v in value.pairs] if isinstance(value, Object) else value if isinstance(value, list) else []
    return sum(1 + size(v) for v in inner)


def read_features(value: Any, identity: Identity) -> tuple[Features, set[str]]:
    """The features of the value at the pointer of an event's features, and its faults."""
    faults = {"too-many-features"} if size(value) > identity.max_features else set()
    places = identity.event
    for pointer in (places.label, places.weight, places.id):
        if pointer is not None and pointer.startswith(places.features + "/"):
            value = remove(value, pointer[len(places.features) :])
    if identity.features == "positional":
        features, position_faults = positions(value, identity)
        return features, faults | position_faults
    if not isinstance(value, Object):
        return [], faults | {"wrong-type"}
    pairs: list[tuple[str, float]] = []
    faults |= flatten(value, "", 1, identity, pairs)
    if len({n for n, _ in pairs}) < len(pairs):
        faults.add("duplicate-feature")
    if any(len(n.encode(errors="surrogatepass")) > identity.max_name_bytes for n, _ in pairs):
        faults.add("name-too-long")
    return pairs, faults


def flatten(
    value: Object, prefix: str, depth: int, identity: Identity, pairs: list[tuple[str, float]], outer: bool = False
) -> set[str]:
    """Add a feature for each value in an object; returns their faults. `outer`: `only` selects a list around it."""
    faults = {"wrong-type"} if depth > MAX_OBJECT_DEPTH else set()
    if len({n for n, _ in value.pairs}) < len(value.pairs):
        faults.add("duplicate-feature")

    def among(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    only, without = identity.event.only or ("*",), identity.event.without
    for member, v in value.pairs:
        name = prefix + member
        if len(name.encode(errors="surrogatepass")) > identity.max_name_bytes:
            faults.add("name-too-long")
        if isinstance(v, Object):
            faults |= flatten(v, name + ".", depth + 1, identity, pairs, outer) if depth <= MAX_OBJECT_DEPTH else set()
            continue
        whole = outer or among(name, only)
        if elements := objects_in(v, identity):
            if depth <= MAX_OBJECT_DEPTH and not among(name, without):
                parts = [list[tuple[str, float]]() for _ in elements]
                for element, part in zip(elements, parts, strict=True):
                    faults |= flatten(element, name + ".", depth + 1, identity, part, whole)
                    faults |= {"duplicate-feature"} if len(dict(part)) < len(part) else set()
                pairs += (totals := merged(pair for part in parts for pair in part))
                faults |= {"out-of-range"} if any(abs(x) > MAX_VALUE for _, x in totals) else set()
            continue
        inner = [f"{name}.{i}" for i in range(len(v))] if isinstance(v, list) else []
        if v is None or among(name, without) or not (whole or any(among(n, only) for n in inner)):
            continue
        items = list(zip(inner, v, strict=True)) if isinstance(v, list) else [(name, v)]
        if identity.event.nan:
            items = [(n, item) for n, item in items if item != "NaN" and item == item]  # noqa: PLR0124
        kind = next((kind for p, kind in identity.event.types or () if fnmatch.fnmatchcase(name, p)), None)
        if kind:
            if kind == "number":
                items = [(n, x) for n, x in items if not among(n, without) and (among(n, only) or whole)]
            elif not whole:
                continue
            elif kind == "time" and v:
                items = [(name, v)] if isinstance(v, list) or items else []
            read = [typed(name, n, item, kind) for n, item in items if item not in (None, "")]
            faults |= {fault for _, own in read for fault in own}
            sums = Counter[str]()
            for pairs_, _ in read:
                sums.update({n: 1 for n, x in pairs_ if isinstance(x, int)})
                pairs += [(n, x) for n, x in pairs_ if isinstance(x, float)]
            pairs += list(sums.items())
            continue
        numeric = [number_of(item) if isinstance(item, str) else None for _, item in items]
        if identity.text == "number" and None not in numeric:
            items = [(n, number) for (n, _), number in zip(items, numeric, strict=True)]
        values = [item for _, item in items]
        types = {"number" if is_number(item) else type(item).__name__ for item in values}
        if len(types) > 1 or not types <= {"number", "bool", "str"} or ("str" in types and identity.text == "reject"):
            faults.add("wrong-type")
        elif types == {"str"}:
            if not whole:
                continue
            counts = Counter(f"{name}={item}" for item in values)
            pairs += list(counts.items()) if identity.text != "ignore" else []
        else:
            for n, item in items:
                if not among(n, without) and (among(n, only) or whole):
                    faults |= number_faults(item)
                    pairs.append((n, 0.0 if number_faults(item) else float(item) if is_number(item) else int(item)))
    return faults


def objects_in(value: Any, identity: Identity) -> list[Object]:
    """The objects in a list of objects, named values as members; none of any other value."""
    items = [x for x in value if x is not None] if isinstance(value, list) else []
    items = [x for x in items if not identity.event.nan or isinstance(x, Object) or (x != "NaN" and x == x)]  # noqa: PLR0124
    if not all(isinstance(x, Object) for x in items):
        return []
    elements = []
    for item in items:
        match sorted(item.pairs, key=lambda pair: pair[0]):
            case [("key" | "name", str(key)), ("value", content)]:
                if isinstance(content, Object) and len({n for n, _ in content.pairs}) == len(content.pairs):
                    alternatives = [x for _, x in content.pairs if x is not None]
                    content = alternatives[0] if len(alternatives) == 1 else content
                elements.append(Object([(key, content)]))
            case _:
                elements.append(item)
    return elements


def merged(pairs: Iterable[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """The sums of the values of equal names, in the order in which the names occur first."""
    sums: dict[Any, float] = {}
    for name, value in pairs:
        sums[name] = sums[name] + value if name in sums else value
    return list(sums.items())


def number_of(text: str) -> Any:
    """The number that a string is, or None."""
    if not text[:1].isascii() or not text[-1:].isascii() or text[:1] not in "-0123456789" or not text[-1:].isdigit():
        return None
    value, faults = parse(text.encode(errors="surrogatepass"))
    return value if is_number(value) and not faults else None


def typed(name: str, own: str, value: Any, kind: str) -> tuple[list[tuple[str, float]], set[str]]:
    """The features of a value of this type, and its faults. In a list, `own` is the name of its position."""
    number = number_of(value) if isinstance(value, str) else value if is_number(value) else None
    if kind == "time":
        moment = time_of(value, number)
        if moment is None:
            return [], {"wrong-type"}
        day, hour = moment
        return [*([(f"{name}.hour={hour}", 1)] if hour is not None else []), (f"{name}.weekday={day}", 1)], set()
    if kind == "category" and isinstance(value, bool | str):
        return [(f"{name}={value if isinstance(value, str) else str(value).lower()}", 1)], set()
    if number is None:
        return [], {"wrong-type"}
    if faults := number_faults(number):
        return [], faults
    if kind == "category":
        whole = isinstance(number, int) or number.is_integer()
        return [(f"{name}={int(number) if whole else repr(number)}", 1)], set()
    return [(own, float(number))], set()


TIME = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[Tt ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,]\d+)?)?)?([Zz]|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)


def time_of(value: Any, number: Any) -> tuple[int, int | None] | None:
    """The day of the week and the hour (None for a date alone) of a time in UTC."""
    offset, parts = 0, list[Any]()
    if isinstance(value, str) and (match := TIME.fullmatch(value)) and value.count("-", 0, 8) != 1:
        *texts, zone = match.groups()
        parts = [int(text) for text in texts if text]
        if zone and zone not in "Zz":
            digits = zone[1:].replace(":", "")
            hours, minutes = int(digits[:2]), int(digits[2:] or 0)
            if hours > 23 or minutes > 59:
                return None
            offset = (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)
    elif isinstance(value, list) and 3 <= len(value) <= 7 and all(map(is_number, value)):
        if not all(abs(x) < 1e10 for x in value) or any(x != int(x) for x in value[:5]):
            return None
        if any(not 0 <= x < 10**9 for x in value[6:]):
            return None
        parts = [math.floor(x) for x in value[:6]]
    elif number is not None and 10**8 <= number < 2**63:
        for limit, unit in ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (2**63, 10**9)):
            if number < limit:
                moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=int(number) // unit)
                return moment.isoweekday(), moment.hour
    if not parts:
        return None
    year, month, day, hour, minute, second = [*parts, 0, 0, 0][:6]
    try:
        midnight = datetime.date(year, month, day)
        datetime.time(hour, minute, min(second, 59) if second <= 60 else 60)
    except ValueError:
        return None
    days, minutes = divmod(hour * 60 + minute - offset, 24 * 60)
    return (midnight.weekday() + days) % 7 + 1, minutes // 60 if len(parts) > 3 else None


def number_faults(value: Any) -> set[str]:
    """The fault of a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"not-finite"}
    return set() if abs(value) < 1e31 and abs(float(value)) <= MAX_VALUE else {"out-of-range"}


def positions(value: Any, identity: Identity) -> tuple[Features, set[str]]:
    """The features of a list of numbers."""
    if not isinstance(value, list):
        return [], {"wrong-type"}
    faults = {"wrong-length"} if len(value) != identity.dimension else set()
    for item in value:
        faults |= number_faults(item) if is_number(item) else {"wrong-type"}
    return [] if faults else [float(item) for item in value], faults


def sign(label: Any, labels: Any, spellings: Any = None) -> float | None:
    negative, positive = ([labels[0]], [labels[1]]) if labels else ([-1, 0, False], [1, True])
    if spellings:
        negative, positive = [*negative, *spellings[0]], [*positive, *spellings[1]]
    for y, candidates in ((-1.0, negative), (1.0, positive)):
        if any(is_same(label, candidate) for candidate in candidates):
            return y
    return None


def is_same(value: Any, other: Any) -> bool:
    """Whether two values are the same number, boolean or string."""
    same_type = isinstance(other, bool) == isinstance(value, bool) and isinstance(other, str) == isinstance(value, str)
    return bool(same_type and other == value)


def text_id(raw: bytes, pointer: str | None) -> str | None:
    """The id in a record: a string, or a number as it is written."""
    decoder = json.JSONDecoder(object_pairs_hook=Object, parse_int=str, parse_float=str)
    value = decoder.raw_decode(raw.decode("utf-8-sig").lstrip(WHITESPACE))[0]
    return next(iter(values_at(value, pointer)), None) if pointer is not None else None


def event(raw: bytes | None, identity: Identity, labelled: bool = True, join: JoinRules | None = None) -> Verdict:
    """The event in a record, or the rules that the record breaks; neither if the record is skipped.

    If not `labelled`, an event need not have a label, but an id that is a string or an integer. With `join` the record
    is a label instead, which is read as an event without features.
    """
    if not raw:
        return None, set() if identity.event.where else {("", "empty")}
    if len(raw) > identity.max_record_bytes:
        return None, {("", "too-large")}
    value, text_faults = parse(raw, nan=bool(identity.event.nan))
    event, faults = _parse_event(value, identity, labelled, join)
    if event and not text_faults:
        event = event._replace(id=text_id(raw, join.id if join else identity.event.id))
    return (None if text_faults else event), faults | at("", text_faults)


def _parse_event(value: Any, identity: Identity, labelled: bool, join: JoinRules | None) -> Verdict:
    if not isinstance(value, Object):
        return None, {("", "wrong-type")}
    places = identity.event
    pointers: tuple[str | None, ...] = places.features, places.label, places.weight, places.id
    if join:
        pointers = None, join.label, None, join.id
    where = join.where if join else places.where
    found_values = [values_at(value, pointer) if pointer is not None else [] for pointer in pointers]
    conditions = {pointer: values_at(value, pointer) for pointer in where}
    counts = zip((*pointers, *where), map(len, (*found_values, *conditions.values())), strict=True)
    faults = {(f"/{(pointer or '').split('/')[1]}", "duplicate-feature") for pointer, count in counts if count > 1}
    is_ours = all(any(is_same(a, v) for v in where[p] for a in actual) for p, actual in conditions.items())
    no_label = identity.unlabelled == "skip" and found_values[1] in ([], [None])
    is_label = identity.join and not identity.join.own_topic and not found_values[0]
    if not is_ours or (not join and (no_label or is_label)):
        return None, faults
    parts = zip((True, labelled or join, False, not labelled), pointers, found_values, strict=True)
    if missing := [pointer for needed, pointer, values in parts if needed and pointer is not None and not values]:
        return None, faults | {(pointer, "missing-field") for pointer in missing}
    features: Features = []
    if not join:
        features, feature_faults = read_features(found_values[0][0], identity)
        faults |= at(places.features, feature_faults)
    label, y = found_values[1][0] if found_values[1] else None, None
    if join and join.label is None:
        y = sign(join.label_value, identity.labels, identity.spellings)
    elif label is None and not labelled:
        y = math.nan
    elif not is_number(label) and not isinstance(label, bool | str):
        faults.add((pointers[1] or "", "wrong-type"))
    elif (y := sign(label, identity.labels, identity.spellings)) is None:
        faults.add((pointers[1] or "", "unknown-label"))
    weight = found_values[2][0] if found_values[2] else 1.0
    if not is_number(weight):
        faults.add((pointers[2] or "", "wrong-type"))
    elif not 0.0 < weight <= MAX_WEIGHT:
        faults.add((pointers[2] or "", "bad-weight"))
    own_id = found_values[3][0] if found_values[3] else ""
    if not isinstance(own_id, str) and (
        not is_number(own_id) or str(own_id) == "nan" or (not labelled and isinstance(own_id, float))
    ):
        faults.add((pointers[3] or "", "wrong-type"))
    if faults or y is None:
        return None, faults
    return Event(features, y, float(weight), None), set()


Written = tuple[str | None, Any]
"""The key of a record that a post writes, and its value: the bytes of an event, or the parsed JSON of a label."""


def post(
    body: bytes, kind: str, is_lines: bool, identity: Identity, max_records: int, share: float
) -> tuple[list[Written | None], list[Faults]]:
    """The records of a post of "events" or "labels", None for one that is not written; the faults of bad records."""
    whole, body = body, body.removeprefix(BOM_UTF8)
    pointer, texts = "", [body]
    if is_lines:
        pointer, texts = "/{}", body.removesuffix(b"\n").split(b"\n")
        if len(texts) > max_records:
            return [], [{("", "too-large")}]
        if b"" in texts:  # the first empty line is named before any line is read
            return [], [{(f"/{texts.index(b'')}", "not-json")}]
    else:
        value, text_faults = parse(whole, finite=False)
        if text_faults or not isinstance(value, Object):
            return [], [at("", text_faults or {"wrong-type"})]
        if len(lists := value.all(kind)) > 1:
            return [], [{(f"/{kind}", "duplicate-feature")}]
        if lists and len(value.pairs) == 1:
            if not isinstance(lists[0], list) or len(lists[0]) > max_records:
                return [], [{(f"/{kind}", "too-large" if isinstance(lists[0], list) else "wrong-type")}]
            pointer, texts = f"/{kind}/{{}}", list_texts(body.decode())
    verdicts = [_posted_record(text, kind, identity, share) for text in texts]
    faults = [{(pointer.format(i) + part, why) for part, why in own} for i, (_, own) in enumerate(verdicts) if own]
    return [record for record, _ in verdicts], faults


def list_texts(text: str) -> list[bytes]:
    """The texts between the commas of the first list in a text."""
    decoder, texts, begin = json.JSONDecoder(parse_int=str), list[bytes](), text.index("[") + 1
    while (start := len(text) - len(text[begin:].lstrip(WHITESPACE))) and (texts or text[start] != "]"):
        end = decoder.raw_decode(text, start)[1]
        end = len(text) - len(text[end:].lstrip(WHITESPACE))
        texts.append(text[begin:end].encode())
        if text[end] == "]":
            break
        begin = end + 1
    return texts


def _posted_record(text: bytes, kind: str, identity: Identity, share: float) -> tuple[Written | None, Faults]:
    """The record that a posted event or label becomes, or its faults."""
    join = identity.join or None
    if kind == "events":
        event_, faults = event(text, identity, labelled=join is None)
        if join and not join.own_topic and not event_ and not faults:
            event_, faults = event(text, identity, False, join)
        return (event_ and event_.id, text.strip(WHITESPACE.encode())), faults
    assert join
    label, faults = event(text, identity, False, replace(join, **POSTED))
    if not label:
        return None, faults
    if join.label is None and label.y != sign(join.label_value, identity.labels):
        return None, {("/label", "unknown-label")}
    negative, positive = identity.labels or (-1, 1)
    own = None if math.isnan(label.y) else positive if label.y > 0.0 else negative
    value, id_ = dict[str, Any](), label.id or ""
    label_part = [] if join.label is None else [(join.label, own)]
    for pointer, part in (*((p, allowed[0]) for p, allowed in join.where.items()), (join.id, id_), *label_part):
        *outer, last = names(pointer)
        inner = value
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = part
    return (id_, value) if zlib.crc32(id_.encode()) < share * 2**32 else None, set()


def request(raw: bytes, identity: Identity, max_instances: int) -> tuple[list[Features], bool, set[str]]:
    """The instances in the body of a request, whether they are in a list, and the rules that the body breaks."""
    value, faults = parse(raw, nan=bool(identity.event.nan))
    if not isinstance(value, Object):
        return [], False, faults or {"wrong-type"}
    input_fields = {name: value.all(name) for name in ("features", "instances", "event", "events")}
    if any(len(contents) > 1 for contents in input_fields.values()):
        faults.add("duplicate-feature")
    if (field_count := sum(map(bool, input_fields.values()))) != 1:
        return [], False, faults | {"wrong-type" if field_count else "missing-field"}
    ((input_field, (content, *_)),) = ((name, contents) for name, contents in input_fields.items() if contents)
    is_list = input_field in ("instances", "events")
    instances = content if is_list else [Object([("features", content)]) if input_field == "features" else content]
    if not isinstance(instances, list):
        return [], True, faults | {"wrong-type"}
    if len(instances) > max_instances:
        faults.add("too-large")
    rows = []
    for instance in instances:
        if not isinstance(instance, Object):
            faults.add("wrong-type")
            continue
        values = values_at(instance, identity.event.features if "event" in input_field else "/features")
        if len(values) > 1:
            faults.add("duplicate-feature")
        if not values:
            faults.add("missing-field")
            continue
        row, feature_faults = read_features(values[0], identity)
        faults |= feature_faults
        rows.append(row)
    return rows, is_list, faults
