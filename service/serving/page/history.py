"""A model's figures over time, for the page: taken once a second, and few enough to be sent whole.

They are in the process's memory, so a restart begins from scratch. If the figures go back, as after a rollback, the
points that are no longer true are dropped, and so are those of a clock that was set back.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from service.learning.learner import Learner
from service.serving.model_info import Accuracy, Share, baseline, previous_label_baseline
from service.serving.models import Model, Models

MAX_POINTS = 120
"""At this number every second point is dropped, and the next points are twice as far apart."""
SECONDS = 1.0
DELAY_SECONDS = 0.02
"""Points are taken this long after the start of a second. All pages ask a little later, at the same time."""
TURN_MODELS = 10
"""Models whose points are taken in one turn of the event loop: they take as long as one prediction."""
RATE_SAMPLES = 6
"""Samples of one second that the rate is computed from."""


class Point(msgspec.Struct, frozen=True, array_like=True):
    """The figures of a model at a time, which is in seconds since 1970."""

    time: float
    events: int
    mistakes: int
    bound: int | None
    lag: int | None
    shares: dict[str, tuple[float | None, float | None]]
    """The accuracy of each predictor and of the baselines, over recent events and over all."""
    interval: tuple[float, float] | None
    """The 95 % interval of the accuracy over all events of the weights that answer."""


class Points:
    """The history of one model.

    >>> points = Points(maximum=5)
    >>> for second, events in enumerate((1, 2, 3, 5, 8, 8, 8, 4)):
    ...     points.add(Point(second, events, 0, None, None, {}, None))
    >>> [(point.time, point.events) for point in points.all], points.step
    ([(0, 1), (2, 3), (7, 4)], 2.0)
    """

    def __init__(self, maximum: int = MAX_POINTS) -> None:
        self.all: list[Point] = []
        self.step = SECONDS
        """Seconds between two points. The newest may be nearer: the next one replaces it."""
        self._maximum = maximum
        self._last = deque[tuple[float, int]](maxlen=RATE_SAMPLES)

    def add(self, point: Point) -> None:
        """Add the newest figures."""
        if self._last and point.events < self._last[-1][1]:
            self._last.clear()
        self._last.append((point.time, point.events))
        points = self.all
        while points and (points[-1].events > point.events or points[-1].time > point.time):
            points.pop()
        if len(points) > 1:
            near = points[-1].time - points[-2].time < self.step - 0.5
            idle = len({(p.events, p.lag) for p in (*points[-2:], point)}) == 1
            if near or idle:
                points.pop()
        points.append(point)
        if len(points) >= self._maximum:
            self.all, self.step = points[:-1:2] + points[-1:], 2 * self.step

    @property
    def rate(self) -> float | None:
        """Events a second over the last samples."""
        if len(self._last) < 2:
            return None
        (begin, before), (end, after) = self._last[0], self._last[-1]
        return (after - before) / (end - begin) if end > begin else None


class History:
    """The history of all models that answer. It is kept even if nobody looks at the page."""

    def __init__(self, models: Models, lag: Callable[[Model], Mapping[Any, int] | None]) -> None:
        """`lag` returns a model's lag by partition, or None if it is not known here."""
        self._models, self._lag = models, lag
        self.points = defaultdict[str, Points](Points)
        """The history of each model."""
        self._learners: dict[str, Learner] = {}
        """The learner of each model when its last point was taken."""

    async def run(self) -> None:
        """Take points for as long as the process runs."""
        while True:
            for i, model in enumerate(self._models):
                self.take(model, time.time())
                if i % TURN_MODELS == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(SECONDS + DELAY_SECONDS - time.time() % SECONDS)

    def take(self, model: Model, now: float) -> None:
        """Add a point to the history of a model, if it answers."""
        if model.answering is None:
            return
        learner, points, lag = model.answering.learner, self.points[model.name], self.lag(model)
        if self._learners.get(model.name) is learner and points.all[-1].events == learner.main.counts.events:
            # Only these change. To compute all figures would cost a hundred idle models 1 % of a core (measured).
            points.add(replace(points.all[-1], time=round(now, 1), lag=lag))
        else:
            points.add(point(learner, now, lag))
        self._learners[model.name] = learner

    def lag(self, model: Model) -> int | None:
        """The number of records that the model has not learned yet; None if it is not known here."""
        lag = self._lag(model)
        return None if lag is None else sum(lag.values())


def point(learner: Learner, now: float, lag: int | None) -> Point:
    """The figures of a model at this time."""
    counts, (bound, _) = learner.main.counts, learner.main.observations.bound
    accuracy = Accuracy.from_predictors(learner)
    every: dict[str, Share] = {**accuracy, "baseline": baseline(learner), "previous": previous_label_baseline(learner)}
    every[learner.answering_name] = served = Accuracy.from_answering(learner)
    shares = {name: (_rounded(share.recent), _rounded(share.all)) for name, share in every.items()}
    return Point(round(now, 1), counts.events, counts.mistakes, bound, lag, shares, served.all_interval)


def _rounded(share: float | None) -> float | None:
    return share and round(share, 5)
