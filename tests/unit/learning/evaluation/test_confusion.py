"""Precision, recall, F1 and balanced accuracy of the served weights, compared with scikit-learn.

And labels that come in runs: the previous label as a baseline, the advice, and what `suggest` makes of them.
"""

import json
import random
from typing import Any

import pytest
from sklearn import metrics

from service.learning.evaluation.advice import advice
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity
from service.learning.options import Options
from service.learning.records import Records
from service.serving.model_info import Share
from service.serving.predictions import V1Request
from service.serving.scoring import answer, freeze, predict_large
from service.tools.suggest.model_selection import best_trial, compare_settings
from tests.checks import learner_of, restored
from tests.conftest import event
from tests.unit.applications import describe

WINDOW, EVENTS = 40, 150
RUN_EVENTS, CHANGES = 8000, 0.03


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


def runs(signal: float = 0.0, seed: int = 0) -> list[tuple[dict[str, float], int]]:
    """Events whose label changes with 3 % each, and random features that know nothing of it, or something."""
    rng, label, events = random.Random(seed), 0, []
    for _ in range(RUN_EVENTS):
        label ^= rng.random() < CHANGES
        events.append(({f"x{i}": round(rng.gauss(signal * (2 * label - 1), 1), 3) for i in range(5)}, label))
    return events


def compare(events: list[tuple[dict[str, float], int]]) -> Any:
    return compare_settings({}, ValueBuffer.from_values([event(*each) for each in events]))


def test_the_previous_label_is_a_baseline_that_survives_restarts_and_any_slices() -> None:
    events, rng, offset = runs(), random.Random(1), 0
    options = Options(window=500)
    learner = learner_of(Identity(), (), options)
    while offset < RUN_EVENTS:
        size = rng.choice([1, 2, 700])
        learner.apply(Records.from_values(offset, [event(*each) for each in events[offset : offset + size]]))
        offset += size
        if rng.random() < 0.3:
            learner = restored(learner, options)
    labels, about = [0, *(label for _, label in events)], describe(learner)
    right = [a == b for a, b in zip(labels[1:], labels, strict=False)]
    assert about.previous_label_baseline.all == sum(right) / RUN_EVENTS
    assert about.previous_label_baseline.recent == sum(right[-499:]) / 499
    pair = next(pair for pair in about.comparisons if (pair.first, pair.second) == ("last", "previous"))
    assert (pair.events, pair.better) == (RUN_EVENTS, "previous")
    assert pair.second_only - pair.first_only == sum(right) - (RUN_EVENTS - about.wrong_predictions)


def test_advice_says_where_the_previous_label_is_as_good_as_the_model() -> None:
    in_runs, shuffled = runs(), runs()
    random.Random(3).shuffle(shuffled)
    said = [
        advice(learner_of(Identity(), [event(*e) for e in events])).get("runs", "") for events in (in_runs, shuffled)
    ]
    assert "of the event before was right for 97.2% of the last 1,000 events, the model for 80.6%" in said[0]
    assert "but only for 4 of the 28 whose label differs" in said[0]
    assert not said[1]
    # A model that is better than the previous label may be good, whatever the order.
    assert "runs" not in advice(learner_of(Identity(), [event(*e) for e in runs(signal=1.5)]))


@pytest.mark.parametrize(("signal", "is_better"), [(0.0, False), (0.6, True)])
def test_settings_are_judged_by_labels_that_change_as_well(signal: float, is_better: bool) -> None:
    comparison = compare(runs(signal))
    best = best_trial(comparison.trials)
    assert comparison.figure == "by change"
    assert (best.beats_baseline, best.merit > 0.9) == (is_better, is_better)
    # The best by accuracy follows the label of the event before.
    assert max(trial.later for trial in comparison.trials) > (0.9 if is_better else 0.8)
    assert is_better or best.merit == pytest.approx(0.5, abs=0.03)


def test_a_sample_that_is_sorted_by_its_label_is_compared_in_random_order() -> None:
    """Sorted, nearly every event is right after the one before it, whatever the features."""
    comparison = compare(sorted(runs(), key=lambda each: each[1]))
    best = best_trial(comparison.trials)
    assert "8,000 events in 2 runs of one label" in comparison.is_sorted
    assert (comparison.figure, best.beats_baseline) == ("right", False)
    assert best.later == pytest.approx(0.5, abs=0.03)
    assert json.dumps(best._asdict())
