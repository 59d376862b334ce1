"""P10: a hundred topics with a thousand events a second each, in one process, and shared by four; a takeover of 200."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from bench import world
from bench.client import asking, percentile
from bench.events import DENSE, POSITIONAL
from bench.figure import Figure
from tests.conftest import wait

ROUNDS = 5
TOPICS, RATE = 100, 1_000
SECONDS, IDLE_SECONDS = 8.0, 4.0
TURNS = 10
"""Events a second that the producer sends: each topic's events come in batches, as from a producer that lingers."""
PROCESSES = 4
LEARNING_SECONDS = 60.0
TAKEN_OVER, PARTITIONS = 200, 8
"""Topics of the two processes of which one is killed, and partitions of each topic."""


class _Producer:
    """Sends events to each topic at a constant rate, in a separate thread."""

    def __init__(self, topics: Sequence[str], values: Sequence[bytes]) -> None:
        self._topics, self._values = topics, values
        self._done = threading.Event()
        self.sent = 0
        """The number of acknowledged events of each topic."""

    def stop(self) -> None:
        """Stop after the present turn."""
        self._done.set()

    def run(self) -> None:
        """Send until it is stopped."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with world.producer(max_batch_size=world.BATCH_BYTES) as client:
            began = time.monotonic()
            for turn in itertools.count():
                await asyncio.sleep(max(0.0, began + turn / TURNS - time.monotonic()))
                if self._done.is_set():
                    return
                await asyncio.gather(*(world.send(client, topic, iter(self._values)) for topic in self._topics))
                self.sent += len(self._values)


def figures() -> list[Figure]:
    """A process with all topics, against the same one idle; then four processes that share the topics."""
    topics = [world.new_topic() for _ in range(TOPICS)]
    flags = ["--create-topics", *(flag for topic in topics[1:] for flag in ("-t", topic))]
    values = DENSE.values()[: RATE // TURNS]
    x = json.loads(values[0])["features"]
    ratios, lags, pairs, cores = list[float](), list[float](), list[str](), list[float]()
    with world.service(topics[0], POSITIONAL, *flags) as running:
        wait(lambda: _learning(running) == TOPICS, "it learns all", LEARNING_SECONDS)
        sent_before = 0
        for _ in range(ROUNDS):
            with asking(running.port, topics[0], x) as idle:
                time.sleep(IDLE_SECONDS)
            producer = _Producer(topics, values)
            with ThreadPoolExecutor(1) as thread:
                sending = thread.submit(producer.run)
                try:
                    time.sleep(1.0)  # it connects
                    used, began = running.cpu(), time.monotonic()
                    with asking(running.port, topics[0], x) as busy:
                        time.sleep(SECONDS)
                    cores.append((running.cpu() - used) / (time.monotonic() - began))
                    lags.append((sent_before + producer.sent - _min_events(running)) / RATE)
                finally:
                    producer.stop()
                sending.result()
            sent_before += producer.sent
            wait(lambda sent=sent_before: _min_events(running) >= sent, "all is learned", 120.0)  # type: ignore[misc]
            p99 = [percentile(answers.milliseconds, 0.99) for answers in (busy, idle)]
            ratios.append(p99[0] / p99[1])
            pairs.append(f"{p99[0]:.1f} of {p99[1]:.1f}")
    what, (_, middle) = "one process", sorted(zip(ratios, pairs, strict=True))[len(ratios) // 2]
    return [
        Figure(
            "P10",
            f"{what}: lag of the worst topic after {SECONDS:.0f} s ({max(cores):.2f} cores)",
            lags,
            1.0,
            False,
            "s",
        ),
        Figure("P10", f"{what}: p99 of predictions, against idle ({middle} ms)", ratios, 4.0, False, "×"),
        _shared(topics, flags),
        _taken_over(),
    ]


def _models(running: world.Service) -> list[dict[str, int]]:
    models: list[dict[str, int]] = running.http.get("/v1/models").json()["models"]
    return models


def _learning(running: world.Service) -> int:
    return sum(model["learning_here"] for model in _models(running))


def _min_events(running: world.Service) -> int:
    """The learned events of the topic that has the fewest."""
    return min(model["events"] for model in _models(running))


def _shared(topics: Sequence[str], flags: Sequence[str]) -> Figure:
    with ExitStack() as stack:
        group = [
            stack.enter_context(world.service(topics[0], POSITIONAL, *flags, fresh=not i)) for i in range(PROCESSES)
        ]

        def shares_if_complete() -> list[int]:
            counts = sorted(map(_learning, group))
            return counts if counts[0] and sum(counts) == TOPICS else []  # each process has joined

        shares = wait(shares_if_complete, "all are learned, by all", LEARNING_SECONDS)
    what = f"{PROCESSES} processes of one group: most topics of one, less the fewest"
    return Figure("P10", what, [float(shares[-1] - shares[0])], 1.0, False, "topics")


def _taken_over() -> Figure:
    topics = [world.new_topic(partitions=PARTITIONS) for _ in range(TAKEN_OVER)]
    flags = ["--create-topics", *(flag for topic in topics[1:] for flag in ("-t", topic))]
    with world.service(topics[0], "", *flags) as killed, world.service(topics[0], "", *flags, fresh=False) as successor:

        def shared() -> bool:
            counts = [_learning(killed), _learning(successor)]
            return sum(counts) == TAKEN_OVER and all(counts)

        wait(shared, "both learn", LEARNING_SECONDS)
        killed.kill()
        began = time.monotonic()
        wait(
            lambda: _learning(successor) == TAKEN_OVER,
            "the other one learns all",
            LEARNING_SECONDS + world.SESSION_SECONDS,
        )
        seconds = time.monotonic() - began - world.SESSION_SECONDS
    what = f"{TAKEN_OVER} topics × {PARTITIONS}: from a kill until another process learns all, less the session timeout"
    return Figure("P10", what, [seconds], 5.0, False, "s")
