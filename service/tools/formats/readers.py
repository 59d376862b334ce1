"""Readers of files of events: a class for JSON lines, and one for CSV.

They have the same three operations: `rows` cuts the bytes into rows with their line numbers, `event` turns a row into
a record's JSON, `key` finds the record's key in a row. All raise BadLine with what was expected, `rows` also with the
line.
"""

import csv
import io
import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from service.learning.events.flatten import type_patterns
from service.learning.events.json_pointer import Path, parse_pointer
from service.learning.identity import Identity, Places

EMPTY_CELLS = ("", "nan", "-nan")
"""The content of empty cells, in lower case."""


class BadLine(Exception):
    """A line that is not an event, and what was expected."""


class JsonLines:
    """A record a line, as it is."""

    def __init__(self, identity: Identity, key: str | None) -> None:
        self._features, self._key = parse_pointer(identity.event.features), key

    def rows(self, plain: Any) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(plain, 1):
            if stripped := line.strip():
                yield number, stripped

    def event(self, row: bytes) -> bytes:
        return row

    def key(self, row: bytes) -> bytes | None:
        """The value of the member that is the key, such as `id`: outermost in the record, else among the features."""
        if self._key is None:
            return None
        try:
            event = msgspec.json.decode(row)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadLine(f"--key {self._key}: the line is not JSON: {error}") from None
        for members in (event, at(event, self._features)):
            if isinstance(members, dict) and self._key in members:
                return _key(self._key, members[self._key])
        raise BadLine(f"--key {self._key}: the event has no member and no feature of this name")


class Csv:
    """Rows of a CSV with a header. The columns of the label and the key are not features.

    Without a label a row is an object of all its columns.

    A cell that reads as a number is one, `true` and `false` are booleans, and any other text is a string without the
    spaces around it. An empty cell is a feature that the event does not have, and so is `nan`: numpy and pandas write
    missing values so. An infinity is an error. Columns have no types: the meaning of a cell never depends on other
    rows. Positional features are all present, and numbers.
    """

    def __init__(self, identity: Identity, label: str | None, key: str | None) -> None:
        self._identity, self.label, self._key = identity, label, key
        self._type_of = type_patterns(identity.event.types or ())
        self._header: list[str] = []

    def rows(self, plain: Any) -> Iterator[tuple[int, list[str]]]:
        begin = 1
        try:
            if plain.peek(1)[:1] == b"{":  # its first row is data, which no message shows
                raise BadLine("expected a header, got JSON; the file is read as CSV")
            with io.TextIOWrapper(plain, "utf-8", newline="") as text:
                reader = csv.reader(text, strict=True)
                for row in reader:
                    if not self._header:
                        self._header = self._checked([name.strip() for name in row])
                    elif row:
                        yield reader.line_num, row
                    begin = reader.line_num + 1
        except (BadLine, csv.Error) as error:  # the line where the row begins: a quote may span many lines
            raise BadLine(f"line {begin}: {error}") from None

    def _checked(self, header: list[str]) -> list[str]:
        if len(header) == 1 and (other := next((mark for mark in ";\t|" if mark in header[0]), None)):
            raise BadLine(f"the header is one column: cells are separated by commas, not by {json.dumps(other)}")
        for name in (self.label, self._key):
            if name is not None and name not in header:
                hint = "; --label COLUMN says which is the label" if name == "label" else ""
                raise BadLine(f"there is no column '{name}'; the columns are {', '.join(header)}{hint}")
        features = len(set(header) - {self.label, self._key})
        if self._identity.features == "positional" and features != self._identity.dimension:
            raise BadLine(f"{features} feature columns, the model's dimension is {self._identity.dimension}")
        if len(set(header)) < len(header):
            raise BadLine("two columns have the same name")
        return header

    def event(self, row: list[str]) -> bytes:
        if len(row) != len(self._header):
            raise BadLine(f"{len(row)} cells, the header has {len(self._header)}")
        cells, identity = dict(zip(self._header, map(str.strip, row), strict=True)), self._identity
        if self.label is None:
            return json.dumps(self._values(cells)).encode()
        label = _label(cells[self.label], identity)
        cells = {name: cell for name, cell in cells.items() if name not in (self.label, self._key)}
        return json.dumps(record(self._values(cells), label, identity.event), separators=(",", ":")).encode()

    def _values(self, cells: dict[str, str]) -> Any:
        """The cells as features: a list if they are positional, else an object without the empty ones."""
        if self._identity.features == "positional":
            return [_number(f"column '{name}'", cell) for name, cell in cells.items()]
        return {name: self._value(name, cell) for name, cell in cells.items() if cell.lower() not in EMPTY_CELLS}

    def _value(self, name: str, cell: str) -> Any:
        if self._type_of(name) in {"category", "time"}:  # a category keeps its zeros in front
            return cell
        lower = cell.lower()
        if lower in ("true", "false"):
            return lower == "true"
        return _number(f"column '{name}'", cell, text_is_valid=self._identity.text != "reject")

    def key(self, row: list[str]) -> bytes | None:
        return None if self._key is None else _key(self._key, row[self._header.index(self._key)].strip())


