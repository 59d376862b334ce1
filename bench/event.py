"""The cost of decoding and learning an event, by kinds of values: `python -m bench.event [COMMIT]`.

With a commit, its tree and this one are measured in turns, and the ratio of plain events is printed, which both trees
can learn. CPU seconds, the minimum of some runs: other programs add time, and never save any.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.partitions import P0

EVENTS, SLICE, VALUES, RUNS = 10_000, 200, 20, 5
ROUNDS = 7
CLASSES = (3, 10, 100)
CANDIDATES = (1, 3)
NUMBERS = "20 numbers"


def kinds() -> dict[str, tuple[Callable[[random.Random, int], dict[str, Any]], dict[str, Any]]]:
    """Features of an event, and settings of the identity, by kind; the number of candidates is not such a setting."""

    def numbers(rng: random.Random, _: int) -> dict[str, Any]:
        return {f"n{i}": round(rng.gauss(0, 1), 3) for i in range(VALUES)}

    return {
        NUMBERS: (numbers, {}),
        "20 numbers, scaled": (numbers, {"scale": "standard"}),
        "20 numbers, clipped": (numbers, {"scale": "standard", "clip": 6.0}),
        **{f"20 numbers, {k} classes": (numbers, {"labels": tuple(range(k))}) for k in CLASSES},
        **{f"20 numbers, {n} candidates": (numbers, {"candidates": n}) for n in CANDIDATES},
        "20 strings": (lambda rng, _: {f"n{i}": f"v{rng.randrange(9)}" for i in range(VALUES)}, {}),
        "20 numbers in an object": (lambda rng, i: {"in": numbers(rng, i)}, {}),
        "20 numbers and a string": (lambda rng, i: numbers(rng, i) | {"s": f"v{rng.randrange(9)}"}, {}),
    }


def measure() -> dict[str, float]:
    """Microseconds of an event, for each kind that this tree can learn."""
    from service.learning.events.event_reader import use_compiled_reader
    from service.learning.identity import Identity
    from service.learning.learner import Learner

    use_compiled_reader(True)
    costs = {}
    for name, (features, settings) in kinds().items():
        rng, labels = random.Random(1), len(settings.get("labels", (0, 1)))
        records = [
            json.dumps({"features": features(rng, i), "label": rng.randrange(labels)}).encode() for i in range(EVENTS)
        ]
        candidates = settings.pop("candidates", 0)
        # An older tree does not have the setting, labels or candidates.
        with suppress(TypeError, ValueError, AttributeError):
            seconds = []
            for _ in range(RUNS):
                learner = Learner(Identity(**settings))
                for i in range(candidates):
                    learner.add_candidate(f"eta {2.0**-i}", Identity(eta=2.0**-i, **settings))
                seconds.append(_run(learner, records))
            costs[name] = min(seconds)
    return costs


def kernels() -> dict[int, float]:
    """Microseconds of an event of 20 values in the kernel alone, by the number of labels."""
    from service.learning.columns.columns import columns_for
    from service.learning.events.event_reader import EventReader
    from service.learning.identity import Identity
    from service.learning.kernel import kernel

    costs = {}
    for k in (2, *CLASSES):
        rng, identity = random.Random(1), Identity(labels=tuple(range(k)))
        columns = columns_for(identity)
        values = [{f"n{i}": round(rng.gauss(0, 1), 3) for i in range(VALUES)} for _ in range(EVENTS)]
        records = [json.dumps({"features": x, "label": rng.randrange(k)}).encode() for x in values]
        batch = columns.decode(EventReader(identity).read(records))
        shape = (VALUES + 1, 1) if k == 2 else (VALUES + 1, 1, k)
        seconds = []
        for _ in range(RUNS + 1):  # the first compiles
            state = np.zeros(shape)
            began = time.process_time()
            kernel.learn(identity, state, batch, reach=0.0)
            seconds.append(time.process_time() - began)
        costs[k] = min(seconds) / EVENTS * 1e6
    return costs


def _run(learner: Any, records: list[bytes]) -> float:
    from service.learning.records import Records  # from the measured tree

    learner.begin({P0: 0})
    learner.apply(Records.from_values(0, records[:SLICE]))  # columns, and compiled code
    learner.main.begin_segment()
    began = time.process_time()
    for offset in range(SLICE, EVENTS, SLICE):
        learner.apply(Records.from_values(offset, records[offset : offset + SLICE]))
    took = time.process_time() - began
    return took / learner.main.counts.events * 1e6 if learner.main.counts.events == EVENTS else float("nan")


def compare(commit: str) -> None:
    """Measure both trees in turns, and print the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], check=True, capture_output=True)
        try:
            results: dict[str, list[dict[str, float]]] = {str(Path(__file__).parents[1]): [], str(tree): []}
            for _ in range(ROUNDS):
                for path, rows in results.items():
                    # Each tree's own file knows its interfaces.
                    command, paths = [sys.executable, f"{path}/bench/event.py", "-"], os.environ | {"PYTHONPATH": path}
                    rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, env=paths).stdout))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True, capture_output=True)
    ours, theirs = (min(row[NUMBERS] for row in rows) for rows in results.values())
    ratios = sorted(a[NUMBERS] / b[NUMBERS] for a, b in zip(*results.values(), strict=True))
    print(f"{NUMBERS}: {theirs:.2f} us at {commit}, {ours:.2f} us here: {ours / theirs:.3f}")
    print(f"by rounds: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        print(json.dumps(measure()))
    elif len(sys.argv) > 1:
        compare(sys.argv[1])
    else:
        plain = 0.0
        for name, cost in measure().items():
            plain = plain or cost
            print(f"{name:<26}{cost:6.2f} us an event, {(cost - plain) / VALUES:+.3f} us a value")
        binary = 0.0
        for k, cost in kernels().items():
            binary = binary or cost
            print(f"{f'kernel alone, {k} labels':<26}{cost:6.2f} us an event, {cost / binary:.1f} times that of two")
