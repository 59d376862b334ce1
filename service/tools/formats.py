"""The events of a file, one after the other: JSON lines, CSV or svmlight, gzipped or not, `-` for standard input.

Each format is a class with the same three operations: `rows` cuts the bytes into rows with their line numbers,
`event` makes a row an event's JSON, `key` finds the record's key in it. All raise BadLine with what was expected.
"""

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from service.errors import ConfigurationError, DataError
from service.learning.columns import columns_for
from service.learning.events import Decoder
from service.learning.identity import Identity

Name = Literal["jsonl", "csv", "svmlight"]
SUFFIXES: dict[str, Name] = {".csv": "csv", ".svm": "svmlight", ".svmlight": "svmlight", ".libsvm": "svmlight"}


class Line(NamedTuple):
    """One good event: its JSON, the record's key, and where it was read."""

    value: bytes
    key: bytes | None
    number: int
    position: int
    """Bytes of the file read so far, compressed ones where it is compressed."""


class BadLine(Exception):
    """A line that is no event: what was expected."""


class Format(Protocol):
    """How a file's rows are events."""

    def rows(self, plain: Any) -> Iterator[tuple[int, Any]]:
        """Line numbers and rows; empty ones are left out."""

    def event(self, row: Any) -> bytes:
        """The event's JSON."""

    def key(self, row: Any) -> bytes:
        """The record's key."""


class Events:
    """The events of `file` ('-' is standard input), in its order, read once."""

    def __init__(self, file: str, form: Format, identity: Identity, *, keyed: bool, check: bool) -> None:
        self._form, self._keyed = form, keyed
        self._decoder = Decoder(identity, columns_for(identity)) if check else None
        if file == "-":
            # Not sys.stdin: the interpreter cannot end in order while a thread waits in that.
            self._raw: Any = open(0, "rb", closefd=False)  # noqa: SIM115 - read to its end by whoever iterates
            self.name, self.size = "standard input", 0
        else:
            try:
                self._raw = Path(file).open("rb")  # noqa: SIM115 - as above
            except OSError as error:
                raise ConfigurationError(f"{file}: {error.strerror}") from None
            self.name, self.size = file, Path(file).stat().st_size

    def lines(self, bad: Callable[[str], None]) -> Iterator[Line]:
        """The good events; `bad` is told of each line that is none, and may raise.

        Raises DataError where the rest of the file cannot be read.
        """
        raw, number = self._raw, 0
        try:
            with raw:
                plain = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
                for number, row in self._form.rows(plain):
                    try:
                        value = self._checked(self._form.event(row))
                        key = self._form.key(row) if self._keyed else None
                    except BadLine as error:
                        bad(f"{self.name}, line {number}: {error}")
                        continue
                    yield Line(value, key, number, raw.tell() if raw.seekable() else 0)
        except BadLine as error:
            raise DataError(f"{self.name}, line 1: {error}") from None  # a header, without which no row can be read
        except (csv.Error, zlib.error, UnicodeDecodeError, OSError, EOFError) as error:
            raise DataError(f"{self.name}, after line {number}: {error}") from None

    def _checked(self, value: bytes) -> bytes:
        """The event, unless the model would reject it."""
        if self._decoder and (rejects := self._decoder.decode([value])[1]):
            hint = "" if value.startswith(b"{") else "; the lines are read as JSON, see --format for others"
            raise BadLine(f"{rejects[0].reason}: {rejects[0].detail}{hint}")
        return value


def format_of(
    file: str, identity: Identity, *, name: Name | None, label: str | None, key: str | None, zero_based: bool
) -> Format:
    """The file's format: as named; CSV where a label's column is; else as the suffix says; else JSON lines."""
    suffix = Path(file.removesuffix(".gz")).suffix.lower()
    chosen = name or ("csv" if label is not None else SUFFIXES.get(suffix, "jsonl"))
    if zero_based and (chosen != "svmlight" or identity.features != "positional"):
        raise ConfigurationError(
            "--zero-based is for svmlight and a positional model: elsewhere an index is the feature's name"
        )
    if chosen == "csv":
        if label is None:
            raise ConfigurationError(f"{file}: CSV needs --label COLUMN, the column that is the label")
        return _Csv(identity, label, key)
    if label is not None:
        raise ConfigurationError(f"--label names a column of CSV; the format is {chosen}")
    return _Svmlight(identity, key, zero_based) if chosen == "svmlight" else _JsonLines(key)


class _JsonLines:
    """An event a line, as it is."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def rows(self, plain: Any) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(plain, 1):
            if stripped := line.strip():
                yield number, stripped

    def event(self, row: bytes) -> bytes:
        return row

    def key(self, row: bytes) -> bytes:
        """The event's member of that name, such as `id`; else its feature."""
        try:
            event = msgspec.json.decode(row)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadLine(f"--key {self._key}: no JSON to look for it in: {error}") from None
        event = event if isinstance(event, dict) else {}
        features = event.get("features")
        if isinstance(features, list):
            features = {str(i): value for i, value in enumerate(features)}
        for found in (event, features):
            if isinstance(found, dict) and self._key in found:
                return _key(self._key, found[self._key])
        raise BadLine(f"--key {self._key}: the event has no member and no feature of this name")


