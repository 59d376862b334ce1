"""One figure of a benchmark, and its goal."""

from typing import NamedTuple


class Figure(NamedTuple):
    """What was measured in each round, and whether it is to be at least or at most the goal."""

    name: str
    what: str
    values: list[float]
    goal: float
    at_least: bool
    unit: str
