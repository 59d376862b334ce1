"""The events of a file or of standard input (`-`), in order: JSON lines or CSV, gzipped or not."""

import codecs
import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from service.errors import ConfigurationError, DataError
from service.learning.evaluation.label_runs import MAX_LABELS
from service.learning.events.json_pointer import parse_pointer, quoted_name
from service.learning.events.value_formats import DOUBLE_VECTOR, HEADER, JSON, MESSAGE_PACK, ValueFormat, encode_vector
from service.learning.identity import Identity
from service.tools.formats.readers import BadLine, Csv, Format, JsonLines, at

FormatName = Literal["jsonl", "csv"]
BATCH_LINES = 500
"""Lines of a file that are checked at once."""
LARGE_FILE_BYTES = 1 << 20
"""A larger file is checked by the compiled reader, which is fifty times as fast as the careful one (measured)."""
_Item = TypeVar("_Item")


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
            weight = None if places.weight is None else at(event, parse_pointer(places.weight))
            features, label = at(event, parse_pointer(places.features)), at(event, parse_pointer(places.label))
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
    return name or ("csv" if Path(file.removesuffix(".gz")).suffix.lower() == ".csv" else "jsonl")


def format_of(file: str, identity: Identity, *, name: FormatName | None, label: str | None, key: str | None) -> Format:
    """The file's format; CSV if a label column is named and no format is."""
    if format_name(file, name or ("csv" if label is not None else None)) == "csv":
        return Csv(identity, label or "label", key)
    if label is not None:
        raise ConfigurationError("--label names a column of CSV; the format is jsonl")
    return JsonLines(identity, key)
