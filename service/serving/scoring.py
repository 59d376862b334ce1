"""Scores instances with the same arithmetic as learning. Independent of HTTP and of any request format."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import prometheus_client
from msgspec import UNSET
from numpy.typing import NDArray

from service.errors import Diverged, Rejected, Unanswerable
from service.learning.classifier import Classifier, Scores
from service.learning.columns.columns import Batch, columns_for
from service.learning.events.flatten import Features
from service.learning.events.read_events import FeatureRows
from service.learning.finite.batch_training import score_batch
from service.learning.identity import Identity
from service.learning.kernel.scaling import StandardScaler
from service.learning.learner import Learner
from service.monitoring.metrics import MAX_LABELS, Metrics
from service.serving.models import Models, ServedModel, read_all
from service.serving.posting import PredictionLog
from service.serving.predictions import Contribution, LabelScore, Prediction, PredictParameters, ScoringRequest
from service.streaming.records import Message

MAX_EXPLAINED = 20_000
"""Features that one answer explains."""
MAX_SCORES = 100_000
"""Scores of labels in one answer."""
MAX_TURN_SCORES = 20_000
"""Scores of labels that are computed in one turn of the event loop; a thread computes more."""
MAX_TURN_EXPLAINED = 500
"""Features that are explained in one turn of the event loop; a thread explains more."""
PAUSE_SECONDS = 0.0001
"""The pause of a thread after each piece of a large request. Its many short calls of compiled code let go of the
interpreter for so short a time that the event loop would not get it (measured: for 0.3 s)."""


class Scorer:
    """Answers for the models of this process."""

    def __init__(self, models: Models, metrics: Metrics, log_of: Callable[[str], PredictionLog | None]) -> None:
        """`log_of` returns where the predictions of a model are logged, if they are."""
        self._models, self._metrics, self._log_of = models, metrics, log_of
        # More threads at a time would only take the interpreter from the event loop, and memory.
        self._thread = asyncio.Semaphore(1)
        self._counters: dict[tuple[str, type, Any], prometheus_client.Counter] = {}  # faster than `labels`

    def answering(self, name: str, candidate: str | None) -> tuple[ServedModel, str | None, Classifier]:
        """The state of a model, and what `ServedModel.classifier` returns; raises UnknownModel and Unanswerable."""
        _, served = self._models.answering(name)
        if served.learner.main.diverged:
            raise Unanswerable(str(Diverged(served.head.model, served.learner.main.diverged)))
        return served, *served.classifier(candidate)

    async def predict(self, name: str, request: ScoringRequest, query: PredictParameters) -> bytes:
        """The body that answers a request.

        A thread answers a large request. Raises Rejected, and what `answering` raises.
        """
        served, answered_by, classifier = self.answering(name, query.candidate)
        if not request.is_large:
            instances, explain, top = request.read(served.learner.flattener), query.explain, query.top
            features = cast("Sequence[Features]", instances.features)
            explained = sum(map(len, features)) if explain else 0
            if len(features) * classifier.identity.classes <= MAX_TURN_SCORES and explained <= MAX_TURN_EXPLAINED:
                # The state cannot change, as the loop does not turn.
                predictions = [answer(served.learner, classifier, each, explain, top) for each in features]
                _check_finite(predictions, instances.pointer)
                head = served.head
                self._count(head.model, classifier.identity, predictions)
                if log := self._log_of(head.model):
                    log.add_soon(request, predictions, head.version, answered_by)
                return request.answer(predictions, head.model, head.version, served.ahead, answered_by)
        return await self._predict_large(name, request, query)

    async def _predict_large(self, name: str, request: ScoringRequest, query: PredictParameters) -> bytes:
        """The result of `predict`, from a thread."""
        async with self._thread:
            served, answered_by, classifier = self.answering(name, query.candidate)
            head, ahead, log = served.head, served.ahead, self._log_of(served.head.model)
            frozen = await read_all(served.learner, partial(freeze, served.learner, classifier))

            def predict_and_answer() -> tuple[bytes, Sequence[Message]]:
                predictions = predict_large(frozen, request, query.explain, query.top)
                self._count(head.model, frozen.classifier.identity, predictions)
                logged = log.records(request, predictions, head.version, answered_by) if log else ()
                return request.answer(predictions, head.model, head.version, ahead, answered_by), logged

            body, logged = await asyncio.to_thread(predict_and_answer)
        if log:
            log.add(logged)
        return body

    def _count(self, name: str, identity: Identity, predictions: Sequence[Prediction]) -> None:
        """Count predictions, by label if there are few labels: each label is a series."""
        if missing := sum(prediction.missing_features for prediction in predictions):
            self._metrics.missing_features.labels(name).inc(missing)
        labels = [prediction.label for prediction in predictions]
        for label, n in ({labels[0]: 1} if len(labels) == 1 else Counter(labels)).items():
            counted = label if identity.classes <= MAX_LABELS else ""
            key = name, counted.__class__, counted  # in Python 1 and True are equal
            if key not in self._counters:
                self._counters[key] = self._metrics.predictions.labels(name, identity.text_of(counted))
            self._counters[key].inc(n)


class FrozenModel(NamedTuple):
    """A model at one time. It does not know columns that come later."""

    learner: Learner
    classifier: Classifier
    """The learner, or the candidate that answers."""
    columns: int
    served_at: Callable[[Any], NDArray[np.float64]]
    """Returns the weights of columns, by their indices."""
    scaler: StandardScaler | None


def freeze(learner: Learner, classifier: Classifier) -> FrozenModel:
    """The model as it is now, with a copy of its weights. Nothing may learn meanwhile: see `read_all`."""
    w = classifier.served
    return FrozenModel(learner, classifier, len(w), w.__getitem__, learner.scaler and learner.scaler.copy())


def answer(learner: Learner, classifier: Classifier, features: Features, explain: bool, top: int) -> Prediction:
    """The prediction for checked features, with `top` scores of three labels or more; `explain` adds the terms of s."""
    score, unknown = learner.score(features, classifier)
    prediction = _prediction(classifier, score, (unknown, learner.watch.missing_in(features)), top)
    if explain:
        now = FrozenModel(learner, classifier, len(learner.columns), classifier.served_at, learner.scaler)
        _explain(prediction, now, features, score)
    return prediction


def _prediction(classifier: Classifier, score: Scores, lacks: tuple[int, int], top: int) -> Prediction:
    probability = classifier.probability
    if isinstance(score, float):
        return Prediction(classifier.label(score), score, *lacks, UNSET if probability is None else probability(score))
    order, labels = np.argsort(-score, kind="stable"), classifier.identity.labels or ()  # equal scores keep their order
    chosen = order[:top]
    ranking = [LabelScore(labels[k], s) for k, s in zip(chosen.tolist(), score[chosen].tolist(), strict=True)]
    # An infinite score is the first or the last, and NaN is the last.
    finite = math.isfinite(score[order[0]]) and math.isfinite(score[order[-1]])
    return Prediction(ranking[0].label, ranking[0].score if finite else math.nan, *lacks, scores=ranking)


def _explain(prediction: Prediction, now: FrozenModel, features: Features, score: Scores) -> None:
    """Add the terms of the score, largest first. With three labels or more these are of its lead over the runner-up."""
    learner, _, count, served_at, scaler = now
    terms = [term for term in learner.columns.explain(features) if term[1] < count]
    w = served_at(np.array([0, *(column for _, column, *_ in terms)], np.intp))
    if not isinstance(score, float):
        first, second = np.argsort(-score, kind="stable")[:2].tolist()
        prediction.runner_up = (learner.identity.labels or ())[second]
        w = w[:, first] - w[:, second]
    rows = []
    for (name, column, value, sign), weight in zip((("bias", 0, 1, 1), *terms), w.tolist(), strict=True):
        effective = sign * weight + 0.0  # no -0
        x = float(sign * scaler.value(column, sign * value) if scaler else value)
        rows.append(Contribution(name, float(value), effective, effective * x + 0.0, x if scaler else UNSET))
    rows.sort(key=lambda row: -abs(row.product))
    prediction.contributions = rows


def predict_large(now: FrozenModel, request: ScoringRequest, explain: bool, top: int) -> list[Prediction]:
    """The predictions for a large request; raises Rejected.

    It runs in a thread: it reads only parts of the learner that do not change, and columns, which are never removed.
    """
    learner, classifier, _, served_at, _ = now
    w = served_at(slice(None))
    # Hashing columns have buffers, which belong to the learner.
    columns = learner.columns if learner.identity.features == "named" else columns_for(learner.identity)
    answers: list[Prediction] = []
    explained = 0
    shown_scores = min(top, classifier.identity.classes) if classifier.identity.multiclass else 0
    for instances in request.read_pieces(learner.flattener, by_rows=not explain):
        features, list_pointer = instances.features, instances.pointer.partition("/{}")[0]
        batch = columns.assign_columns(features)
        if (len(answers) + len(batch.starts) - 1) * shown_scores > MAX_SCORES:
            why = f"at most {MAX_SCORES:,} scores fit one request: send fewer instances, or a smaller ?top="
            raise Rejected("too-large", why, list_pointer)
        missing = learner.watch.missing_by_event(batch, columns)
        batch, unknown = _known(now, batch)
        scores = score_batch(batch, w)
        predictions = _predictions(classifier, scores, zip(unknown, missing.tolist(), strict=True), top)
        _check_finite(predictions, instances.pointer, len(answers))
        if not isinstance(features, FeatureRows) and explain:
            explained += sum(map(len, features))
            if explained > MAX_EXPLAINED:
                why = f"at most {MAX_EXPLAINED:,} features can be explained in one request: send fewer instances"
                raise Rejected("too-large", why, list_pointer)
            each = scores if w.ndim == 2 else scores.tolist()
            for prediction, instance, s in zip(predictions, features, each, strict=True):
                _explain(prediction, now, instance, s)
        answers += predictions
        time.sleep(PAUSE_SECONDS)
    return answers


def _known(now: FrozenModel, batch: Batch) -> tuple[Batch, list[int]]:
    """The features that the frozen model knows, scaled if it scales, and the number of unknown ones by instance."""
    starts, columns, numbers = batch.starts, batch.columns, batch.numbers
    events = len(starts) - 1
    unknown = np.bincount(batch.ignored, minlength=events)
    new = np.flatnonzero(columns >= now.columns)
    if len(new):
        unknown += np.bincount(np.searchsorted(starts, new, "right") - 1, minlength=events)
        batch = batch._replace(
            starts=starts - np.searchsorted(new, starts).astype(np.uint64),
            columns=np.delete(columns, new),
            values=np.delete(batch.values, new),
            numbers=np.delete(numbers, new) if len(numbers) else numbers,
        )
    zeros = np.zeros(events)
    batch = batch._replace(labels=zeros, weights=zeros)
    return now.scaler.scale(batch) if now.scaler else batch, unknown.tolist()


def _predictions(
    classifier: Classifier, scores: NDArray[np.float64], lacks: Iterable[tuple[int, int]], top: int
) -> list[Prediction]:
    if classifier.identity.multiclass:
        return [_prediction(classifier, s, each, top) for s, each in zip(scores, lacks, strict=True)]
    labels, probability = classifier.identity.labels or (-1, 1), classifier.probability
    each = zip(classifier.decide(scores).tolist(), scores.tolist(), lacks, strict=True)
    return [Prediction(labels[k], s, *n, UNSET if probability is None else probability(s)) for k, s, n in each]


def _check_finite(predictions: Sequence[Prediction], pointer: str, first: int = 0) -> None:
    """Raise Rejected if a score overflows. `first` is the index of the first instance in the request.

    `pointer` is that of `Instances`.
    """
    for i, prediction in enumerate(predictions, first):
        if not math.isfinite(prediction.score):
            raise Rejected("not-finite", "the score is beyond what a number can hold", pointer.format(i))
