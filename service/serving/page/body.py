"""What the page polls: all that it shows of a model, as one body, made at most once a second whoever watches."""

import asyncio
import gzip
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from fastapi.responses import Response

from service.errors import UnknownModel
from service.learning.classifier import Classifier, largest
from service.learning.confidence import intervals
from service.learning.identity import as_text
from service.learning.learner import Learner
from service.learning.seen import PLANE
from service.serving.models import Answering, Model, Models
from service.serving.page.history import SECONDS, History, Point, answering
from service.serving.report import Description, iso, served_confusion

LEVEL = 1
"""Of packing: it takes a fifth of a millisecond."""
LATELY = 5
"""Points that are sent to who has those before them: `History` may still change the last, and a poll may be late."""
RESTING = 60 * SECONDS
"""So long one body is enough of a model of which nothing changes."""
MOST_MODELS = 1000
MOST_LABELS = 12
"""Labels whose confusion is shown, and whose largest weights are."""
LARGEST_WEIGHTS = 12
IN_THE_LOOP = 10_000
"""Weights of which the largest are found in a turn of the loop: of more a thread finds them."""
A_SECOND = 100_000
"""Weights that are looked through in a second, so that a large model's are shown a little late."""


Answers = tuple[Response, Response]
"""The same, as it is and packed by gzip."""
_HEADERS, _JSON = {"cache-control": "no-store", "vary": "accept-encoding"}, "application/json"


class LargestWeights(msgspec.Struct):
    """Weights by size, of a label where each has its own."""

    label: str | None
    bias: float
    weights: list[tuple[str, float]]


class Plane(msgspec.Struct):
    """A model of two numbers, its last events, and the score `bias + w·x` of each label, or of the positive one."""

    names: tuple[str, str]
    scores: list[tuple[float, float, float]]
    events: list[tuple[float, float, int]]
    """Both numbers, and the place of the label."""


class Now(msgspec.Struct, kw_only=True):
    """All of one model."""

    release: str
    time: float
    models: list[str]
    asked: str | None
    missing: dict[str, float] = {}
    """Which of kafka and redis does not answer, and since when (seconds since 1970)."""
    why_not: str | None = None
    """Why there is no model to show."""
    model: Description | None = None
    labels: list[str] = []
    confusion: list[list[int]] = []
    """`[truth][prediction]` of what answers; empty of many labels."""
    of_last: bool = False
    """The confusion of what answers is not known: it is that of its last weights."""
    answering: str = "last"
    learner: str = ""
    """HOST:PID of the process that wrote its head."""
    waiting: bool = False
    """It may come to be learned here: who of the group is to learn it is not known yet."""
    kept: list[tuple[int, str]] = []
    rate: float | None = None
    lag: int | None = None
    points: list[tuple[Any, ...]] = []
    """The history: `Point`, with the interval of what answers behind it."""
    anew: bool = True
    """Each kept version begins the bound anew: no reference is given for it."""
    largest: list[LargestWeights] = []
    set_aside: dict[str, dict[str, str]] = {}
    skipped: tuple[int, int] | None = None
    read: bool = False
    """An event was read here, which the form can be filled with."""
    plane: Plane | None = None


class _Made(NamedTuple):
    at: float
    newest: float
    """The time of the newest point then."""
    shown: object
    answers: asyncio.Future[Answers]


