"""Labels that come in runs: then the label of the event before is a good prediction, and a model follows it."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[Any]
"""The labels of events that follow each other."""
MAX_LABELS = 100_000
"""The most labels that are looked at."""
DEVIATIONS = 4.0
"""Runs are shown if more labels are repeated than by chance, by so many standard deviations (a chance of 3e-5)."""
MIN_CHANGES, SORTED_SHARE = 10.0, 0.01
"""A sorted order has less than this share of the changes expected by chance, which are at least MIN_CHANGES."""
AS_GOOD = 0.01
"""The previous label is as good as a model whose accuracy is at most this much higher."""
CURE = "shuffle the lines first (`shuf`; a CSV file keeps its header on top)"


def changes(labels: Labels) -> int:
    """The number of events whose label differs from the one before."""
    return int(np.count_nonzero(labels[1:] != labels[:-1]))


def repeated(labels: Labels) -> float:
    """The share of labels that are like the one before."""
    return 1.0 - changes(labels) / max(len(labels) - 1, 1)


def chance(labels: Labels) -> float:
    """The share of labels that are like the one before if the same labels come in any order."""
    return float(((np.unique(labels, return_counts=True)[1] / max(len(labels), 1)) ** 2).sum())


def in_runs(labels: Labels, accuracy: float) -> bool:
    """Whether labels come in runs, and the previous label is as good as a model of this accuracy."""
    expected, share = chance(labels), repeated(labels)
    deviation = math.sqrt(max(expected * (1.0 - expected), 0.0) / max(len(labels) - 1, 1))
    return share >= accuracy - AS_GOOD and share > expected + DEVIATIONS * deviation


def sorted_note(name: str, labels: Labels) -> str:
    """A line if the events of this file or topic are sorted by their labels, or nearly so; "" if they are not.

    >>> sorted_note("x", np.repeat([0, 1], 50))[:60], sorted_note("x", np.tile([0, 1], 50))
    ('x is sorted by its label (100 events in 2 runs of one label)', '')
    """
    expected = (1.0 - chance(labels)) * len(labels)
    if expected < MIN_CHANGES or changes(labels) >= max(len(np.unique(labels)), SORTED_SHARE * expected):
        return ""
    runs = f"{len(labels):,} events in {changes(labels) + 1:,} runs of one label"
    return f"{name} is sorted by its label ({runs}): a model forgets one label while it learns another: {CURE}"
