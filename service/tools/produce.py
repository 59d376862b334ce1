"""`perceptron produce`: the events of a file or of standard input, to a topic."""

import asyncio
import csv
import gzip
import io
import json
import math
import queue
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

from service.errors import ConfigurationError, DataError
from service.learning.columns import columns_for
from service.learning.events import Decoder
from service.learning.identity import Identity
from service.settings import Settings
from service.streaming.brokers import admin, kafka_errors

BATCH = 500
UNACKNOWLEDGED = 20_000


class _Line(NamedTuple):
    value: bytes
    number: int
    position: int
    """Bytes of the file read so far, compressed ones where it is compressed."""


def produce_file(settings: Settings, topic: str, file: str, label: str | None, check: bool) -> int:
    """Send every event of `file` ('-' is standard input) in order and wait for the last; returns how many.

    Raises DataError with the number of the first bad line; the events before it are sent.
    """
    identity = settings.of(topic).identity()
    if file == "-":
        # Not sys.stdin: the interpreter cannot end in order while a thread waits in that.
        raw: Any = open(0, "rb", closefd=False)  # noqa: SIM115 - read by a thread to its end
        size = None
    else:
        try:
            raw = Path(file).open("rb")  # noqa: SIM115 - read by a thread to its end
        except OSError as error:
            raise ConfigurationError(f"{file}: {error.strerror}") from None
        size = Path(file).stat().st_size or None
    lines = _lines(raw, "standard input" if file == "-" else file, identity, label, check)
    return asyncio.run(_send(settings.kafka.bootstrap_servers, topic, lines, size))


class _BadLine(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _lines(raw: Any, name: str, identity: Identity, label: str | None, check: bool) -> Iterator[_Line]:
    """Events as JSON, one after the other; raises DataError at the first bad line."""
    plain = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
    decoder = Decoder(identity, columns_for(identity))
    read = 0
    try:
        for number, value in _csv(plain, identity, label) if label else _json(plain):
            read = number
            if check and (rejects := decoder.decode([value])[1]):
                raise _BadLine(number, f"{rejects[0].reason}: {rejects[0].detail}")
            yield _Line(value, number, raw.tell() if raw.seekable() else 0)
    except _BadLine as error:
        raise DataError(f"{name}, line {error.line}: {error}") from None
    except (csv.Error, zlib.error, UnicodeDecodeError, OSError, EOFError) as error:
        raise DataError(f"{name}, after line {read}: {error}") from None


def _json(plain: Any) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(plain, 1):
        if stripped := line.strip():
            yield number, stripped


def _csv(plain: Any, identity: Identity, label: str) -> Iterator[tuple[int, bytes]]:
    """Rows of a CSV with a header; an empty cell is a feature that the event does not have."""
    reader = csv.reader(io.TextIOWrapper(plain, "utf-8-sig", newline=""), strict=True)
    header = next(reader, [])
    if label not in header:
        raise _BadLine(1, f"there is no column '{label}'; the columns are {', '.join(header) or 'none'}")
    if len(set(header)) < len(header):
        raise _BadLine(1, "two columns have the same name")
    at = header.index(label)
    names = [name for i, name in enumerate(header) if i != at]
    for row in reader:
        number = reader.line_num
        if not row:
            continue
        if len(row) != len(header):
            raise _BadLine(number, f"{len(row)} cells, the header has {len(header)}")
        cells = [(name, cell) for name, cell in zip(header, row, strict=True) if name != label]
        if identity.features == "positional":
            features: Any = [_number(number, name, cell) for name, cell in cells]
            if len(names) != identity.dimension:
                raise _BadLine(1, f"{len(names)} feature columns, the model's dimension is {identity.dimension}")
        else:
            features = {name: _number(number, name, cell) for name, cell in cells if cell.strip()}
        yield (
            number,
            json.dumps({"features": features, "label": _label(row[at], identity)}, separators=(",", ":")).encode(),
        )


def _number(line: int, column: str, cell: str) -> float:
    try:
        value = float(cell if "_" not in cell else "")
    except ValueError:
        raise _BadLine(line, f"column '{column}': expected a number, got '{cell[:40]}'") from None
    if not math.isfinite(value):
        raise _BadLine(line, f"column '{column}': expected a finite number, got '{cell[:40]}'")
    return value


def _label(cell: str, identity: Identity) -> Any:
    """A cell as a JSON number or boolean where it reads as one, else as a string; as a string where labels are."""
    text = cell.strip()
    if identity.labels and isinstance(identity.labels[0], str):
        return text
    try:
        value = json.loads(text.lower() if text.lower() in {"true", "false"} else text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text


async def _send(bootstrap: str, topic: str, lines: Iterator[_Line], size: int | None) -> int:
    async with admin(bootstrap) as client:
        if topic not in await client.list_topics():
            raise ConfigurationError(
                f"topic {topic} does not exist: create it, or start `perceptron run -t {topic} --create-topics`"
            )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=5)
    batches = _Batches(lines)
    sent = 0
    async with kafka_errors(bootstrap):
        try:
            await producer.start()
            with _progress(size) as (progress, task):
                under_way: list[Any] = []
                while (batch := await asyncio.to_thread(batches.get)) is not None:
                    for line in batch:
                        try:
                            under_way.append(await producer.send(topic, line.value))
                        except MessageSizeTooLargeError:
                            detail = f"line {line.number}: {len(line.value)} bytes are more than Kafka takes"
                            raise DataError(detail) from None
                    if len(under_way) > UNACKNOWLEDGED:
                        await asyncio.gather(*under_way)
                        under_way.clear()
                    sent += len(batch)
                    if batch:
                        progress.update(task, completed=batch[-1].position if size else sent, events=sent)
                await asyncio.gather(*under_way)
        finally:
            await producer.stop()
    if batches.error is not None:
        raise DataError(f"{batches.error} ({sent} event{'s' * (sent != 1)} before it sent)") from None
    return sent


class _Batches:
    """Lines in batches, read by a thread of their own: what is there goes out, and a slow pipe holds nothing up."""

    def __init__(self, lines: Iterator[_Line]) -> None:
        self.error: Exception | None = None
        self._queue: queue.Queue[_Line | None] = queue.Queue(4 * BATCH)
        self._ended = False
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Iterator[_Line]) -> None:
        try:
            for line in lines:
                self._queue.put(line)
        except Exception as error:
            self.error = error
        finally:
            self._queue.put(None)

    def get(self) -> list[_Line] | None:
        """Up to BATCH lines, none when none came for a while, None at the end.

        It never waits for long: whoever interrupts the command waits for this thread too.
        """
        batch: list[_Line] = []
        while len(batch) < BATCH and not self._ended and not (batch and self._queue.empty()):
            try:
                line = self._queue.get(timeout=0.2)
            except queue.Empty:
                return batch
            if line is None:
                self._ended = True
            else:
                batch.append(line)
        return batch or (None if self._ended else [])


class _progress:  # noqa: N801 - a context manager used once, named like a function
    """A bar over the file's bytes, or a count where there is no size; only on a terminal."""

    def __init__(self, size: int | None) -> None:
        columns: list[Any] = [SpinnerColumn(), TextColumn("{task.fields[events]} events")]
        columns += [BarColumn(), TaskProgressColumn()] if size else [MofNCompleteColumn()]
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._size = size

    def __enter__(self) -> tuple[Progress, Any]:
        self._progress.start()
        return self._progress, self._progress.add_task("", total=self._size, events=0)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
