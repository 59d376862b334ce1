"""Wording that all parts share: pydantic's errors in our words, hints at misspelt names, data on one line, numbers."""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

_SHOULD_BE = "Input should be "
_NUMBER, _TABLE, _LIST = "a number {}", "a table", 'a list, such as ["a", "b"]'
_EXPECTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "a string", "list": _LIST,
    "tuple": _LIST, "dict": _TABLE, "model": _TABLE, "greater": _NUMBER, "less": _NUMBER,
}  # fmt: skip
"""The expected value, by the first word of an error's type."""
_NUMBERS = {"int", "float", "bool", "greater", "less"}
_MAX_CHARACTERS = 40
SYNONYMS = {
    "server": "http", "broker": "kafka", "brokers": "bootstrap_servers", "store": "redis", "learning_rate": "eta",
    "algorithm": "rule", "classes": "labels", "target": "label", "include": "only", "exclude": "without",
}  # fmt: skip
"""Names that other programs have for a setting."""


def format_error(error: Mapping[str, Any], secretive: bool = False) -> str:
    """The text of a pydantic error. In a table that has secrets, a value is shown only if a number is expected."""
    message, kind = error["msg"].removeprefix("Value error, "), error["type"].partition("_")[0]
    if " should have " in message:
        return f"expected {message.partition(' should have ')[2].partition(' after')[0]}"
    if error["type"] == "int_parsing_size":
        return "expected a whole number of fewer digits"
    if not message.startswith(_SHOULD_BE):
        return str(message)
    # TOML and JSON write booleans in small letters.
    expected = message.removeprefix(_SHOULD_BE).replace("False", "false").replace("True", "true")
    message = f"expected {_EXPECTED.get(kind, '{}').format(expected)}"
    if kind in _NUMBERS or not secretive:
        message += f", got {short_json(error['input'])}"
    if kind == "literal":
        message += did_you_mean(str(error["input"]), re.findall("'(.+?)'", expected))
    return message


def short_json(value: Any) -> str:
    """A value as JSON on one line, cut to _MAX_CHARACTERS."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if text.isprintable() else json.dumps(value, default=str)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def printable(text: str) -> str:
    """A text from data on one line: as JSON if it has characters that end a line or control a terminal.

    >>> printable("größe"), printable("a\\nb")
    ('größe', '"a\\\\nb"')
    """
    return text if text.isprintable() else json.dumps(text)


def host_and_port(host: str, port: object) -> str:
    """An address as URLs write it.

    >>> host_and_port("::1", 80)
    '[::1]:80'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def quantity(count: int, noun: str) -> str:
    """A number of things.

    >>> quantity(1, "event"), quantity(2000, "event")
    ('1 event', '2,000 events')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def join_expected(messages: Iterable[str]) -> str:
    """The errors of one value that may be of several types, as one message.

    >>> join_expected(["expected a string", "expected false, got true"])
    'expected a string or false, got true'
    >>> join_expected(["the labels must differ"])
    'the labels must differ'
    """
    distinct = list(dict.fromkeys(messages))
    if len(distinct) == 1 or not all(message.startswith("expected ") for message in distinct):
        return "; ".join(distinct)
    parts = [message.removeprefix("expected ").partition(", got ") for message in distinct]
    got = next((f", got {value}" for _, there, value in parts if there), "")
    return f"expected {' or '.join(dict.fromkeys(expected for expected, _, _ in parts))}{got}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """': perhaps …' for an unknown name, or ''."""
    names = [*names]
    synonym = SYNONYMS.get(name)
    near = [synonym] if synonym in names else get_close_matches(name, names, 1)
    return f": perhaps {near[0]}" if near and near[0] != name else ""  # a candidate lacks some settings of a model
