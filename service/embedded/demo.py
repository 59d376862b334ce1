"""`perceptron demo`: the whole service on real servers, and its page, while the world that it learns changes.

The service runs as two processes of one group, exactly as a user would start them: one learns, the other stands by.
First a vector separates the events; then the rule turns, and the model learns the new one. Later the learner is killed,
the standby takes over, and the killed one comes back to stand by. This process starts the servers, produces the events,
folds them on the side, and watches over HTTP: in the end the service must have what the fold has, bit for bit.
"""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec
from rich.console import Console

from service.embedded.servers import START_SECONDS, end, free_port, kafka, redis
from service.embedded.visits import MODEL, reference, visits
from service.errors import PerceptronError
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots.head import content
from service.streaming.kafka.cluster import Cluster

TOPIC = "demo"
SEED = 7
TURNS_AT, KILLED_AT = 0.4, 0.7
"""Shares of the events: when the rule turns, and when the learner is killed."""
LEARN_SECONDS = 60.0
WINDOW = 1_000
"""Events that recent figures are of: so many after the rule has turned they are of the new rule alone."""
LINE_SECONDS = 4.0
"""Between two lines of what is learned."""
SETTINGS = (
    """
topics = ["demo"]
create_topics = true
[kafka]
bootstrap_servers = "{broker}"
session_timeout = 6
[redis]
url = "redis://{store}/0"
"""
    + MODEL
)
"""The group replaces a member that died after the shortest time that brokers allow by default."""


def show(events: int, rate: int, leave: bool, learner_of: Callable[[Mapping[str, Any]], Learner]) -> None:
    """Start everything, stream `events`, show what is learned; then serve until Ctrl-C unless `leave`.

    `learner_of` makes a learner of a model's settings.
    """
    console = Console(stderr=True)
    _obey()
    started = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s[/] {text}", highlight=False, soft_wrap=True)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perceptron-demo-")))
        with console.status("starting") as status:
            broker = stack.enter_context(kafka(folder, status.update))
            store = stack.enter_context(redis(folder))
            (folder / "reference.json").write_bytes(msgspec.json.encode(reference()))
            settings = folder / "perceptron.toml"
            settings.write_text(SETTINGS.format(broker=broker.address, store=store.address, folder=folder))
            services = [stack.enter_context(_Service(settings)) for _ in range(2)]
            status.update("starting the service (the first time it compiles its kernels)")
            _wait(lambda: all(service.get("/readyz") for service in services), "both processes are ready")
        fold = learner_of(tomllib.loads(settings.read_text())["models"][TOPIC])
        fold.begin({0: 0})
        fold.reconcile()
        seen = _Show(console, say, services, fold, events, rate)
        learner = _wait(lambda: seen.look()[0], "one of them learns")
        services.sort(key=lambda one: one is not learner)
        # Each address with a space or nothing behind it, so that it can be clicked and copied.
        say(f"[bold]the page: {services[0].url}/[/]")
        say(f"the page of the process that stands by: {services[1].url}/")
        say(f"perceptron run, twice: one learns; with Kafka on {broker.address} and Valkey on {store.address}")
        state = asyncio.run(seen.stream(broker.address))
        k, limit = state["updates"], state["bound"]
        learned = (state["events"], k, state["state_digest"], limit)
        expected = (fold.counts.events, fold.counts.updates, content(fold).state_digest, fold.watch.bound[0])
        if learned != expected or k > limit:
            raise PerceptronError(f"{learned} was learned where {expected} was expected: please report this")
        say(
            f"[bold]nothing lost, nothing learned twice[/]: a fold of the same events, made on the side, has "
            f"{fold.counts.events:,} events, {fold.counts.mistakes:,} mistakes and the same state, "
            f"digest {expected[2][:12]}…"
        )
        if not leave:
            # The group may just be giving the topic out again, since the killed one has come back to it.
            learner = _wait(lambda: seen.look()[0], "one of them learns")
            standby = next(one.url for one in services if one is not learner)
            _invite(console, learner.url, standby, f"-c {settings} produce - -b {broker.address}")
            try:
                services[0].process.wait()
            except KeyboardInterrupt:
                say("stopping")
            else:
                services[0].get("/livez")  # says how it ended


