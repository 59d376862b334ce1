"""Precision, recall, F1 and balanced accuracy of the served weights, compared with scikit-learn."""

import random
from typing import Any

import pytest
from sklearn import metrics

from service.learning.identity import Identity
from service.learning.options import Options
from service.learning.records import Records
from service.serving.model_info import Share
from service.serving.predictions import V1Request
from service.serving.scoring import answer, freeze, predict_large
from tests.checks import learner_of, restored
from tests.conftest import event
from tests.unit.applications import describe

WINDOW, EVENTS = 40, 150


@pytest.mark.parametrize("serve", ["last", "average"])
@pytest.mark.parametrize(
    ("labels", "above"), [(("a", "b"), None), (("a", "b"), -0.5), (("a", "b"), 0.25), (("a", "b", "c", "never"), None)]
)
def test_figures_of_the_served_weights_are_those_of_scikit_learn(
    labels: tuple[str, ...], above: float | None, serve: Any
) -> None:
    """Each event is predicted before it is learned. The figures are over the window and over all events.

    `positive_above` changes the answers, and what is said of the recent ones. Counts stay those of the sign.
    """
    rng, options = random.Random(1), Options(WINDOW, serve=serve, positive_above=above)
    learner = learner_of(Identity(average=True, labels=labels), (), options)
    truth, predicted, answers, used_labels = list[Any](), list[Any](), list[Any](), labels[:3]
    for offset in range(EVENTS):
        k = rng.choices(range(len(used_labels)), (6, 3, 1)[: len(used_labels)])[0]
        features = {f"x{i}": rng.gauss(i == k, 1) for i in range(3)}
        truth.append(labels[k])
        score = learner.score(features, learner.main)[0]
        answers.append(learner.main.label(score))
        predicted.append(answers[-1] if above is None else labels[score > 0.0])
        assert above is None or answers[-1] == labels[score > above]
        learner.apply(Records.from_values(offset, [event(features, labels[k])]))
        if offset == EVENTS - WINDOW // 2:
            learner = restored(learner, options)
    info = describe(learner)
    assert [(row.label, row.events) for row in info.labels] == [(label, truth.count(label)) for label in labels]
    assert info.served_accuracy.all == metrics.accuracy_score(truth, predicted)
    assert info.served_accuracy.recent == metrics.accuracy_score(truth[-WINDOW:], answers[-WINDOW:])
    assert above is None or answers[-WINDOW:] != predicted[-WINDOW:]
    for period, length, given in (("all", EVENTS, predicted), ("recent", WINDOW, answers)):
        pair = truth[-length:], given[-length:]
        recalls = metrics.recall_score(*pair, labels=used_labels, average=None)
        assert [getattr(row.recall, period) for row in info.labels[:3]] == pytest.approx(list(recalls))
        assert getattr(info.balanced_accuracy, period) == pytest.approx(sum(recalls) / len(used_labels))
        for name in ("precision", "recall", "f1"):
            score = getattr(metrics, f"{name}_score")
            expected = score(*pair, pos_label="b") if len(labels) == 2 else None
            assert getattr(getattr(info, name), period) == (
                expected if expected is None else pytest.approx(expected)
            ), name
    assert info.baseline.all == max(map(truth.count, labels)) / EVENTS


def test_a_share_that_is_not_defined_is_null() -> None:
    """There are no events, or no positive ones, or the average is of an older release."""
    learner = learner_of(Identity(average=True), (), Options(serve="average"))
    for events in (0, 1):
        learner.apply(Records.from_values(0, [event({"a": 1}, 0)] * events))
        info = describe(learner)
        assert [info.balanced_accuracy, info.precision, info.recall, info.f1] == [Share(None, None)] * 4
    learner.apply(Records.from_values(1, [event({"a": -1}, 1)]))
    assert describe(learner).recall == Share(0.0, 0.0)
    learner.main.observations.recent.missed = None
    assert describe(learner).recall == Share(None, 0.0)


@pytest.mark.parametrize("tie", ["negative", "positive"])
def test_large_requests_are_answered_by_positive_above_too(tie: Any) -> None:
    """The score itself is not above it, whatever the tie."""
    learner = learner_of(Identity(tie=tie), [event({"a": 1}, 1)], Options(positive_above=1.5))
    request = V1Request(b'{"instances":[{"features":{"a":0.5}},{"features":{"a":1}}]}', 2)
    large = predict_large(freeze(learner, learner.main), request, False, 1)
    single = [answer(learner, learner.main, {"a": value}, False, 1) for value in (0.5, 1.0)]
    assert [(each.label, each.score) for each in large] == [(-1, 1.5), (1, 2.0)]
    assert [(each.label, each.score) for each in single] == [(-1, 1.5), (1, 2.0)]
