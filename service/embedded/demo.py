"""`perceptron demo`: the whole service on real servers, with its page, while the rule that it learns changes.

The service runs as two processes of one group: one learns, the other is the standby. Over HTTP this process asks for a
prediction of each visit, which is logged, and posts its label later, which is joined and learned. First a vector
separates the visits. Then the rule changes, and the model learns the new one. Later the learner is killed, the standby
takes over, and the killed process comes back as the standby. At the end each logged visit must have been learned once,
and `perceptron verify` learns the log again and must find the same state, bit for bit.

Events are visits to a shop, as a web server would write them, and whether they ended with a purchase. A simple rule
says who buys, and no visit is close to its boundary: a vector separates the visits, so the mistake bound is known. At
one moment a sale begins, and the rule changes.

`python -m service.embedded.demo` prints visits without end, as JSON lines that `perceptron produce` can send to a model
without settings.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
from rich.console import Console

from service.embedded.servers import START_SECONDS, Server, free_port, start_kafka, start_redis
from service.errors import PerceptronError
from service.learning.weights_file import WeightsFile
from service.streaming.kafka.cluster import Cluster

DEMO_TOPIC = "demo"
DEMO_PATH = f"/v1/models/{DEMO_TOPIC}"
DEMO_SEED = 7
TURNS_AT, KILLED_AT = 0.4, 0.7
"""The shares of the events after which the rule changes, and after which the learner is killed."""
LABEL_SECONDS = 3.0
"""Time from a visit until its label is posted."""
LEARN_SECONDS = 60.0
"""Time to learn the rest after the last visit."""
LINE_SECONDS = 4.0
"""Time between two lines about what is learned."""
DEMO_SETTINGS = Path(__file__).with_name("demo.toml")
"""The settings of the demo, with places for the addresses and the folder."""
BEFORE = {
    "": -2.0, "cart.items": 1.0, "page.minutes": 0.5, "user.returning": 1.5, "user.device=phone": -1.5,
    "cart.voucher": -1.0,
}  # fmt: skip
AFTER = BEFORE | {"user.returning": -1.5, "user.device=phone": 1.5, "cart.voucher": 2.0}
"""The two rules. In the sale returning customers stay away, and vouchers bring phones. The bias is named ""."""
REFERENCE = WeightsFile([BEFORE[name] for name in BEFORE if name], BEFORE[""], [name for name in BEFORE if name])
"""The rule before the sale, which is the reference of the mistake bound."""
MARGIN = 0.15


def run_demo(events: int, rate: int, leave: bool) -> None:
    """Start everything, stream `events`, show what is learned; then serve until Ctrl-C, unless `leave`."""
    console, started = Console(stderr=True), time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:5.1f} s[/] {text}", highlight=False, soft_wrap=True)

    for name in [name for name in os.environ if name.startswith("PERCEPTRON_")]:
        del os.environ[name]  # the service has only the demo's settings
    with ExitStack() as stack:
        folder, broker, store = stack.enter_context(_servers())
        (folder / "reference.json").write_bytes(msgspec.json.encode(REFERENCE))
        settings = folder / "perceptron.toml"
        settings.write_text(DEMO_SETTINGS.read_text().format(broker=broker.address, store=store.address, folder=folder))
        with console.status("starting the service (the first time it compiles its kernels)"):
            command = [sys.executable, "-m", "service", "-c", str(settings)]
            services = list[Server]()
            for port in (free_port(), free_port()):
                service = Server([*command, "run", "-p", str(port)], port, folder / f"service-{port}.log")
                services.append(stack.enter_context(service.running()))
            _wait(lambda: all(_ask(service, "/readyz") for service in services), "both processes are ready")
        learner = _wait(lambda: _look(services)[0], "one of them learns")
        services.sort(key=lambda service: service is not learner)  # visits ask the learner first
        # A space or nothing follows each address, so that it can be clicked and copied.
        say(f"[bold]the page: http://{learner.address}/[/]")
        say(f"the page of the process that stands by: http://{services[1].address}/")
        say(f"perceptron run, twice: one learns; with Kafka on {broker.address} and Valkey on {store.address}")
        state = asyncio.run(_stream(say, services, broker.address, events, rate))
        verified = subprocess.run([*command, "verify"], capture_output=True, text=True, check=False)
        if verified.returncode or state["updates"] > state["bound"]:
            raise PerceptronError(f"the learned state is wrong, please report this: {verified.stdout}{verified.stderr}")
        say(
            f"[bold]nothing logged is lost, nothing is learned twice[/]: {events:,} predictions answered, "
            f"{state['events']:,} logged and learned; `perceptron verify` has learned the log again: equal, bit for bit"
        )
        if not leave:
            # The group may be assigning the topic again, since the killed process has joined it again.
            _invite(_wait(lambda: _look(services)[0], "one of them learns"))
            with suppress(KeyboardInterrupt):
                signal.pause()
            say("stopping")


def run_servers() -> None:
    """Run only Kafka and Redis, until Ctrl-C, for users who have none; print the variables with their addresses."""
    with _servers() as (_, broker, store):
        print(f"export PERCEPTRON_KAFKA__BOOTSTRAP_SERVERS={broker.address}")
        print(f"export PERCEPTRON_REDIS__URL=redis://{store.address}/0", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()


@contextmanager
def _servers() -> Iterator[tuple[Path, Server, Server]]:
    """A folder, and a Kafka and a Redis in it. SIGTERM and SIGINT stop them in order."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell starts background jobs with SIGINT ignored, and Python leaves it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perceptron-demo-")))
        with Console(stderr=True).status("starting") as status:
            broker = stack.enter_context(start_kafka(folder, status.update))
            store = stack.enter_context(start_redis(folder))
        yield folder, broker, store


