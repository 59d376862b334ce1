"""The page at `/`: a few files, and the body that they poll, with everything that it shows of a model over time.

The files hold no data of any model, so they need no token. The body needs one, like the rest of the service.

All browsers share one body. The figures are taken once a second, and are few enough to be sent whole. They are in the
process's memory, so a restart begins from scratch. If the figures go back, as after a rollback, the points that are no
longer true are dropped, and so are those of a clock that was set back.
"""

import asyncio
import pathlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.responses import Response
from msgspec import UNSET
from msgspec.structs import replace

from service.errors import Rejected, UnknownModel
from service.learning.classifier import Classifier, largest
from service.learning.evaluation.last_events import PLANE_COLUMNS
from service.learning.events.flatten import Flattener
from service.learning.events.json_values import Pairs, Path
from service.learning.identity import as_text
from service.learning.learner import Learner
from service.serving.model_info import (
    Accuracy,
    Description,
    Share,
    answering_classifier,
    baseline,
    describe,
    iso,
    previous_label_baseline,
    served_confusion,
)
from service.serving.models import Model, Models, ServedModel, read_all

POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self'{}; img-src 'self'{}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of a page, with places for more sources of scripts, styles and images."""
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {f"/page/{file.name}": file for file in pathlib.Path(__file__).parent.iterdir() if file.suffix in _TYPES}
_FILES["/"] = _FILES.pop("/page/page.html")
OPEN = tuple(_FILES)
"""Paths that need no token."""
MAX_MODELS = 1000
MAX_LABELS = 12
"""The most labels for which a confusion is shown. With more, this many have their recall and largest weights shown."""
LARGEST_WEIGHTS = 12
WEIGHTS_PER_SECOND = 100_000
"""Weights that are searched in a second, so the weights of a large model are shown a little late."""
MAX_EVENT_BYTES = 16 << 10
"""Bytes of JSON; a larger event is not shown."""
MAX_POINTS = 120
"""At this number every second point is dropped, and the next points are twice as far apart."""
SECONDS = 1.0
DELAY_SECONDS = 0.02
"""Points are taken this long after the start of a second. All pages ask a little later, at the same time."""
TURN_MODELS = 10
"""Models whose points are taken in one turn of the event loop: they take as long as one prediction."""
RATE_SAMPLES = 6
"""Samples of one second that the rate is computed from."""


def install_page(app: FastAPI, state: "PageState") -> None:
    """Serve the page."""
    headers = {"content-security-policy": POLICY.format("", "", "")}
    for path, file in _FILES.items():
        answer = Response(file.read_bytes(), headers=headers, media_type=_TYPES[file.suffix])
        app.get(path, include_in_schema=False)(partial(_file, answer))

    @app.get("/page/now", include_in_schema=False)
    async def now(model: str | None = None) -> Response:
        return await state.response(model)


async def _file(answer: Response) -> Response:
    return answer


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


class PageState:
    """Builds the page's JSON for each model, at most once a second."""

    def __init__(self, models: Models, history: History, release: str, missing: Callable[[], dict[str, float]]) -> None:
        """`missing` returns since when each dependency does not answer (seconds since 1970), or 0."""
        self._models, self._history, self._release, self._missing = models, history, release, missing
        self._bodies: dict[str, tuple[float, asyncio.Future[Response]]] = {}
        self._largest: dict[str, tuple[float, str | None, list[Any]]] = {}

    async def response(self, name: str | None) -> Response:
        """The body of a model, or of the first one if there is no name; raises UnknownModel.

        It is built again when the history has a new point.
        """
        if name is not None and self._models.get(name) is None:
            raise UnknownModel
        name = name or next((model.name for model in self._models), "")
        points = self._history.points[name].all
        moment = points[-1].time if points else time.time() // SECONDS
        if name not in self._bodies or self._bodies[name][0] != moment:
            self._bodies[name] = moment, asyncio.ensure_future(self._body(name))
        return await asyncio.shield(self._bodies[name][1])  # other requests may wait for it

    async def _body(self, name: str) -> Response:
        model = self._models.get(name)
        now: dict[str, Any] = {
            "release": self._release,
            "time": round(time.time(), 1),
            "models": [model.name for model in self._models][:MAX_MODELS],
            "asked": name or None,
            "missing": {dependency: round(since, 1) for dependency, since in self._missing().items() if since},
            "model": None,
        }
        if model is None or (served := model.answering) is None:
            now["why_not"] = model.status.why_not if model else "the service has no model yet"
        else:
            now |= self._figures(model, served, await describe(model, served))
            now["largest"] = await self._weights(served.learner, model.name)
        return Response(msgspec.json.encode(now, enc_hook=attrgetter("as_json")), media_type="application/json")

    def _figures(self, model: Model, served: ServedModel, about: Description) -> dict[str, Any]:
        learner, classifier, points = served.learner, served.learner.serving, self._history.points[model.name]
        labels = learner.identity.labels or (-1, 1)
        confusion = served_confusion(answering_classifier(learner))
        return {
            "model": _short(about),
            "labels": [as_text(label) for label in labels],
            "confusion": (confusion or classifier.counts.confusion) if len(labels) <= MAX_LABELS else [],
            "of_last": not confusion,  # the confusion is that of the last weights, not of those that answer
            "learner": served.head.writer.process,
            "waiting": not model.learning_here and model.status.awaits_assignment(),
            "kept": [(kept.version, iso(kept.saved_at)) for kept in served.head.kept],
            "rate": points.rate,
            "lag": self._history.lag(model),
            "points": points.all,
            "set_aside": model.status.set_aside,
            "skipped": learner.last_events.skipped,
            "event": _newest_event(learner),
            "plane": _decision_plane(learner, classifier),
        }

    async def _weights(self, learner: Learner, name: str) -> list[Any]:
        """The largest weights: of each label (None where labels share them) the bias and (name, weight) pairs."""
        answering, classifier = learner.answering, learner.serving
        due, answered_by, weights = self._largest.get(name, (0.0, None, []))
        if time.monotonic() < due and answered_by == answering:
            return weights
        count, labels = len(classifier.columns), classifier.identity.labels or ()
        label_indices = range(min(len(labels), MAX_LABELS)) if classifier.identity.multiclass else [None]
        weights = []
        for index in label_indices:
            w = await read_all(learner, partial(classifier.served_at, slice(count), index))
            chosen = await asyncio.to_thread(largest, w, LARGEST_WEIGHTS)
            named = [(classifier.columns.name_of(column), float(w[column])) for column in chosen if w[column]]
            label = None if index is None else as_text(labels[index])
            weights.append({"label": label, "bias": float(w[0]), "weights": named})
        self._largest[name] = time.monotonic() + count * len(label_indices) / WEIGHTS_PER_SECOND, answering, weights
        return weights


