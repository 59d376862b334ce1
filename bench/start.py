"""P8: the start time of a process: `--help`, `/livez`, and a large model after a restart."""

import subprocess
import sys
import time

from bench import world
from bench.events import NAMED
from bench.figure import Figure
from tests.conftest import event

ROUNDS = 5
COLUMNS, WIDTH = 10**6, 1000
REPLAYED = 1_000_000


def wide() -> list[bytes]:
    """Events that have COLUMNS names in total."""
    return [
        event({f"name-{n}": 1.0 for n in range(i * WIDTH, (i + 1) * WIDTH)}, i % 2) for i in range(COLUMNS // WIDTH)
    ]


def figures() -> list[Figure]:
    """Clock time, after all code was compiled and all files were read once."""
    helped, lived, ready = list[float](), list[float](), list[float]()
    topic = world.new_topic()
    for _ in range(ROUNDS + 1):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "service", "--help"], check=True, capture_output=True)
        helped.append(time.monotonic() - began)
        with world.service(topic, "", "--create-topics", until="/livez") as running:
            lived.append(running.took)
            running.kill()  # the time of a stop is not measured
    topic, values, replay_values, replayed = world.new_topic(), wide(), NAMED.values(), list[float]()
    world.fill(topic, values, len(values))
    events, cost_before = len(values), 0.0
    for turn in range(ROUNDS + 1):
        if turn:
            world.fill(topic, replay_values, REPLAYED)
        with world.service(topic, "", "--create-topics", fresh=not turn) as running:
            if turn:
                ready.append(running.took)
                replayed.append(cost_before / world.follow(running, events + REPLAYED, events).microseconds)
                events += REPLAYED
            else:
                running.wait_for(events)
            if turn == ROUNDS:
                break
            # The next restart follows soon: a minute later the machine may have another speed.
            with running.paused():
                world.fill(topic, replay_values, REPLAYED)
            cost_before = world.follow(running, events + REPLAYED, events).microseconds
            events += REPLAYED
    return [
        Figure("P8", f"restart to /readyz with {COLUMNS:,} named columns", ready, 2.0, False, "s"),
        Figure("P8", "rate of the replay, against that before the restart", replayed, 0.9, True, "×"),
        Figure("P8", "process start to /livez, warm caches", lived[1:], 1.5, False, "s"),
        Figure("P8", "perceptron --help", helped[1:], 0.3, False, "s"),
    ]