def at(record: Any, path: Path) -> Any:
    """The value at a path through objects; None if there is none."""
    for name in path:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def record(features: Any, label: Any, places: Places) -> Any:
    """A record with its parts where the model looks for them; raises BadLine if a feature takes the label's place.

    The values that `where` requires are added, unless they are among the features: a line has its own features.

    >>> record({"age": 31}, True, Places(features="/after/user", label="/after/left", where={"/op": ("c", "u")}))
    {'after': {'user': {'age': 31}, 'left': True}, 'op': 'c'}
    >>> record({"age": 31}, True, Places(features=""))
    {'age': 31, 'label': True}
    """
    outer, result = parse_pointer(places.features), features
    for name in reversed(outer):
        result = {name: result}
    if not _put(result, parse_pointer(places.label), label):
        raise BadLine(f"the label belongs at {places.label} of the record, where a feature stands")
    for pointer, values in places.where.items():
        path = parse_pointer(pointer)
        if values and path[: len(outer)] != outer:
            _put(result, path, values[0])
    return result


def _put(record: Any, path: Path, value: Any) -> bool:
    """Put a value at a path, and make the objects that it goes through; False if something else stands there."""
    *outer, last = path
    for name in outer:
        record = record.setdefault(name, {}) if isinstance(record, dict) else None
    if not isinstance(record, dict) or last in record:
        return False
    record[last] = value
    return True


def _number(where: str, text: str, text_is_valid: bool = False) -> Any:
    try:
        value = float(text if "_" not in text else "")
    except ValueError:
        if text_is_valid:
            return text
        raise BadLine(f"{where}: expected a number, got '{text[:40]}'") from None
    if not math.isfinite(value):
        raise BadLine(f"{where}: expected a finite number, got '{text[:40]}'")
    return int(text) if text.removeprefix("-").isdecimal() else value


def _label(text: str, identity: Identity) -> Any:
    """A label of the model: a string if all its labels are strings, else a number or boolean if the text reads as such.

    If the model's labels are booleans, 0 and 1 are these: many CSV files have only numbers.
    """
    labels = [label for spellings in identity.spelled_labels for label in spellings]
    if labels and all(isinstance(label, str) for label in labels):
        return text
    try:
        value = json.loads(text.lower().removeprefix("+"))
    except (ValueError, RecursionError):
        return text
    if labels and all(isinstance(label, bool) for label in labels) and value in (0, 1):
        return bool(value)
    return value if isinstance(value, bool | int | float) else text


def _key(name: str, value: Any) -> bytes:
    """A value as a record's key: a string's UTF-8, a number or boolean as JSON writes it."""
    if value is None or isinstance(value, dict | list):
        raise BadLine(f"--key {name}: expected a string or a number")
    key = (value if isinstance(value, str) else json.dumps(value)).encode()
    if not key:
        raise BadLine(f"--key {name}: the value is empty")
    return key


Format = JsonLines | Csv
"""How a file's rows are events."""
