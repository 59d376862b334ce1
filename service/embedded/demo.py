"""`perceptron demo`: the whole service on real servers, learning a stream whose mistake bound is known.

The service runs as two processes of one group, exactly as a user would start them: one learns, the other stands by.
Half way the learner is killed, and the standby takes over. This process starts the servers, produces the events, folds
them on the side, and watches over HTTP: in the end the service must have what the fold has, bit for bit.
"""

import asyncio
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from service.embedded.servers import free_port, kafka, redis
from service.embedded.stream import NAMES, examples, separator
from service.errors import PerceptronError
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.weights import Weights
from service.snapshots.head import content
from service.streaming.cluster import Cluster

TOPIC = "demo"
SEED = 7
RATE = 8_000
START_SECONDS = 30.0
LEARN_SECONDS = 60.0
REFERENCE = "reference.json"
"""The separating vector, which the bound is taken against."""
SESSION_SECONDS = "6"
"""Until the group replaces a member that died: the shortest that brokers allow by default."""


def show(events: int, leave: bool) -> None:
    """Start everything, stream `events`, show what is learned; then serve until Ctrl-C unless `leave`."""
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell starts background jobs with SIGINT ignored, and Python then leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s[/] {text}", highlight=False, soft_wrap=True)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perceptron-demo-")))
        broker = stack.enter_context(kafka(folder, say))
        store = stack.enter_context(redis(folder))
        say(f"Kafka on {broker.address}, Valkey on {store.address}")
        intercept, *coef = separator(SEED)
        reference = Weights(coef, intercept, list(NAMES))
        (folder / REFERENCE).write_bytes(msgspec.json.encode(reference))
        services = [stack.enter_context(_service(folder, broker.address, store.address)) for _ in range(2)]
        say(f"perceptron run -t {TOPIC}, twice (compiling the kernel the first time)")
        for service in services:
            service.wait_until_ready()
        say(f"streaming {events:,} events with a known separating vector")
        fold = Learner(Identity(), options=Options(reference=reference))
        fold.begin({0: 0})
        state = asyncio.run(_Show(console, say, services, fold).stream(broker.address, events))
        k, limit = state["updates"], state["bound"]
        say(
            f"[bold]{state['events']:,} events, {k:,} mistakes <= {limit:,}[/], their bound by the perceptron theorem; "
            f"accuracy of the last 1,000: [bold]{state['accuracy']['recent']:.1%}[/]"
        )
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
            survivor = next(service for service in services if service.alive)
            _invite(console, survivor.url, broker.address)
            try:
                survivor.process.wait()
            except KeyboardInterrupt:
                say("stopping")
            else:
                survivor.get("/livez")  # says how it ended


