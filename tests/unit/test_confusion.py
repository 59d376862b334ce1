"""Precision, recall, F1 and balanced accuracy, beside scikit-learn's, of the weights that answer."""

import math
import random
from typing import Any

import pytest
from sklearn import metrics

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import Records
from service.serving.models import given
from service.serving.report import Description, Share
from tests.checks import restored
from tests.conftest import event

FIGURES = ("balanced_accuracy", "precision", "recall", "f1")
WINDOW, EVENTS = 40, 150


def about(learner: Learner) -> Description:
    model = given("m", learner, 0.0)
    assert model.answering is not None
    return Description.of(model, model.answering)


def figures(truth: list[bool], predicted: list[bool]) -> list[float]:
    """As FIGURES has them; NaN where one is not defined."""
    undefined: Any = {"zero_division": math.nan}
    found = [of(truth, predicted, **undefined) for of in (metrics.precision_score, metrics.recall_score)]
    return [metrics.balanced_accuracy_score(truth, predicted), *found, metrics.f1_score(truth, predicted)]


@pytest.mark.parametrize("serve", ["last", "average"])
def test_figures_of_what_answers_are_those_of_scikit_learn(serve: Any) -> None:
    """Each event predicted before it is learned; over the window, and over all events, through a restore."""
    rng, options = random.Random(1), Options(WINDOW, serve=serve)
    learner = Learner(Identity(average=True, margin=(0.0, 2.0)), options=options)
    learner.begin({0: 0})
    truth, predicted = list[bool](), list[bool]()
    for at in range(EVENTS):
        positive = rng.random() < 0.2
        features = {"a": rng.gauss(positive, 1), "b": rng.gauss(0, 1)}
        truth.append(positive)
        predicted.append(bool(learner.score(features)[0] > 0.0))
        learner.apply(0, Records.of(at, [event(features, int(positive))]))
        if at == EVENTS // 2:
            learner = restored(learner, options)
    said = about(learner)
    assert 0 < sum(map(bool.__and__, truth, predicted)) < sum(truth)
    for name, whole, lately in zip(
        FIGURES, figures(truth, predicted), figures(truth[-WINDOW:], predicted[-WINDOW:]), strict=True
    ):
        share = getattr(said, name)
        assert [share.all, share.recent] == pytest.approx([whole, lately]), name


def test_what_is_not_defined_is_null() -> None:
    """Without events; without positive ones, nor predictions of them; of an average that an older release kept."""
    learner = Learner(Identity(average=True), options=Options(serve="average"))
    learner.begin({0: 0})
    assert [getattr(about(learner), name) for name in FIGURES] == [Share(None, None)] * 4
    learner.apply(0, Records.of(0, [event({"a": 1}, 0)]))
    assert [getattr(about(learner), name) for name in FIGURES] == [Share(None, None)] * 4
    learner.apply(0, Records.of(1, [event({"a": -1}, 1)]))
    assert about(learner).recall == Share(0.0, 0.0)
    learner.watch.recent.missed = None
    assert about(learner).recall == Share(None, 0.0)
