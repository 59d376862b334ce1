"""Predictions: a request's bytes in, its answer out, by the same scoring as learning. Knows no web framework."""

import asyncio
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray

from service.errors import Diverged, Rejected, Unanswerable
from service.learning.classifier import Classifier
from service.learning.events import Batch
from service.learning.features import Features
from service.learning.learner import Learner
from service.learning.passes import scored
from service.learning.scale import Scaler
from service.monitoring.metrics import Metrics
from service.serving import requests
from service.serving.models import Answering, Models
from service.serving.requests import LARGE, MANY

MAX_EXPLAINED = 20_000
"""Contributions in one answer, which is made in one turn of the loop."""

Label = Annotated[bool | int | float | str, Meta(examples=[1])]
Score = Annotated[float, Meta(examples=[3.45])]
Unknown = Annotated[int, Meta(examples=[0])]
Probability = Annotated[float, Meta(examples=[0.93], description="of the positive label, with rule logistic-delta")]


class Contribution(msgspec.Struct, forbid_unknown_fields=True):
    """One term of the score."""

    name: Annotated[str, Meta(examples=["clicks"])]
    value: Annotated[float, Meta(examples=[2.0])]
    weight: Annotated[float, Meta(examples=[1.5])]
    product: Annotated[float, Meta(examples=[3.0])]
    scaled: Annotated[float, Meta(examples=[0.7])] | UnsetType = UNSET
    """What the weight was multiplied by, where the model scales."""


Candidate = Annotated[str, Meta(examples=["logistic"], description="who answered, where it is not the model itself")]
Contributions = Annotated[list[Contribution], Meta(description="with ?explain=true, largest first")]


class Prediction(msgspec.Struct, forbid_unknown_fields=True):
    """The predicted label, the score w·x that it comes from, and how many features the model has never seen."""

    label: Label
    score: Score
    unknown_features: Unknown
    probability: Probability | UnsetType = UNSET
    contributions: Contributions | UnsetType = UNSET


class _Answered(msgspec.Struct, forbid_unknown_fields=True):
    model: Annotated[str, Meta(examples=["churn"])]
    version: Annotated[int, Meta(examples=[42], description="the accepted snapshot")]
    ahead: Annotated[int, Meta(examples=[0], description="how many events were learned beyond it")]


class One(_Answered):
    """The answer to `features`, and what answered."""

    label: Label
    score: Score
    unknown_features: Unknown
    probability: Probability | UnsetType = UNSET
    contributions: Contributions | UnsetType = UNSET
    candidate: Candidate | UnsetType = UNSET


class Many(_Answered):
    """The answer to `instances`, in their order, and what answered."""

    predictions: list[Prediction]
    candidate: Candidate | UnsetType = UNSET


class Predictor:
    """Answers for the models of this process."""

    def __init__(self, models: Models, metrics: Metrics, max_instances: int) -> None:
        self._models, self._metrics, self._max_instances = models, metrics, max_instances
        # More threads at a time would only take the interpreter from the loop, and memory.
        self._beside = asyncio.Semaphore(1)

    def answering(self, name: str) -> Answering:
        """What answers for a model; raises UnknownModel, and Unanswerable also where it diverged."""
        _, a = self._models.answering(name)
        if a.learner.diverged:
            raise Unanswerable(str(Diverged(name, a.learner.diverged)))
        return a

    async def predict(self, name: str, body: bytes, explain: bool, candidate: str | None = None) -> One | Many:
        """The answer to a request; raises Rejected, and as `answering` and `Answering.by`."""
        if len(body) > LARGE:
            async with self._beside:
                a = self.answering(name)
                who, by = a.by(candidate)
                reading = moment(a.learner, by), body, self._max_instances, explain
                answers, form, labels = await asyncio.to_thread(answer_large, *reading)
        else:
            # One state answers, as there is no turn of the loop.
            a = self.answering(name)
            who, by = a.by(candidate)
            instances, form = requests.read(body, a.learner.flattener, self._max_instances)
            if explain:
                _check_explained(instances)
            answers = [answer(a.learner, by, features, explain) for features in instances]
            _check_finite(answers, form)
            labels = Counter(answer.label for answer in answers)
        for label, n in labels.items():
            self._metrics.predictions.labels(name, _shown(label)).inc(n)
        shown = UNSET if who is None else who
        if form in MANY:
            return Many(name, a.head.version, a.ahead, answers, shown)
        one = answers[0]
        return One(
            name, a.head.version, a.ahead, one.label, one.score, one.unknown_features, one.probability,
            one.contributions, shown,
        )  # fmt: skip


