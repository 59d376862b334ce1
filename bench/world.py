"""A Kafka and a Redis for all benchmarks of a run, topics with streams, and `perceptron run` as a user starts it."""

import asyncio
import atexit
import contextlib
import functools
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
from aiokafka import AIOKafkaProducer
from redis import Redis

from bench.events import Stream
from service.embedded import servers
from service.embedded.servers import Server
from tests.conftest import DEADLINE, Running, clean_environment, create_topic, wait

PROPERTIES = servers.PROPERTIES + "log.retention.check.interval.ms=10000\n"
"""Broker settings with which old records of a long run are deleted soon."""
BATCH_BYTES = 64 << 10
"""Bytes of a record batch, as from a producer that is configured for large batches."""
MAX_BATCHES_IN_FLIGHT = 32
WARM = 0.1
"""The share of a stream that is learned before the measurement begins."""
LOOK_SECONDS = 0.1
SESSION_SECONDS = 30.0
"""The group's session timeout: longer than four processes take to start at once."""

_stack = contextlib.ExitStack()
atexit.register(_stack.close)


@functools.cache
def folder() -> Path:
    """The temporary folder of this run."""
    return Path(_stack.enter_context(tempfile.TemporaryDirectory(prefix="perceptron-bench-")))


@functools.cache
def kafka() -> Server:
    """The broker of this run."""
    return _stack.enter_context(servers.start_kafka(folder(), properties=PROPERTIES))


@functools.cache
def redis() -> Server:
    """The Redis of this run: Redis itself if it is installed, else Valkey."""
    return _stack.enter_context(servers.start_redis(folder(), shutil.which("redis-server")))


def store() -> Any:
    """A client of the first database of Redis."""
    return Redis.from_url(f"redis://{redis().address}/0")


def new_topic(name: str = "bench", partitions: int = 1, **configs: str) -> str:
    """Create a topic with this name and a random suffix."""
    topic = f"{name}-{uuid.uuid4().hex[:6]}"
    asyncio.run(create_topic(kafka(), topic, partitions, **configs))
    return topic


@asynccontextmanager
async def producer(**options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """A producer for the broker of this run."""
    client = AIOKafkaProducer(bootstrap_servers=kafka().address, **options)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def send(
    client: AIOKafkaProducer, topic: str, values: Iterator[bytes], content_type: str = "", partition: int = 0
) -> None:
    """Send records, a whole batch at a time, and wait until all are acknowledged."""
    headers = [("content-type", content_type.encode())] if content_type else []
    futures: list[Any] = []
    value = next(values, None)
    while value is not None:
        batch = client.create_batch()
        while value is not None and batch.append(key=None, value=value, timestamp=None, headers=headers):
            value = next(values, None)
        batch.close()
        futures.append(await client.send_batch(batch, topic, partition=partition))
        if len(futures) == MAX_BATCHES_IN_FLIGHT:
            await asyncio.gather(*futures)
            futures.clear()
    await asyncio.gather(*futures)


def fill(topic: str, values: Sequence[bytes], events: int, content_type: str = "", **options: Any) -> None:
    """Send `events` records to a topic, by repeating these values."""

    async def send_all() -> None:
        async with producer(**{"max_batch_size": BATCH_BYTES, **options}) as client:
            await send(client, topic, itertools.islice(itertools.cycle(values), events), content_type)

    asyncio.run(send_all())


def topic_of(stream: Stream) -> str:
    """Create a topic that contains a stream."""
    topic = new_topic()
    fill(topic, stream.values(), stream.events, stream.content_type)
    return topic


class Service(Running):
    """`perceptron run` as a new process, not a copy of a template."""

    def start(self, command: list[str]) -> Running:
        """Start the process; in tests it is a copy of a process that has imported everything."""
        self.began, self.took = time.monotonic(), 0.0
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=clean_environment())
        return self

    def answer(self, path: str) -> None:
        """Wait until a path answers 200, and store how long that took."""
        while not self._alive() or not self._answers(path):
            assert time.monotonic() < self.began + DEADLINE, self.log.read_text()[-2000:]
            time.sleep(0.005)
        self.took = time.monotonic() - self.began

    def _answers(self, path: str) -> bool:
        try:
            return self.http.get(path).status_code == 200
        except httpx.TransportError:
            return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process (SIGSTOP) within the context."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def resident(self) -> int:
        """Resident memory in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu(self) -> float:
        """CPU seconds used so far, by all threads."""
        return cpu_of(self.process.pid)

    def events(self) -> int:
        """The number of events learned so far, over all topics."""
        return sum(model["events"] for model in self.http.get("/v1/models").json()["models"])

    def until(self, events: int, seconds: float = 300.0) -> None:
        """Wait until this many events are learned."""
        wait(lambda: self._alive() and self.events() >= events, f"{events} events learned", seconds)

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        return True


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def service(
    topic: str,
    settings: str = "",
    *flags: str,
    fresh: bool = True,
    until: str = "/readyz",
    program: Sequence[str] = ("service",),
) -> Iterator[Service]:
    """Run the service on a topic; yields once `until` answers 200. `fresh` empties Redis first."""
    if fresh:
        store().flushall()
    running = Service(
        topic, kafka().address, redis().address, folder(), settings, *flags,
        session_timeout=SESSION_SECONDS, program=program,
    )  # fmt: skip
    try:
        running.answer(until)
        yield running
    finally:
        try:
            running.stop()
        finally:
            if running.process.poll() is None:
                print(running.log.read_text()[-2000:], file=sys.stderr)
                running.kill()
            running.http.close()


class Learned(NamedTuple):
    """The cost of learning a stream after its warm-up."""

    microseconds: float
    """CPU microseconds an event."""
    rate: float
    """Events a second by the clock."""
    broker: float
    """The broker's CPU microseconds an event."""
    redis: float
    """Redis' CPU microseconds an event."""


def follow(running: Service, records: int, first: int = 0) -> Learned:
    """Poll a service until it has learned this many records; the share WARM of those after `first` is not measured."""
    server_pids = [server.process.pid for server in (kafka(), redis()) if server.process]
    baseline: tuple[float, int, list[float]] | None = None
    deadline = time.monotonic() + 300.0
    while time.monotonic() < deadline:
        running._alive()
        events, seconds = running.events(), time.monotonic()
        used = [running.cpu(), *map(cpu_of, server_pids)]
        if baseline is None and events >= first + WARM * (records - first):
            baseline = seconds, events, used
        if events >= records and baseline is not None:
            learned_events = events - baseline[1]
            assert learned_events, "the stream ended before the first measurement: use more events"
            ours, *theirs = (1e6 * (b - a) / learned_events for a, b in zip(baseline[2], used, strict=True))
            return Learned(ours, learned_events / (seconds - baseline[0]), *theirs)
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"{running.events()} of {records} records learned: {running.log.read_text()[-2000:]}")


def learn(topic: str, stream: Stream, *, program: Sequence[str] = ("service",)) -> Learned:
    """The cost of learning a stream from its topic, for a new service."""
    with service(topic, stream.settings, "--create-topics", program=program) as running:
        return follow(running, stream.events)


def other(kind: str, topic: str, events: int) -> float:
    """CPU microseconds an event, for a program of `others`."""
    command = [sys.executable, "-m", "bench.others", kind, kafka().address, topic, str(events)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(result.stdout))
