"""JSON text to Python values that show every member of an object, a repeated name included."""

import json
from codecs import BOM_UTF8
from typing import Any

from msgspec import UNSET

from service.errors import Rejected
from service.learning.events.json_pointer import Path, quoted_name, to_pointer

MAX_DEPTH = 64
"""Lists and objects within each other, in a record or a request."""
WHITE = b" \t\n\r"
_MAX_DIGITS = 400
"""Digits of an integer that are read: a longer one is out of range, and Python has a limit of its own."""


class Pairs(list[tuple[str, Any]]):
    """A JSON object as its (name, value) pairs. As a hook of the parser this class is much faster than a function."""


_decoder = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_constant=float, parse_int=lambda text: int(text[:_MAX_DIGITS])
)


def parse(raw: bytes) -> Any:
    """A JSON value that is not deeply nested, objects as `Pairs`; NaN and infinities are floats. Raises Rejected."""
    if raw.startswith(BOM_UTF8):
        raise Rejected("not-json", "a byte order mark comes first: JSON has none")
    try:
        return _decoder.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise Rejected("not-json", f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise Rejected("trailing-bytes", f"more bytes follow the event at byte {error.pos}") from None
        raise Rejected("not-json", f"{error.msg.removesuffix(' at')} at character {error.pos}") from None


def parse_checked(raw: bytes) -> Any:
    """The same of text that is known to be JSON; NaN and infinities may stand in it."""
    return _decoder.raw_decode(raw.strip(WHITE).decode())[0]


def type_name(value: Any) -> str:
    """The JSON name of a parsed value's type, or MessagePack's where JSON has none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Pairs | dict):
        return "an object"
    return "a list" if isinstance(value, list) else "bytes" if isinstance(value, bytes) else "an extension"


def inner_values(value: Any) -> list[Any]:
    """The elements of a parsed list, or the values of an object's members; none of any other value."""
    if value.__class__ is Pairs:
        return [inner for _, inner in value]
    return value if value.__class__ is list else []


def value_at(value: Any, path: Path, pointer: str) -> Any:
    """The value at a path of a parsed value that stands at `pointer`, or UNSET. Raises Rejected at a repeated name."""
    for name in path:
        matches = [inner for own, inner in value if own == name] if value.__class__ is Pairs else []
        pointer += to_pointer([name])
        if len(matches) > 1:
            raise repeated(name, pointer)
        value = matches[0] if matches else UNSET
    return value


def wrong_type(value: Any, expected: str, pointer: str) -> Rejected:
    """The fault of a parsed value at this pointer that is not what is expected there."""
    return Rejected("wrong-type", f"{quoted_name(pointer)} must be {expected}, got {type_name(value)}", pointer)


def repeated(name: str, pointer: str) -> Rejected:
    """The fault of an object that has this name twice."""
    return Rejected("duplicate-feature", f"'{name}' is given twice", pointer)
