"""Rules compared with scikit-learn and River, on real data."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from river import linear_model as river
from river import preprocessing
from sklearn.linear_model import Perceptron, SGDRegressor

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.settings.model import ModelSettings
from tests import data
from tests.checks import close, learner_of
from tests.conftest import event


def learners(x: Any, y: Any, **identity: Any) -> Iterator[tuple[int, Learner]]:
    """A learner that has just learned row i, for each i."""
    learner = learner_of(Identity(features="positional", dimension=x.shape[1], **identity))
    for i, (row, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        learner.apply(Records.from_values(i, [event(row, label)]))
        yield i, learner


@pytest.mark.parametrize("name", data.NAMES)
def test_perceptron_is_scikit_learns(name: str) -> None:
    """`Perceptron(shuffle=False)` after each event, by weights (to rounding) and number of updates (exactly)."""
    x, y = data.table(name)
    reference, updates, previous = Perceptron(shuffle=False), 0, np.zeros(x.shape[1] + 1)
    for i, learner in learners(x, y):
        reference.partial_fit(x[i : i + 1], y[i : i + 1], classes=np.array([-1.0, 1.0]) if i == 0 else None)
        w = np.concatenate([reference.intercept_, reference.coef_[0]])
        updates += bool((w != previous).any())
        previous = w
        assert close(learner.main.weights, w, 1e-9), f"event {i}"
        assert learner.main.counts.updates == updates
    assert updates > 10


@pytest.mark.parametrize("name", data.NAMES)
def test_a_scaled_perceptron_is_rivers(name: str) -> None:
    """`StandardScaler | Perceptron` after each event, on values of any size, shifted."""
    x, y = data.table(name)
    x = np.round(x * np.geomspace(1e-3, 1e4, x.shape[1]) + np.linspace(-50.0, 1e3, x.shape[1]), 6)
    reference = preprocessing.StandardScaler() | river.Perceptron()
    for i, learner in learners(x, y, scale="standard"):
        reference.learn_one(dict(enumerate(x[i].tolist())), bool(y[i] > 0))
        perceptron = reference["Perceptron"]
        w = [perceptron.intercept, *(perceptron.weights.get(j, 0.0) for j in range(x.shape[1]))]
        assert close(learner.main.weights, w, 1e-9), f"event {i}"


@pytest.mark.parametrize("name", data.NAMES)
def test_lms_is_scikit_learns(name: str) -> None:
    """`SGDRegressor` of the squared error at a constant rate, without penalty, after each event."""
    x, y = data.table(name)
    eta = ModelSettings(rule="lms").rate
    reference = SGDRegressor("squared_error", penalty=None, learning_rate="constant", eta0=eta, shuffle=False)
    for i, learner in learners(x, y, rule="lms", eta=eta):
        reference.partial_fit(x[i : i + 1], y[i : i + 1])
        assert close(learner.main.weights, np.concatenate([reference.intercept_, reference.coef_]), 1e-9), f"event {i}"
