"""A benchmark's figures, and which rows are requested."""

import os
import re
from typing import NamedTuple

PARTS = "parts"
"""The row of what an event costs by part, which has no goal."""
WHOLE, BROKER, REDIS = "the whole, of a service as it is", "next to it, the broker", "next to it, Redis"
"""The figures of PARTS that capacity is planned by."""


class Figure(NamedTuple):
    """One figure: a value of each round, and what its median is to be; without values it could not be measured."""

    name: str
    """Its row in docs/performance.md, such as P1b."""
    what: str
    """What was measured and how it was set up, in a sentence."""
    values: list[float]
    goal: float
    at_least: bool
    """Whether the goal is the least that it is to be, rather than the most."""
    unit: str


def chosen(name: str) -> bool:
    """Whether ONLY asks for this row: P1 is P1 and its letters, P1b that one, nothing is all of them."""
    only = os.environ.get("ONLY", "").replace(",", " ").split()
    return not only or any(re.fullmatch(rf"{re.escape(one)}[a-z]?", name) for one in only)
