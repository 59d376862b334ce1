"""How well the last events were predicted, each before it was learned: observations, not state."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.1, 0.5, 0.9)


class Margins(NamedTuple):
    """Of the events in a window: the mean perceptron loss, and quantiles of the margin y·s/‖x‖ by QUANTILES."""

    loss: float
    quantiles: tuple[float, float, float]


class Recent:
    """A window of the last events, oldest first.

    >>> recent = Recent(window=2)
    >>> recent.add(np.array([True, False, False]), np.array([-1.0, 4.0, 0.5]), np.array([1.0, 4.0, 1.0]))
    >>> recent.accuracy, recent.margins.loss
    (1.0, 0.0)

    Which predictions were wrong is kept in a snapshot; of loss and margins only their summary is, so after a restore
    they are those of the snapshot until events come.
    """

    def __init__(self, window: int, wrong: NDArray[np.bool_] | None = None, margins: Margins | None = None) -> None:
        self.window = window
        self._wrong = np.zeros(0, bool) if wrong is None else wrong
        self._products = self._margins = np.zeros(0)
        self._restored = margins

    def add(self, wrong: NDArray[np.bool_], products: NDArray[np.float64], squared_norms: NDArray[np.float64]) -> None:
        """Take in events: was the prediction wrong, y·s, and ‖x‖² with the bias."""
        self._wrong = np.concatenate([self._wrong, wrong])
        self._products = np.concatenate([self._products, products])
        self._margins = np.concatenate([self._margins, products / np.sqrt(squared_norms)])
        if len(self._wrong) > 16 * self.window:
            self._wrong = self.wrong.copy()
            self._products, self._margins = (a[-self.window :].copy() for a in (self._products, self._margins))

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """For each event of the window: was its prediction wrong?"""
        return self._wrong[-self.window :]

    @property
    def accuracy(self) -> float | None:
        """The share of right predictions in the window; None before the first event."""
        return 1.0 - float(self.wrong.mean()) if len(self._wrong) else None

    @property
    def margins(self) -> Margins | None:
        """Loss and margins in the window; None before the first event.

        The perceptron loss of an event is max(0, -y·s) (Ahmed & Pavlu).
        """
        if not len(self._products):
            return self._restored
        low, middle, high = np.quantile(self._margins[-self.window :], QUANTILES).tolist()
        return Margins(float(np.maximum(0.0, -self._products[-self.window :]).mean()), (low, middle, high))
