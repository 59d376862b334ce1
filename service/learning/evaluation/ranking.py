"""How well scores rank the events of two labels, whatever the score above which the positive label is answered."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_LABEL_EVENTS = 50
"""The events that each label needs: with fewer, the figures may be chance."""
MAX_RANKED = 20_000
"""The events that are ranked in a turn of the event loop: they take 2 ms (measured). A thread ranks more."""


class Ranking(NamedTuple):
    """The figures of scores, as scikit-learn defines them (`roc_auc_score`, `average_precision_score`, `log_loss`)."""

    auc: float
    average_precision: float
    log_loss: float | None
    """None if the rule models no probability."""


class ScoredEvents(NamedTuple):
    """Events of two labels with their y·s, in arrays that do not change: a thread may rank them."""

    truth: NDArray[Any]
    products: NDArray[np.float64]
    slope: float | None
    """The probability of the positive label is 1/(1 + e^(-slope·s)); None if the rule models none."""
    restored: Ranking | None
    """The ranking of a snapshot, which stands while no event has come after it."""

    def ranking(self) -> Ranking | None:
        """How well the scores rank the events; None if a label has fewer than MIN_LABEL_EVENTS.

        >>> truth, products = np.repeat([0, 1], 50), np.arange(100.0) - 10.0
        >>> ScoredEvents(truth, products, None, None).ranking()
        Ranking(auc=1.0, average_precision=1.0, log_loss=None)
        """
        if not len(self.products):
            return self.restored
        is_positive = self.truth == 1
        positives = int(np.count_nonzero(is_positive))
        negatives = len(is_positive) - positives
        if min(positives, negatives) < MIN_LABEL_EVENTS:
            return None
        # Equal scores are one threshold. The highest comes first.
        scores, index = np.unique(np.where(is_positive, -self.products, self.products), return_inverse=True)
        found = np.bincount(index[is_positive], minlength=len(scores)).astype(float)
        false = np.bincount(index[~is_positive], minlength=len(scores)).astype(float)
        all_found, all_false = found.cumsum(), false.cumsum()
        auc = float(found @ (negatives - all_false + false / 2.0)) / (positives * negatives)
        precision = all_found / (all_found + all_false)
        loss = None if self.slope is None else float(np.logaddexp(0.0, -self.slope * self.products).mean())
        return Ranking(auc, float(found @ precision) / positives, loss)
