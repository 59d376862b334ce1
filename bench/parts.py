"""The cost of an event by part, for the cost model of docs/performance.md.

The whole is measured on an unchanged service. The parts are measured on a service whose steps are timed; the time
outside the steps is fetching, unpacking and the event loop.
"""

import json
from statistics import median

from bench import world
from bench.events import DENSE, NAMED, WORDS
from bench.figure import BROKER, PARTS, REDIS, WHOLE, Figure

ROUNDS = 2
STEPS = {
    "read": "decoding",
    "columns": "finding columns",
    "kernel": "the kernel",
    "watch": "watching: counts, recent window, the bound",
    "fold": "what else `Learner.apply` does",
    "saving": "saving, on the event loop",
    "thread": "saving, in its thread",
}


def figures() -> list[Figure]:
    """CPU microseconds an event, of the service, the broker and Redis."""
    result = []
    for stream in (DENSE, NAMED, WORDS):
        topic, file = world.topic_of(stream), world.folder() / "parts.json"
        wholes, rounds = list[world.Learned](), list[dict[str, float]]()
        for _ in range(ROUNDS):
            wholes.append(world.learn(topic, stream))
            file.unlink(missing_ok=True)
            world.learn(topic, stream, program=("bench.altered", f"timed:{stream.events}:{file}"))
            rounds.append(json.loads(file.read_text()))

        def part(name: str, values: list[float], stream_name: str = stream.description, unit: str = "µs") -> Figure:
            return Figure(PARTS, f"{stream_name}: {name}", values, 0.0, False, unit)

        remaining = [seconds["whole"] - sum(seconds.get(step, 0.0) for step in STEPS) for seconds in rounds]
        steps = {name: [seconds.get(step, 0.0) for seconds in rounds] for step, name in STEPS.items()}
        rows = {"fetching, unpacking, the event loop": remaining, **steps}
        result += [part(description, values) for description, values in rows.items()]
        total, whole_costs = sum(median(values) for values in rows.values()), [cost.microseconds for cost in wholes]
        result += [
            part(WHOLE, whole_costs),
            part(
                "the sum of the parts' medians against the whole",
                [total / cost for cost in whole_costs],
                unit="×",
            ),
            part(BROKER, [cost.broker for cost in wholes]),
            part(REDIS, [cost.redis for cost in wholes]),
        ]
    return result
