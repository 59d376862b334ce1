"""`perceptron produce`: the events or labels of a file or of standard input, to a topic."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import dropwhile, islice
from typing import Any

import numpy as np
import typer
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from rich.console import Console

from service.errors import ConfigurationError, DataError, PerceptronError
from service.learning.evaluation.confusion import sorted_note
from service.serving.posting import Posting
from service.settings.load import Settings
from service.streaming.kafka.cluster import Cluster
from service.text import quantity
from service.tools.files import BadLine, Events, JsonLines, Line, in_batches, raise_bad_line

BATCH_EVENTS = 500
MAX_UNACKNOWLEDGED = 20_000
"""Events that are read at a time, and events that may be unacknowledged: more are no faster, and cost memory."""
CATCH_UP_SECONDS = 0.05
"""The most delay that --rate makes up for: no timer is exact, and a pause must not end in a burst."""
ANSWER_SECONDS = 30.0
"""The time without an acknowledgement after which Kafka is given up."""
TOPIC_SECONDS = 30.0
"""The time for a topic to exist: `run` creates it when it has compiled and is connected."""
MAX_BAD_LINES = 10
"""Bad lines that a dry run prints."""

Batches = asyncio.Queue[list[Line] | Exception | None]
"""Lines as they are read, and at the end None, or the error that ended the reading."""


class LabelFile(Events):
    """The labels of a file, with the ids of their events, as records for the join of a model."""

    kind = "label"

    def __init__(self, file: str, settings: Settings, model: str) -> None:
        """Raises ConfigurationError if the labels of the model do not come later."""
        own = settings.model_settings(model)
        identity, share = own.identity(), own.predictions.share if own.predictions else 1.0
        if not own.join:
            raise ConfigurationError(f"model {model} has no labels that come later: set [models.{model}.join]")
        super().__init__(file, JsonLines(identity, "id"), identity, check=False)
        self._posting = Posting(identity, None, None, share)

    def _events(self, rows: Sequence[tuple[int, Any]]) -> list[bytes | BadLine]:
        records, rejects = self._posting.label_records([row for _, row in rows])
        bad = {i: BadLine(self._rejected(rows[i][1], reason, detail)) for i, reason, detail, _ in rejects}
        good = {i: (record and record.value) or b"" for i, record in records.items()}
        return [bad.get(i) or good[i] for i in range(len(rows))]


def _part(events: Events, bad: Callable[[str], None], skip: int, count: int | None) -> Iterator[Line]:
    """`count` events after the first `skip`, and a note if they are sorted by their labels.

    Raises DataError if there are fewer than `skip`.
    """
    lines = events.lines(bad)
    if (skipped := sum(1 for _ in islice(lines, skip))) < skip:
        only = quantity(skipped, events.kind)
        raise DataError(f"{events.name}: it has only {only}, and --skip {skip} leaves them out")
    yield from islice(lines, count)
    if note := sorted_note(events.name, np.array(events.labels)):
        typer.echo(f"note: {note}", err=True)


def dry_run(events: Events, count: int | None, skip: int) -> None:
    """Read and check the events (`count` good ones after the first `skip`), send nothing, and print how many are good.

    Prints the first bad lines; raises DataError with their number if there are any.
    """
    bad = list[str]()
    good = sum(1 for _ in _part(events, bad.append, skip, count))
    for message in bad[:MAX_BAD_LINES]:
        typer.echo(message, err=True)
    if bad:
        raise DataError(f"{events.name}: {quantity(len(bad), 'line')} bad, {quantity(good, events.kind)} good")
    typer.echo(f"{quantity(good, events.kind)} good; nothing was sent")


async def produce_file(
    cluster: Cluster, topic: str, events: Events, *, rate: float | None, count: int | None, skip: int
) -> None:
    """Send the events (`count` after the first `skip`, `rate` a second) in order, and wait for the last.

    Raises DataError with the number of the first bad line; the events before it are sent. An error says how many were
    sent, and how to go on.
    """
    await _wait_for_topic(cluster, topic, "" if events.kind == "label" else f" -t {topic}")
    # A slow stream is read and sent in small parts, so that a missing Kafka is noticed soon.
    size = int(min(BATCH_EVENTS, max(1, rate / 10))) if rate else BATCH_EVENTS
    limit = int(min(MAX_UNACKNOWLEDGED, max(1, rate * 10))) if rate else MAX_UNACKNOWLEDGED
    batches, lines = Batches(4), _part(events, raise_bad_line, skip, count)
    # A daemon thread reads: Ctrl-C would wait for a thread of asyncio's that reads from a slow pipe. A pipe's lines are
    # sent as they come.
    reading = asyncio.get_running_loop(), batches, lines, size if events.size else 1
    threading.Thread(target=_read, args=reading, daemon=True).start()
    producer = cluster.producer(enable_idempotence=True, linger_ms=5)
    sent, unacknowledged, begin = 0, deque[Any](), time.monotonic()
    due = begin - 1.0 / rate if rate else begin
    try:
        async with cluster.errors(right="Write"), cluster.open_clients(producer):
            with Console(stderr=True).status("") as status:
                while isinstance(batch := await batches.get(), list):
                    for line in batch:
                        if rate:
                            due = max(due + 1.0 / rate, time.monotonic() - CATCH_UP_SECONDS)
                            await asyncio.sleep(due - time.monotonic())
                        unacknowledged.append(await _send_line(producer, topic, line, events))
                        sent += 1
                        await _acknowledge(unacknowledged, limit)
                    status.update(f"{sent:,} events, {sent / (time.monotonic() - begin):,.0f} a second")
            await _acknowledge(unacknowledged, 0)
        if batch is not None:
            raise batch
    except (PerceptronError, asyncio.CancelledError) as error:
        # Events after the first unacknowledged one may be in Kafka too: with this --skip they are sent twice.
        tail = dropwhile(lambda f: f.done() and not f.cancelled() and f.exception() is None, unacknowledged)
        acknowledged = sent - len(list(tail))
        sent_events = f"{quantity(acknowledged, events.kind)} sent"
        if isinstance(error, asyncio.CancelledError):
            typer.echo(f"interrupted: {sent_events} to {topic}; --skip {skip + acknowledged} goes on", err=True)
            raise
        note = f" ({sent_events}; --skip {skip + acknowledged} goes on)" if acknowledged else ""
        raise type(error)(f"{error}{note}") from None
    typer.echo(f"{quantity(sent, events.kind)} sent to {topic}", err=True)


async def _send_line(producer: AIOKafkaProducer, topic: str, line: Line, events: Events) -> Any:
    """A future of the record's acknowledgement; raises DataError if the record is too large."""
    try:
        return await producer.send(topic, line.value, line.key, headers=events.headers)
    except MessageSizeTooLargeError:
        size = len(line.value)
        raise DataError(f"{events.name}, line {line.number}: {size} bytes are more than Kafka takes") from None


