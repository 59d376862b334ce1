"""Rules beside other people's programs, on real data, and beside the gradients that they follow."""

import json
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
from tests import data, formulas
from tests.checks import RULES, close

pytestmark = pytest.mark.usefixtures("reading")


def one_by_one(x: Any, y: Any, **identity: Any) -> Iterator[tuple[int, Learner]]:
    """A learner that has just learned row i, for each i."""
    learner = Learner(Identity(features="positional", dimension=x.shape[1], **identity))
    learner.begin({0: 0})
    for i, (row, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        learner.apply(0, Records.of(i, [json.dumps({"features": row, "label": label}).encode()]))
        yield i, learner


@pytest.mark.parametrize("name", data.NAMES)
def test_perceptron_is_scikit_learns(name: str) -> None:
    """`Perceptron(shuffle=False)` after each event, by weights (to rounding) and number of updates (exactly)."""
    x, y = data.table(name)
    theirs, updates, before = Perceptron(shuffle=False), 0, np.zeros(x.shape[1] + 1)
    for i, ours in one_by_one(x, y):
        theirs.partial_fit(x[i : i + 1], y[i : i + 1], classes=np.array([-1.0, 1.0]) if i == 0 else None)
        w = np.concatenate([theirs.intercept_, theirs.coef_[0]])
        updates += bool((w != before).any())
        before = w
        assert close(ours.weights, w, 1e-9), f"event {i}"
        assert ours.counts.updates == updates
    assert updates > 10


@pytest.mark.parametrize("name", data.NAMES)
def test_perceptron_is_rivers(name: str) -> None:
    """`linear_model.Perceptron` after each event."""
    x, y = data.table(name)
    theirs = river.Perceptron()
    for i, ours in one_by_one(x, y):
        theirs.learn_one(dict(enumerate(x[i].tolist())), bool(y[i] > 0))
        w = [theirs.intercept, *(theirs.weights.get(j, 0.0) for j in range(x.shape[1]))]
        assert close(ours.weights, w, 1e-9), f"event {i}"


@pytest.mark.parametrize("name", data.NAMES)
def test_a_scaled_perceptron_is_rivers(name: str) -> None:
    """`StandardScaler | Perceptron` after each event, of values as they are: of any size, and shifted."""
    x, y = data.table(name)
    x = np.round(x * np.geomspace(1e-3, 1e4, x.shape[1]) + np.linspace(-50.0, 1e3, x.shape[1]), 6)
    theirs = preprocessing.StandardScaler() | river.Perceptron()
    for i, ours in one_by_one(x, y, scale="standard"):
        theirs.learn_one(dict(enumerate(x[i].tolist())), bool(y[i] > 0))
        last = theirs["Perceptron"]
        w = [last.intercept, *(last.weights.get(j, 0.0) for j in range(x.shape[1]))]
        assert close(ours.weights, w, 1e-9), f"event {i}"


@pytest.mark.parametrize("name", data.NAMES)
def test_lms_is_scikit_learns(name: str) -> None:
    """`SGDRegressor` of the squared error at a constant rate, without penalty, after each event."""
    x, y = data.table(name)
    theirs = SGDRegressor(
        "squared_error", penalty=None, learning_rate="constant", eta0=ModelSettings(rule="lms").rate, shuffle=False
    )
    for i, ours in one_by_one(x, y, rule="lms", eta=ModelSettings(rule="lms").rate):
        theirs.partial_fit(x[i : i + 1], y[i : i + 1])
        assert close(ours.weights, np.concatenate([theirs.intercept_, theirs.coef_]), 1e-9), f"event {i}"


@pytest.mark.parametrize("rule", ["lms", "logistic-delta"])
def test_a_gradient_rule_follows_its_gradient(rule: str) -> None:
    """The step is -η times the slope of ½·(t - o)² in each weight, taken by central differences."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        w, x, y = rng.normal(size=5), np.array([1.0, *rng.normal(size=4)]), rng.choice([-1.0, 1.0])
        a, eta = rng.uniform(0.2, 3.0), rng.uniform(0.01, 1.0)

        def error(w: Any, x: Any = x, y: float = y, a: float = a) -> Any:
            s = w @ x
            return 0.5 * ((y - s) if rule == "lms" else (y > 0) - 1.0 / (1.0 + np.exp(-a * s))) ** 2

        h = 1e-5
        slopes = [(error(w + h * axis) - error(w - h * axis)) / (2.0 * h) for axis in np.eye(5)]
        learned = w.tolist()
        slope = None if rule == "lms" else a
        formulas.learn(learned, list(enumerate(x.tolist()))[1:], y, 1.0, Identity(rule=rule, eta=eta, slope=slope))
        assert np.allclose(learned - w, -eta * np.array(slopes), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", data.NAMES)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "threshold-unit"])
def test_the_default_rate_does_not_diverge(rule: str, name: str) -> None:
    """Fifty passes over standardised data: the weights grow slower than over the first ten.

    Weights that diverge grow by a factor each pass. Those of a perceptron on data that no line separates stay bounded
    (Minsky and Papert's cycling theorem); the others approach a least-squares fit, or drift along a logarithm.
    """
    x, y = data.table(name)
    settings = {k: v for k, v in RULES[rule].items() if k != "slope"}
    identity = ModelSettings(features="positional", dimension=x.shape[1], **settings).identity()
    learner = Learner(identity)
    learner.begin({0: 0})
    records = [
        json.dumps({"features": row, "label": label}).encode()
        for row, label in zip(x.tolist(), y.tolist(), strict=True)
    ]
    norms: list[float] = []
    for i in range(50):
        assert learner.apply(0, Records.of(i * len(records), records)).diverged is None
        norms.append(learner.squared_norm**0.5)
    assert norms[-1] < 5.0 * norms[9]