def _short(model: Description) -> Description:
    """The description without members that are not shown; of many labels it keeps the most frequent."""
    model = msgspec.structs.replace(model, comparisons=[], confusion=[])
    if len(model.labels) <= MAX_LABELS:
        return model
    labels = sorted(model.labels, key=lambda label: -label.events)[:MAX_LABELS]
    return msgspec.structs.replace(model, labels=labels, identity=msgspec.structs.replace(model.identity, labels=()))


def _newest_event(learner: Learner) -> msgspec.Raw | None:
    """The newest event for the form that asks for a prediction: the features that the model reads, as JSON; or None."""
    last, flattener = learner.last_events, learner.flattener
    if last.record is None:
        return None
    try:
        values = last.record_format.parse(last.record, (flattener.path,), learner.identity)
        features = _readable_parts(flattener, flattener.exclude(values.whole(0, learner.identity.max_features, "")))
    except Rejected:
        return None
    text = msgspec.json.encode(features)
    return msgspec.Raw(text) if len(text) <= MAX_EVENT_BYTES else None


def _readable_parts(flattener: Flattener, value: Any, path: Path = ()) -> Any:
    """The parts of a value that the model reads, or UNSET. A null stays: in another event it may be a value."""
    if value.__class__ is Pairs:
        members = {name: _readable_parts(flattener, member, (*path, name)) for name, member in value}
        return {name: member for name, member in members.items() if member is not UNSET}
    name, patterns = ".".join(path), flattener.patterns
    names = [name]
    if isinstance(value, list):
        names += [f"{name}.{i}" for i in range(len(value))]
        value = [item if isinstance(item, bool | int | float | str) else None for item in value]
    elif isinstance(value, str) and flattener.identity.text == "ignore" and not flattener.type_of(name):
        return UNSET
    if path and patterns is not None and (patterns.excluded(name) or not any(map(patterns.included, names))):
        return UNSET
    return value if isinstance(value, bool | int | float | str | list) else None


def _decision_plane(learner: Learner, classifier: Classifier) -> dict[str, Any] | None:
    """For a model of two numbers x and y: its last events, and each score as (bias, a, b) of bias + a*x + b*y.

    The numbers are in their own units, also if the model scales, and none is clipped. None for any other
    model, such as one with a category.
    """
    if len(classifier.columns) != PLANE_COLUMNS or learner.identity.features == "hashed":
        return None
    names = classifier.columns.name_of(1), classifier.columns.name_of(2)
    if any("=" in name for name in names):
        return None
    w, scaler = classifier.served_at(slice(PLANE_COLUMNS)).reshape(PLANE_COLUMNS, -1).T.tolist(), learner.scaler
    zeros, ones = ([scaler.unclipped(c, v) if scaler else v for c in (1, 2)] for v in (0.0, 1.0))
    above = classifier.observations.options.positive_above or 0.0  # the boundary is where an answer changes
    biases = [b - above + x * zeros[0] + y * zeros[1] for b, x, y in w]
    scores = [(b, x * (ones[0] - zeros[0]), y * (ones[1] - zeros[1])) for b, (_, x, y) in zip(biases, w, strict=True)]
    two = not learner.identity.multiclass
    events = [(x, y, int(label > 0) if two else int(label)) for x, y, label in learner.last_events.points.tolist()]
    return {"names": names, "scores": scores, "events": events}
