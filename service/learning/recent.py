"""How well events were predicted, each before it was learned, above all the last ones: observations, not state."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.confidence import Paired, followed
from service.learning.confusion import Confusion, Found

QUANTILES = (0.1, 0.5, 0.9)
_NONE = np.zeros(0, bool)
_ROOM = 1000
"""For so many values, and as many again as there are, has an array that is made."""


class Margins(NamedTuple):
    """Of the events in a window: the mean perceptron loss, and quantiles of the margin y·s/‖x‖ by QUANTILES."""

    loss: float
    quantiles: tuple[float, float, float]


FLAGS = ("wrong", "positive", "averaged")
"""Of each event: the weights predicted it wrongly; it has the positive label; the average predicted it wrongly."""


class Averaged(NamedTuple):
    """How many events the average of the weights has predicted, and how many of them wrongly."""

    events: int = 0
    wrong: int = 0


class _Tail:
    """The last `length` values of those that were added, in an array with room for more: adding copies no window."""

    def __init__(self, length: int, values: NDArray[Any]) -> None:
        self._length, self._array, self._end = length, values, len(values)

    def add(self, values: NDArray[Any]) -> None:
        """Add these; arrays that `last` returned stay what they are."""
        end = self._end + len(values)
        if end > len(self._array):
            kept = self.last
            end = len(kept) + len(values)
            self._array = np.empty(2 * end + _ROOM, kept.dtype)
            self._array[: len(kept)] = kept
        self._array[end - len(values) : end], self._end = values, end

    @property
    def last(self) -> NDArray[Any]:
        """A view, oldest first."""
        return self._array[max(0, self._end - self._length) : self._end]


class Recent:
    """A window of the last events, oldest first.

    >>> recent = Recent(window=2)
    >>> truth, products, squared_norms = np.array([1, 0, 0]), np.array([-2.0, 4.0, -0.5]), np.array([1.0, 4.0, 1.0])
    >>> recent.add(truth, products, squared_norms, np.array([True, False, True]))
    >>> recent.accuracy, recent.average_accuracy, recent.baseline, recent.margins.loss
    (0.5, None, 1.0, 0.25)

    The flags are kept in a snapshot; of loss and margins only their summary is, so after a restore they are those of
    the snapshot until events come.
    """

    def __init__(
        self,
        window: int,
        flags: Mapping[str, NDArray[np.bool_]] | None = None,
        margins: Margins | None = None,
        averaged: Averaged = Averaged(),  # noqa: B008 - it does not change
        pairs: Sequence[Paired] = (),
        missed: int | list[int] | None = 0,
        classes: int = 2,
        truth: NDArray[np.uint16] | None = None,
    ) -> None:
        """`truth` has the labels' places, where there are more than two `classes`; of two the flags have it."""
        self.window, self.averaged, self.classes = window, averaged, classes
        self._truth = _Tail(window, np.zeros(0, np.uint16) if truth is None else truth)
        self.missed = [0] * classes if classes > 2 and missed == 0 else deepcopy(missed)
        """How many of the average's wrong predictions were of positive events; None where it is not known of all.

        Of more than two classes how many were of events of each.
        """
        self._flags = {name: _Tail(window, (flags or {}).get(name, _NONE)) for name in FLAGS}
        self._products, self._margins = (_Tail(window, np.zeros(0)) for _ in range(2))
        self._restored = margins
        self.pairs = list(pairs)
        """Each two that predict: the average where it is kept, the last weights, baseline, and others."""

    def add(
        self,
        truth: NDArray[np.intp],
        products: NDArray[np.float64],
        squared_norms: NDArray[np.float64],
        wrong: NDArray[np.bool_],
        averaged: NDArray[np.bool_] = _NONE,
    ) -> None:
        """Take in events: their label's place, y·s, ‖x‖² with the bias, and whose prediction was wrong.

        Also by the average, where one is kept. Of classes y·s is the own score less the largest other, and its vector z
        is √2 times as long as x.
        """
        positive = truth == 1 if self.classes == 2 else _NONE
        self.averaged = Averaged(self.averaged.events + len(averaged), self.averaged.wrong + int(averaged.sum()))
        if isinstance(self.missed, list):
            for place in truth[averaged].tolist():
                self.missed[place] += 1
        elif self.missed is not None and len(averaged):
            self.missed += int((averaged & positive).sum())
        for name, new in zip(FLAGS, (wrong, positive, averaged), strict=True):
            self._flags[name].add(new)
        self._products.add(products)
        self._margins.add(products / np.sqrt(squared_norms if self.classes == 2 else 2.0 * squared_norms))
        if self.classes > 2:
            self._truth.add(truth.astype(np.uint16))

    def compare(self, right: Mapping[str, NDArray[np.bool_]]) -> None:
        """Take in who was right about the same events, by name."""
        if any(map(len, right.values())):
            self.pairs = followed(self.pairs, right)

    def flag(self, name: str) -> NDArray[np.bool_]:
        """One of FLAGS for each event of the window, as far as it is known."""
        return self._flags[name].last

    @property
    def truth(self) -> NDArray[np.uint16]:
        """The place of each event's label in the window, where there are more than two."""
        return self._truth.last

    @property
    def accuracy(self) -> float | None:
        """The share of right predictions in the window; None before the first event."""
        return _accuracy(self.flag("wrong"))

    @property
    def average_accuracy(self) -> float | None:
        """The same of the average's predictions; None where none is kept."""
        return _accuracy(self.flag("averaged"))

    @property
    def baseline(self) -> float | None:
        """The share of the more frequent label in the window: what who always answers with it is right in."""
        truth = self.flag("positive") if self.classes == 2 else self.truth
        return int(np.bincount(truth).max()) / len(truth) if len(truth) else None

    def confusion(self, averaged: bool) -> Confusion:
        """Labels and predictions in the window, of the weights or of their average, as far as both are known.

        Empty of more than two classes.
        """
        return Confusion.of(*self._both(self.flag("positive"), averaged))

    def found(self, averaged: bool) -> Found:
        """The same by label, of any number of them."""
        return Found.of(*self._both(self.flag("positive") if self.classes == 2 else self.truth, averaged), self.classes)

    def _both(self, truth: NDArray[Any], averaged: bool) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        wrong = self.flag("averaged" if averaged else "wrong")
        known = min(len(wrong), len(truth))
        return truth[len(truth) - known :], wrong[len(wrong) - known :]

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