def serve() -> None:
    """Start Kafka and Redis alone, for who has none of these, until Ctrl-C; prints the variables that say where."""
    _obey()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perceptron-demo-")))
        with Console(stderr=True).status("starting") as status:
            broker, store = stack.enter_context(kafka(folder, status.update)), stack.enter_context(redis(folder))
        print(f"export PERCEPTRON_KAFKA__BOOTSTRAP_SERVERS={broker.address}")
        print(f"export PERCEPTRON_REDIS__URL=redis://{store.address}/0", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()


def _obey() -> None:
    """End in order when told so."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell starts background jobs with SIGINT ignored, and Python then leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class _Service:
    """`perceptron run` as a process, with settings of nobody but ours; it can be killed, and started again."""

    def __init__(self, settings: Path) -> None:
        port = free_port()
        self.url, self._log = f"http://127.0.0.1:{port}", settings.parent / f"service-{port}.log"
        self._command = [sys.executable, "-m", "service", "-c", str(settings), "run", "-p", str(port)]
        self.start()

    def start(self) -> None:
        """Start it, or another in its place."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PERCEPTRON_")}
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                self._command, stdout=out, stderr=out, env=environment, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def get(self, path: str) -> Any:
        """GET a JSON document, None while it starts; raises PerceptronError when the process has ended."""
        if not self.alive:
            tail = self._log.read_text().strip().rpartition("\n")[2]
            raise PerceptronError(f"the service ended with {self.process.returncode}: {tail}")
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - our own address
                return json.load(answer)
        except OSError:
            return None