class Moment(NamedTuple):
    """A model as it is now: its weights are a copy, and columns that come later are not among them."""

    learner: Learner
    by: Classifier
    """It, or the candidate that answers."""
    weights: NDArray[np.float64]
    scaler: Scaler | None


def moment(learner: Learner, by: Classifier | None = None) -> Moment:
    """The model as it is in this turn of the loop."""
    by = by or learner
    return Moment(learner, by, np.array(by.served), learner.scaler and learner.scaler.copy())


def answer(learner: Learner, by: Classifier, features: Features, explain: bool = False) -> Prediction:
    """The prediction for checked features; with `explain`, each known one's share."""
    one = _prediction(by, *learner.score(features, by))
    if explain:
        one.contributions = _contributions(Moment(learner, by, by.served, learner.scaler), features)
    return one


def _prediction(by: Classifier, score: float, unknown: int) -> Prediction:
    of = by.probability
    return Prediction(by.label(score), score, unknown, UNSET if of is None else of(score))


def answer_large(
    now: Moment, body: bytes, max_instances: int, explain: bool
) -> tuple[list[Prediction], str, Counter[Any]]:
    """The answers, the form that the request had, and how many have each label; raises Rejected.

    For a thread: it reads of the learner only what does not change, and columns that are there for good.
    """
    learner, by, w, scaler = now
    answers: list[Prediction] = []
    form, explained = "", 0
    for found, form in requests.pieces(body, learner.flattener, max_instances):
        starts, columns, values = array("Q", [0]), array("Q"), array("d")
        unknown = []
        for features in found:
            pairs, strange = learner.columns.find(features)
            known = [pair for pair in pairs if pair[0] < len(w)]
            unknown.append(strange + len(pairs) - len(known))
            known = scaler.merged(known) if scaler else known
            columns.fromlist([column for column, _ in known])
            values.fromlist([value for _, value in known])
            starts.append(len(columns))
        none = np.zeros(len(found))
        rows = np.frombuffer(starts, np.uint64), np.frombuffer(columns, np.uint64), np.frombuffer(values)
        scores = scored(Batch(*rows, none, none), w)[0].tolist()
        piece = [_prediction(by, s, strange) for s, strange in zip(scores, unknown, strict=True)]
        _check_finite(piece, form, len(answers))
        if explain:
            explained += _check_explained(found, explained)
            for one, features in zip(piece, found, strict=True):
                one.contributions = _contributions(now, features)
        answers += piece
    return answers, form, Counter(one.label for one in answers)


def _contributions(now: Moment, features: Features) -> list[Contribution]:
    """The terms of a score under these weights, largest first."""
    learner, _, w, scaler = now
    known = [term for term in learner.columns.explain(features) if term[1] < len(w)]
    rows = []
    for name, column, value in (("bias", 0, 1), *known):
        weight, x = float(w[column]), float(scaler.value(column, value) if scaler else value)
        rows.append(Contribution(name, float(value), weight, weight * x, x if scaler else UNSET))
    return sorted(rows, key=lambda row: -abs(row.product))


def _check_explained(instances: Sequence[Features], before: int = 0) -> int:
    """How many features these have; raises Rejected where, with those `before`, it is too many to be explained."""
    count = sum(map(len, instances))
    if before + count > MAX_EXPLAINED:
        what = f"at most {MAX_EXPLAINED:,} features can be explained in one request"
        raise Rejected("too-large", what, "/instances")
    return count


def _check_finite(answers: Sequence[Prediction], form: str, first: int = 0) -> None:
    """Refuse features whose score overflows: JSON has no infinity. `first` is the number of the first instance."""
    for i, one in enumerate(answers, first):
        if not math.isfinite(one.score):
            where = f"/{form}/{i}{'/features' if form == 'instances' else ''}" if form in MANY else f"/{form}"
            raise Rejected("not-finite", "the score is beyond what a number can hold", where)


def _shown(label: bool | int | float | str) -> str:
    return label if isinstance(label, str) else msgspec.json.encode(label).decode()
