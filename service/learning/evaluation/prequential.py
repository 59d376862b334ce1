"""How well recent events were predicted and ranked, each before it was learned: observations, not state.

And how often the answers that were given to requests were right.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from service.learning.evaluation.confidence_sequences import PairedComparison, update_pairs
from service.learning.evaluation.confusion import Confusion
from service.learning.kernel.kernel import Learned, Vector

QUANTILES = (0.1, 0.5, 0.9)
Array = NDArray[Any]
_NONE = np.zeros(0, bool)
MIN_LABEL_EVENTS = 50
"""The events that each label needs: with fewer, the figures may be chance."""
MAX_RANKED = 10_000
"""The most events that are ranked, the newest ones: they hold the event loop for 1.2 ms (measured)."""
COUNTED_BATCHES = 16
"""Batches that are counted at once."""
ALL = ""
"""The name of the tally of all answers."""
NOT_ASKED = -1


class Margins(NamedTuple):
    """The mean perceptron loss of the events in a window, and the QUANTILES of their margins y·s/‖x‖."""

    loss: float
    quantiles: tuple[float, float, float]


class PredictedCounts(NamedTuple):
    """The number of events that a predictor has predicted, and how many of them wrongly."""

    events: int = 0
    wrong: int = 0


class Ranking(NamedTuple):
    """The figures of scores, as scikit-learn defines them (`roc_auc_score`, `average_precision_score`, `log_loss`)."""

    auc: float | None = None
    average_precision: float | None = None
    log_loss: float | None = None
    """None if the rule models no probability."""


def rank(truth: NDArray[Any], products: NDArray[np.float64], slope: float | None) -> Ranking:
    """The figures of events of two labels with these y·s; all None if a label has fewer than MIN_LABEL_EVENTS.

    The probability of the positive label is 1/(1 + e^(-slope·s)), if there is a slope.

    >>> rank(np.repeat([0, 1], 50), np.arange(100.0) - 10.0, None)
    Ranking(auc=1.0, average_precision=1.0, log_loss=None)
    """
    positive = truth == 1
    if not MIN_LABEL_EVENTS <= np.count_nonzero(positive) <= len(products) - MIN_LABEL_EVENTS:
        return Ranking()
    order = np.argsort(negated := np.where(positive, -products, products))
    # Equal scores are one threshold. The highest comes first.
    last = np.flatnonzero(np.diff(negated[order], append=np.inf))
    found = positive[order].cumsum()[last]
    false = last + 1 - found
    new, above = np.diff(found, prepend=0), false - np.diff(false, prepend=0) / 2.0
    auc = float(new @ (false[-1] - above)) / (int(found[-1]) * int(false[-1]))
    loss = None if slope is None else float(np.logaddexp(0.0, -slope * products).mean())
    return Ranking(auc, float(new @ (found / (found + false))) / int(found[-1]), loss)


class LastValues:
    """The last `count` of the values that were added, in an array with spare room, so that adding copies no window."""

    def __init__(self, count: int, values: Array) -> None:
        self._count, self._array, self._end = count, values, len(values)

    def add(self, values: Array) -> None:
        """Add values. Arrays that `values` returned do not change."""
        if self._end + len(values) > len(self._array):
            last = self.values
            spare = np.empty(len(last) + 2 * len(values), last.dtype)
            self._array, self._end = np.concatenate([last, spare]), len(last)
        self._array[self._end : self._end + len(values)] = values
        self._end += len(values)

    @property
    def values(self) -> Array:
        """A view, oldest first."""
        return self.newest(self._count)

    def newest(self, count: int) -> Array:
        """A view of the newest values, oldest first: of `count`, or fewer if there are fewer.

        With `count` one larger than the number that was added last, it has the value before these, if there was one.
        """
        return self._array[max(0, self._end - count) : self._end]


class PrequentialWindow:
    """The predictions of the last events, oldest first.

    A snapshot keeps labels and predictions, but only a summary of loss, margins and ranking: after a restore they are
    those of the snapshot until events come.

    >>> recent = PrequentialWindow(2, 2, np.array([1, 0, 0]), np.array([True, False, True]))
    >>> recent.accuracy, recent.average_accuracy, recent.baseline, recent.margins
    (0.5, None, 1.0, None)
    """

    def __init__(
        self, window: int, classes: int = 2, truth: Array = _NONE, wrong: Array = _NONE, averaged_wrong: Array = _NONE
    ) -> None:
        self.window, self.classes = window, classes
        self.truth = LastValues(window, truth.astype(np.uint16))
        """The index of each event's label."""
        self.wrong, self.averaged_wrong = LastValues(window, wrong), LastValues(window, averaged_wrong)
        """Whether the weights predicted each event wrongly, and whether their average did, if there is one."""
        self.answered_wrong = LastValues(window, _NONE)
        """Whether the answer to each event was wrong, if `positive_above` is set."""
        self._products, self._margins = LastValues(window, np.zeros(0)), LastValues(window, np.zeros(0))
        self._averaged_products = LastValues(window, np.zeros(0))
        self._served_products, self.served_wrong = LastValues(window, np.zeros(0)), LastValues(window, _NONE)
        """Whether the answer to each event was wrong, of the predictor that answered then, with `serve = "best"`."""
        self.served = np.zeros((2, classes), np.int64)
        """As `Confusion` has them, the events that were answered so, by the sign of the score."""
        self.restored_margins: Margins | None = None
        self.restored_ranking = Ranking()
        self.averaged, self._previous = PredictedCounts(), PredictedCounts()
        """The counts of the average, and of always predicting the label of the event before."""
        self.missed: list[int] | None = [0] * classes
        """The events of each label that the average predicted wrongly; None if that is unknown for some events."""
        self._pairs: list[PairedComparison] = []
        self._uncounted: list[dict[str, NDArray[np.bool_]]] = []
        """Which events of some batches each predictor was right about. To count many at once takes less time."""

    @property
    def pairs(self) -> list[PairedComparison]:
        """A comparison of each two predictors: average if there is one, last weights, baselines, candidates."""
        self._count()
        return self._pairs

    @property
    def previous(self) -> PredictedCounts:
        """The counts of always predicting the label of the event before."""
        self._count()
        return self._previous

    def restore_comparisons(self, pairs: list[PairedComparison], previous: PredictedCounts) -> None:
        """Go on from these comparisons and counts. All batches must be counted, as they are once `pairs` was read."""
        self._pairs, self._previous = pairs, previous

    def add(self, learned: Learned, products: Vector, averaged_products: Vector) -> None:
        """Add events; `products` are y·s, or with three labels or more the own score less the largest other.

        `averaged_products` are y·s by the average, if there is one and there are two labels.
        """
        truth = learned.truth
        if len(learned.averaged):
            averaged_wrong = learned.averaged != truth
            events, wrong = self.averaged
            self.averaged = PredictedCounts(events + len(truth), wrong + int(averaged_wrong.sum()))
            if self.missed is not None:
                for label_index in truth[averaged_wrong].tolist():
                    self.missed[label_index] += 1
            self.averaged_wrong.add(averaged_wrong)
            self._averaged_products.add(averaged_products)
        self.truth.add(truth)
        self.wrong.add(learned.predicted != truth)
        self._products.add(products)
        # Kesler's vector of three labels or more is √2 times as long as x.
        lengths = np.sqrt(learned.squared_norms if self.classes == 2 else 2.0 * learned.squared_norms)
        self._margins.add(products / lengths)

    def compare(self, right: Mapping[str, NDArray[np.bool_]]) -> None:
        """Add which of the events that were added last each predictor was right about, by its name."""
        if count := len(right["last"]):
            truth = self.truth.newest(count + 1)
            if len(truth) == count:  # before a model's first event
                truth = np.append(0, truth)
            right = {**right, "previous": truth[1:] == truth[:-1]}
            uncounted = self._uncounted
            if len(uncounted) == COUNTED_BATCHES or (uncounted and uncounted[0].keys() != right.keys()):
                self._count()
            self._uncounted.append(right)

    def _count(self) -> None:
        """Count the batches that are not counted yet."""
        if self._uncounted:
            right = {name: np.concatenate([each[name] for each in self._uncounted]) for name in self._uncounted[0]}
            events, wrong = self._previous
            count, same = len(right["previous"]), int(np.count_nonzero(right["previous"]))
            self._previous = PredictedCounts(events + count, wrong + count - same)
            self._pairs, self._uncounted = update_pairs(self._pairs, right), []

    def wrong_by(self, averaged: bool) -> LastValues:
        """Whether the weights or their average predicted each event wrongly."""
        return self.averaged_wrong if averaged else self.wrong

    def add_served(self, other: Self, averaged: bool, end: int, first: int, last: int, ours: int) -> None:
        """Add the model's events from `first` to before `last`, which another classifier, or this one, answered.

        The newest event of the other one is number `end` - 1, that of this one `ours` - 1.
        """

        def part(values: LastValues, end: int = end) -> Array:
            return values.newest(end - first)[: last - first]

        truth, wrong = part(self.truth, ours), part(other.wrong_by(averaged))
        self.served += [np.bincount(each, minlength=self.classes) for each in (truth, truth[~wrong])]
        self.served_wrong.add(part(other.answered_wrong) if len(other.answered_wrong.values) else wrong)
        if self.classes == 2:
            self._served_products.add(part(other._averaged_products if averaged else other._products))

    def ranking(self, averaged: bool, slope: float | None, served: bool = False) -> Ranking:
        """How well the weights or their average rank the events since the restore; see `rank`.

        If `served`, it is about the scores of the predictors that answered.
        """
        scores = self._served_products if served else self._averaged_products if averaged else self._products
        products = scores.newest(min(self.window, MAX_RANKED))
        if self.classes > 2 or not len(products):
            return self.restored_ranking
        return rank(self.truth.newest(len(products)), products, slope)

    @property
    def accuracy(self) -> float | None:
        """The share of right predictions in the window; None before the first event."""
        return self.confusion(averaged=False).accuracy

    @property
    def average_accuracy(self) -> float | None:
        """The share of right predictions by the average of the weights; None if there is no average."""
        return self.confusion(averaged=True).accuracy

    @property
    def baseline(self) -> float | None:
        """The share of the most frequent label in the window: the accuracy of always predicting it."""
        truth = self.truth.values
        return int(np.bincount(truth).max()) / len(truth) if len(truth) else None

    def confusion(self, averaged: bool, answered: bool = False, served: bool = False) -> Confusion:
        """Labels and predictions in the window, by the weights or their average, for events that have both.

        If `answered`, it is by the answers that `positive_above` made; if `served`, by the predictors that answered.
        """
        wrong = self.served_wrong if served else self.answered_wrong if answered else self.wrong_by(averaged)
        return _confusion(self.truth.values, wrong.values, self.classes)

    def by_change(self, averaged: bool) -> Confusion:
        """As `confusion`, of events whose label is the one of the event before, and of those whose label differs."""
        changed = np.diff(self.truth.values) != 0
        return _confusion(changed.astype(np.uint16), self.wrong_by(averaged).values, 2)

    @property
    def margins(self) -> Margins | None:
        """Loss and margins in the window; None before the first event.

        The perceptron loss of an event is max(0, -y·s) (Ahmed & Pavlu).
        """
        if not len(products := self._products.values):
            return self.restored_margins
        low, middle, high = np.quantile(self._margins.values, QUANTILES).tolist()
        return Margins(float(np.maximum(0.0, -products).mean()), (low, middle, high))