async def _wait_for_topic(cluster: Cluster, topic: str, option: str) -> None:
    """Wait a little for the topic: a process that was started just before, perhaps with `option`, may create it."""
    until, missing = 0.0, f"topic {topic} does not exist at {cluster.bootstrap}"
    while not await cluster.partitions(topic, "Write"):
        if not until:
            typer.echo(f"{missing}: waiting {TOPIC_SECONDS:g} seconds for it", err=True)
            until = time.monotonic() + TOPIC_SECONDS
        if time.monotonic() > until:
            raise ConfigurationError(f"{missing}: create it, or start `perceptron run{option} --create-topics`")
        await asyncio.sleep(0.2)


async def _acknowledge(unacknowledged: deque[asyncio.Future[object]], limit: int) -> None:
    """Remove the records that Kafka has acknowledged, and wait until at most `limit` are left; raises TimeoutError.

    The client itself would wait for ever: an idempotent producer never gives up a record.
    """
    while unacknowledged and (len(unacknowledged) > limit or unacknowledged[0].done()):
        if not unacknowledged[0].done():
            async with asyncio.timeout(ANSWER_SECONDS):
                await unacknowledged[0]
        unacknowledged[0].result()
        unacknowledged.popleft()


def _read(loop: asyncio.AbstractEventLoop, batches: Batches, lines: Iterator[Line], size: int) -> None:
    """Put the lines into the queue, in batches, and at the end None, or the error that ended the reading."""

    def put(item: list[Line] | Exception | None) -> None:
        asyncio.run_coroutine_threadsafe(batches.put(item), loop).result()

    with suppress(RuntimeError, CancelledError):  # the event loop has ended
        try:
            for batch in in_batches(lines, size):
                put(batch)
            put(None)
        except Exception as error:
            if not isinstance(error, RuntimeError | CancelledError):
                put(error)
