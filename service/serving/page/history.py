"""A model's figures over time, for the page: taken once a second, few enough to be sent whole.

They live in the process: a restart begins them anew. Figures that go back, as after a rollback, take the points with
them that are not true any more.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from service.learning.classifier import Classifier
from service.learning.confusion import share
from service.learning.learner import Learner
from service.serving.models import Model, Models

MOST = 120
"""Points: then every second one is dropped, and the next are twice as far apart."""
SECONDS = 1.0
AFTER = 0.02
"""A point is taken so late in a second. Pages ask a little later, all at once and for what is new: most of what a poll
costs is to wake up for it."""
RATE_SAMPLES = 6
"""The rate is of so many seconds, less one."""


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A model at a time, in seconds since 1970."""

    time: float
    events: int
    mistakes: int
    bound: int | None
    lag: int | None
    predicted: int
    """Events that the weights that answer predicted, and how many of them rightly."""
    right: int
    baseline: float | None
    others: dict[str, float]
    """The accuracy of others that predict."""
    recent: dict[str, float]
    """Of all that predict, and of the baseline, the accuracy in the window of recent events."""


class Points:
    """Of one model.

    >>> points = Points(most=5)
    >>> for second, events in enumerate((1, 2, 3, 5, 8, 8, 8, 4)):
    ...     points.add(Point(second, events, 0, None, None, 0, 0, None, {}, {}))
    >>> [(point.time, point.events) for point in points.all], points.step
    ([(0, 1), (2, 3), (7, 4)], 2.0)
    """

    def __init__(self, most: int = MOST) -> None:
        self.all: list[Point] = []
        self.step = SECONDS
        """Seconds between two of them, but for the newest, which the next may take the place of."""
        self._most = most
        self._last = deque[tuple[float, int]](maxlen=RATE_SAMPLES)

    def add(self, point: Point) -> None:
        """The newest figures."""
        if self._last and point.events < self._last[-1][1]:
            self._last.clear()
        self._last.append((point.time, point.events))
        known = self.all
        while known and known[-1].events > point.events:
            known.pop()
        if len(known) > 1 and (known[-1].time - known[-2].time < self.step - 0.5 or _idle(known[-2], known[-1], point)):
            known[-1] = point
        else:
            known.append(point)
        if len(known) >= self._most:
            self.all, self.step = known[:-1:2] + known[-1:], 2 * self.step

    @property
    def rate(self) -> float | None:
        """Events a second, of the last few."""
        (begin, before), (end, after) = (self._last[0], self._last[-1]) if self._last else ((0.0, 0), (0.0, 0))
        return (after - before) / (end - begin) if end > begin else None


class History:
    """Of all models that answer. Nobody needs to look: it costs some figures a second."""

    def __init__(self, models: Models, lag: Callable[[Model], Mapping[int, int] | None]) -> None:
        """`lag` is that of a model by partition, or None where it is not known here."""
        self._models, self._lag = models, lag
        self._of: dict[str, Points] = {}

    async def run(self) -> None:
        """Take them, for as long as the process runs."""
        while True:
            for model in list(self._models):
                self.take(model, time.time())
                await asyncio.sleep(0)  # a hundred of them take as long as ten predictions may
            await asyncio.sleep(SECONDS + AFTER - time.time() % SECONDS)

    def take(self, model: Model, now: float) -> None:
        """A point of a model, if it answers."""
        if model.answering:
            learner = model.answering.learner
            learner.seen.wanted = True
            self.of(model.name).add(point(learner, now, self.lag(model)))

    def of(self, name: str) -> Points:
        """Those of a model."""
        return self._of.setdefault(name, Points())

    def lag(self, model: Model) -> int | None:
        """How many records are still to be learned."""
        lag = self._lag(model)
        return None if lag is None else sum(lag.values())


def point(learner: Learner, now: float, lag: int | None) -> Point:
    """The figures of a model."""
    counts, (bound, _), found = learner.counts, learner.watch.bound, predictors(learner)
    recent = {name: lately for name, (_, _, lately) in found.items()} | {"baseline": learner.watch.recent.baseline}
    predicted, right, _ = found.pop(answering(learner))
    return Point(
        round(now, 1), counts.events, counts.mistakes, bound, lag, predicted, right,
        share(max(counts.by_label), counts.events), _known({name: share(of[1], of[0]) for name, of in found.items()}),
        _known(recent),
    )  # fmt: skip


def answering(learner: Learner) -> str:
    """Who answers, by the name that comparisons have for it."""
    return learner.answering or ("average" if learner.averaged else "last")


def predictors(learner: Learner) -> dict[str, tuple[int, int, float | None]]:
    """Of each that predicts, how many events it predicted, how many of them rightly, and its recent accuracy."""
    found = {"last": _counted(learner, False)}
    if learner.identity.average:
        found["average"] = _counted(learner, True)
    return found | {name: _counted(one, one.averaged) for name, one in learner.candidates.items()}


def _counted(one: Classifier, averaged: bool) -> tuple[int, int, float | None]:
    recent = one.watch.recent
    of, wrong = recent.averaged if averaged else (one.counts.events, one.counts.wrong_predictions)
    return of, of - wrong, recent.average_accuracy if averaged else recent.accuracy


def _known(shares: Mapping[str, float | None]) -> dict[str, float]:
    """Short, and those that there are."""
    return {name: round(one, 5) for name, one in shares.items() if one is not None}


def _idle(before: Point, last: Point, now: Point) -> bool:
    return (before.events, before.lag) == (last.events, last.lag) == (now.events, now.lag)
