"""What labels and the predictions made of them say together: where one label is rare, accuracy alone says little."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RARE = 0.05
"""Share of the events: of a rarer label accuracy says little."""


class Confusion(NamedTuple):
    """Events by their label and by the label that was predicted; each figure is None where it is not defined.

    >>> confusion = Confusion(90, 5, 2, 3)
    >>> confusion.precision, confusion.recall, confusion.f1
    (0.375, 0.6, 0.46153846153846156)
    >>> round(confusion.balanced_accuracy, 4), Confusion(7, 0, 0, 0).balanced_accuracy, Confusion(7, 0, 0, 0).precision
    (0.7737, None, None)
    """

    true_negatives: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    true_positives: int = 0

    @classmethod
    def of(cls, positive: NDArray[np.bool_], wrong: NDArray[np.bool_]) -> "Confusion":
        """Of events: has each the positive label, was it predicted wrongly?"""
        return cls(*np.bincount(2 * positive + (positive ^ wrong), minlength=4).tolist())

    @property
    def precision(self) -> float | None:
        """Of the predictions that were positive, the share that was right."""
        return share(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float | None:
        """Of the positive events, the share that was predicted rightly."""
        return share(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; 0 where nothing positive was found."""
        right = 2 * self.true_positives
        return share(right, right + self.false_positives + self.false_negatives)

    @property
    def finds_rare(self) -> bool:
        """Whether there is a rare label whose F1 is higher than that of who always says it, which is 2p/(1 + p).

        >>> Confusion(970, 0, 30, 0).finds_rare, Confusion(950, 20, 15, 15).finds_rare
        (False, True)
        """
        rarer = self if 2 * (self.false_negatives + self.true_positives) <= sum(self) else Confusion(*self[::-1])
        p = share(rarer.false_negatives + rarer.true_positives, sum(self)) or 1.0
        return p < RARE and (rarer.f1 or 0.0) > 2.0 * p / (1.0 + p)

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean over both labels of the share of their events that was predicted rightly."""
        negative = share(self.true_negatives, self.true_negatives + self.false_positives)
        return None if negative is None or self.recall is None else (negative + self.recall) / 2.0


class Found(NamedTuple):
    """Of each label, by its place, how many events it had, and how many of these were predicted rightly.

    >>> found = Found([3, 1, 0], [2, 1, 0])
    >>> found.recalls, found.balanced_accuracy, Found([], []).balanced_accuracy
    ([0.6666666666666666, 1.0, None], 0.8333333333333333, None)
    """

    events: list[int]
    right: list[int]

    @classmethod
    def of(cls, truth: NDArray[Any], wrong: NDArray[np.bool_], classes: int) -> "Found":
        """Of events: the place of each one's label, and was it predicted wrongly?"""
        events, right = (np.bincount(places, minlength=classes).tolist() for places in (truth, truth[~wrong]))
        return cls(events, right)

    @property
    def recalls(self) -> list[float | None]:
        """Of each label the share of its events that was predicted rightly."""
        return list(map(share, self.right, self.events))

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean of the recalls of those labels that came."""
        known = [recall for recall in self.recalls if recall is not None]
        return math.fsum(known) / len(known) if known else None


def share(part: int, of: int) -> float | None:
    """The part of a whole; None of nothing."""
    return part / of if of else None