class _Service:
    def __init__(self, process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
        self.process, self.url, self._log = process, url, log

    def get(self, path: str) -> Any:
        """GET a JSON document; raises PerceptronError when the process has ended."""
        if self.process.poll() is not None:
            tail = self._log.read_text().strip().rpartition("\n")[2]
            raise PerceptronError(f"the service ended with {self.process.returncode}: {tail}")
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - our own address
            return json.load(answer)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until the service can answer."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                self.get("/readyz")
                return
            except urllib.error.URLError:
                time.sleep(0.05)
        raise PerceptronError(f"the service is not ready after {START_SECONDS:.0f} s: {self._log.read_text()[-500:]}")


@contextmanager
def _service(folder: Path, kafka_address: str, redis_address: str) -> Iterator[_Service]:
    """`perceptron run` as a process, with settings of nobody but ours."""
    port = free_port()
    command = [sys.executable, "-m", "service", "run", "-t", TOPIC, "--create-topics"]
    command += ["-b", kafka_address, "--redis", f"redis://{redis_address}/0", "-p", str(port)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PERCEPTRON_")}
    environment["PERCEPTRON_KAFKA__SESSION_TIMEOUT"] = SESSION_SECONDS
    environment["PERCEPTRON_MODEL__REFERENCE"] = REFERENCE
    log = folder / f"service-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True)
    try:
        yield _Service(process, f"http://127.0.0.1:{port}", log)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Show:
    """The stream, the kill half way, and what is seen meanwhile."""

    def __init__(
        self, console: Console, say: Callable[[str], None], services: Sequence[_Service], fold: Learner
    ) -> None:
        self._console, self._say, self._services, self._fold = console, say, services, fold
        self._killed_at = 0.0
        self._taken_over = False

    async def stream(self, address: str, events: int) -> Any:
        """Produce at a watchable pace until all is learned and saved; returns the model."""
        producer = Cluster(address).producer(enable_idempotence=True, linger_ms=5)
        await producer.start()
        sent = 0
        stream = examples(SEED, events)
        columns = (TextColumn("events"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        progress = Progress(*columns, console=self._console, auto_refresh=False)
        task = progress.add_task("", total=events)
        begun = time.monotonic()
        printed, said = 0.0, set[str]()
        try:
            with Live(console=self._console, refresh_per_second=10, transient=True) as live:
                while time.monotonic() < begun + events / RATE + LEARN_SECONDS:
                    due = min(events, int((time.monotonic() - begun) * RATE))
                    for e in (next(stream) for _ in range(due - sent)):
                        value = json.dumps({"features": e.features, "label": e.label}, separators=(",", ":")).encode()
                        await producer.send(TOPIC, value)
                        self._fold.apply(0, sent, [value])
                        sent += 1
                    learner, state = await asyncio.to_thread(self._look)
                    self._narrate(learner, state, events)
                    progress.update(task, completed=state["events"])
                    live.update(Group(_table(state), progress))
                    line = _line(state)
                    if not self._console.is_terminal and time.monotonic() - printed > 1.0 and line not in said:
                        printed = time.monotonic()
                        said.add(line)  # the standby may be where the learner was
                        self._console.print(f"        {line}", highlight=False)
                    if self._taken_over and state["events"] >= events and not state["ahead"]:
                        return state
                    await asyncio.sleep(0.1)
        finally:
            await producer.stop()
        raise PerceptronError(f"only {state['events']:,} of {events:,} events were learned in time")

    def _look(self) -> tuple[_Service | None, Any]:
        """Who learns, and the model as that process has it, or as a standby does."""
        for service in self._services:
            if service.alive:
                state = service.get(f"/v1/models/{TOPIC}")
                if state["learning_here"]:
                    return service, state
        return None, state

    def _narrate(self, learner: _Service | None, state: Any, events: int) -> None:
        """Kill the learner half way, and say who goes on, when and from where."""
        if learner and not self._killed_at and state["events"] >= events // 2:
            learner.process.kill()
            learner.process.wait()
            self._killed_at = time.monotonic()
            self._say(
                f"the learner, process {learner.process.pid}, is [bold]killed[/] (SIGKILL) at {state['events']:,} "
                f"events, {state['ahead']:,} of them ahead of its last snapshot; the standby answers"
            )
        elif learner and self._killed_at and not self._taken_over:
            self._taken_over = True
            self._say(
                f"process {learner.process.pid} has taken over after {time.monotonic() - self._killed_at:.1f} s, "
                "from that snapshot"
            )


def _line(state: Any) -> str:
    recent = state["accuracy"]["recent"]
    accuracy = "-" if recent is None else f"{recent:.1%}"
    return f"{state['events']:>7,} events  {state['mistakes']:>4,} mistakes <= {state['bound']:,}  accuracy {accuracy}"


def _table(state: Any) -> Table:
    """Mistakes under their bound, as two bars on one logarithmic scale."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    recent = state["accuracy"]["recent"]
    most = math.log1p(max(state["bound"], 1))

    def bar(value: int) -> str:
        return "█" * round(40 * math.log1p(value) / most)

    table.add_row("mistakes", f"{state['mistakes']:,}", f"[red]{bar(state['mistakes'])}")
    table.add_row("their bound", f"{state['bound']:,}", f"[blue]{bar(state['bound'])}")
    table.add_row("accuracy, last 1,000", "-" if recent is None else f"{recent:.1%}", f"version {state['version']}")
    return table


def _invite(console: Console, url: str, address: str) -> None:
    module = Path(sys.argv[0]).name == "__main__.py"
    command = f"{shlex.quote(sys.executable)} -m service" if module else shlex.quote(os.path.relpath(sys.argv[0]))
    features = json.dumps(dict.fromkeys(NAMES[:3], 1.0))
    console.print(f"\nServing on {url} until Ctrl-C. In another terminal, produce one event:\n", highlight=False)
    event = f'{{"features": {features}, "label": 1}}'
    # Plain print: these are for copying, and must not be wrapped.
    print(f"echo '{event}' | {command} produce - -t {TOPIC} -b {address}\n", flush=True)
    console.print("and ask for one prediction:\n")
    body = f'{{"features": {features}}}'
    print(f"curl -s {url}/v1/models/{TOPIC}/predict -H 'content-type: application/json' -d '{body}'\n", flush=True)
