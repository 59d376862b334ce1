"""JSON values and the features in them: which rules they keep, for events and requests alike.

Two ways to the same answer. `certain` is a quick look at features that a typed reader has read; where it is not sure,
`parse` and the checks look again with the standard library, and name the rule that is broken.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from service.errors import Rejected
from service.learning.identity import MAX_VALUE, Identity
from service.learning.scanner import MAX_DEPTH, scan

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Members(list[tuple[str, Any]]):
    """A JSON object as its (name, value) pairs, so that a name given twice is seen."""

    def once(self, known: Sequence[str]) -> dict[str, Any]:
        """The known members by name; others are ignored, so that producers can evolve."""
        found: dict[str, Any] = {}
        for name, value in self:
            if name in known:
                if name in found:
                    raise Rejected("duplicate-feature", f"'{name}' is given twice", f"/{name}")
                found[name] = value
        return found


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


def check_features(features: Any, identity: Identity, pointer: str) -> None:
    """Raise Rejected with the first rule that parsed features break; `pointer` is where they stand."""
    check_form(kind(features), len(features) if isinstance(features, list) else 0, identity, pointer)
    check_items(features, identity, pointer)


def check_form(found: str, count: int, identity: Identity, pointer: str) -> None:
    """Raise Rejected where features of this kind, so many of them, are not what the model takes."""
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


def check_items(features: Any, identity: Identity, pointer: str) -> None:
    """Raise Rejected at the first of parsed features that breaks a rule."""
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
