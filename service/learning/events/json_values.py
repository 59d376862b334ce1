"""JSON text to Python values that keep every member of an object, also one with a repeated name.

JSON Pointers (RFC 6901) here go through objects.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from service.errors import Rejected
from service.learning.events.text_hints import in_brackets

Path = tuple[str, ...]
"""The names of a pointer, the outermost first. The path to the whole record is empty."""
MAX_DEPTH = 64
"""Nested lists and objects, in a record or a request."""
WHITE = b" \t\n\r"
_MAX_DIGITS = 400
"""Digits of an integer that are read. A longer integer is out of range; Python has a limit too."""


class Pairs(list[tuple[str, Any]]):
    """A JSON object as (name, value) pairs. As the parser's hook this class is much faster than a function."""


_is_number = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?").fullmatch
_decoder = json.JSONDecoder(object_pairs_hook=Pairs, parse_constant=float, parse_int=lambda raw: int(raw[:_MAX_DIGITS]))


def parse(raw: bytes) -> Any:
    """A JSON value that is not deeply nested. Objects are `Pairs`, NaN and infinities floats. Raises Rejected."""
    try:
        return _decoder.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise Rejected("not-json", f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        hint = in_brackets(error.doc)
        if error.msg == "Extra data":
            raise Rejected("trailing-bytes", f"more bytes follow the event at byte {error.pos}{hint}") from None
        raise Rejected("not-json", f"{error.msg.removesuffix(' at')} at character {error.pos}{hint}") from None


def parse_checked(raw: bytes) -> Any:
    """As `parse`, for text that is JSON except for NaN and infinities."""
    return _decoder.raw_decode(raw.strip(WHITE).decode())[0]


def number_in(text: str) -> int | float | None:
    """The number that a string is; None if the string is not a JSON number."""
    return _decoder.raw_decode(text)[0] if _is_number(text) else None


_TYPE_NAMES = {None.__class__: "null", bool: "a boolean", str: "a string", list: "a list", bytes: "bytes"}
_TYPE_NAMES |= dict.fromkeys((int, float), "a number") | dict.fromkeys((Pairs, dict), "an object")


def type_name(value: Any) -> str:
    """The JSON name of a parsed value's type, or MessagePack's if JSON has none."""
    return _TYPE_NAMES.get(value.__class__, "an extension")


def inner_values(value: Any) -> list[Any]:
    """The elements of a parsed list, or the values of an object's members; none of any other value."""
    if value.__class__ is Pairs:
        return [inner for _, inner in value]
    return value if value.__class__ is list else []


def parse_pointer(pointer: str) -> Path:
    """The names that a pointer goes through.

    >>> parse_pointer("/after/a~1b"), parse_pointer("")
    (('after', 'a/b'), ())
    """
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:])


def to_pointer(path: Sequence[str]) -> str:
    """The pointer that goes through these names."""
    return "".join([f"/{name.replace('~', '~0').replace('/', '~1')}" for name in path])


def quoted_name(pointer: str) -> str:
    """The part of a record at this pointer, as messages name it: the last name in quotes."""
    return f"'{pointer.rpartition('/')[2]}'" if pointer else "the record"


def value_at(value: Any, path: Path, pointer: str) -> Any:
    """The value at a path of the parsed value at `pointer`, or UNSET. Raises Rejected if a name on it is repeated."""
    for name in path:
        matches = [inner for own, inner in value if own == name] if value.__class__ is Pairs else []
        pointer += to_pointer([name])
        if len(matches) > 1:
            raise repeated(name, pointer)
        value = matches[0] if matches else UNSET
    return value


def value_in(value: Any, path: Path) -> Any:
    """The value at a path through dictionaries; None if there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def wrong_type(value: Any, expected: str, pointer: str) -> Rejected:
    """The fault of a parsed value at this pointer that has another type than expected."""
    got = f"{type_name(value)}{in_brackets(value)}"
    return Rejected("wrong-type", f"{quoted_name(pointer)} must be {expected}, got {got}", pointer)


def repeated(name: str, pointer: str) -> Rejected:
    """The fault of an object that has this name twice."""
    return Rejected("duplicate-feature", f"'{name}' is given twice", pointer)
