"""JSON values and the features in them: which rules they keep, for events and requests alike.

Two ways to the same answer. `certain` is a quick look at features that a typed reader has read, in the form that
`form_of` says; where it is not sure, `examine` looks again with the standard library, and names the broken rule.
Of what the features stand in, `given` finds the members that somebody knows. The rest is only looked over (`scanner`):
what no rule is about costs little, however it is made.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import Rejected
from service.learning.identity import MAX_VALUE, Identity, Mode
from service.learning.scanner import MAX_DEPTH, WHITE, Member, look, scan

Features = Mapping[str, float] | Sequence[float]
"""Of one event or instance, as it is given: values by name, or in their positions."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Members(list[tuple[str, Any]]):
    """A JSON object as its (name, value) pairs, so that a name given twice is seen."""


def _integer(text: str) -> int:
    # Longer is far out of range either way; Python's own limit on digits is a setting of the process.
    return int(text[:400])


def parse(raw: bytes) -> Any:
    """Any JSON value, objects as `Members`; raises Rejected."""
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and scan(raw).deepest > MAX_DEPTH:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(raw.decode(), object_pairs_hook=Members, parse_constant=float, parse_int=_integer)
        if _SURROGATE.search(raw):
            # Python's JSON lets half a pair through; no UTF-8 text can hold it.
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise Rejected("not-json", "half of a surrogate pair in a string") from None
    except UnicodeDecodeError as error:
        raise Rejected("not-json", f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise Rejected("trailing-bytes", f"more bytes follow the event at byte {error.pos}") from None
        raise Rejected("not-json", f"{error.msg} at character {error.pos}") from None


def kind(value: Any) -> str:
    """The JSON name of a parsed value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, Members) else "a list"


def given(raw: bytes, names: tuple[str, ...], pointer: str = "") -> dict[str, Member]:
    """Where the members of these names stand in an object's text; raises Rejected where it is no JSON or no object.

    Others are ignored, so that producers can evolve. `pointer` is where the object stands.
    """
    first = raw.lstrip(WHITE)[:1]
    found = look(raw, names) if first in (b"{", b"[") else None
    if found is None or first == b"[":
        raise Rejected("wrong-type", f"expected an object, got {'a list' if found else kind(parse(raw))}", pointer)
    if found.twice is not None:
        raise Rejected("duplicate-feature", f"'{found.twice}' is given twice", f"{pointer}/{found.twice}")
    return found.members


def outermost(raw: bytes, member: Member) -> Any:
    """A member's value; of a list or an object only that it is one."""
    text = raw[member.start : member.end].strip(WHITE)
    return [] if text[:1] == b"[" else Members() if text[:1] == b"{" else parse(text)


def form_of(mode: Mode) -> Any:
    """The type that features are read as."""
    return list[float] if mode == "positional" else dict[str, float]


def names_in(features: Any) -> int:
    """How many members of an object these features are: colons in their text, where no name holds one."""
    return len(features) if features.__class__ is dict else 0


def certain(features: Any, identity: Identity) -> bool:
    """Whether features, a list of floats or a mapping to them, are surely within the limits; if not, the checks say."""
    if identity.features == "positional":
        return len(features) == identity.dimension and max(map(abs, features), default=0.0) <= MAX_VALUE
    longest, largest = max(map(len, features), default=0), max(map(abs, features.values()), default=0.0)
    short = longest * 4 <= identity.max_name_bytes or all(name_fits(name, identity) for name in features)
    return bool(short and largest <= MAX_VALUE and len(features) <= identity.max_features)


def name_fits(name: str, identity: Identity) -> bool:
    """Whether a feature name is within the model's limit of UTF-8 bytes."""
    limit = identity.max_name_bytes
    return len(name) <= limit and (name.isascii() or len(name.encode(errors="surrogatepass")) <= limit)


def examine(raw: bytes, member: Member, identity: Identity, pointer: str, read: Any = None) -> None:
    """Raise Rejected with the first rule that features break, in the order of the format; else nothing.

    They stand in `raw` as this `member`, of which `pointer` speaks. `read` are they as msgspec has read them, where it
    has: they are not read again unless one is missing.
    """
    listed = identity.features == "positional"
    _check_form(kind(outermost(raw, member)), member.items, identity, pointer)
    if read is not None and member.items == len(read):
        _check_items(read if listed else read.items(), identity, pointer)
        return
    text = raw[member.start : member.end]
    if member.nested >= 0:
        # A feature that is no number is the last that matters: what it holds and what follows is not read.
        inner = b"[]" if raw[member.nested] == ord("[") else b"{}"
        text = raw[member.start : member.nested] + inner + (b"]" if listed else b"}")
    _check_items(parse(text), identity, pointer)


def _check_form(found: str, count: int, identity: Identity, pointer: str) -> None:
    listed = identity.features == "positional"
    if found != ("a list" if listed else "an object"):
        hint = (
            f"a list of {identity.dimension} numbers, since this model's features are positional"
            if listed
            else f"an object of names and numbers, since this model's features are {identity.features}"
        )
        raise Rejected("wrong-type", f"'features' must be {hint}; got {found}", pointer)
    if listed and count != identity.dimension:
        detail = f"'features' must have {identity.dimension} values, got {count}"
        raise Rejected("wrong-length", detail, pointer)
    if count > identity.max_features:
        detail = f"{count} features; the limit is {identity.max_features}"
        raise Rejected("too-many-features", detail, pointer)


def _check_items(features: Any, identity: Identity, pointer: str) -> None:
    listed = identity.features == "positional"
    seen: set[str] = set()
    for i, item in enumerate(features):
        name, value = (str(i), item) if listed else item
        fits = name_fits(name, identity)
        if fits and name not in seen and value.__class__ is float and abs(value) <= MAX_VALUE:
            seen.add(name)
            continue
        if not fits:
            raise Rejected("name-too-long", f"a name is longer than {identity.max_name_bytes} bytes", pointer)
        broken = (
            ("duplicate-feature", "is given twice")
            if name in seen
            else ("wrong-type", f"must be a number, got {kind(value)}")
            if isinstance(value, bool) or not isinstance(value, int | float)
            else ("not-finite", "is not a finite number")
            if isinstance(value, float) and not math.isfinite(value)
            else ("out-of-range", f"is beyond ±{MAX_VALUE:g}")
            if not _in_range(value)
            else None
        )
        if broken:
            where = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            raise Rejected(broken[0], f"feature {json.dumps(name, ensure_ascii=False)} {broken[1]}", where)
        seen.add(name)


def _in_range(value: float) -> bool:
    try:
        return abs(float(value)) <= MAX_VALUE  # as a float, which is what it would be learned as
    except OverflowError:
        return False
