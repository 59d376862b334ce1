"""What an event costs by part, so that the parts are what was measured as a whole: docs/performance.md's cost model.

The whole is a service as it is. The parts are of one whose steps are timed; what no step has is fetching, unpacking
and the event loop.
"""

import json
from statistics import median

from bench import world
from bench.events import DENSE, NAMED, WORDS
from bench.figure import BROKER, PARTS, REDIS, WHOLE, Figure

ROUNDS = 2
STEPS = {
    "decode": "decoding",
    "place": "finding columns",
    "kernel": "the kernel",
    "watch": "watching: counts, recent window, the bound",
    "fold": "what else `Learner.apply` does",
    "saving": "saving, on the event loop",
    "thread": "saving, in its thread",
}


def figures() -> list[Figure]:
    """CPU microseconds an event, with the broker's next to it."""
    found = []
    for stream in (DENSE, NAMED, WORDS):
        topic, file = world.topic_of(stream), world.folder() / "parts.json"
        wholes, parts = list[world.Learned](), list[dict[str, float]]()
        for _ in range(ROUNDS):
            wholes.append(world.learn(topic, stream))
            file.unlink(missing_ok=True)
            world.learn(topic, stream, program=("bench.altered", f"timed:{stream.events}:{file}"))
            parts.append(json.loads(file.read_text()))

        def part(what: str, values: list[float], of: str = stream.what, unit: str = "µs") -> Figure:
            return Figure(PARTS, f"{of}: {what}", values, 0.0, False, unit)

        rest = [one["whole"] - sum(one.get(step, 0.0) for step in STEPS) for one in parts]
        steps = {what: [one.get(step, 0.0) for one in parts] for step, what in STEPS.items()}
        rows = {"fetching, unpacking, the event loop": rest, **steps}
        found += [part(what, values) for what, values in rows.items()]
        total, whole = sum(median(values) for values in rows.values()), [one.microseconds for one in wholes]
        found += [
            part(WHOLE, whole),
            part("the sum of the parts' medians against the whole", [total / one for one in whole], unit="×"),
            part(BROKER, [one.broker for one in wholes]),
            part(REDIS, [one.redis for one in wholes]),
        ]
    return found
