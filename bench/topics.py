"""P10: a hundred topics in one process, each with a thousand events a second, and four processes that share them."""

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


class _Producer:
    """Sends each topic its events at the pace, in a thread of its own."""

    def __init__(self, topics: Sequence[str], values: Sequence[bytes]) -> None:
        self._topics, self._values = topics, values
        self._done = threading.Event()
        self.sent = 0
        """Events of each topic that are acknowledged."""

    def stop(self) -> None:
        """After this turn."""
        self._done.set()

    def run(self) -> None:
        """Until it is stopped."""
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
    """A process with all topics against one that is idle or has one topic; then four processes that share them."""
    topics = [world.new_topic() for _ in range(TOPICS)]
    flags = ["--create-topics", *(flag for topic in topics[1:] for flag in ("-t", topic))]
    values = DENSE.values()[: RATE // TURNS]
    x = json.loads(values[0])["features"]
    ratios, lags, shown, cores = list[float](), list[float](), list[str](), list[float]()
    with world.service(topics[0], POSITIONAL, *flags) as running:
        wait(lambda: _learning(running) == TOPICS, "it learns all", LEARNING_SECONDS)
        before = 0
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
                    lags.append((before + producer.sent - _least(running)) / RATE)
                finally:
                    producer.stop()
                sending.result()
            before += producer.sent
            wait(lambda sent=before: _least(running) >= sent, "all is learned", 120.0)  # type: ignore[misc]
            p99 = [percentile(asked.milliseconds, 0.99) for asked in (busy, idle)]
            ratios.append(p99[0] / p99[1])
            shown.append(f"{p99[0]:.1f} of {p99[1]:.1f}")
    what = f"{TOPICS} topics of {RATE:,} events a second each in one process"
    return [
        Figure(
            "P10",
            f"{what}: lag of the worst topic after {SECONDS:.0f} s ({max(cores):.2f} cores)",
            lags,
            1.0,
            False,
            "s",
        ),
        Figure("P10", f"{what}: p99 of predictions against idle ({', '.join(shown)} ms)", ratios, 4.0, False, "×"),
        _shared(topics, flags),
    ]


def _models(running: world.Service) -> list[dict[str, int]]:
    found: list[dict[str, int]] = running.http.get("/v1/models").json()["models"]
    return found


def _learning(running: world.Service) -> int:
    return sum(model["learning_here"] for model in _models(running))


def _least(running: world.Service) -> int:
    """Events of the topic that is furthest behind."""
    return min(model["events"] for model in _models(running))


def _shared(topics: Sequence[str], flags: Sequence[str]) -> Figure:
    with ExitStack() as stack:
        group = [
            stack.enter_context(world.service(topics[0], POSITIONAL, *flags, fresh=not i)) for i in range(PROCESSES)
        ]

        def spread() -> list[int]:
            found = sorted(map(_learning, group))
            return found if found[0] and sum(found) == TOPICS else []  # each has joined

        shares = wait(spread, "all are learned, by all", LEARNING_SECONDS)
    what = f"{TOPICS} topics of {PROCESSES} processes of one group: the most a process has over the fewest ({shares})"
    return Figure("P10", what, [float(shares[-1] - shares[0])], 1.0, False, "topics")
