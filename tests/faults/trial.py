"""One topic under faults: a stream of events, services, somebody who asks them all the time, and the judgement.

Services reach Kafka and Redis through proxies; the stream and whoever judges reach them directly. What is asserted:

I1, I2  every head that Redis accepted is the plain fold of the records it covers, bit for bit; so is the last one
I3, I4  no accepted head goes back, and each was accepted on the head that was current
I5      dead letters, deduplicated by key, are exactly the bad records
I6      durable counters are those of accepted heads, and never fall within a process
I7      all is learned within a stated time after the fault healed
I8      each prediction names an accepted version, and a living process answers each
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
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from redis import Redis as Client

from service.embedded.servers import Server
from service.snapshots.redis.store import key
from tests.conftest import DEADLINE, Running, create_topic, event, perceptron, wait
from tests.faults.proxy import Proxy
from tests.faults.watcher import Seen, Watcher
from tests.kinds import BAD_NAMED
from tests.simulation.judge import Judge
from tests.simulation.world import Record, Topic

ALL = os.environ.get("FAULTS") == "all"
"""`make test-all`: every case, each as often as the promise says, under all of its load."""
BAD = [raw for raw, _ in BAD_NAMED if raw is None or len(raw) < 200]
HEADERS: list[tuple[str, bytes]] = [("", b"")] * 12_000
"""Of a bad one now and then: its dead letter must be cut, since that topic takes less than theirs."""
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
"""A plain one, one with all that a snapshot can hold, whose second candidate is another in every second process, and
one of three labels."""
SETTLE_SECONDS = 40.0 if ALL else 400.0
"""Within which all of the log is learned when a fault has ended; docs/guarantees.md says 40 s."""


class Trial:
    """See the module's first lines. A context: all that it started ends with it."""

    def __init__(
        self,
        kafka: Server,
        kafka_proxy: Proxy,
        redis: Server,
        redis_proxy: Proxy,
        topic: str,
        folder: Path,
    ):
        self.kafka, self.kafka_proxy, self.redis, self.redis_proxy = kafka, kafka_proxy, redis, redis_proxy
        self.topic, self.folder = topic, folder
        self.kind = sorted(MODELS)[zlib.crc32(folder.name.encode()) % len(MODELS)]
        """Of the model: see MODELS. A third of the tests has each."""
        self.settings = ""
        self.services: list[Running] = []
        self.live: list[Running] = []
        """Those that must answer now."""
        self.answers: list[int] = []
        """The version that each prediction named."""
        self.scrapes: dict[int, list[tuple[float, float]]] = {}
        """By process: events and mistakes, as its durable counters say."""
        self.failures: list[str] = []
        self.sent = 0
        self.rate = 2000
        self.make: Callable[[random.Random], tuple[bytes | None, Any]] = self._usual
        """Of the stream's random numbers: the next record's value and headers."""
        self.logs: list[Topic] = []
        self.was_reset = False
        self.redis_address = redis_proxy.address
        """As services are given it."""
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
            service.http.close()
            if service.process.poll() is None:
                service.process.send_signal(signal.SIGCONT)
                service.kill()
        self._watcher.end()

    # Processes

    def service(self, *flags: str, settings: str = "", **more: Any) -> Running:
        """One more process, not waited for."""
        where = self.kafka_proxy.address, self.redis_address, self.folder
        model = MODELS[self.kind].format(eta=0.5 + 0.25 * (len(self.services) % 2))
        started = Running(self.topic, *where, f"{settings}\n{self.settings}\n{model}", *flags, **more)
        self.services.append(started)
        return started

    def failing(self, point: str, number: signal.Signals = signal.SIGKILL, nth: int = 1, **more: Any) -> Running:
        """A process that sends itself a signal at a point: see `failing`."""
        arguments = (point, number.name, str(nth), f"redis://{self.redis.address}/0")
        return self.service(program=("tests.faults.failing", *arguments), **more)

    def up(self, *services: Running) -> None:
        """Wait until these are ready, and ask them from now on."""
        for service in services:
            service.up()
            self.live.append(service)

    def hide(self, service: Running) -> None:
        """Ask this one no more: it is about to die or hang."""
        if service in self.live:
            self.live.remove(service)

    def kill(self, service: Running) -> None:
        """SIGKILL."""
        self.hide(service)
        service.kill()

    def again(self, service: Running) -> None:
        """Start it again, as the plain program, and wait until it is ready."""
        plain = [sys.executable, "-m", "service", *service.command[service.command.index("-c") :]]
        self.up(service.start(plain))

    def perceptron(self, command: str, *flags: str) -> Any:
        """Run a tool on this model, straight to the servers."""
        where = ["-b", self.kafka.address] if command != "reset" else []
        return perceptron(command, "-t", self.topic, *where, "--redis", f"redis://{self.redis.address}/0", *flags)

    # The stream

    def begin(self, *flags: str, services: int = 1, partitions: int = 1, rate: int = 1000, **more: Any) -> None:
        """A stream, services that learn it and are asked, and some progress."""
        self.stream(partitions, rate)
        self.up(*[self.service(*flags, **more) for _ in range(services)])
        self.ask()
        self.progress(1000)

    def stream(self, partitions: int = 1, rate: int = 2000, dead_letters: bool = True) -> None:
        """Create the topic, and send events to it, one in fifty a bad one, until the trial settles."""
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
                sent, held = [], self._held.is_set()
                for _ in range(0 if held else self.rate // 50):
                    value, headers = self.make(rng)
                    key = b"k" if value is None else None
                    sent.append(await client.send(self.topic, value, key=key, headers=headers))
                self.sent += len(sent)
                # The log is the truth: what was sent twice or never is no matter.
                for done in await asyncio.gather(*sent, return_exceptions=True):
                    if isinstance(done, BaseException) and not isinstance(done, KafkaError):
                        raise done
                if held:
                    self._quiet.set()
                await asyncio.sleep(0.02)
        finally:
            with contextlib.suppress(KafkaError):
                await client.stop()

    def _usual(self, rng: random.Random) -> tuple[bytes | None, Any]:
        """An event, or one in fifty a bad one."""
        x: dict[str, Any] = {name: round(rng.gauss(0, 1), 3) for name in rng.sample(NAMES, 5)}
        label = int((sum(x.values()) > 0) != (rng.random() < 0.1))
        if self.kind == "classes" and abs(sum(x.values())) > 3.0:
            label = 3
        raw = event(x | {"page": rng.choice("abc"), "new": rng.random() < 0.5}, label)
        value = rng.choice(BAD) if rng.random() < 0.02 else raw
        return value, HEADERS if value is not raw and rng.random() < 0.02 else None

    def hold(self) -> None:
        """Send nothing until `go_on`; what is under way arrives before this returns."""
        self._quiet.clear()
        self._held.set()
        wait(self._quiet.is_set, "the stream is at rest")

    def go_on(self) -> None:
        """Send again."""
        self._held.clear()

    # Asking

    def ask(self) -> None:
        """Ask every live process for predictions and metrics, from now on."""
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
                counted = events, metrics[f"perceptron_mistakes_total{label}"]
                self.scrapes.setdefault(pid, []).append(counted)

    @contextlib.contextmanager
    def answering(self, least: float) -> Iterator[None]:
        """So many predictions, or more, are answered meanwhile."""
        before = len(self.answers)
        yield
        assert len(self.answers) - before >= least, "predictions went on"

    def outage(self, seconds: float) -> None:
        """Hold a fault for so long; predictions go on."""
        with self.answering(2 * seconds):
            time.sleep(seconds)  # the fault itself

    # Waiting

    def learner(self) -> Running | None:
        """The live process that learns, where one says so."""
        for service in tuple(self.live):
            with contextlib.suppress(httpx.HTTPError):
                if service.model()["learning_here"]:
                    return service
        return None

    def learning(self, seconds: float = DEADLINE) -> Running:
        """Wait until a live process learns, and return it."""
        found: Running = wait(self.learner, "a process learns", seconds)
        return found

    def progress(self, records: int = 1, seconds: float = DEADLINE) -> int:
        """Wait until so many more records are learned and saved than now; returns how many are."""
        least = self.covered() + records
        wait(lambda: self.covered() >= least, f"{records} more records are learned and saved", seconds)
        return self.covered()

    def says(self, service: Running, words: str, seconds: float = DEADLINE) -> None:
        """Wait until its log has these words."""
        wait(lambda: words in service.log.read_text(), f"it says {words!r}", seconds)

    def covered(self) -> int:
        """Records that the current head covers; 0 before the first."""
        head = self._watcher.head()
        return sum(b - a for ranges in json.loads(head)["covered"].values() for a, b in ranges) if head else 0

    def saved(self) -> int:
        """Where partition 0 goes on, as the head in Redis says."""
        with Client(host="127.0.0.1", port=self.redis.port) as client:
            offset: int = json.loads(client.hget(key(self.topic), "head") or b"")["next"]["0"]["offset"]
            return offset

    def settle(self) -> None:
        """End the stream, and wait until every live process answers with all of the log."""
        self.hold()
        self.read_log()
        ends = {str(p): part.end for p, part in enumerate(self.logs[-1].partitions)}

        def settled() -> bool:
            for service in self.live:
                model = service.model()
                assert model["stopped"] is None, model["stopped"]
                if model["next"] != ends or model["ahead"]:
                    return False
            return True

        wait(settled, f"all of the log is learned: {ends}", SETTLE_SECONDS)

    def finish(self, dropped: int = 0) -> Judge:
        """All is learned in time, and right; at least so often state was dropped."""
        self.settle()
        return self.judged(dropped)

    # Judging

    def look_again(self) -> None:
        """After Redis was away and before anybody may write to it: keep looking."""
        self._watcher.look()

    def recreated(self, partitions: int = 1) -> None:
        """The topic is another one from now on."""
        self.logs.append(Topic(random.Random(0), partitions))

    def reset(self) -> None:
        """`perceptron reset`: the model is forgotten, so another begins."""
        done = self.perceptron("reset", "--yes")
        assert done.returncode == 0, done.stderr
        self.was_reset = True

    def read_log(self) -> None:
        """Put down what the log holds now, before some of it goes."""
        bad = set(BAD)
        for p, part in enumerate(self.logs[-1].partitions):
            begin, end, records = asyncio.run(_read(self.kafka, self.topic, p))
            part.begin, part.end = begin, end
            for r in records:
                part.records[r.offset] = Record(r.offset, r.timestamp, r.key, r.value, r.headers, r.value not in bad)

    def judged(self, dropped: int = 0, read: bool = True) -> Judge:
        """Assert I1 to I6 and I8 over everything since the start; at least so often state was dropped.

        The log is not read again where it cannot be, or is to be as it was.
        """
        if read:
            self.read_log()
        _, _, found = asyncio.run(_read(self.kafka, f"{self.topic}.dead-letters", 0))
        letters: dict[bytes, set[bytes | None]] = {}
        for letter in found:
            letters.setdefault(letter.key, set()).add(letter.value)
        # State that was dropped answers until a follower has fetched the newest snapshot.
        wait(lambda: not any(service.model()["ahead"] for service in self.live), "accepted heads alone answer")
        labels = (0, 1, 3) if self.kind == "classes" else (None,)
        models = [(service.model(), [service.vector(label) for label in labels]) for service in self.live]
        self._watcher.catch_up()
        judge, accepted = Seen(self.topic, self.logs, letters).judge(self._watcher.seen)
        last = judge.known[accepted[-1]]
        for model, vectors in models:
            assert model["digest"] == accepted[-1]
            assert [weight for column in zip(*vectors, strict=True) for weight in column] == last.state.fold.vector
        # Else some are of the model before, or of records whose save is still to come.
        if not self.was_reset and not any(model["stopped"] for model, _ in models):
            assert sum(len(values) for values in letters.values()) == len(letters) == last.state.rejected
        states = {(float(j.state.fold.events), float(j.state.fold.mistakes)) for j in judge.known.values()}
        if self.was_reset:  # each rises for itself, when the new model is beyond the one before
            states = {(events, mistakes) for events, _ in states for _, mistakes in states}
        for pid, counted in self.scrapes.items():
            assert counted == sorted(counted), f"a durable counter of process {pid} fell"
            assert not set(counted) - states, f"process {pid} exports counters that no accepted head has"
        versions = {j.version for j in judge.known.values()}
        assert set(self.answers) <= versions, "a prediction names a version never accepted"
        assert not self.failures, self.failures[:3]
        drops = sum(s.log.read_text().count("state dropped") for s in self.services)
        assert drops >= dropped, f"state was dropped {drops} times"
        return judge


async def _read(kafka: Server, topic: str, number: int) -> tuple[int, int, list[Any]]:
    """First and next offset of a partition, and its committed records."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.address, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    await consumer.start()
    try:
        partition = TopicPartition(topic, number)
        consumer.assign([partition])
        begin = (await consumer.beginning_offsets([partition]))[partition]
        end = (await consumer.end_offsets([partition]))[partition]
        records: list[Any] = []
        async with asyncio.timeout(DEADLINE):
            while await consumer.position(partition) < end:
                records += (await consumer.getmany(partition, timeout_ms=200)).get(partition, [])
        return begin, end, records
    finally:
        await consumer.stop()
