"""Precision, recall, F1 and balanced accuracy of the served weights, compared with scikit-learn."""

import random
from typing import Any

import pytest
from sklearn import metrics

from service.learning.identity import Identity
from service.learning.options import Options
from service.learning.records import Records
from service.serving.model_info import Share
from tests.checks import learner_of, restored
from tests.conftest import event
from tests.unit.applications import described

WINDOW, EVENTS = 40, 150


@pytest.mark.parametrize("serve", ["last", "average"])
@pytest.mark.parametrize("labels", [("a", "b"), ("a", "b", "c", "never")], ids=len)
def test_figures_of_the_served_weights_are_those_of_scikit_learn(labels: Any, serve: Any) -> None:
    """Each event is predicted before it is learned. The figures are over the window and over all events."""
    rng, options = random.Random(1), Options(WINDOW, serve=serve)
    learner = learner_of(Identity(average=True, labels=labels), (), options)
    truth, predicted, used = list[Any](), list[Any](), labels[:3]
    for at in range(EVENTS):
        k = rng.choices(range(len(used)), (6, 3, 1)[: len(used)])[0]
        features = {f"x{i}": rng.gauss(i == k, 1) for i in range(3)}
        truth.append(labels[k])
        predicted.append(learner.label(learner.score(features)[0]))
        learner.apply(0, Records.of(at, [event(features, labels[k])]))
        if at == EVENTS // 2:
            learner = restored(learner, options)
    said = described(learner)
    assert [(row.label, row.events) for row in said.labels] == [(label, truth.count(label)) for label in labels]
    for over, length in (("all", EVENTS), ("recent", WINDOW)):
        pair = truth[-length:], predicted[-length:]
        recalls = metrics.recall_score(*pair, labels=used, average=None)
        assert [getattr(row.recall, over) for row in said.labels[:3]] == pytest.approx(list(recalls))
        assert getattr(said.balanced_accuracy, over) == pytest.approx(sum(recalls) / len(used))
        for name in ("precision", "recall", "f1"):
            score = getattr(metrics, f"{name}_score")
            expected = score(*pair, pos_label="b") if len(labels) == 2 else None
            assert getattr(getattr(said, name), over) == (expected if expected is None else pytest.approx(expected)), (
                name
            )
    assert said.baseline.all == max(map(truth.count, labels)) / EVENTS


def test_what_is_not_defined_is_null() -> None:
    """A share has no value without events, without positive ones, and for an average of an older release."""
    learner = learner_of(Identity(average=True), (), Options(serve="average"))
    for events in (0, 1):
        learner.apply(0, Records.of(0, [event({"a": 1}, 0)] * events))
        said = described(learner)
        assert [said.balanced_accuracy, said.precision, said.recall, said.f1] == [Share(None, None)] * 4
    learner.apply(0, Records.of(1, [event({"a": -1}, 1)]))
    assert described(learner).recall == Share(0.0, 0.0)
    learner.observations.recent.missed = None
    assert described(learner).recall == Share(None, 0.0)
