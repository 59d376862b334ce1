"""P1 and P2: learning from Kafka, against programs that only read, and against programs that learn.

They run in turns and are measured by CPU seconds of all threads, since other programs on the machine change the clock
time. The first tenth of a stream is not measured: in it a program starts, connects and compiles.
"""

import subprocess
import sys
from collections.abc import Callable
from statistics import median

from bench import world
from bench.events import COMPACT, DENSE, HASHED, NAMED, NESTED, WORDS, Stream
from bench.figure import Figure, chosen

ROUNDS = 5
PROBE = 200
ROWS = (
    ("P1", DENSE, 1.4),
    ("P1b", NAMED, 0.95),
    ("P1c", WORDS, 0.20),
    ("P1c", HASHED, 0.35),
    ("P1c", NESTED, 0.8),
    ("P2", COMPACT, 2.2),
)
PROGRAMS = (
    ("confluent", "a confluent-kafka consume() loop that counts", DENSE.events, 1.0),
    ("river", "aiokafka + orjson + River's Perceptron", 20_000, 8.0),
    ("vw", "aiokafka + orjson + Vowpal Wabbit's Python learner", 20_000, 4.0),
    ("sklearn", "aiokafka + orjson + scikit-learn's partial_fit of each event", 2_000, 200.0),
)
"""Program, description, events of the topic, goal. The program that is nearly as fast runs directly after ours."""


def figures() -> list[Figure]:
    """Learning against a drain of the same topic, and against programs that learn."""
    result, topics = list[Figure](), dict[Callable[..., object], str]()
    for name, stream, goal in ROWS:
        if not chosen(name):
            continue
        what = f"{stream.description}, {stream.events:,} events"
        if stream.content_type and not _known(stream):
            result.append(Figure(name, f"{what} (not built)", [], goal, True, "×"))
            continue
        if stream.values not in topics:
            topics[stream.values] = world.topic_of(stream)
        topic = topics[stream.values]
        drains, ours = list[float](), list[world.Learned]()
        for _ in range(ROUNDS):
            drains.append(world.other("drain", topic, stream.events))
            ours.append(world.learn(topic, stream))
        ratios = [drain / cost.microseconds for drain, cost in zip(drains, ours, strict=True)]
        us, rate = median(cost.microseconds for cost in ours), median(cost.rate for cost in ours)
        what += f": {us:.2f} µs an event against {median(drains):.2f}; {rate:,.0f} a second"
        result.append(Figure(name, what, ratios, goal, True, "×"))
    return result + (_programs(topics.get(DENSE.values)) if chosen("P1d") else [])


def _known(stream: Stream) -> bool:
    """Whether the service reads records of this content type at all."""
    topic = world.new_topic()
    world.fill(topic, stream.values()[:PROBE], PROBE, stream.content_type)
    with world.service(topic, stream.settings, "--create-topics") as running:
        running.wait_for(PROBE)
        return running.events() == PROBE


def _programs(topic: str | None) -> list[Figure]:
    topic = topic or world.topic_of(DENSE)
    ratios: dict[str, list[float]] = {program: [] for program, _, _, _ in PROGRAMS}
    for _ in range(ROUNDS):
        cost = world.learn(topic, DENSE).microseconds
        for program, _, events, _ in PROGRAMS:
            try:
                ratios[program].append(world.other(program, topic, events) / cost)
            except subprocess.CalledProcessError as error:  # for example without a wheel for this Python
                print(error.stderr, file=sys.stderr)
    return [
        Figure("P1d", f"{DENSE.description}, against {what}", ratios[program], goal, True, "×")
        for program, what, _, goal in PROGRAMS
    ]
