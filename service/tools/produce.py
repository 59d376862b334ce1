"""`perceptron produce`: the events of a file or of standard input, to a topic."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import dropwhile, islice
from typing import Any

import typer
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from service.errors import ConfigurationError, DataError, DependencyError
from service.learning.events.content_types import headers_of
from service.streaming.kafka.cluster import Cluster
from service.tools.formats.formats import Events, Line, in_batches, raise_bad_line

BATCH = 500
UNACKNOWLEDGED = 20_000
"""Events that are sent at a time, and that may be under way: more are no faster, and cost memory."""
CATCH_UP = 0.05
"""Seconds that the pace may be behind and still make up for: no timer is exact, and a pause must not end in a burst."""
ANSWER_SECONDS = 30.0
"""Without an acknowledgement for so long, Kafka is given up."""
TOPIC_SECONDS = 30.0
"""For a topic to exist: as a process creates its own, when it has compiled and is connected."""
STOP_SECONDS = 3.0
SHOWN = 10


def produce_file(
    cluster: Cluster, topic: str, events: Events, *, rate: float | None, count: int | None, skip: int = 0
) -> int:
    """Send the events (`count` after the first `skip`, `rate` a second) in order, wait for the last; returns how many.

    Raises DataError with the number of the first bad line; the events before it are sent.
    """
    return asyncio.run(_send(cluster, topic, _part(events, raise_bad_line, skip, count), events, rate, count, skip))


def _part(events: Events, tell: Callable[[str], None], skip: int, count: int | None) -> Iterator[Line]:
    """`count` events after the first `skip`; raises DataError where there are not even those."""
    lines = events.lines(tell)
    if (skipped := sum(1 for _ in islice(lines, skip))) < skip:
        raise DataError(f"{events.name}: it has only {event_count(skipped)}, and --skip {skip} leaves them out")
    yield from islice(lines, count)


def dry_run(events: Events, count: int | None, skip: int = 0) -> int:
    """Read and check the events (`count` good ones after the first `skip`) and send nothing; returns how many are good.

    Prints the first SHOWN bad lines; raises DataError with their number if there are any.
    """
    good = bad = 0

    def tell(message: str) -> None:
        nonlocal bad
        bad += 1
        if bad <= SHOWN:
            typer.echo(message, err=True)

    try:
        for _ in _part(events, tell, skip, count):
            good += 1
    except DataError as error:
        raise DataError(f"{error}{f' ({event_count(good)} before it good)' if good else ''}") from None
    if bad:
        raise DataError(f"{events.name}: {bad:,} line{'s' * (bad != 1)} bad, {event_count(good)} good")
    return good


def sending_result(done: int, events: Events, skip: int, what: str) -> str:
    """How many events were sent, or are good; of a file without any that it has none."""
    return f"{event_count(done)} {what}" if done or skip else f"{events.name} has no events: nothing was sent"


def event_count(events: int) -> str:
    """`1 event`, `2,000 events`."""
    return f"{events:,} event{'s' * (events != 1)}"


async def _send(
    cluster: Cluster,
    topic: str,
    lines: Iterator[Line],
    events: Events,
    rate: float | None,
    count: int | None,
    skip: int,
) -> int:
    await _exists(cluster, topic)
    producer = cluster.producer(enable_idempotence=True, linger_ms=5)
    pace = _Pace(rate)
    under_way: deque[Any] = deque()
    sent = 0
    # A daemon thread reads, since Ctrl-C would wait for one of asyncio's that is in a slow pipe.
    loop, batches = asyncio.get_running_loop(), asyncio.Queue[list[Line] | Exception | None](4)

    def put(item: list[Line] | Exception | None) -> None:
        asyncio.run_coroutine_threadsafe(batches.put(item), loop).result()

    size = pace.batch if events.size else 1  # of a pipe each line is sent when it comes
    threading.Thread(target=_read, args=(lines, size, put), daemon=True).start()
    try:
        async with cluster.errors(right="Write"):
            try:
                await producer.start()
                total = count or events.size or None
                with _progress(total) as progress:
                    task = progress.add_task("", total=total, events=0)
                    while isinstance(batch := await batches.get(), list):
                        for line in batch:
                            await pace.turn()
                            try:
                                headers = headers_of(line.value)
                                under_way.append(await producer.send(topic, line.value, line.key, headers=headers))
                            except MessageSizeTooLargeError:
                                await _acknowledged(under_way)
                                raise DataError(
                                    f"{events.name}, line {line.number}: {len(line.value)} bytes are more than Kafka "
                                    f"takes ({event_count(sent)} before it sent)"
                                ) from None
                            sent += 1
                            while under_way and under_way[0].done():
                                await under_way[0]
                                under_way.popleft()
                            await _acknowledged(under_way, pace.unacknowledged)
                        progress.update(task, completed=sent if count else batch[-1].position, events=sent)
                    await _acknowledged(under_way)
            finally:
                await _stop(producer)
    except DependencyError as error:
        if done := sent - len(_unknown(under_way)):
            raise DependencyError(
                f"{error} ({event_count(done)} sent; --skip {skip + done} goes on)", "kafka"
            ) from None
        raise
    except asyncio.CancelledError:
        done = sent - len(_unknown(under_way))
        typer.echo(f"interrupted: {event_count(done)} sent to {topic}; --skip {skip + done} goes on", err=True)
        raise
    if batch is not None:
        goes_on = f"; --skip {skip + sent} goes on" if sent else ""
        raise DataError(f"{batch} ({event_count(sent)} before it sent{goes_on})") from None
    return sent


async def _exists(cluster: Cluster, topic: str) -> None:
    """Wait a little for the topic: a process that was started just before may be about to create it."""
    until, is_told = time.monotonic() + TOPIC_SECONDS, False
    missing = f"topic {topic} does not exist at {cluster.bootstrap}"
    while not await cluster.partitions(topic, "Write"):
        if not is_told:
            typer.echo(f"{missing}: waiting {TOPIC_SECONDS:g} seconds for it", err=True)
        if time.monotonic() > until:
            raise ConfigurationError(f"{missing}: create it, or start `perceptron run -t {topic} --create-topics`")
        is_told = True
        await asyncio.sleep(0.2)


async def _acknowledged(under_way: deque[Any], rest: int = 0) -> None:
    """Wait until Kafka has no more than `rest` to acknowledge; raises TimeoutError when it stops doing so.

    The client itself would wait for ever: an idempotent producer gives up no record.
    """
    while len(under_way) > rest:
        async with asyncio.timeout(ANSWER_SECONDS):
            await under_way[0]
        under_way.popleft()


def _unknown(under_way: deque[Any]) -> list[Any]:
    """From the first that was not acknowledged on: of those behind it some may be there, and are sent twice."""
    return list(dropwhile(lambda f: f.done() and not f.cancelled() and f.exception() is None, under_way))


async def _stop(producer: AIOKafkaProducer) -> None:
    """Send what was handed over, if Kafka still answers."""
    try:
        # No asyncio.timeout: in a task that was interrupted it is none, before Python 3.11.3.
        await asyncio.wait_for(producer.stop(), STOP_SECONDS)
    except TimeoutError:
        await producer.client.close()


class _Pace:
    """So many turns a second, evenly; all at once where there is no rate."""

    def __init__(self, rate: float | None) -> None:
        self._gap = 1.0 / rate if rate else 0.0
        self._due = time.monotonic() - self._gap
        # Of a slow stream no more is taken than is soon sent: what is shown as read is then true.
        self.batch = max(1, min(BATCH, int(rate / 10))) if rate else BATCH
        # Ten seconds' worth, so that a Kafka that is gone is soon missed.
        self.unacknowledged = max(1, min(UNACKNOWLEDGED, int(rate * 10))) if rate else UNACKNOWLEDGED

    async def turn(self) -> None:
        """Wait for the next turn."""
        if self._gap:
            now = time.monotonic()
            self._due = max(self._due + self._gap, now - CATCH_UP)
            if self._due > now:
                await asyncio.sleep(self._due - now)


def _read(lines: Iterator[Line], size: int, put: Callable[[Any], None]) -> None:
    """Hand over the lines, in batches, and then None, or the error that ended them."""
    with suppress(RuntimeError, CancelledError):  # the event loop has ended
        try:
            for batch in in_batches(lines, size):
                put(batch)
        except Exception as error:
            put(error)
        else:
            put(None)


def _progress(total: int | None) -> Progress:
    """A bar over the file's bytes or the requested count, or the count so far; only on a terminal."""
    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.fields[events]:,} events")]
    columns += [BarColumn(), TaskProgressColumn()] if total else [TimeElapsedColumn()]
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal)
