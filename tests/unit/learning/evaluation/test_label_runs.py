"""Labels that come in runs: the previous label as a baseline, the advice, and what `suggest` makes of them."""

import json
import random
from typing import Any

import pytest

from service.learning.evaluation.advice import advice
from service.learning.events.value_buffer import ValueBuffer
from service.learning.identity import Identity
from service.learning.options import Options
from service.learning.records import Records
from service.tools.suggest.model_selection import best_trial, compare_settings
from tests.checks import learner_of, restored
from tests.conftest import event
from tests.unit.applications import describe

EVENTS, CHANGES = 8000, 0.03


def runs(signal: float = 0.0, seed: int = 0) -> list[tuple[dict[str, float], int]]:
    """Events whose label changes with 3 % each, and random features that know nothing of it, or something."""
    rng, label, events = random.Random(seed), 0, []
    for _ in range(EVENTS):
        label ^= rng.random() < CHANGES
        events.append(({f"x{i}": round(rng.gauss(signal * (2 * label - 1), 1), 3) for i in range(5)}, label))
    return events


def compare(events: list[tuple[dict[str, float], int]]) -> Any:
    return compare_settings({}, ValueBuffer.from_values([event(*each) for each in events]))


def test_the_previous_label_is_a_baseline_that_survives_restarts_and_any_slices() -> None:
    events, rng, offset = runs(), random.Random(1), 0
    options = Options(window=500)
    learner = learner_of(Identity(), (), options)
    while offset < EVENTS:
        size = rng.choice([1, 2, 700])
        learner.apply(Records.from_values(offset, [event(*each) for each in events[offset : offset + size]]))
        offset += size
        if rng.random() < 0.3:
            learner = restored(learner, options)
    labels, about = [0, *(label for _, label in events)], describe(learner)
    right = [a == b for a, b in zip(labels[1:], labels, strict=False)]
    assert about.previous_label_baseline.all == sum(right) / EVENTS
    assert about.previous_label_baseline.recent == sum(right[-499:]) / 499
    pair = next(pair for pair in about.comparisons if (pair.first, pair.second) == ("last", "previous"))
    assert (pair.events, pair.better) == (EVENTS, "previous")
    assert pair.second_only - pair.first_only == sum(right) - (EVENTS - about.wrong_predictions)


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
