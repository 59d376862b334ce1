"""Events whose labels a known vector separates, with a margin, so that the mistake bound is known."""

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

NAMES = ("clicks", "dwell", "scroll", "depth", "returns", "price", "stock", "age", "hour", "weekend")
BIAS = 0.25
MARGIN = 0.15


class Example(NamedTuple):
    """One event."""

    features: dict[str, float]
    label: int


def separator(seed: int) -> list[float]:
    """w_opt: a unit vector, bias first."""
    rng = random.Random(seed)
    w = [BIAS] + [rng.gauss(0.0, 1.0) for _ in NAMES]
    norm = math.sqrt(sum(v * v for v in w))
    return [v / norm for v in w]


def examples(seed: int, count: int) -> Iterator[Example]:
    """`count` examples x, with |w_opt·x| >= MARGIN for the vector of `separator`.

    Each feature is uniform in [-2, 2].
    """
    w = separator(seed)
    rng = random.Random(seed + 1)
    while count:
        x = [round(rng.uniform(-2.0, 2.0), 4) for _ in NAMES]
        s = w[0] + sum(a * b for a, b in zip(w[1:], x, strict=True))
        if abs(s) >= MARGIN:
            count -= 1
            yield Example(dict(zip(NAMES, x, strict=True)), 1 if s > 0 else -1)