class Body:
    """The bodies of all models."""

    def __init__(
        self, models: Models, history: History, release: str, missing: Callable[[], Mapping[str, float]]
    ) -> None:
        """`missing` is that of the metrics."""
        self._models, self._history, self._release, self._missing = models, history, release, missing
        self._made: dict[tuple[str | None, bool], _Made] = {}
        self._largest: dict[str, tuple[float, str | None, list[LargestWeights]]] = {}

    async def of(self, name: str | None, since: float = 0.0) -> Answers:
        """That of a model, or of the first; raises UnknownModel.

        The history is whole but for who has it up to a time, `since`, that is not long ago.
        """
        if name is not None and self._models.get(name) is None:
            raise UnknownModel
        asked = name if name is not None else next((model.name for model in self._models), None)
        lately = self._history.of(asked).all[-LATELY:] if asked is not None else []
        key, newest = (asked, not (lately and since >= lately[0].time)), lately[-1].time if lately else 0.0
        made, now = self._made.get(key), time.monotonic()
        if made is None or now - made.at >= SECONDS or made.newest != newest:
            shown = self._shown(asked)
            if made is None or now - made.at >= RESTING or made.shown != shown:
                made = self._made[key] = _Made(now, newest, shown, asyncio.ensure_future(self._pack(*key)))
        return await asyncio.shield(made.answers)  # others may wait for it

    def _shown(self, asked: str | None) -> object:
        """What changes with anything that is shown but the time; of a model that does not answer always another."""
        model = None if asked is None else self._models.get(asked)
        if model is None or model.answering is None:
            return object()
        a, counts, points = model.answering, model.answering.learner.counts, self._history.of(model.name)
        read = counts.events, counts.skipped, sum(counts.rejected.values())
        told = model.learning_here, _waiting(model), model.stopped, model.unusable, len(list(self._models))
        late = time.monotonic() >= self._largest.get(model.name, (0.0,))[0]  # they may be of earlier events
        return a.digest, *read, points.rate, self._history.lag(model), late, *told, *self._missing().items()

    async def _pack(self, asked: str | None, whole: bool) -> Answers:
        body = await self._make(asked, whole)
        packed, encoded = gzip.compress(body, LEVEL, mtime=0), _HEADERS | {"content-encoding": "gzip"}
        return Response(body, 200, _HEADERS, _JSON), Response(packed, 200, encoded, _JSON)

    async def _make(self, asked: str | None, whole: bool) -> bytes:
        names = [model.name for model in self._models][:MOST_MODELS]
        now = Now(release=self._release, time=round(time.time(), 1), models=names, asked=asked)
        now.missing = {one: round(since, 1) for one, since in self._missing().items() if since}
        model = None if asked is None else self._models.get(asked)
        if model is None or model.answering is None:
            now.why_not = model.why_not if model else "the service has no model yet"
        else:
            await self._fill(now, model, model.answering, whole)
        return msgspec.json.encode(now)

    async def _fill(self, now: Now, model: Model, a: Answering, whole: bool) -> None:
        learner, identity, points = a.learner, a.learner.identity, self._history.of(model.name)
        now.labels = [as_text(label) for label in identity.labels or (-1, 1)]
        now.model = _short(Description.of(model, a))
        if len(now.labels) <= MOST_LABELS:
            by = a.by(None)[1]
            known = served_confusion(by)
            now.confusion, now.of_last = known or by.counts.confusion, not known
        now.answering, now.learner = answering(learner), a.head.writer.process
        now.waiting = _waiting(model)
        now.kept = [(kept.version, iso(kept.saved_at)) for kept in a.head.kept]
        now.rate, now.lag = points.rate, self._history.lag(model)
        now.points = _with_intervals(points.all if whole else points.all[-LATELY:])
        now.anew = learner.watch.options.reference is None
        now.set_aside, now.skipped, now.read = model.set_aside, learner.seen.skipped, learner.seen.record is not None
        now.plane = _plane(learner, a.by(None)[1])
        now.largest = await self._weights(model.name, *a.by(None))

    async def _weights(self, name: str, who: str | None, by: Classifier) -> list[LargestWeights]:
        due, whose, found = self._largest.get(name, (0.0, None, []))
        if time.monotonic() < due and whose == who:
            return found
        count, labels = len(by.columns), by.identity.labels or ()
        places = range(min(len(labels), MOST_LABELS)) if by.identity.multiclass else [None]
        found = []
        for place in places:
            w = by.served_at(slice(count), place).copy()
            if count > IN_THE_LOOP:
                chosen = await asyncio.to_thread(largest, w, LARGEST_WEIGHTS)
            else:
                chosen = largest(w, LARGEST_WEIGHTS)
            named = [(by.columns.name_of(column), float(w[column])) for column in chosen if w[column]]
            found.append(LargestWeights(None if place is None else as_text(labels[place]), float(w[0]), named))
        self._largest[name] = time.monotonic() + count * len(places) / A_SECOND, who, found
        return found


def _short(model: Description) -> Description:
    """Without what is not shown, or would be large: of many labels all but the most frequent."""
    model = msgspec.structs.replace(model, comparisons=[], confusion=[])
    if len(model.labels) <= MOST_LABELS:
        return model
    most = sorted(model.labels, key=lambda one: -one.events)[:MOST_LABELS]
    return msgspec.structs.replace(model, labels=most, identity=msgspec.structs.replace(model.identity, labels=()))


def _waiting(model: Model) -> bool:
    return not model.learning_here and model.waits()


def _with_intervals(points: Sequence[Point]) -> list[tuple[Any, ...]]:
    """The points, each with the accuracy of what answers and the ends of its interval at its end."""
    predicted, right = (np.array([getattr(one, name) for one in points], int) for name in ("predicted", "right"))
    accuracy = np.round(right / np.maximum(predicted, 1), 5)
    ends = (np.round(end, 5) for end in intervals(predicted, right))
    rows = zip(points, *(column.tolist() for column in (accuracy, *ends)), strict=True)
    return [(*msgspec.structs.astuple(one), *more) for one, *more in rows]


def _plane(learner: Learner, by: Classifier) -> Plane | None:
    """Of a model of two numbers: in their own units, also where they are scaled."""
    if len(by.columns) != PLANE or learner.identity.features == "hashed":
        return None
    names = by.columns.name_of(1), by.columns.name_of(2)
    if any("=" in name for name in names):  # a category
        return None
    w, scaler = by.served_at(slice(PLANE)).reshape(PLANE, -1).T.tolist(), learner.scaler
    zeros, ones = ([scaler.value(c, v) if scaler else v for c in (1, 2)] for v in (0.0, 1.0))
    scores = [(b + x * zeros[0] + y * zeros[1], x * (ones[0] - zeros[0]), y * (ones[1] - zeros[1])) for b, x, y in w]
    two = not learner.identity.multiclass
    events = [(x, y, int(label > 0) if two else int(label)) for x, y, label in learner.seen.points]
    return Plane(names, scores, events)
