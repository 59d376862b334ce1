"""A benchmark's figures, and which rows are requested."""

import os
import re
from typing import NamedTuple

PARTS = "parts"
"""The row of the cost of an event by part, which has no goal."""
WHOLE, BROKER, REDIS = "the whole, of a service as it is", "next to it, the broker", "next to it, Redis"
"""The figures of PARTS that are used for capacity planning."""


class Figure(NamedTuple):
    """One figure: a value for each round, and a goal for their median. Without values it could not be measured."""

    name: str
    """Its row in docs/performance.md, such as P1b."""
    what: str
    """The measurement and its setup, in a sentence."""
    values: list[float]
    goal: float
    at_least: bool
    """Whether the goal is a minimum rather than a maximum."""
    unit: str


def chosen(name: str) -> bool:
    """Whether ONLY selects this row: P1 selects P1 and its letters, P1b only P1b, and an empty ONLY all rows."""
    only = os.environ.get("ONLY", "").replace(",", " ").split()
    return not only or any(re.fullmatch(rf"{re.escape(row)}[a-z]?", name) for row in only)
