"""The demo's events: labels by a known separating vector, with a margin, so that the mistake bound is known."""

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

NAMES = ("clicks", "dwell", "scroll", "depth", "returns", "price", "stock", "age", "hour", "weekend")
BIAS = 0.25
MARGIN = 0.15


class Example(NamedTuple):
    """One event, and the running facts that bound the mistakes of any learner that has seen all up to it."""

    features: dict[str, float]
    label: int
    squared_radius: float
    margin: float


def separator(seed: int) -> list[float]:
    """w_opt: a unit vector, bias first."""
    rng = random.Random(seed)
    w = [BIAS] + [rng.gauss(0.0, 1.0) for _ in NAMES]
    norm = math.sqrt(sum(v * v for v in w))
    return [v / norm for v in w]


def examples(seed: int, count: int) -> Iterator[Example]:
    """`count` examples x with |w_opt·x| >= MARGIN; R² and γ are those of the examples so far.

    Together they bound the mistakes: k <= (R/γ)²·‖w_opt‖², whatever the order (Novikoff).
    """
    w = separator(seed)
    rng = random.Random(seed + 1)
    squared_radius, margin = 0.0, math.inf
    while count:
        x = [round(rng.gauss(0.0, 1.0), 4) for _ in NAMES]
        s = w[0] + sum(a * b for a, b in zip(w[1:], x, strict=True))
        if abs(s) < MARGIN:
            continue
        count -= 1
        squared_radius = max(squared_radius, 1.0 + sum(v * v for v in x))
        margin = min(margin, abs(s))
        yield Example(dict(zip(NAMES, x, strict=True)), 1 if s > 0 else -1, squared_radius, margin)