def _wait(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + START_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise PerceptronError(f"after {START_SECONDS:.0f} s still not: {what}")
        time.sleep(0.05)
    return found


class _Show:
    """The stream, what happens at its moments, and what is seen meanwhile."""

    def __init__(
        self,
        console: Console,
        say: Callable[[str], None],
        services: Sequence[_Service],
        fold: Learner,
        events: int,
        rate: int,
    ) -> None:
        self._console, self._say, self._services, self._fold = console, say, services, fold
        self._events, self._rate, self._turn = events, rate, int(TURNS_AT * events)
        self._killed: _Service | None = None
        self._killed_at = 0.0
        self._taken_over = False

    async def stream(self, address: str) -> Any:
        """Produce at a watchable pace until all is learned and saved, and both processes are there; gives the model."""
        producer = Cluster(address).producer(enable_idempotence=True, linger_ms=5)
        await producer.start()
        events, sent, stream = self._events, 0, visits(SEED, self._events, self._turn)
        begun = printed = time.monotonic()
        line = ""
        _, state = self.look()
        fell = False
        self._say(f"streaming {events:,} visits to a shop, {self._rate:,} a second, such as")
        self._console.print(f"        {_encoded(_first())}", markup=False, highlight=False, soft_wrap=True)
        self._say("a rule says who buys: many items, long visits and returning users do, phones and vouchers do not")
        try:
            while time.monotonic() < begun + events / self._rate + LEARN_SECONDS:
                until = min(events, int((time.monotonic() - begun) * self._rate))
                for visit in islice(stream, until - sent):
                    value = _encoded(visit).encode()
                    if sent == self._turn:
                        self._say_turn()
                    await producer.send(TOPIC, value)
                    self._fold.apply(0, Records.of(sent, [value]))
                    sent += 1
                learner, seen = await asyncio.to_thread(self.look)
                state = seen or state
                self._narrate(learner, state)
                falls = not fell and state["events"] >= self._turn + WINDOW
                due = time.monotonic() - printed > LINE_SECONDS
                if learner and state["events"] < events and (falls or due) and line != (line := _line(state)):
                    fell, printed = fell or falls, time.monotonic()
                    self._console.print(f"        {line}", highlight=False, soft_wrap=True)
                if self._taken_over and state["events"] >= events and not state["ahead"] and self._all_ready():
                    self._say(f"[bold]{_line(state)}[/]")
                    return state
                await asyncio.sleep(0.1)
        finally:
            await producer.stop()
        raise PerceptronError(f"only {state['events']:,} of {events:,} events were learned in time")

    def look(self) -> tuple[_Service | None, Any]:
        """Who learns, and the model as that process has it, or as a standby does."""
        seen: Any = None
        for service in self._services:
            if service.alive and (state := service.get(f"/v1/models/{TOPIC}")):
                if state["learning_here"]:
                    return service, state
                seen = state
        return None, seen

    def _all_ready(self) -> bool:
        return all(service.get("/readyz") for service in self._services)

    def _say_turn(self) -> None:
        k, limit = self._fold.counts.updates, self._fold.watch.bound[0]
        self._say(
            f"[bold]{self._turn:,} events, {k:,} mistakes <= {limit:,}[/], their bound by the perceptron theorem: "
            "a vector separates them"
        )
        self._say("[bold]a sale begins[/] and the rule turns: phones and vouchers buy, returning users do not")

    def _narrate(self, learner: _Service | None, state: Any) -> None:
        """Kill the learner, say who goes on, when and from where, and start the killed one again."""
        if learner and not self._killed and state["events"] >= KILLED_AT * self._events:
            learner.kill()
            self._killed, self._killed_at = learner, time.monotonic()
            self._say(
                f"the learner, process {learner.process.pid}, is [bold]killed[/] (SIGKILL) at {state['events']:,} "
                f"events, {state['ahead']:,} of them ahead of its last snapshot; the standby answers"
            )
        elif learner and self._killed and not self._taken_over:
            self._taken_over = True
            self._killed.start()
            self._say(
                f"process {learner.process.pid} has taken over after {time.monotonic() - self._killed_at:.1f} s, "
                f"from that snapshot; the killed one comes back to stand by, as process {self._killed.process.pid}"
            )


def _first() -> dict[str, Any]:
    """The first visit, made now."""
    return next(visits(SEED, 1, 1))


def _encoded(visit: Mapping[str, Any]) -> str:
    return json.dumps(visit, separators=(",", ":"))


def _line(state: Any) -> str:
    """Mistakes, and who was right in which share of the last 1,000 events."""
    candidates = {f"{one['name']} of all": one["accuracy"] for one in state["candidates"]}
    shares = {"recent average": state["served_accuracy"], **candidates, "baseline": state["baseline"]}
    right = ", ".join(f"{who} {share['recent'] or 0.0:.1%}" for who, share in shares.items())
    return f"{state['events']:,} events, {state['mistakes']:,} mistakes; of the last 1,000 right: {right}"


def _invite(console: Console, url: str, standby: str, produce: str) -> None:
    module = Path(sys.argv[0]).name == "__main__.py"
    command = f"{shlex.quote(sys.executable)} -m service" if module else shlex.quote(os.path.relpath(sys.argv[0]))
    where = f"Serving until Ctrl-C, on {url}/ which learns now and saw it all, and on {standby}/"
    console.print(f"\n{where}\nIn another terminal, produce one event:\n", highlight=False, soft_wrap=True)
    visit = _first()
    # Plain print: these are for copying, and must not be wrapped.
    print(f"echo '{json.dumps(visit)}' | {command} {produce}\n", flush=True)
    console.print("and ask for one prediction:\n")
    del visit["bought"]
    body = json.dumps({"event": visit})
    print(f"curl -s {url}/v1/models/{TOPIC}/predict -H 'content-type: application/json' -d '{body}'\n", flush=True)
