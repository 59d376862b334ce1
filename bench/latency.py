"""P5 and P6: how long a prediction takes while events are learned, and an event until predictions show it."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator

from bench import world
from bench.client import Connection, asking, percentile
from bench.events import DENSE
from bench.figure import Figure, chosen
from tests.conftest import event

ROUNDS = 5
IDLE_SECONDS = 4.0
RATE = 1_000
TURNS = 100
"""Events a second that the producer sends."""
PROBES = 300
PROBE_SECONDS = 0.02
PAUSES = {"same process": 0.0005, "replica": 0.005}
"""Seconds between two predictions."""


def figures() -> list[Figure]:
    """Both."""
    return (_while_learning() if chosen("P5") else []) + (_reflected() if chosen("P6") else [])


def _while_learning() -> list[Figure]:
    stream, ratios, shown = DENSE._replace(events=3 * DENSE.events), list[float](), list[str]()
    topic = world.topic_of(stream)
    x = json.loads(stream.values()[0])["features"]
    for _ in range(ROUNDS):
        with world.service(topic, stream.settings, "--create-topics") as running:
            running.until(int(world.WARM * stream.events))
            with asking(running.port, topic, x) as busy:
                running.until(stream.events)
            with asking(running.port, topic, x) as idle:
                time.sleep(IDLE_SECONDS)
        p99 = [percentile(asked.milliseconds, 0.99) for asked in (busy, idle)]
        ratios.append(p99[0] / p99[1])
        shown.append(f"{p99[0]:.2f} of {p99[1]:.2f}")
    what = (
        f"p99 of predictions while {stream.events:,} events of {stream.what} are learned at full speed against the "
        f"idle process's; one connection that pauses 2 ms ({', '.join(shown)} ms)"
    )
    return [Figure("P5", what, ratios, 2.5, False, "×")]


def _reflected() -> list[Figure]:
    topic = world.new_topic()
    delays: dict[str, list[list[float]]] = {where: [] for where in PAUSES}
    with (
        world.service(topic, "", "--create-topics") as learner,
        world.service(topic, "", "--no-learn", fresh=False) as replica,
    ):
        for turn, (where, asked) in itertools.product(range(ROUNDS), (("same process", learner), ("replica", replica))):
            delays[where].append(asyncio.run(_probe(topic, asked, f"{where[:4]}{turn}", PAUSES[where])))
    goals = {"same process": 12.0, "replica": 250.0}
    return [
        Figure(
            "P6",
            f"event produced until a prediction of the {where} reflects it, at {RATE:,} events a second: p99 of "
            f"{PROBES} probes a round (median {percentile([*itertools.chain(*rounds)], 0.5):.1f} ms)",
            [percentile(one, 0.99) for one in rounds],
            goals[where],
            False,
            "ms",
        )
        for where, rounds in delays.items()
    ]


async def _probe(topic: str, service: world.Service, name: str, pause: float) -> list[float]:
    """Milliseconds from each probe's `send` until the first answer that knows its feature has arrived."""
    sent: dict[str, int] = {}
    found: list[float] = []
    others: Iterator[bytes] = itertools.cycle(
        event({f"n{i}": 1.0 + i for i in range(k % 20)}, k % 2) for k in range(200)
    )

    connection = Connection(service.port, topic)
    async with world.producer(linger_ms=0, acks=1) as client:

        async def load() -> None:
            began = time.monotonic()
            for turn in itertools.count():
                await asyncio.sleep(max(0.0, began + turn / TURNS - time.monotonic()))
                for value in itertools.islice(others, RATE // TURNS):
                    await client.send(topic, value)

        async def probes() -> None:
            for i in range(PROBES):
                sent[f"{name}-{i}"] = time.time_ns()
                await client.send(topic, event({f"{name}-{i}": 1.0}, i % 2))
                await asyncio.sleep(PROBE_SECONDS)

        tasks = [asyncio.create_task(load()), asyncio.create_task(probes())]
        try:
            while len(found) < PROBES:
                if failed := [task for task in tasks if task.done() and task.exception()]:
                    await failed[0]
                if waiting := list(sent):
                    body = {"instances": [{"features": {probe: 1.0}} for probe in waiting]}
                    # In a thread: asyncio's client takes 2 ms of its own for it, beside the producer.
                    arrived, answer = await asyncio.to_thread(connection.ask, json.dumps(body).encode())
                    predictions = json.loads(answer)["predictions"]
                    known = [p for p, a in zip(waiting, predictions, strict=True) if not a["unknown_features"]]
                    found += [(arrived - sent.pop(probe)) / 1e6 for probe in known]
                await asyncio.sleep(pause)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return found
