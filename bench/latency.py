"""P5 and P6: the latency of predictions during learning, and the delay until a prediction reflects an event."""

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
    """The selected rows of both."""
    return (_while_learning() if chosen("P5") else []) + (_reflected() if chosen("P6") else [])


def _while_learning() -> list[Figure]:
    stream, ratios, pairs = DENSE._replace(events=3 * DENSE.events), list[float](), list[str]()
    topic = world.topic_of(stream)
    x = json.loads(stream.values()[0])["features"]
    for _ in range(ROUNDS):
        with world.service(topic, stream.settings, "--create-topics") as running:
            running.until(int(world.WARM * stream.events))
            with asking(running.port, topic, x) as busy:
                running.until(stream.events)
            with asking(running.port, topic, x) as idle:
                time.sleep(IDLE_SECONDS)
        p99 = [percentile(answers.milliseconds, 0.99) for answers in (busy, idle)]
        ratios.append(p99[0] / p99[1])
        pairs.append(f"{p99[0]:.2f} of {p99[1]:.2f}")
    _, middle = sorted(zip(ratios, pairs, strict=True))[len(ratios) // 2]
    what = f"p99 of predictions while {stream.description} are learned at full speed, against idle ({middle} ms)"
    return [Figure("P5", what, ratios, 2.5, False, "×")]


def _reflected() -> list[Figure]:
    topic = world.new_topic()
    delays: dict[str, list[list[float]]] = {place: [] for place in PAUSES}
    with (
        world.service(topic, "", "--create-topics") as learner,
        world.service(topic, "", "--no-learn", fresh=False) as replica,
    ):
        targets = ("same process", learner), ("replica", replica)
        for turn, (place, target) in itertools.product(range(ROUNDS), targets):
            delays[place].append(asyncio.run(_probe(topic, target, f"{place[:4]}{turn}", PAUSES[place])))
    goals = {"same process": 12.0, "replica": 250.0}
    return [
        Figure(
            "P6",
            f"p99 until a prediction of the {place} knows it "
            f"(median {percentile([*itertools.chain(*rounds)], 0.5):.1f} ms)",
            [percentile(delays_of_round, 0.99) for delays_of_round in rounds],
            goals[place],
            False,
            "ms",
        )
        for place, rounds in delays.items()
    ]


async def _probe(topic: str, service: world.Service, name: str, pause: float) -> list[float]:
    """Milliseconds from the `send` of each probe until the first answer that knows its feature has arrived."""
    sent_at: dict[str, int] = {}
    delays: list[float] = []
    load_values: Iterator[bytes] = itertools.cycle(
        event({f"n{i}": 1.0 + i for i in range(k % 20)}, k % 2) for k in range(200)
    )

    connection = Connection(service.port, topic)
    async with world.producer(linger_ms=0, acks=1) as client:

        async def load() -> None:
            began = time.monotonic()
            for turn in itertools.count():
                await asyncio.sleep(max(0.0, began + turn / TURNS - time.monotonic()))
                for value in itertools.islice(load_values, RATE // TURNS):
                    await client.send(topic, value)

        async def probes() -> None:
            for i in range(PROBES):
                sent_at[f"{name}-{i}"] = time.time_ns()
                await client.send(topic, event({f"{name}-{i}": 1.0}, i % 2))
                await asyncio.sleep(PROBE_SECONDS)

        tasks = [asyncio.create_task(load()), asyncio.create_task(probes())]
        try:
            while len(delays) < PROBES:
                if failed := [task for task in tasks if task.done() and task.exception()]:
                    await failed[0]
                if waiting := list(sent_at):
                    body = {"instances": [{"features": {probe: 1.0}} for probe in waiting]}
                    # In a thread: asyncio's client would add 2 ms, next to the producer.
                    arrived, answer = await asyncio.to_thread(connection.ask, json.dumps(body).encode())
                    predictions = json.loads(answer)["predictions"]
                    reflected = [p for p, a in zip(waiting, predictions, strict=True) if not a["unknown_features"]]
                    delays += [(arrived - sent_at.pop(probe)) / 1e6 for probe in reflected]
                await asyncio.sleep(pause)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return delays
