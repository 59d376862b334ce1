"""A soak: `make soak MINUTES=60`. Full speed with predictions, saves, new names and one bad event in a hundred.

Each minute prints what was learned, what memory is taken and how long predictions took. At the end memory and p99 are
to be flat, every record learned or set aside once, and what was learned since the last kept version is folded again by
`perceptron verify`. The topic keeps some gigabytes of each of two partitions, older records go; a producer stays little
ahead, so that the learner has always something to do.
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
"""The minimum of records that are folded again at the end."""
BAD, NEW = 100, 1000
"""One record in BAD is no event; one in NEW has a name that no event had before."""
GROWTH = 180
"""Bytes that a new name may take."""
ROOM = 10e6
"""Bytes more than at first that are no leak: what an allocator keeps."""
SLOWER = 1.5
PARTITIONS = 2
"""Of one a replay begins with the first record, which is gone."""
TRUNCATED = {"retention_bytes": str(6 << 30), "segment_bytes": str(256 << 20)}
SETTINGS = "snapshots.keep_every = 30\n"
BADS = (b"no event", b'{"features":{"a":1}}', b'{"features":{"a":"', b'{"features":{"a":1e999},"label":1}')


class Minute(NamedTuple):
    """What was seen at the end of one."""

    events: int
    rejected: int
    columns: int
    resident: int
    p99: float


def chunk(rng: random.Random, number: int) -> list[bytes]:
    """CHUNK records with bad ones and new names among them."""
    names = [f"feature_{i:02d}" for i in range(NAMES)]
    found = []
    for i in range(CHUNK):
        if i % BAD == BAD - 1:
            found.append(rng.choice(BADS))
            continue
        features = {name: round(rng.gauss(0, 1), 4) for name in names}
        if i % NEW == 0:
            features[f"new-{number}-{i}"] = 1.0
        found.append(event(features, int(sum(features.values()) > 0)))
    return found


def _records(running: world.Service) -> int:
    """What it has learned, set aside or passed over."""
    return sum(running.model()["next"].values())


def _kept(running: world.Service) -> int:
    """What of it the newest kept version has."""
    versions = running.http.get(f"/v1/models/{running.topic}/versions").json()["versions"]
    return max((sum(version["next"].values()) for version in versions), default=0)


async def _stay_ahead(running: world.Service, until: float) -> int:
    """Send until then, AHEAD of what is learned at most, and REPLAYED more than is kept; how many in all.

    The chunks repeat but for their new names, as to make them is slower than to learn them.
    """
    rng, sent, number = random.Random(11), 0, 0
    chunks = [chunk(rng, -i) for i in range(1, 11)]
    async with world.producer(max_batch_size=world.BATCH_BYTES) as client:
        while time.monotonic() < until or sent < await asyncio.to_thread(_kept, running) + REPLAYED:
            learned = await asyncio.to_thread(_records, running)
            while sent < learned + AHEAD:
                values = list(chunks[number % len(chunks)])
                for i in range(0, CHUNK, NEW):
                    values[i] = event({f"new-{number}-{i}": 1.0, "feature_00": 0.5}, i // NEW % 2)
                await world.send(client, running.topic, iter(values), partition=number % PARTITIONS)
                sent, number = sent + CHUNK, number + 1
            await asyncio.sleep(0.05)
    return sent


def _look(running: world.Service, p99: float) -> Minute:
    model = running.model()
    return Minute(model["events"], sum(model["rejected"].values()), model["columns"], running.resident(), p99)


def soak(minutes: float) -> bool:
    """Run it, print what was seen, and say whether all was well."""
    topic, seen, console = world.new_topic("soak", PARTITIONS, **TRUNCATED), list[Minute](), Console(width=120)
    features = {f"feature_{i:02d}": 0.1 for i in range(NAMES)}
    spell = min(60.0, minutes * 60 / 6)
    with world.service(topic, SETTINGS, "--create-topics") as running, ThreadPoolExecutor(1) as thread:
        began = time.monotonic()
        until = began + 60 * minutes
        sending = thread.submit(lambda: asyncio.run(_stay_ahead(running, until)))
        while time.monotonic() < until - spell / 2:
            with asking(running.port, topic, features, pause=0.01) as asked:
                time.sleep(spell)
            seen.append(_look(running, percentile(asked.milliseconds, 0.99)))
            console.print(f"{time.monotonic() - began:6.0f} s  {seen[-1]}", highlight=False)
        sent = sending.result()
        wait(lambda: _records(running) == sent and not running.model()["ahead"], "all is learned and saved")
        model = running.model()
        once = model["events"] + sum(model["rejected"].values()) == sent
        verified = _verify(running)
    return _judge(console, seen, once, verified)


def _verify(running: world.Service) -> bool:
    command = [sys.executable, "-m", "service", "-c", str(running.config), "verify", "-t", running.topic]
    command += ["-b", world.kafka().address, "--redis", running.redis_url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    print(done.stdout.strip() or done.stderr.strip())
    return done.returncode == 0 and json.loads(done.stdout)["replayed_records"] > 0


def _judge(console: Console, seen: list[Minute], once: bool, verified: bool) -> bool:
    early, late, half = seen[len(seen) // 6], seen[-1], len(seen) // 2
    grown, names = late.resident - early.resident, GROWTH * (late.columns - early.columns)
    first, second = (median(minute.p99 for minute in part) for part in (seen[:half], seen[half:]))
    share = late.rejected / (late.events + late.rejected)
    rows = (
        ("learned", f"{late.events:,} events; {100 * share:.1f} % of the records set aside", share > 0.5 / BAD),
        ("memory", f"{grown / 1e6:+.1f} MB, of which new names may take {names / 1e6:.1f}", grown <= names + ROOM),
        (
            "p99 of predictions",
            f"{second:.2f} ms in the second half, {first:.2f} in the first",
            second <= SLOWER * first,
        ),
        ("every record once", "learned and set aside are what was sent", once),
        ("fold", "since a kept version, by `perceptron verify`", verified),
    )
    table = Table("", "", "verdict")
    for what, figure, good in rows:
        table.add_row(what, figure, "reached" if good else "missed")
    console.print(table)
    return all(good for _, _, good in rows)


if __name__ == "__main__":
    sys.exit(0 if soak(float(sys.argv[1])) else 1)