class _Csv:
    """Rows of a CSV with a header; an empty cell is a feature that the event does not have.

    The columns of label and key are no features.
    """

    def __init__(self, identity: Identity, label: str, key: str | None) -> None:
        self._identity, self._label, self._key = identity, label, key
        self._header: list[str] = []

    def rows(self, plain: Any) -> Iterator[tuple[int, list[str]]]:
        with io.TextIOWrapper(plain, "utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            self._take_header(next(reader, []))
            for row in reader:
                if row:
                    yield reader.line_num, row

    def _take_header(self, header: list[str]) -> None:
        for name in (self._label, self._key):
            if name is not None and name not in header:
                raise BadLine(f"there is no column '{name}'; the columns are {', '.join(header) or 'none'}")
        if len(set(header)) < len(header):
            raise BadLine("two columns have the same name")
        features = len(set(header) - {self._label, self._key})
        if self._identity.features == "positional" and features != self._identity.dimension:
            raise BadLine(f"{features} feature columns, the model's dimension is {self._identity.dimension}")
        self._header = header

    def event(self, row: list[str]) -> bytes:
        if len(row) != len(self._header):
            raise BadLine(f"{len(row)} cells, the header has {len(self._header)}")
        cells = dict(zip(self._header, row, strict=True))
        label = cells[self._label]
        listed = self._identity.features == "positional"
        features = {
            name: _number(f"column '{name}'", cell)
            for name, cell in cells.items()
            if name not in (self._label, self._key) and (listed or cell.strip())
        }
        return _event(list(features.values()) if listed else features, label, self._identity)

    def key(self, row: list[str]) -> bytes:
        return _key(self._key, row[self._header.index(self._key or "")].strip())


class _Svmlight:
    """`label [qid:n] index:value …  # comment`, as SVMlight, LIBSVM and scikit-learn write it; the query id is no feature.

    For a positional model index i is position i - 1, or i where zero-based, and what is absent is 0. For other
    models the index, as written, is the feature's name.
    """  # noqa: E501

    def __init__(self, identity: Identity, key: str | None, zero_based: bool) -> None:
        self._identity, self._key, self._first = identity, key, 0 if zero_based else 1

    def rows(self, plain: Any) -> Iterator[tuple[int, list[str]]]:
        for number, line in enumerate(plain, 1):
            if parts := line.partition(b"#")[0].decode(errors="replace").split():
                yield number, parts

    def event(self, row: list[str]) -> bytes:
        label, *pairs = row
        if ":" in label:
            raise BadLine(f"expected a label before '{label[:40]}'")
        if pairs and pairs[0].startswith("qid:"):
            pairs = pairs[1:]
        found: dict[int, float] = {}
        last = -1
        for pair in pairs:
            index, colon, value = pair.partition(":")
            if not (colon and index.isascii() and index.isdigit() and len(index) < 20):
                raise BadLine(f"expected INDEX:VALUE, got '{pair[:40]}'")
            if int(index) <= last:
                raise BadLine(f"index {index} after {last}: each must be larger than the one before")
            last = int(index)
            found[last] = _number(f"index {last}", value)
        return _event(self._dense(found) if self._identity.features == "positional" else found, label, self._identity)

    def _dense(self, found: dict[int, float]) -> list[float]:
        dimension = self._identity.dimension or 0
        values = [0.0] * dimension
        for index, value in found.items():
            if not 0 <= index - self._first < dimension:
                most = dimension - 1 + self._first
                hint = "; with --zero-based it begins at 0" if index < self._first else ""
                raise BadLine(
                    f"index {index}: expected {self._first} to {most}, the model's dimension is {dimension}{hint}"
                )
            values[index - self._first] = value
        return values

    def key(self, row: list[str]) -> bytes:
        """The query id where it is named `qid`, else the value at that index."""
        for pair in row[1:]:
            name, _, value = pair.partition(":")
            if name == self._key:
                return _key(self._key, value)
        raise BadLine(f"--key {self._key}: the line has no '{self._key}:'")


def _event(features: Any, label: str, identity: Identity) -> bytes:
    event = {"features": features, "label": _label(label.strip(), identity)}
    return json.dumps(event, separators=(",", ":")).encode()


def _number(where: str, text: str) -> float:
    try:
        value = float(text if "_" not in text else "")
    except ValueError:
        raise BadLine(f"{where}: expected a number, got '{text[:40]}'") from None
    if not math.isfinite(value):
        raise BadLine(f"{where}: expected a finite number, got '{text[:40]}'")
    return value


def _label(text: str, identity: Identity) -> Any:
    """A label as the model knows it: a string where its labels are; else a number or boolean where it reads as one.

    Where the model's labels are booleans, 0 and 1 are these: most formats have only numbers.
    """
    labels = identity.labels or ()
    if labels and all(isinstance(label, str) for label in labels):
        return text
    try:
        value = json.loads(text.lower().removeprefix("+"))
    except (ValueError, RecursionError):
        return text
    if labels and all(isinstance(label, bool) for label in labels) and value in (0, 1):
        return bool(value)
    return value if isinstance(value, bool | int | float) else text


def _key(name: str | None, value: Any) -> bytes:
    """A value as a record's key: a string's UTF-8, a number or boolean as JSON writes it."""
    if value is None or isinstance(value, dict | list):
        raise BadLine(f"--key {name}: expected a string or a number")
    key = (value if isinstance(value, str) else json.dumps(value)).encode()
    if not key:
        raise BadLine(f"--key {name}: the value is empty")
    return key