class GivenAnswer(NamedTuple):
    """The answer that was given about a record: the index of the label, and the candidate that answered, if one did."""

    record: int
    label_index: int
    candidate: str


class Tally:
    """How many answers were right, of all and of the last ones."""

    def __init__(self, window: int, events: int = 0, right: int = 0, last: NDArray[np.bool_] | None = None) -> None:
        self.events, self.right = events, right
        self.last = LastValues(window, np.zeros(0, bool) if last is None else last)

    def add(self, right: NDArray[np.bool_]) -> None:
        """Add answers, by whether each was right."""
        self.events += len(right)
        self.right += int(right.sum())
        self.last.add(right)


class GivenAnswers:
    """The tally of all answers, and of those of each candidate.

    >>> given = GivenAnswers(window=10, classes=2)
    >>> given.add(given.codes(3, [GivenAnswer(0, 1, ""), GivenAnswer(2, 1, "b")]), np.array([1, 1, 0]))
    >>> {name: (tally.events, tally.right) for name, tally in given.tallies.items()}
    {'': (2, 1), 'b': (1, 0)}
    """

    def __init__(self, window: int, classes: int) -> None:
        self._window, self._classes, self._candidates = window, classes, [ALL]
        self.tallies: dict[str, Tally] = {}
        """By ALL, or the name of a candidate."""

    def codes(self, count: int, answers: Iterable[GivenAnswer]) -> NDArray[np.int32]:
        """A number for each of `count` records that stands for its answer; NOT_ASKED if there is none."""
        codes = np.full(count, NOT_ASKED, np.int32)
        for record, label_index, candidate in answers:
            if candidate not in self._candidates:
                self._candidates.append(candidate)
            codes[record] = self._candidates.index(candidate) * self._classes + label_index
        return codes

    def add(self, codes: NDArray[np.int32], truth: NDArray[np.intp]) -> None:
        """Add events that were learned: the codes of their answers, and the indices of their labels."""
        asked = codes >= 0
        candidates, labels = np.divmod(codes[asked], self._classes)
        right = labels == truth[asked]
        for number in (0, *np.unique(candidates[candidates > 0]).tolist()):
            tally = self.tallies.setdefault(self._candidates[number], Tally(self._window))
            tally.add(right[candidates == number] if number else right)


def _confusion(truth: Array, wrong: Array, classes: int) -> Confusion:
    count = min(len(wrong), len(truth))
    truth, wrong = truth[len(truth) - count :], wrong[len(wrong) - count :]
    return Confusion(*(np.bincount(part, minlength=classes).tolist() for part in (truth, truth[~wrong])))
