"""How well recent events were predicted, each before it was learned. These are observations, not state."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.evaluation.confidence_sequences import PairedComparison, update_pairs
from service.learning.evaluation.confusion import Confusion

QUANTILES = (0.1, 0.5, 0.9)
_NONE = np.zeros(0, bool)
SPARE_VALUES = 1000
"""A new array has room for this many more values, and for as many again as there are."""


class Margins(NamedTuple):
    """The mean perceptron loss of the events in a window, and the QUANTILES of their margins y·s/‖x‖."""

    loss: float
    quantiles: tuple[float, float, float]


class AverageCounts(NamedTuple):
    """How many events the average of the weights has predicted, and how many of them wrongly."""

    events: int = 0
    wrong: int = 0


class RingBuffer:
    """The last `length` values of those that were added, in an array with room for more: adding copies no window."""

    def __init__(self, length: int, values: NDArray[Any]) -> None:
        self._length, self._array, self._end = length, values, len(values)

    def add(self, values: NDArray[Any]) -> None:
        """Add these; arrays that `last` returned stay what they are."""
        end = self._end + len(values)
        if end > len(self._array):
            kept = self.last
            end = len(kept) + len(values)
            self._array = np.empty(2 * end + SPARE_VALUES, kept.dtype)
            self._array[: len(kept)] = kept
        self._array[end - len(values) : end], self._end = values, end

    @property
    def last(self) -> NDArray[Any]:
        """A view, oldest first."""
        return self._array[max(0, self._end - self._length) : self._end]


class PrequentialWindow:
    """A window of the last events, oldest first.

    >>> recent = Recent(window=2)
    >>> truth, products, squared_norms = np.array([1, 0, 0]), np.array([-2.0, 4.0, -0.5]), np.array([1.0, 4.0, 1.0])
    >>> recent.add(truth, products, squared_norms, np.array([True, False, True]))
    >>> recent.accuracy, recent.average_accuracy, recent.baseline, recent.margins.loss
    (0.5, None, 1.0, 0.25)

    A snapshot keeps labels and predictions, but only the summary of loss and margins: after a restore they are those of
    the snapshot until events come.
    """

    def __init__(
        self,
        window: int,
        classes: int = 2,
        truth: NDArray[Any] = _NONE,
        wrong: NDArray[np.bool_] = _NONE,
        averaged_wrong: NDArray[np.bool_] = _NONE,
        margins: Margins | None = None,
    ) -> None:
        self.window, self.classes = window, classes
        self.truth = RingBuffer(window, truth.astype(np.uint16))
        """The place of each event's label."""
        self.wrong, self.averaged_wrong = RingBuffer(window, wrong), RingBuffer(window, averaged_wrong)
        """Whether the weights predicted each event wrongly, and whether their average did, if one is kept."""
        self._products, self._margins = (RingBuffer(window, np.zeros(0)) for _ in range(2))
        self._restored = margins
        self.averaged = AverageCounts()
        self.missed: list[int] | None = [0] * classes
        """The events of each label that the average predicted wrongly; None if that is not known of all events."""
        self.pairs: list[PairedComparison] = []
        """Each two predictors: the average if it is kept, the last weights, the baseline, and the candidates."""

    def add(
        self,
        truth: NDArray[np.intp],
        products: NDArray[np.float64],
        squared_norms: NDArray[np.float64],
        wrong: NDArray[np.bool_],
        averaged_wrong: NDArray[np.bool_] = _NONE,
    ) -> None:
        """Take in events: their label's place, y·s, ‖x‖² with the bias, and which were predicted wrongly.

        The last is by the average, if one is kept. Of classes y·s is the own score less the largest other, and its
        vector z is √2 times as long as x.
        """
        self.averaged = AverageCounts(
            self.averaged.events + len(averaged_wrong), self.averaged.wrong + int(averaged_wrong.sum())
        )
        if self.missed is not None:
            for place in truth[: len(averaged_wrong)][averaged_wrong].tolist():
                self.missed[place] += 1
        self.truth.add(truth)
        self.wrong.add(wrong)
        self.averaged_wrong.add(averaged_wrong)
        self._products.add(products)
        self._margins.add(products / np.sqrt(squared_norms if self.classes == 2 else 2.0 * squared_norms))

    def compare(self, right: Mapping[str, NDArray[np.bool_]]) -> None:
        """Take in which of the same events each predictor was right about, by its name."""
        if any(map(len, right.values())):
            self.pairs = update_pairs(self.pairs, right)

    @property
    def accuracy(self) -> float | None:
        """The share of right predictions in the window; None before the first event."""
        return _accuracy(self.wrong.last)

    @property
    def average_accuracy(self) -> float | None:
        """The same of the average's predictions; None if none is kept."""
        return _accuracy(self.averaged_wrong.last)

    @property
    def baseline(self) -> float | None:
        """The share of the most frequent label in the window: the accuracy of always predicting it."""
        truth = self.truth.last
        return int(np.bincount(truth).max()) / len(truth) if len(truth) else None

    def confusion(self, averaged: bool) -> Confusion:
        """Labels and predictions in the window, of the weights or of their average, as far as both are known."""
        truth, wrong = self.truth.last, (self.averaged_wrong if averaged else self.wrong).last
        count = min(len(wrong), len(truth))
        return Confusion.of(truth[len(truth) - count :], wrong[len(wrong) - count :], self.classes)

    @property
    def margins(self) -> Margins | None:
        """Loss and margins in the window; None before the first event.

        The perceptron loss of an event is max(0, -y·s) (Ahmed & Pavlu).
        """
        products, margins = self._products.last, self._margins.last
        if not len(products):
            return self._restored
        low, middle, high = np.quantile(margins, QUANTILES).tolist()
        return Margins(float(np.maximum(0.0, -products).sum()) / len(products), (low, middle, high))


def _accuracy(wrong: NDArray[np.bool_]) -> float | None:
    return int(np.count_nonzero(~wrong)) / len(wrong) if len(wrong) else None
