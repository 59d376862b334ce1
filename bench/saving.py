"""P7: what saves cost a learner of 10⁶ named columns, what they write, and how soon they go on after Redis hung."""

import asyncio
import itertools
import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench import world
from bench.figure import Figure
from bench.start import COLUMNS, wide
from service.snapshots.redis.store import key
from tests.conftest import event

SILENCES = 5
EVENTS = 3_000_000
PER_EVENT = 20
HOT = 3_000
"""Columns that change over and over: 35 kB, at 12 bytes a column in a snapshot."""
DISTINCT = 5_000
BESIDE_SECONDS = 0.03
"""Before and after a save, ten times what one takes. What else the machine does is 8 % of the quarter of a second from
save to save: beside turns without one it hid what a save takes."""
SILENCE_SECONDS = 1.0
RATE = 200
GAPS = 15
USUAL = 1.5
"""A save comes at its usual pace that is within so many usual gaps of the one before."""


def figures() -> list[Figure]:
    """The CPU time of a save against learning without one, saving threads included."""
    found = []
    prefix, file = wide(), world.folder() / "marks.json"
    program = "bench.altered", f"marked:{file}"
    for what, columns, goal, rounds in (
        (f"{HOT:,} of them, 35 kB, change over and over", HOT, 3.0, 6),
        ("all of them change", COLUMNS, 10.0, 3),
    ):
        topic, values, at = world.new_topic(), _events(columns), len(prefix)
        costs, waited, written = list[float](), list[float](), list[float]()
        world.fill(topic, prefix, at)
        with world.service(topic, "", "--create-topics") as running:
            running.wait_for(at)
        for _ in range(rounds):
            world.fill(topic, values, EVENTS)
            with world.service(topic, "", "--create-topics", program=program, fresh=False) as running:
                before = _saved(running)
                world.follow(running, at + EVENTS, at)
                bytes_, saves, lasted = (b - a for a, b in zip(before, _saved(running), strict=True))
                at += EVENTS
            cost, clock = _at_saves(np.array(json.loads(file.read_text()), float))
            costs.append(100.0 * cost)
            waited.append(100.0 * lasted / saves / clock)
            written.append(bytes_ / saves / (12 * columns))
        head = f"saving with {COLUMNS:,} named columns, of which {what}, {PER_EVENT} features an event:"
        found.append(Figure("P7", f"{head} its share of learning's cost", costs, goal, False, "%"))
        found.append(
            Figure("P7", f"{head} the share of the clock that learning waits for it", waited, goal, False, "%")
        )
        if columns == HOT:
            found.append(Figure("P7", f"{head} bytes a save, against 12 for each", written, 2.0, False, "×"))
    return [*found, _after_silence()]


def _at_saves(marks: NDArray[np.float64]) -> tuple[float, float]:
    """A save's share of the processor, and the seconds from one to the next, by the marks of `altered`.

    What is taken from its beginning on until a little after its end, beyond what as many events took before it.
    """
    events, processor, clock, due = marks.T
    saves = np.flatnonzero(due)[2:]  # the first two have the start in them
    turns, saves = np.diff(marks[saves], axis=0), saves[:-1]
    before = np.minimum(np.searchsorted(clock, clock[saves] - BESIDE_SECONDS), saves - 1)
    after = np.searchsorted(clock, clock[saves + 1] + BESIDE_SECONDS)
    an_event = (processor[saves] - processor[before]) / (events[saves] - events[before])
    more = processor[after] - processor[saves] - (events[after] - events[saves]) * an_event
    return float(np.median(more) / turns[:, 1].mean()), float(turns[:, 2].mean())


def _saved(running: world.Service) -> tuple[float, ...]:
    """Bytes, number and seconds of accepted saves so far."""
    metrics, of = running.metrics(), f'model="{running.topic}"'
    names = (
        f"snapshot_bytes_total{{{of}}}",
        f'snapshots_total{{{of},result="accepted"}}',
        f"snapshot_duration_seconds_sum{{{of}}}",
    )
    return tuple(metrics.get(f"perceptron_{name}", 0.0) for name in names)  # none yet, where none was saved


def _events(columns: int) -> list[bytes]:
    rng = np.random.default_rng(7)
    chosen = [rng.choice(columns, PER_EVENT, replace=False) for _ in range(DISTINCT)]
    return [event({f"name-{n}": 1.0 for n in row.tolist()}, int(rng.integers(2))) for row in chosen]


def _after_silence() -> Figure:
    """Redis is stopped for a second while a few events come; when its saves are as often as before."""
    topic, took, usual = world.new_topic(), list[float](), 0.0
    process = world.redis().process
    assert process
    done = threading.Event()
    with (
        world.service(topic, "", "--create-topics") as running,
        ThreadPoolExecutor(1) as sender,
    ):
        sending = sender.submit(asyncio.run, _trickle(topic, done))
        try:
            running.until(RATE)
            saved = _Saves(topic)
            for _ in range(SILENCES):
                gaps = [saved.gap() for _ in range(GAPS + 1)][1:]
                usual = median(gaps)
                process.send_signal(signal.SIGSTOP)
                time.sleep(SILENCE_SECONDS)
                process.send_signal(signal.SIGCONT)
                again = time.monotonic()
                while saved.gap() > USUAL * usual:
                    pass
                took.append(saved.at - again)
        finally:
            process.send_signal(signal.SIGCONT)
            done.set()
            sending.result()
    what = f"Redis stopped for a second while {RATE} events a second come: until a save follows the one before as usual"
    return Figure("P7", f"{what} (after {usual:.2f} s)", took, 2.0, False, "s")


async def _trickle(topic: str, done: threading.Event) -> None:
    """Few events, until it is done."""
    async with world.producer() as client:
        for i in itertools.count():
            if done.is_set():
                return
            await client.send(topic, event({f"name-{i % HOT}": 1.0}, i % 2))
            await asyncio.sleep(1.0 / RATE)


class _Saves:
    """Sees each save of a model."""

    def __init__(self, topic: str) -> None:
        self.at = time.monotonic()
        self._client, self._key, self._digest = world.store(), key(topic), b""

    def gap(self) -> float:
        """Wait for the next save; seconds since the one before."""
        while (digest := self._client.hget(self._key, "digest")) == self._digest:
            time.sleep(0.005)
        before, self.at, self._digest = self.at, time.monotonic(), digest
        return self.at - before
