"""Rows of the texts' table that are about one event: the rules, the loss, the unit, the cost. Each with its numbers.

Rows about finite data and many passes are in test_passes.py; docs/model.md names the test of every row.
"""

import math
import random
from typing import Any

import numpy as np
import pytest

from service.learning.columns.columns import Batch
from service.learning.identity import Identity
from service.learning.kernel import kernel
from service.learning.learner import Learner
from service.learning.records import Records
from service.learning.weights_file import WeightsFile
from tests.checks import learner_of
from tests.conftest import event


def train(identity: Identity, *events: tuple[list[float], int]) -> Learner:
    """A learner of these events: positional features, labels ±1."""
    return learner_of(identity, [event(x, y) for x, y in events])


def identity_of(rule: Any, dimension: int = 2, **fields: Any) -> Identity:
    return Identity(rule=rule, features="positional", dimension=dimension, **fields)


def test_row_1_the_mistake_driven_rule() -> None:
    """w(0) = 0, so the first event always updates: y·s = 0 is a mistake. A right prediction changes nothing."""
    first = train(identity_of("perceptron", eta=0.5), ([2.0, -1.0], -1))
    assert first.main.weights.tolist() == [-0.5, -1.0, 0.5]
    repeated = train(identity_of("perceptron", eta=0.5), ([2.0, -1.0], -1), ([2.0, -1.0], -1))
    assert repeated.main.weights.tolist() == first.main.weights.tolist()
    assert (repeated.main.counts.mistakes, repeated.main.counts.updates) == (1, 1)


def test_row_2_the_error_correction_form() -> None:
    """φ(0) = -1: at s = 0 a positive event is wrong, and steps by 2η, or η with outputs 0 and 1; a negative is not."""
    for outputs, step in (("bipolar", 2.0), ("binary", 1.0)):
        identity = identity_of("error-correction", eta=0.5, outputs=outputs)
        assert train(identity, ([1.0, 3.0], 1)).main.weights.tolist() == [0.5 * step, 0.5 * step, 1.5 * step]
        negative = train(identity, ([1.0, 3.0], -1))
        assert negative.main.weights.tolist() == [0.0, 0.0, 0.0]
        counts = negative.main.counts
        assert (counts.mistakes, counts.updates, counts.wrong_predictions) == (1, 0, 0)


def test_row_3_the_half_step_form_is_row_1_but_at_0() -> None:
    rng = random.Random(1)
    records = [event([rng.gauss(0, 1), rng.gauss(0, 1)], rng.choice([-1, 1])) for _ in range(500)]
    start = WeightsFile([0.25, 0.5], 0.125)
    perceptron, half_step = (
        learner_of(identity_of(r, eta=0.5, start="given"), records, start=start) for r in ("perceptron", "half-step")
    )
    assert perceptron.main.weights.tolist() == half_step.main.weights.tolist()
    assert perceptron.main.counts.updates == half_step.main.counts.updates > 100
    assert train(identity_of("half-step", eta=0.5), ([1.0, 1.0], -1)).main.counts.updates == 0
    assert train(identity_of("perceptron", eta=0.5), ([1.0, 1.0], -1)).main.counts.updates == 1


def test_row_10_the_perceptron_loss() -> None:
    """max(0, -y·w·x): 0 if right or on the boundary, otherwise how far the score is off. Mean of 0, 3 and 0: 1."""
    learner = train(identity_of("perceptron"), ([1.0, 0.0], 1), ([2.0, 0.0], -1), ([1.0, 1.0], -1))
    # Scores before learning: 0, 1 + 2 = 3 with y = -1, then with w = (0, -1, 0) a right -1.
    margins = learner.main.observations.recent.margins
    assert margins
    assert margins.loss == 1.0
    assert margins.quantiles[1] == 0.0, "the middle of 0, -3/√5 and 1/√3"
    assert margins.quantiles[0] == pytest.approx(0.8 * -3 / math.sqrt(5))


def test_row_12_least_mean_squares() -> None:
    """w += η·(y - o)·x, mistake or not: from 0 with y = 1 to η·x, then a right event moves them too."""
    assert train(identity_of("lms", eta=0.25), ([1.0, 2.0], 1)).main.weights.tolist() == [0.25, 0.25, 0.5]
    learner = train(identity_of("lms", eta=0.25), ([1.0, 2.0], 1), ([1.0, 0.0], 1))
    # o = 0.5 is right, and still w += 0.25·0.5·(1, 1, 0).
    assert learner.main.weights.tolist() == [0.375, 0.375, 0.5]
    counts = learner.main.counts
    assert (counts.updates, counts.mistakes, counts.wrong_predictions) == (2, 1, 1)


def test_row_13_the_logistic_delta_rule() -> None:
    """At s = 0 o = ½ and f' = a/4, so a positive event (t = 1) adds η·½·a/4·x, and a negative one takes it away."""
    for y in (1, -1):
        learner = train(identity_of("logistic-delta", eta=0.5, slope=2.0), ([1.0, -2.0], y))
        assert learner.main.weights.tolist() == [0.125 * y, 0.125 * y, -0.25 * y]
    distant = train(identity_of("logistic-delta", eta=0.5, slope=2.0), *[([100.0, 0.0], 1)] * 3)
    assert np.isfinite(distant.main.weights).all()


def test_row_14_the_mcculloch_pitts_unit() -> None:
    """AND, OR and NOT: a unit fires where its weighted inputs reach the threshold, and never learns."""

    def unit(weights: list[float], threshold: float) -> Learner:
        identity = identity_of("threshold-unit", len(weights), tie="positive", start="given")
        return learner_of(identity, start=WeightsFile(weights, -threshold))

    def fires(learner: Learner, *inputs: float) -> bool:
        return learner.main.label(learner.score(list(inputs), learner.main)[0]) == 1

    and_unit, or_unit, not_unit = unit([1.0, 1.0], 2.0), unit([1.0, 1.0], 1.0), unit([-1.0], 0.0)
    for a in (0.0, 1.0):
        assert fires(not_unit, a) == (not a)
        for b in (0.0, 1.0):
            assert fires(and_unit, a, b) == bool(a and b)
            assert fires(or_unit, a, b) == bool(a or b)
    and_unit.apply(Records.from_values(0, [event([0, 0], 1)]))
    assert and_unit.main.weights.tolist() == [-2.0, 1.0, 1.0]
    assert (and_unit.main.counts.updates, and_unit.main.counts.mistakes) == (0, 1)


@pytest.mark.parametrize("present", [1, 10, 100])
def test_row_16_the_cost_is_that_of_the_features_present(present: int) -> None:
    """An event reads and writes the weights of its m features and the bias: the rest of a million may be NaN."""
    indices = [1000 * i for i in range(present + 1)]
    w = np.full((1_000_001, 1), np.nan)
    w[indices] = 0.0
    starts, columns = np.array([0, present], np.uint64), np.array(indices[1:], np.uint32)
    batch = Batch(starts, columns, np.ones(present), np.ones(1), np.ones(1))
    assert kernel.learn(Identity(), w, batch, reach=0.0).scores.tolist() == [0.0]
    assert w[indices].tolist() == [[1.0]] * len(indices)
    assert np.isnan(np.delete(w, indices)).all()
