"""What pydantic finds wrong with a value, in our words: what was expected, and what there is. And names from data."""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

_SHOULD_BE = "Input should be "
_NUMBER, _TABLE, _LIST = "a number {}", "a table", 'a list, such as ["a", "b"]'
_EXPECTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "a string", "list": _LIST,
    "tuple": _LIST, "dict": _TABLE, "model": _TABLE, "greater": _NUMBER, "less": _NUMBER,
}  # fmt: skip
"""By the first word of an error's type."""
_NUMBERS = {"int", "float", "bool", "greater", "less"}
_LONGEST = 40


def worded(error: Any, secretive: bool = False) -> str:
    """One of pydantic's errors. In a table that has secrets, a value is shown only if a number is expected."""
    message, kind = error["msg"].removeprefix("Value error, "), error["type"].partition("_")[0]
    if " should have " in message:
        return f"expected {message.partition(' should have ')[2].partition(' after')[0]}"
    if not message.startswith(_SHOULD_BE):
        return str(message)
    # As TOML and JSON write them.
    expected = message.removeprefix(_SHOULD_BE).replace("False", "false").replace("True", "true")
    message = f"expected {_EXPECTED.get(kind, '{}').format(expected)}"
    if kind in _NUMBERS or not secretive:
        message += f", got {short(error['input'])}"
    if kind == "literal":
        message += perhaps(str(error["input"]), re.findall("'(.+?)'", expected))
    return message


def short(value: Any) -> str:
    """A value as JSON writes it, cut to what a line has room for."""
    return json.dumps(value, ensure_ascii=False, default=str)[:_LONGEST]


def on_a_line(name: str) -> str:
    """A name from data on one line: as JSON where it holds what would break it, or what a terminal would obey.

    >>> on_a_line("größe"), on_a_line("a\\nb")
    ('größe', '"a\\\\nb"')
    """
    return name if name.isprintable() else json.dumps(name)


def either(messages: Iterable[str]) -> str:
    """What several types say of one value, as one: each says what it expected.

    >>> either(["expected a string", "expected false, got true"])
    'expected a string or false, got true'
    >>> either(["the labels must differ"])
    'the labels must differ'
    """
    different = list(dict.fromkeys(messages))
    if len(different) == 1 or not all(message.startswith("expected ") for message in different):
        return "; ".join(different)
    parts = [message.removeprefix("expected ").partition(", got ") for message in different]
    got = next((f", got {value}" for _, there, value in parts if there), "")
    return f"expected {' or '.join(dict.fromkeys(expected for expected, _, _ in parts))}{got}"


def perhaps(name: str, known: Iterable[str]) -> str:
    """What a name that is not known was perhaps to be."""
    near = get_close_matches(name, known, 1)
    return f": perhaps {near[0]}" if near and near[0] != name else ""  # a candidate has not all that a model has
