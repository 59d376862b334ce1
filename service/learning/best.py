"""Which predictor of a model answers with `serve = "best"`: the one that was right most often lately.

The predictors are the model's last weights, their average if there is one, and the candidates. Who answers is a
function of the events, as weights are: it is decided after every DECISION_EVENTS-th event of the model, however the
records were batched, and belongs to the state. `positive_above` has no part in it, since it may change at any time.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from service.learning.evaluation.prequential import PrequentialWindow
from service.learning.records import PartitionId, Place

DECISION_EVENTS = 100
Lead = tuple[str, int, int]
"""A predictor, and the members `lead` and `differ` of its `Takeover`."""
MAX_COMPARED = 10_000
"""The most events that are compared, the newest ones: with sixteen candidates a decision takes less than 1 ms."""


class Predictor(NamedTuple):
    """The weights of a classifier, or their average, and the number of the model's events when it learned the last one.

    `end` is smaller than the model's number of events if the classifier has diverged.
    """

    recent: PrequentialWindow
    averaged: bool
    end: int

    def wrong(self, first: int, end: int) -> NDArray[np.bool_]:
        """Which of the model's events from `first` to before `end` it got wrong."""
        return self.recent.wrong_by(self.averaged).newest(self.end - first)[: end - first]


class Takeover(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A predictor that answers instead of another one, with `serve = "best"`."""

    name: str
    """The predictor: last, average or a candidate's name."""
    instead_of: str
    """The predictor that answered before."""
    at: dict[str, int]
    """The partition and offset of the record after which it answers, or at which the other one diverged."""
    lead: int
    """The compared events on which it alone was right, less those on which the other one alone was.

    0 if the other one diverged."""
    differ: int
    """The compared events on which exactly one of the two was right."""


def leader(wrong: Mapping[str, NDArray[np.bool_]], answering: str) -> Lead | None:
    """The predictor to answer instead of the present one, or None, by which of the same events each got wrong.

    It leads by more than the square root of the number of events on which exactly one of the two was right. If several
    do, it is the one that was right most often, the first of equals.

    >>> wrong = {"last": np.array([1, 1, 1, 0, 0], bool), "calm": np.array([0, 0, 0, 0, 1], bool)}
    >>> leader(wrong, "last"), leader({**wrong, "calm": np.zeros(5, bool)}, "last")
    (None, ('calm', 3, 3))
    """
    own, best = wrong[answering], None
    for name, flags in wrong.items():
        lead = int(np.count_nonzero(own)) - int(np.count_nonzero(flags))
        if lead > (best[1] if best else 0) and lead**2 > (differ := int(np.count_nonzero(own != flags))):
            best = name, lead, differ
    return best


class BestPredictor(msgspec.Struct, forbid_unknown_fields=True):
    """The predictor that answers, and what a replay needs to find the same one.

    It begins from scratch when the candidates or the window change: a replay does not have the candidates of before.
    """

    window: int
    """The number of events that are compared."""
    weights: dict[str, str]
    """The weights that each candidate predicts with: last or average."""
    since: dict[PartitionId, int]
    """The next offset when it began, by partition."""
    events: int
    """The model's events when it began. Earlier ones are not compared."""
    first: str
    """The predictor that answered then."""
    answering: str
    takeovers: int = 0
    takeover: Takeover | None = None
    """The last one."""

    @property
    def at_its_start(self) -> "BestPredictor":
        """This one as it began."""
        return replace(self, since=dict(self.since), answering=self.first, takeovers=0, takeover=None)

    def follow(
        self, predictors: Mapping[str, Predictor], begin: int, place: Place, takeovers: list[Takeover]
    ) -> Iterator[tuple[str, int, int]]:
        """Decide who answers, after events that the predictors learned; yields who answered which: name, first and end.

        The first of these events is number `begin` of the model, and `place` returns the record of each. If a candidate
        diverges that answers, the first of the predictors does. `takeovers` get one more for each.
        """
        start, end = begin, predictors["last"].end
        decisions = range(begin - begin % DECISION_EVENTS + DECISION_EVENTS, end + 1, DECISION_EVENTS)
        for stop in sorted({*decisions, *(each.end for each in predictors.values())}):
            yield self.answering, start, stop
            start = stop
            if stop in decisions:
                first = stop - min(self.window, stop - self.events)
                wrong = {name: each.wrong(first, stop) for name, each in predictors.items() if each.end >= stop}
                self._take_over(leader(wrong, self.answering), place(stop - begin - 1), takeovers)
            if predictors[self.answering].end == stop < end:
                self._take_over((next(iter(predictors)), 0, 0), place(stop - begin), takeovers)

    def _take_over(self, lead: Lead | None, at: tuple[PartitionId, int], takeovers: list[Takeover]) -> None:
        if lead:
            self.takeover = Takeover(lead[0], self.answering, {str(at[0]): at[1]}, *lead[1:])
            self.answering, self.takeovers = lead[0], self.takeovers + 1
            takeovers.append(self.takeover)
