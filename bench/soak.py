"""A soak test: `make soak MINUTES=60`. Full speed with predictions, saves, new names and one bad event in a hundred.

Each minute prints the learned events, the memory and the latency of predictions. At the end memory and p99 must be
flat, every record must be learned or rejected once, and `perceptron verify` learns the events since the last kept
version again. The topic keeps some gigabytes of each of two partitions, and older records are deleted; a producer stays
slightly ahead, so that the learner always has records to learn.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench import world
from bench.client import asking, percentile
from tests.conftest import clean_environment, event, wait

NAMES = 20
CHUNK = 10_000
AHEAD = 30 * CHUNK
REPLAYED = 2 * AHEAD
"""The minimum number of records that are learned again at the end."""
BAD, NEW = 100, 1000
"""One record in BAD is not an event; one in NEW has a feature name that is new."""
GROWTH = 180
"""Maximum bytes of memory for a new name."""
ROOM = 10e6
"""Bytes of growth that do not count as a leak, since the allocator may keep them."""
SLOWER = 1.5
PARTITIONS = 2
"""A replay of a single partition would begin with its first record, which is deleted."""
TRUNCATED = {"retention_bytes": str(6 << 30), "segment_bytes": str(256 << 20)}
SETTINGS = "snapshots.keep_every = 30\n"
BADS = (b"no event", b'{"features":{"a":1}}', b'{"features":{"a":"', b'{"features":{"a":1e999},"label":1}')


class Minute(NamedTuple):
    """The state at the end of a minute."""

    events: int
    rejected: int
    columns: int
    resident: int
    p99: float


def chunk(rng: random.Random, number: int) -> list[bytes]:
    """CHUNK records, including bad ones and new names."""
    names = [f"feature_{i:02d}" for i in range(NAMES)]
    records = []
    for i in range(CHUNK):
        if i % BAD == BAD - 1:
            records.append(rng.choice(BADS))
            continue
        features = {name: round(rng.gauss(0, 1), 4) for name in names}
        if i % NEW == 0:
            features[f"new-{number}-{i}"] = 1.0
        records.append(event(features, int(sum(features.values()) > 0)))
    return records


def _records(running: world.Service) -> int:
    """The number of records learned, rejected or skipped."""
    return sum(running.model()["next"].values())


def _kept(running: world.Service) -> int:
    """The number of records in the newest kept version."""
    versions = running.http.get(f"/v1/models/{running.topic}/versions").json()["versions"]
    return max((sum(version["next"].values()) for version in versions), default=0)


async def _stay_ahead(running: world.Service, until: float) -> int:
    """Send records until a time, at most AHEAD of the learner and REPLAYED after a kept version; returns their number.

    The chunks repeat except for their new names, since making a chunk is slower than learning it.
    """
    rng, sent_count, number = random.Random(11), 0, 0
    chunks = [chunk(rng, -i) for i in range(1, 11)]
    async with world.producer(max_batch_size=world.BATCH_BYTES) as client:
        while time.monotonic() < until or sent_count < await asyncio.to_thread(_kept, running) + REPLAYED:
            learned_count = await asyncio.to_thread(_records, running)
            while sent_count < learned_count + AHEAD:
                values = list(chunks[number % len(chunks)])
                for i in range(0, CHUNK, NEW):
                    values[i] = event({f"new-{number}-{i}": 1.0, "feature_00": 0.5}, i // NEW % 2)
                await world.send(client, running.topic, iter(values), partition=number % PARTITIONS)
                sent_count, number = sent_count + CHUNK, number + 1
            await asyncio.sleep(0.05)
    return sent_count


def _look(running: world.Service, p99: float) -> Minute:
    model = running.model()
    return Minute(model["events"], sum(model["rejected"].values()), model["columns"], running.resident(), p99)


def soak(minutes: float) -> bool:
    """Run the test and print its table; returns whether every goal was reached."""
    topic, history, console = world.new_topic("soak", PARTITIONS, **TRUNCATED), list[Minute](), Console(width=120)
    features = {f"feature_{i:02d}": 0.1 for i in range(NAMES)}
    spell = min(60.0, minutes * 60 / 6)
    with world.service(topic, SETTINGS, "--create-topics") as running, ThreadPoolExecutor(1) as thread:
        began = time.monotonic()
        until = began + 60 * minutes
        sending = thread.submit(lambda: asyncio.run(_stay_ahead(running, until)))
        while time.monotonic() < until - spell / 2:
            with asking(running.port, topic, features, pause=0.01) as answers:
                time.sleep(spell)
            history.append(_look(running, percentile(answers.milliseconds, 0.99)))
            console.print(f"{time.monotonic() - began:6.0f} s  {history[-1]}", highlight=False)
        sent_count = sending.result()
        wait(lambda: _records(running) == sent_count and not running.model()["ahead"], "all is learned and saved")
        model = running.model()
        each_once = model["events"] + sum(model["rejected"].values()) == sent_count
        verified = _verify(running)
    return _judge(console, history, each_once, verified)


def _verify(running: world.Service) -> bool:
    command = [sys.executable, "-m", "service", "-c", str(running.config), "verify", "-t", running.topic]
    command += ["-b", world.kafka().address, "--redis", running.redis_url, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    print(result.stdout.strip() or result.stderr.strip())
    return result.returncode == 0 and json.loads(result.stdout)["replayed_records"] > 0


def _judge(console: Console, history: list[Minute], each_once: bool, verified: bool) -> bool:
    early, late, half = history[len(history) // 6], history[-1], len(history) // 2
    grown, names = late.resident - early.resident, GROWTH * (late.columns - early.columns)
    first_half, second_half = (median(minute.p99 for minute in minutes) for minutes in (history[:half], history[half:]))
    share = late.rejected / (late.events + late.rejected)
    rows = (
        ("learned", f"{late.events:,} events; {100 * share:.1f} % of the records set aside", share > 0.5 / BAD),
        ("memory", f"{grown / 1e6:+.1f} MB, of which new names may take {names / 1e6:.1f}", grown <= names + ROOM),
        (
            "p99 of predictions",
            f"{second_half:.2f} ms in the second half, {first_half:.2f} in the first",
            second_half <= SLOWER * first_half,
        ),
        ("every record once", "learned and set aside are what was sent", each_once),
        ("fold", "since a kept version, by `perceptron verify`", verified),
    )
    table = Table("", "", "verdict")
    for name, figure, good in rows:
        table.add_row(name, figure, "reached" if good else "missed")
    console.print(table)
    return all(good for _, _, good in rows)


if __name__ == "__main__":
    sys.exit(0 if soak(float(sys.argv[1])) else 1)
