"""Labels and predictions compared. Accuracy alone says little if one label is rare, or if labels come in runs.

Where they come in runs, the label of the event before is a good prediction, and a model follows it.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RARE = 0.05
"""A share of the events: accuracy says little about a label that is rarer."""
Labels = NDArray[Any]
"""The labels of events that follow each other."""
MAX_LABELS = 100_000
"""The most labels that are looked at."""
DEVIATIONS = 4.0
"""Labels come in runs if this many standard deviations more of them are repeated than by chance (probability 3e-5)."""
MIN_CHANGES, SORTED_SHARE = 10.0, 0.01
"""A sorted order has less than this share of the changes expected by chance, which are at least MIN_CHANGES."""
AS_GOOD = 0.01
"""The previous label is as good as a model whose accuracy is at most this much higher."""
CURE = "shuffle the lines first (`shuf`; a CSV file keeps its header on top)"


class Confusion(NamedTuple):
    """The events of each label, and how many of them were predicted rightly. An undefined figure is None.

    Precision, recall and F1 are about the second label, the positive one, and defined for two labels only.

    >>> confusion = Confusion([95, 5], [90, 3])
    >>> confusion.precision, confusion.recall, confusion.f1
    (0.375, 0.6, 0.46153846153846156)
    >>> round(confusion.balanced_accuracy, 4), Confusion([7, 0], [7, 0]).balanced_accuracy
    (0.7737, None)
    >>> confusion = Confusion([3, 1, 0], [2, 1, 0])
    >>> confusion.recalls, confusion.balanced_accuracy, confusion.recall
    ([0.6666666666666666, 1.0, None], 0.8333333333333333, None)
    """

    events: list[int]
    right: list[int]

    @property
    def recalls(self) -> list[float | None]:
        """The share of right predictions for the events of each label."""
        return list(map(share, self.right, self.events))

    @property
    def accuracy(self) -> float | None:
        """The share of right predictions."""
        return share(sum(self.right), sum(self.events))

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean of the recalls over the labels with events. If only one of two labels has events, it is None."""
        recalls = [recall for recall in self.recalls if recall is not None]
        is_defined = len(recalls) == 2 if len(self.events) == 2 else len(recalls) > 0
        return math.fsum(recalls) / len(recalls) if is_defined else None

    @property
    def precision(self) -> float | None:
        """The share of right predictions among the positive predictions."""
        return share(self.right[1], self._predicted) if len(self.events) == 2 else None

    @property
    def recall(self) -> float | None:
        """The share of right predictions for positive events."""
        return self.recalls[1] if len(self.events) == 2 else None

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; 0 if no positive event was predicted rightly."""
        return share(2 * self.right[1], self._predicted + self.events[1]) if len(self.events) == 2 else None

    @property
    def finds_rare(self) -> bool:
        """Whether one of two labels is rare, with a higher F1 than 2p/(1 + p), which always predicting it would have.

        >>> Confusion([970, 30], [970, 0]).finds_rare, Confusion([970, 30], [950, 15]).finds_rare
        (False, True)
        """
        rare = self if self.events[1] <= self.events[0] else Confusion(self.events[::-1], self.right[::-1])
        p = share(rare.events[1], sum(rare.events)) or 1.0
        return p < RARE and (rare.f1 or 0.0) > 2.0 * p / (1.0 + p)

    @property
    def _predicted(self) -> int:
        """The number of positive predictions, of two labels."""
        return self.right[1] + self.events[0] - self.right[0]


def share(part: int, of: int) -> float | None:
    """The share of a part in a whole; None if the whole is 0."""
    return part / of if of else None


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
    expected, same = chance(labels), repeated(labels)
    deviation = math.sqrt(max(expected * (1.0 - expected), 0.0) / max(len(labels) - 1, 1))
    return same >= accuracy - AS_GOOD and same > expected + DEVIATIONS * deviation


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
