"""Labels that come in runs: then the label of the event before is a good prediction, and a model follows it."""

import math
from collections import Counter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

DEVIATIONS = 4.0
"""Runs are shown if more labels are repeated than by chance, by so many standard deviations (a chance of 3e-5)."""
MIN_CHANGES, SORTED_SHARE = 10.0, 0.01
"""An order is sorted if it has at most this share of the changes that are expected by chance, at least MIN_CHANGES."""
AS_GOOD = 0.01
"""The previous label is as good as a model whose accuracy is at most this much higher."""
CURE = "shuffle the lines first (`shuf`; a CSV file keeps its header on top)"


class LabelRuns:
    """How often the labels of events that follow each other change.

    >>> runs = LabelRuns.of(np.repeat([0, 1], 50))
    >>> runs.changes, runs.chance, runs.are_shown, runs.are_sorted
    (1, 0.5, True, True)
    """

    def __init__(self) -> None:
        self.counts = Counter[float]()
        """The number of events of each label."""
        self.changes = 0
        """The number of events whose label differs from the one before."""
        self._last: float | None = None

    @classmethod
    def of(cls, labels: NDArray[Any]) -> Self:
        """The runs in an array of labels."""
        runs = cls()
        runs.add(labels)
        return runs

    def add(self, labels: NDArray[Any]) -> None:
        """Add events by their labels."""
        if len(labels):
            values, numbers = np.unique(labels, return_counts=True)
            self.counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
            self.changes += int(np.count_nonzero(labels[1:] != labels[:-1])) + (self._last not in (None, labels[0]))
            self._last = labels[-1]

    @property
    def chance(self) -> float:
        """The share of labels that are like the one before if the same labels come in any order."""
        events = self.counts.total() or 1
        return math.fsum((count / events) ** 2 for count in self.counts.values())

    @property
    def repeated(self) -> float:
        """The share of labels that are like the one before."""
        return 1.0 - self.changes / max(self.counts.total() - 1, 1)

    @property
    def are_shown(self) -> bool:
        """Whether labels are repeated more often than by chance."""
        deviation = math.sqrt(self.chance * (1.0 - self.chance) / max(self.counts.total() - 1, 1))
        return self.repeated > self.chance + DEVIATIONS * deviation

    @property
    def are_sorted(self) -> bool:
        """Whether the events are sorted by their labels, or nearly so."""
        expected = (1.0 - self.chance) * self.counts.total()
        return expected >= MIN_CHANGES and self.changes < max(len(self.counts), SORTED_SHARE * expected)

    def sorted_note(self, name: str) -> str:
        """A line if the events of this file or topic are sorted by their labels; "" if they are not."""
        if not self.are_sorted:
            return ""
        runs = f"{self.counts.total():,} events in {self.changes + 1:,} runs of one label"
        return f"{name} is sorted by its label ({runs}): a model forgets one label while it learns another: {CURE}"
