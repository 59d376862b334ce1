"""Files: the events of a file or of standard input (`-`), in order, and results that are written whole.

A file is JSON lines or CSV, gzipped or not. The classes `JsonLines` and `Csv` have the same three operations: `rows`
cuts the bytes into rows with their line numbers, `event` turns a row into a record's JSON, `key` finds the record's key
in a row. All raise BadLine with what was expected, `rows` also with the line.
"""

import codecs
import csv
import gzip
import io
import json
import math
import os
import pathlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from service.errors import ConfigurationError, DataError
from service.learning.evaluation.confusion import MAX_LABELS
from service.learning.events.flatten import type_patterns
from service.learning.events.json_values import Path, parse_pointer, quoted_name, value_in
from service.learning.events.value_formats import DOUBLE_VECTOR, HEADER, JSON, MESSAGE_PACK, ValueFormat, encode_vector
from service.learning.identity import Identity, Places

FormatName = Literal["jsonl", "csv"]
BATCH_LINES = 500
"""Lines of a file that are checked at once."""
LARGE_FILE_BYTES = 1 << 20
"""A larger file is checked by the compiled reader, which is fifty times as fast as the careful one (measured)."""
_Item = TypeVar("_Item")
EMPTY_CELLS = ("", "nan", "-nan")
"""The content of empty cells, in lower case."""
FIRST_BYTES = 4096
"""The bytes of a file by which another format is recognised."""
OTHER_FORMATS = {
    rb"PAR1": (
        "a Parquet file",
        """python -c 'import pandas; pandas.read_parquet("FILE").to_csv("NEW.csv", index=False)'""",
    ),
    rb"\xff\xfe|([^\0]\0){2}": ("text in UTF-16", "iconv -f UTF-16LE -t UTF-8 FILE > NEW"),
    rb"\xfe\xff|(\0[^\0]){2}": ("text in UTF-16", "iconv -f UTF-16BE -t UTF-8 FILE > NEW"),
    rb"\s*\[\s*\{": ("one JSON array, not a record a line", "jq -c '.[]' FILE > NEW"),
    rb"\s*\{([^\n]*(?<!\})[,:{[])?\s*\n": ("JSON with records over several lines", "jq -c . FILE > NEW"),
}
"""How a file of another format begins, what it is, and the command that makes CSV or JSON lines of it."""


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
        for members in (event, value_in(event, self._features)):
            if isinstance(members, dict) and self._key in members:
                return _key(self._key, members[self._key])
        raise BadLine(f"--key {self._key}: the event has no member and no feature of this name")


class Csv:
    """Rows of a CSV with a header, separated by commas, semicolons or tabs.

    The columns of the label and the key are not features.

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
                first = text.readline()
                unquoted = re.sub(r'"[^"]*"?', "", first)
                # The most frequent one: in a file with semicolons, names may have commas.
                separator = max(",;\t", key=unquoted.count)
                reader = csv.reader(chain([first], text), delimiter=separator, strict=True)
                for row in reader:
                    if not self._header:
                        self._header = self._checked([name.strip() for name in row])
                    elif row:
                        yield reader.line_num, row
                    begin = reader.line_num + 1
        except (BadLine, csv.Error) as error:  # the line where the row begins: a quote may span many lines
            raise BadLine(f"line {begin}: {error}") from None

    def _checked(self, header: list[str]) -> list[str]:
        if len(header) == 1 and "|" in header[0]:
            raise BadLine('the header is one column: cells are separated by commas, semicolons or tabs, not by "|"')
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


class Line(NamedTuple):
    """One good event: the record's value and key, and where it was read."""

    value: bytes
    key: bytes | None
    number: int