def _ask(service: Server, path: str, body: Any = None) -> Any:
    """The JSON that a service answers to a GET, or to a POST of `body`; None if it does not answer."""
    data, headers = body and json.dumps(body).encode(), {"content-type": "application/json"}
    request = Request(f"http://{service.address}{path}", data, headers)
    with suppress(OSError, HTTPException), urlopen(request, timeout=5) as answer:  # noqa: S310 - it is http
        return json.load(answer)


def _post(services: Sequence[Server], kind: str, body: Any) -> None:
    """Post to the first service that answers, and try again until one does."""
    _wait(lambda: any(_ask(service, f"{DEMO_PATH}/{kind}", body) for service in services), f"POST {kind} is answered")


def _look(services: Sequence[Server]) -> tuple[Server | None, Any]:
    """The process that learns, or None, and the model as that process has it, or else as a standby has it."""
    states = [(service, state) for service in services if (state := _ask(service, DEMO_PATH))]
    learning = next((pair for pair in states if pair[1]["learning_here"]), None)
    return learning or (None, states[-1][1] if states else None)


def _wait(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + START_SECONDS
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise PerceptronError(f"waited for {START_SECONDS:.0f} s in vain until {what}")
        time.sleep(0.05)
    return result


async def _visit(services: Sequence[Server], visits: list[dict[str, Any]]) -> None:
    """Ask for predictions of visits, and post their labels later."""
    labels = [{"id": visit["id"], "label": visit.pop("bought")} for visit in visits]
    await asyncio.to_thread(_post, services, "predict", {"events": visits})
    await asyncio.sleep(LABEL_SECONDS)
    await asyncio.to_thread(_post, services, "labels", {"labels": labels})


async def _logged(address: str) -> int:
    """The number of visits in the log. A visit is there twice if it asked again when its answer died with a process."""
    log = Cluster(address).read_whole(DEMO_TOPIC, PerceptronError("the log is gone"))
    return len({record.key async for _, records in log for record in records})


async def _stream(say: Callable[[str], None], services: Sequence[Server], address: str, events: int, rate: int) -> Any:
    """Let `rate` visits a second come, kill the learner on the way, until all is learned; return the model."""
    sent, turn, turned = 0, int(TURNS_AT * events), False
    stream = visits(DEMO_SEED, events, turn)
    visiting = list[asyncio.Task[None]]()
    killed: Server | None = None
    back: asyncio.Task[None] | None = None
    _, state = _look(services)
    say(f"{events:,} visits to a shop, {rate:,} a second, ask for a prediction each; their labels come later. A visit:")
    print(f"        {msgspec.json.encode(next(visits(DEMO_SEED, 1, 1))).decode()}", file=sys.stderr)
    say("a rule says who buys: many items, long visits and returning users do, phones and vouchers do not")
    begun = printed = time.monotonic()
    while time.monotonic() < begun + events / rate + LEARN_SECONDS:
        if not turned and state["events"] == turn:
            turned = True
            say(
                f"[bold]{turn:,} events, {state['updates']:,} mistakes <= {state['bound']:,}[/], their bound by "
                "the perceptron theorem: a vector separates them"
            )
            say("[bold]a sale begins[/] and the rule changes: phones and vouchers buy, returning users do not")
        # Before the rule changes all earlier events are learned, so that their mistakes can be told.
        until = min(events if turned else turn, int((time.monotonic() - begun) * rate))
        if batch := list(islice(stream, max(0, until - sent))):
            visiting.append(asyncio.create_task(_visit(services, batch)))
            sent += len(batch)
        learner, latest = await asyncio.to_thread(_look, services)
        state = latest or state
        if learner and not killed and state["events"] >= KILLED_AT * events:
            learner.kill()
            killed, killed_at = learner, time.monotonic()
            say(
                f"the learner on port {learner.port} is [bold]killed[/] (SIGKILL) at {state['events']:,} events, "
                f"{state['ahead']:,} of them ahead of its last snapshot; the standby answers"
            )
        elif learner and killed and not back:
            say(
                f"the process on port {learner.port} has taken over after {time.monotonic() - killed_at:.1f} s, "
                "from that snapshot; the killed one comes back to stand by"
            )
            back = asyncio.create_task(asyncio.to_thread(killed.start))
        if learner and state["events"] < events and time.monotonic() > printed + LINE_SECONDS:
            printed = time.monotonic()
            say(_line(state))
        if back and sent == events and not state["ahead"] and all(_ask(service, "/readyz") for service in services):
            await asyncio.gather(*visiting)
            if state["events"] == await _logged(address):
                say(f"[bold]{_line(state)}[/]")
                return state
        await asyncio.sleep(0.1)
    raise PerceptronError(f"{await _logged(address):,} of {events:,} visits are logged, {state['events']:,} learned")


def _line(state: Any) -> str:
    """The mistakes, and how often each predictor was right in the last 1,000 events."""
    candidates = {f"{candidate['name']} of all": candidate["accuracy"] for candidate in state["candidates"]}
    shares = {"recent average": state["served_accuracy"], **candidates, "baseline": state["baseline"]}
    right = ", ".join(f"{name} {share['recent'] or 0.0:.1%}" for name, share in shares.items())
    return f"{state['events']:,} events, {state['mistakes']:,} mistakes; of the last 1,000 right: {right}"


def _invite(learner: Server) -> None:
    """Print how to ask for one prediction, and to post its label, in another terminal."""
    visit = next(visits(DEMO_SEED, 1, 1)) | {"id": "mine"}
    label = {"id": visit["id"], "label": visit.pop("bought")}
    print(f"\nServing until Ctrl-C, on http://{learner.address}/ which learns now.")
    print("In another terminal, ask for one prediction, and post its label, so that it is learned:\n")
    for kind, body in (("predict", {"event": visit}), ("labels", label)):
        url = f"http://{learner.address}{DEMO_PATH}/{kind}"
        print(f"curl -s {url} -H 'content-type: application/json' -d '{json.dumps(body)}'\n", flush=True)


def visits(seed: int, count: int, turn: int) -> Iterator[dict[str, Any]]:
    """`count` visits; those from number `turn` on follow the sale's rule. |w·x| is at least MARGIN times ‖w‖."""
    rng, number = random.Random(seed), 0
    while number < count:
        rule = BEFORE if number < turn else AFTER
        device, returning, voucher = rng.choice(("phone", "tablet", "laptop")), rng.random() < 0.5, rng.random() < 0.3
        items, minutes = rng.randrange(4), round(rng.uniform(0.0, 4.0), 2)
        x = {"": 1, "cart.items": items, "page.minutes": minutes, "user.returning": returning, "cart.voucher": voucher}
        x[f"user.device={device}"] = 1
        score = sum(weight * x.get(name, 0) for name, weight in rule.items())
        if abs(score) < MARGIN * sum(weight * weight for weight in rule.values()) ** 0.5:
            continue
        number += 1
        yield {
            "id": f"visit-{number}",
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": {"id": rng.getrandbits(32), "device": device, "returning": returning},
            "page": {"id": rng.choice(("shoes", "coats", "bags")), "minutes": minutes},
            "cart": {"items": items, "voucher": voucher},
            "bought": score > 0,
        }


if __name__ == "__main__":
    for end in (signal.SIGINT, signal.SIGPIPE):  # so that a reader can stop it
        signal.signal(end, signal.SIG_DFL)
    for visit in visits(0, sys.maxsize, sys.maxsize):
        del visit["id"], visit["at"], visit["user"]["id"]
        print(json.dumps({"label": visit.pop("bought"), "features": visit}))
