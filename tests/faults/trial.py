"""One topic under faults: a stream of events, services that get requests all the time, and a judge.

Services reach Kafka and Redis through proxies; the stream and the judge reach them directly. The judge asserts:

I1, I2  every head that Redis accepted is the plain fold of the records it covers, bit for bit; so is the last one
I3, I4  no accepted head goes back, and each one was accepted on the current head
I5      dead letters, deduplicated by key, are exactly the bad records
I6      durable counters are those of accepted heads, and never fall within a process
I7      all records are learned within a stated time after the fault has ended
I8      each prediction names an accepted version, and a live process answers every request
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from redis import Redis as Client

from service.embedded.servers import Server
from service.snapshots.redis.store import key
from tests.conftest import DEADLINE, Running, create_topic, event, perceptron, read_partition, wait
from tests.faults.proxy import Proxy
from tests.faults.watcher import WatchedWorld, Watcher
from tests.kinds import BAD_NAMED
from tests.simulation.judge import Judge
from tests.simulation.world import Record, Topic

ALL = os.environ.get("FAULTS") == "all"
"""True with `make test-all`: each fault as often as docs/guarantees.md promises, under full load."""
BAD = [raw for raw, _ in BAD_NAMED if raw is None or len(raw) < 200]
HEADERS: list[tuple[str, bytes]] = [("", b"")] * 12_000
"""Headers of some bad records, whose dead letters must be truncated, since their topic accepts less."""
LETTER_BYTES = 20_000
NAMES = [f"n{i}" for i in range(300)]
MODELS = {
    "plain": "",
    "full": """[model]
scale = "standard"
average = "recent"
half_life = 200
margin = [0.5, 3]

[model.candidates.calm]
margin = 0
half_life = 100

[model.candidates.own]
eta = {eta}
""",
    "classes": """[model]
