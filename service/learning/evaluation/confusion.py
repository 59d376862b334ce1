"""Labels and predictions compared: if one label is rare, accuracy alone says little."""

import math
from typing import NamedTuple

RARE = 0.05
"""A share of the events: accuracy says little about a label that is rarer."""


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
