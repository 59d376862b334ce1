"""JSON text to values in which no member of an object is hidden by another of its name.

Two ways to the same answer. `quick` has msgspec read a text, and is sure where a compiled look finds each name once.
Where it is not, `parse` reads the text with the standard library, objects as `Members`, and names what is no JSON. Of
an object of which only some members matter, `given` finds these: the rest is looked over, and costs little, however it
is made.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable
from typing import Any

import msgspec

from service.errors import Rejected
from service.learning.scanner import MAX_DEPTH, WHITE, Member, distinct, look, scan

UNSURE: Any = object()
"""Not a value: what `quick` leaves to the careful way."""
SMALL = 32 << 10
MOST_PARTS = 11_000
"""A text of more bytes and of more commas and brackets is not read by `quick`: each bracket would become an object.
An event of 10,000 features, which is the limit unless a model has its own, has fewer."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Members(list[tuple[str, Any]]):
    """A JSON object as its (name, value) pairs, so that a name given twice is seen."""


def quick(raw: bytes) -> Any:
    """The text's value, objects as dicts, where that is sure; else UNSURE."""
    if len(raw) > SMALL and raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MOST_PARTS:
        return UNSURE
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return UNSURE
    return value if distinct(raw) else UNSURE


def _integer(text: str) -> int:
    # Longer is far out of range either way; Python's own limit on digits is a setting of the process.
    return int(text[:400])


def parse(raw: bytes) -> Any:
    """Any JSON value, objects as `Members`; raises Rejected."""
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and scan(raw).deepest > MAX_DEPTH:
        raise Rejected("not-json", f"nested deeper than {MAX_DEPTH} levels")
    if raw.startswith(BOM_UTF8):
        raise Rejected("not-json", "a byte order mark comes first: JSON has none")
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
        raise Rejected("not-json", f"{error.msg.removesuffix(' at')} at character {error.pos}") from None


def kind(value: Any) -> str:
    """The JSON name of a parsed value's type, or MessagePack's where JSON has none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Members | dict):
        return "an object"
    return "a list" if isinstance(value, list) else "bytes" if isinstance(value, bytes) else "an extension"


def members(value: Any) -> Iterable[tuple[str, Any]] | None:
    """The members of a parsed object; None of what is none."""
    if value.__class__ is dict:
        items: Iterable[tuple[str, Any]] = value.items()
        return items
    return value if value.__class__ is Members else None


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
