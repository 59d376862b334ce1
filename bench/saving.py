"""P7: the cost of saves for a learner of 10⁶ named columns, their size, and their delay after Redis has hung."""

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
"""Columns that change again and again: 35 kB, at 12 bytes a column in a snapshot."""
DISTINCT = 5_000
AROUND_SECONDS = 0.03
"""The time before and after a save that is evaluated: ten times the duration of a save. Other programs take 8 % of the
quarter of a second between two saves, which would hide the cost of a save."""
SILENCE_SECONDS = 1.0
RATE = 200
GAPS = 15
MAX_GAP_RATIO = 1.5
"""Saves are at their usual pace if the gap between two is at most this many usual gaps."""


def figures() -> list[Figure]:
    """The CPU time of a save against learning without one, saving threads included."""
    result = []
    prefix, file = wide(), world.folder() / "marks.json"
    program = "bench.altered", f"marked:{file}"
    for what, columns, goal, rounds in (
        (f"{HOT:,} (35 kB) change", HOT, 3.0, 6),
        ("all change", COLUMNS, 10.0, 3),
    ):
        topic, values, events_sent = world.new_topic(), _events(columns), len(prefix)
        costs, waited, bytes_ratios = list[float](), list[float](), list[float]()
        world.fill(topic, prefix, events_sent)
        with world.service(topic, "", "--create-topics") as running:
            running.wait_for(events_sent)
        for _ in range(rounds):
            world.fill(topic, values, EVENTS)
            with world.service(topic, "", "--create-topics", program=program, fresh=False) as running:
                saves_before = _saved(running)
                world.follow(running, events_sent + EVENTS, events_sent)
                bytes_, saves, lasted = (b - a for a, b in zip(saves_before, _saved(running), strict=True))
                events_sent += EVENTS
            cost, clock = _at_saves(np.array(json.loads(file.read_text()), float))
            costs.append(100.0 * cost)
            waited.append(100.0 * lasted / saves / clock)
            bytes_ratios.append(bytes_ / saves / (12 * columns))
        head = f"{COLUMNS:,} named columns, {what}:"
        result.append(Figure("P7", f"{head} share of learning's cost", costs, goal, False, "%"))
        result.append(Figure("P7", f"{head} share of the clock", waited, goal, False, "%"))
        if columns == HOT:
            result.append(Figure("P7", f"{head} bytes a save, against 12 for each", bytes_ratios, 2.0, False, "×"))
    return [*result, _after_silence()]


def _at_saves(marks: NDArray[np.float64]) -> tuple[float, float]:
    """The share of CPU time that saves take, and the seconds from one save to the next, by the marks of `altered`.

    The cost of a save is the CPU time from its start until shortly after its end, minus that of as many events before.
    """
    events, processor, clock, is_due = marks.T
    saves = np.flatnonzero(is_due)[2:]  # the first two include the start
    turns, saves = np.diff(marks[saves], axis=0), saves[:-1]
    start = np.minimum(np.searchsorted(clock, clock[saves] - AROUND_SECONDS), saves - 1)
    end = np.searchsorted(clock, clock[saves + 1] + AROUND_SECONDS)
    an_event = (processor[saves] - processor[start]) / (events[saves] - events[start])
    cpu_of_saves = processor[end] - processor[saves] - (events[end] - events[saves]) * an_event
    return float(np.median(cpu_of_saves) / turns[:, 1].mean()), float(turns[:, 2].mean())


def _saved(running: world.Service) -> tuple[float, ...]:
    """Bytes, number and seconds of accepted saves so far."""
    metrics, label = running.metrics(), f'model="{running.topic}"'
    names = (
        f"snapshot_bytes_total{{{label}}}",
        f'snapshots_total{{{label},result="accepted"}}',
        f"snapshot_duration_seconds_sum{{{label}}}",
    )
    return tuple(metrics.get(f"perceptron_{name}", 0.0) for name in names)  # missing before the first save


def _events(columns: int) -> list[bytes]:
    rng = np.random.default_rng(7)
    chosen = [rng.choice(columns, PER_EVENT, replace=False) for _ in range(DISTINCT)]
    return [event({f"name-{n}": 1.0 for n in row.tolist()}, int(rng.integers(2))) for row in chosen]


def _after_silence() -> Figure:
    """The time after Redis was stopped for a second, while a few events arrive, until saves are as frequent again."""
    topic, delays, usual = world.new_topic(), list[float](), 0.0
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
            observer = _Saves(topic)
            for _ in range(SILENCES):
                gaps = [observer.gap() for _ in range(GAPS + 1)][1:]
                usual = median(gaps)
                process.send_signal(signal.SIGSTOP)
                time.sleep(SILENCE_SECONDS)
                process.send_signal(signal.SIGCONT)
                continued_at = time.monotonic()
                while observer.gap() > MAX_GAP_RATIO * usual:
                    pass
                delays.append(observer.saved_at - continued_at)
        finally:
            process.send_signal(signal.SIGCONT)
            done.set()
            sending.result()
    what = "Redis is paused for a second: until saves follow each other as usual"
    return Figure("P7", f"{what} ({usual:.2f} s apart)", delays, 2.0, False, "s")


async def _trickle(topic: str, done: threading.Event) -> None:
    """Send a few events a second, until `done` is set."""
    async with world.producer() as client:
        for i in itertools.count():
            if done.is_set():
                return
            await client.send(topic, event({f"name-{i % HOT}": 1.0}, i % 2))
            await asyncio.sleep(1.0 / RATE)


class _Saves:
    """Observes each save of a model."""

    def __init__(self, topic: str) -> None:
        self.saved_at = time.monotonic()
        self._client, self._key, self._digest = world.store(), key(topic), b""

    def gap(self) -> float:
        """Wait for the next save; returns the seconds since the previous one."""
        while (digest := self._client.hget(self._key, "digest")) == self._digest:
            time.sleep(0.005)
        previous, self.saved_at, self._digest = self.saved_at, time.monotonic(), digest
        return self.saved_at - previous