labels = [0, 1, 3]
average = "recent"
half_life = 200
""",
}
"""A plain model; a model with everything that a snapshot can hold, whose second candidate differs in every second
process; and a model with three labels."""
read_committed = partial(read_partition, isolation_level="read_committed")
SETTLE_SECONDS = 40.0 if ALL else 400.0
"""Maximum time to learn all of the log after a fault; docs/guarantees.md promises 40 s."""


class Trial:
    """A trial as the module describes it. It is a context manager, which ends everything that it started."""

    def __init__(
        self, kafka: Server, kafka_proxy: Proxy, redis: Server, redis_proxy: Proxy, topic: str, folder: Path
    ) -> None:
        self.kafka, self.kafka_proxy, self.redis, self.redis_proxy = kafka, kafka_proxy, redis, redis_proxy
        self.topic, self.folder = topic, folder
        self.kind = sorted(MODELS)[zlib.crc32(folder.name.encode()) % len(MODELS)]
        """The model in MODELS; each is used by a third of the tests."""
        self.settings = ""
        self.services: list[Running] = []
        self.live: list[Running] = []
        """The services that must answer at present."""
        self.answers: list[int] = []
        """The version in each prediction."""
        self.scrapes: dict[int, list[tuple[float, float]]] = {}
        """The durable counters of each process: events and mistakes."""
        self.failures: list[str] = []
        self.sent = 0
        self.rate = 2000
        self.make: Callable[[random.Random], tuple[bytes | None, Any]] = self._random_record
        """Makes the next record's value and headers from the stream's random numbers."""
        self.logs: list[Topic] = []
        self.was_reset = False
        self.redis_address = redis_proxy.address
        """The address that services use."""
        self._watcher: Any = Watcher(redis.address, topic)
        self._ended, self._held, self._quiet = threading.Event(), threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Trial":
        self._watcher.look()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.clear()
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for proxy in (self.kafka_proxy, self.redis_proxy):
            proxy.heal()
        for service in self.services:
            service.process.send_signal(signal.SIGCONT)
            service.close()
        self._watcher.end()

    # Processes

    def service(self, *flags: str, settings: str = "", **options: Any) -> Running:
        """Start another process, without waiting for it."""
        model = MODELS[self.kind].format(eta=0.5 + 0.25 * (len(self.services) % 2))
        text, kafka = f"{settings}\n{self.settings}\n{model}", self.kafka_proxy.address
        service = Running(self.topic, kafka, self.redis_address, self.folder, text, *flags, **options)
        self.services.append(service)
        return service

    def failing(self, point: str, number: signal.Signals = signal.SIGKILL, nth: int = 1, **options: Any) -> Running:
        """Start a process that sends itself a signal at a point; see the module `failing`."""
        arguments = (point, number.name, str(nth), f"redis://{self.redis.address}/0")
        return self.service(program=("tests.faults.failing", *arguments), **options)

    def up(self, *services: Running) -> None:
        """Wait until these services are ready; from now on they get requests."""
        for service in services:
            service.up()
            self.live.append(service)

    def hide(self, service: Running) -> None:
        """Stop sending requests to a service, which is about to end or hang."""
        if service in self.live:
            self.live.remove(service)

    def kill(self, service: Running) -> None:
        """Send SIGKILL."""
        self.hide(service)
        service.kill()

    def again(self, service: Running) -> None:
        """Start a service again as the normal program, and wait until it is ready."""
        plain = [sys.executable, "-m", "service", *service.command[service.command.index("-c") :]]
        self.up(service.start(plain))

    def perceptron(self, command: str, *flags: str) -> Any:
        """Run a command on this model, without the proxies."""
        kafka_flags = ["-b", self.kafka.address] if command != "reset" else []
        return perceptron(command, "-t", self.topic, *kafka_flags, "--redis", f"redis://{self.redis.address}/0", *flags)

    # The stream

    def begin(self, *flags: str, services: int = 1, partitions: int = 1, rate: int = 1000, **options: Any) -> None:
        """Start the stream, services and requests, and wait for some progress."""
        self.stream(partitions, rate)
        self.up(*[self.service(*flags, **options) for _ in range(services)])
        self.ask()
        self.progress(1000)

    def stream(self, partitions: int = 1, rate: int = 2000, dead_letters: bool = True) -> None:
        """Create the topic, and send events to it until the trial settles; one in fifty is bad."""
        asyncio.run(create_topic(self.kafka, self.topic, partitions))
        if dead_letters:
            asyncio.run(create_topic(self.kafka, f"{self.topic}.dead-letters", max_message_bytes=str(LETTER_BYTES)))
        self.logs.append(Topic(random.Random(0), partitions))
        self.rate = rate if ALL else min(rate, 1000)
        self._thread(lambda: asyncio.run(self._send()))

    def _thread(self, target: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=target, daemon=True))
        self._threads[-1].start()

    async def _send(self) -> None:
        rng = random.Random(5)
        client = AIOKafkaProducer(
            bootstrap_servers=self.kafka.address, acks="all", request_timeout_ms=120_000, metadata_max_age_ms=2000
        )  # fmt: skip
        await client.start()
        try:
            while not self._ended.is_set():
                futures, paused = [], self._held.is_set()
                for _ in range(0 if paused else self.rate // 50):
                    value, headers = self.make(rng)
                    key = b"k" if value is None else None
                    futures.append(await client.send(self.topic, value, key=key, headers=headers))
                self.sent += len(futures)
                # The log decides: a record may be in it twice or not at all.
                for result in await asyncio.gather(*futures, return_exceptions=True):
                    if isinstance(result, BaseException) and not isinstance(result, KafkaError):
                        raise result
                if paused:
                    self._quiet.set()
                await asyncio.sleep(0.02)
        finally:
            with contextlib.suppress(KafkaError):
                await client.stop()

    def _random_record(self, rng: random.Random) -> tuple[bytes | None, Any]:
        """An event; one in fifty is bad."""
        x: dict[str, Any] = {name: round(rng.gauss(0, 1), 3) for name in rng.sample(NAMES, 5)}
        label = int((sum(x.values()) > 0) != (rng.random() < 0.1))
        if self.kind == "classes" and abs(sum(x.values())) > 3.0:
            label = 3
        raw = event(x | {"page": rng.choice("abc"), "new": rng.random() < 0.5}, label)
        value = rng.choice(BAD) if rng.random() < 0.02 else raw
        return value, HEADERS if value is not raw and rng.random() < 0.02 else None

    def hold(self) -> None:
        """Pause the stream until `go_on`; when this returns, every record that was sent has arrived."""
        self._quiet.clear()
        self._held.set()
        wait(self._quiet.is_set, "the stream is at rest")

    def go_on(self) -> None:
        """Continue the stream."""
        self._held.clear()

    # Requests

    def ask(self) -> None:
        """Request predictions and metrics from every live process, from now on."""
        self._thread(self._ask)

    def _ask(self) -> None:
        turn = 0
        while not self._ended.is_set():
            for service in tuple(self.live):
                try:
                    self._ask_one(service, turn % 5 == 0)
                except (httpx.HTTPError, AssertionError, KeyError) as error:
                    if service in self.live:
                        self.failures.append(f"process {service.process.pid}: {type(error).__name__}: {error}")
            turn += 1
            self._ended.wait(0.05)

    def _ask_one(self, service: Running, scrape: bool) -> None:
        pid = service.process.pid
        answer = service.predict({"features": {"n1": 1.0}})
        assert answer.status_code == 200, answer.text
        self.answers.append(answer.json()["version"])
        if scrape:
            metrics, label = service.metrics(), f'{{model="{self.topic}"}}'
            if (events := metrics.get(f"perceptron_events_total{label}")) is not None:
                counters = events, metrics[f"perceptron_mistakes_total{label}"]
                self.scrapes.setdefault(pid, []).append(counters)

    @contextlib.contextmanager
    def answering(self, count: float) -> Iterator[None]:
        """Assert that at least this many predictions are answered meanwhile."""
        count_before = len(self.answers)
        yield
        assert len(self.answers) - count_before >= count, "too few predictions were answered"

    def outage(self, seconds: float) -> None:
        """Wait this long during a fault; predictions must continue."""
        with self.answering(2 * seconds):
            time.sleep(seconds)  # the fault itself

    # Waiting

    def learner(self) -> Running | None:
        """The live process that reports that it learns, or None."""
        for service in tuple(self.live):
            with contextlib.suppress(httpx.HTTPError):
                if service.model()["learning_here"]:
                    return service
        return None

    def learning(self, seconds: float = DEADLINE) -> Running:
        """Wait until a live process learns, and return it."""
        learner: Running = wait(self.learner, "a process learns", seconds)
        return learner

    def progress(self, records: int = 1, seconds: float = DEADLINE) -> int:
        """Wait until this many more records are learned and saved; return the total number."""
        enough = self.covered() + records
        wait(lambda: self.covered() >= enough, f"{records} more records are learned and saved", seconds)
        return self.covered()

    def wait_for_log(self, service: Running, words: str, seconds: float = DEADLINE) -> None:
        """Wait until these words are in the log of a service."""
        wait(lambda: words in service.log.read_text(), f"the log has {words!r}", seconds)

    def covered(self) -> int:
        """The number of records that the current head covers; 0 before the first head."""
        head = self._watcher.head()
        return sum(b - a for ranges in json.loads(head)["covered"].values() for a, b in ranges) if head else 0

    def saved_offset(self) -> int:
        """The next offset of partition 0 in the head in Redis."""
        with Client(host="127.0.0.1", port=self.redis.port) as client:
            offset: int = json.loads(client.hget(key(self.topic), "head") or b"")["next"]["0"]["offset"]
            return offset

    def settle(self) -> None:
        """Pause the stream, and wait until every live process has learned or followed all of the log."""
        self.hold()
        self.read_log()
        ends = {str(p): part.end for p, part in enumerate(self.logs[-1].partitions)}

        def is_settled() -> bool:
            for service in self.live:
                model = service.model()
                assert model["stopped"] is None, model["stopped"]
                if model["next"] != ends or model["ahead"]:
                    return False
            return True

        wait(is_settled, f"all of the log is learned: {ends}", SETTLE_SECONDS)

    def finish(self, dropped: int = 0) -> Judge:
        """Assert that everything is learned in time and correctly, and that state was dropped at least this often."""
        self.settle()
        return self.judge(dropped)

    # Judging

    def look_again(self) -> None:
        """Watch Redis again after it was down, before services may write to it."""
        self._watcher.look()

    def note_recreated_topic(self, partitions: int = 1) -> None:
        """Note that the topic was created again."""
        self.logs.append(Topic(random.Random(0), partitions))

    def reset(self) -> None:
        """Run `perceptron reset`, so that a new model begins."""
        result = self.perceptron("reset", "--yes")
        assert result.returncode == 0, result.stderr
        self.was_reset = True

    def read_log(self) -> None:
        """Store what the log contains now, before some of it is deleted."""
        bad = set(BAD)
        for p, part in enumerate(self.logs[-1].partitions):
            part.begin, part.end, records = asyncio.run(read_committed(self.kafka, self.topic, p))
            for r in records:
                part.records[r.offset] = Record(r.offset, r.timestamp, r.key, r.value, r.headers, r.value not in bad)

    def judge(self, dropped: int = 0, read: bool = True) -> Judge:
        """Assert I1 to I6 and I8 over everything since the start, and that state was dropped at least this often.

        Without `read` the log is judged as `read_log` stored it before.
        """
        if read:
            self.read_log()
        _, _, dead_letters = asyncio.run(read_committed(self.kafka, f"{self.topic}.dead-letters"))
        letters: dict[bytes, set[bytes | None]] = {}
        for letter in dead_letters:
            letters.setdefault(letter.key, set()).add(letter.value)
        # Dropped state answers until the newest snapshot is fetched.
        wait(lambda: not any(service.model()["ahead"] for service in self.live), "only accepted heads answer")
        labels = (0, 1, 3) if self.kind == "classes" else (None,)
        models = [(service.model(), [service.vector(label) for label in labels]) for service in self.live]
        self._watcher.catch_up()
        judge, accepted = WatchedWorld(self.topic, self.logs, letters).judge(self._watcher.changes)
        last_head = judge.heads[accepted[-1]]
        for model, vectors in models:
            assert model["digest"] == accepted[-1]
            assert [weight for column in zip(*vectors, strict=True) for weight in column] == last_head.state.fold.vector
        # Otherwise some letters belong to the previous model, or to records that no save covers yet.
        if not self.was_reset and not any(model["stopped"] for model, _ in models):
            assert sum(len(values) for values in letters.values()) == len(letters) == last_head.state.rejected
        folds = [head.state.fold for head in judge.heads.values()]
        states = {(float(fold.events), float(fold.mistakes)) for fold in folds}
        if self.was_reset:  # each counter rises once the new model has passed the old one
            states = {(events, mistakes) for events, _ in states for _, mistakes in states}
        for pid, counters in self.scrapes.items():
            assert counters == sorted(counters), f"a durable counter of process {pid} fell"
            assert not set(counters) - states, f"process {pid} exports counters that no accepted head has"
        versions = {judged_head.version for judged_head in judge.heads.values()}
        assert set(self.answers) <= versions, "a prediction names a version that was never accepted"
        assert not self.failures, self.failures[:3]
        drops = sum(s.log.read_text().count("state dropped") for s in self.services)
        assert drops >= dropped, f"state was dropped {drops} times"
        return judge