class Events:
    """The events of `file` ('-' is standard input), in its order, read once."""

    kind = "event"
    """What a line is."""

    def __init__(
        self, file: str, form: Format, identity: Identity, *, check: bool, value_format: ValueFormat = JSON
    ) -> None:
        """The values are in `value_format`. Raises ConfigurationError if no event of the model can be."""
        self._form: Any = form
        self._write = writer(identity, value_format)
        self.headers = [(HEADER, value_format.media_type.encode())] if value_format.media_type else []
        """The headers of a record with such a value."""
        self._label, self._usual_labels = quoted_name(identity.event.label), identity.labels is None
        self._file: str | int = file if file != "-" else 0
        self.name = file if self._file else "standard input"
        try:
            self.size = os.stat(self._file).st_size if self._file else 0
        except OSError as error:
            raise ConfigurationError(f"{file}: {error.strerror}") from None
        self._reader: Any = None
        self.labels: list[float] = []
        """The labels of the first events that were checked, at most MAX_LABELS."""
        if check:
            from service.learning.events.event_reader import EventReader, use_compiled_reader  # it takes long to load

            if self.size > LARGE_FILE_BYTES:  # it takes a second to load
                use_compiled_reader(True)
            self._reader = EventReader(identity)

    def lines(self, bad: Callable[[str], None]) -> Iterator[Line]:
        """The good events. `bad` is called with a message for each bad line, and may raise.

        Raises DataError if the rest of the file cannot be read.
        """
        number = 0
        try:
            # Not sys.stdin: the interpreter cannot end in order while a thread waits in it.
            with open(self._file, "rb", closefd=self._file != 0) as raw:
                plain: Any = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
                if plain.peek(3)[:3] == codecs.BOM_UTF8:
                    plain.read(3)
                head = plain.peek(FIRST_BYTES)[:FIRST_BYTES]
                for what, command in (names for start, names in OTHER_FORMATS.items() if re.match(start, head)):
                    unpack = "" if plain is raw else "unpack it with gunzip, then "
                    raise DataError(f"{self.name} is {what}: {unpack}convert it with {command}")
                for rows in in_batches(self._form.rows(plain), BATCH_LINES if self.size else 1):
                    for (number, row), event in zip(rows, self._events(rows), strict=True):
                        try:
                            if isinstance(event, BadLine):
                                raise event
                            if event:
                                yield Line(self._write(event), self._form.key(row), number)
                        except BadLine as error:
                            bad(f"{self.name}, line {number}: {error}")
        except BadLine as error:  # from `rows`, which cannot go on: it names the line
            raise DataError(f"{self.name}, {error}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{self.name}, after line {number}: expected text in UTF-8: {error.reason}") from None
        except (zlib.error, OSError, EOFError) as error:
            raise DataError(f"{self.name}, after line {number}: {error}") from None

    def _events(self, rows: Sequence[tuple[int, Any]]) -> list[bytes | BadLine]:
        """The event of each row, empty if it is left out, or why the row is bad or the model would reject it."""
        events: list[bytes | BadLine] = []
        for _, row in rows:
            try:
                events.append(self._form.event(row))
            except BadLine as error:
                events.append(error)
        if self._reader:
            good = [(i, event) for i, event in enumerate(events) if isinstance(event, bytes)]
            read = self._reader.read([event for _, event in good])
            self.labels += read.labels[: MAX_LABELS - len(self.labels)].tolist()
            for reject in read.rejects:
                i, event = good[reject.record]
                events[i] = BadLine(self._rejected(event, reject.reason, reject.detail))
        return events

    def _rejected(self, event: bytes, reason: str, detail: str) -> str:
        """Why the model would reject an event, in words about its line."""
        hint = "" if event.startswith(b"{") else "; the lines are read as JSON, see --format"
        if reason == "unknown-label" and self._usual_labels:
            hint += "; to use other labels, set the model's `labels` (`perceptron suggest` finds them)"
        if reason == "unknown-label" and isinstance(self._form, Csv):
            detail = f"column '{self._form.label}'{detail.removeprefix(self._label)}"
        return f"{reason}: {detail}{hint}"


def in_batches(items: Iterator[_Item], size: int) -> Iterator[list[_Item]]:
    """Lists of `size` items, the last one perhaps shorter. An error comes after the items before it."""
    for first in items:
        batch = [first]
        try:
            batch.extend(islice(items, size - 1))
        except Exception:
            yield batch
            raise
        yield batch


def raise_bad_line(message: str) -> None:
    """Raise DataError with this message: `Events.lines` then ends at the first bad line."""
    raise DataError(message) from None


def writer(identity: Identity, value_format: ValueFormat) -> Callable[[bytes], bytes]:
    """A function that turns an event's JSON into a value in this format, and raises BadLine if it cannot."""
    if value_format is JSON:
        return bytes
    if value_format is DOUBLE_VECTOR and identity.features != "positional":
        raise ConfigurationError(f"--as f8: a vector has no names for {identity.features} features: use --as msgpack")
    places = identity.event

    def write(raw: bytes) -> bytes:
        try:
            event = msgspec.json.decode(raw)
            if value_format is MESSAGE_PACK:
                return msgspec.msgpack.encode(event)
            weight = None if places.weight is None else value_in(event, parse_pointer(places.weight))
            features, label = (value_in(event, parse_pointer(part)) for part in (places.features, places.label))
            if isinstance(label, int | float) and weight in (None, 1):
                return encode_vector(features, label)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise BadLine(f"--as {value_format.name}: {error}") from None
        except (TypeError, struct.error):
            pass
        raise BadLine("--as f8: expected a list of numbers, a number as label, and no weight: use --as msgpack")

    return write


def format_name(file: str, name: FormatName | None) -> FormatName:
    """The named format, or the one that the file's suffix says."""
    suffix = pathlib.Path(file.removesuffix(".gz")).suffix.lower()
    return name or ("csv" if suffix in (".csv", ".tsv") else "jsonl")


def format_of(file: str, identity: Identity, *, name: FormatName | None, label: str | None, key: str | None) -> Format:
    """The file's format; CSV if a label column is named and no format is."""
    if format_name(file, name or ("csv" if label is not None else None)) == "csv":
        return Csv(identity, label or "label", key)
    if label is not None:
        raise ConfigurationError("--label names a column of CSV; the format is jsonl")
    return JsonLines(identity, key)


def check_output(file: str | None, *, overwrite: bool = True) -> None:
    """Raise ConfigurationError if a file is there already, unless `overwrite`, or if its folder does not exist."""
    if file is not None and not overwrite and pathlib.Path(file).exists():
        raise ConfigurationError(f"{file} is there already: say --yes to write over it")
    if file is not None and not pathlib.Path(file).absolute().parent.is_dir():
        raise ConfigurationError(f"{file}: there is no such folder")


def write_atomically(file: str, content: bytes) -> None:
    """Write a file whole or not at all; raises ConfigurationError."""
    # A link stays a link. A pipe or a device such as /dev/null cannot be replaced: it is written to.
    path = pathlib.Path(file).resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}") if path.is_file() or not path.exists() else path
    try:
        with part.open("wb") as out:
            out.write(content)
            out.flush()
            if part != path:
                os.fsync(out.fileno())
        os.replace(part, path)
    except OSError as error:
        if part != path:
            part.unlink(missing_ok=True)
        raise ConfigurationError(f"{file}: {error.strerror}") from None
