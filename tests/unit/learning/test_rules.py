"""Every statement about rules, crossed with every rule, feature mode, tie, start, and with or without the average."""

import pytest
from pydantic import ValidationError

from service.errors import ConfigurationError
from service.learning.classifier import initial_weights
from service.learning.identity import Identity
from service.learning.weights_file import read_weights
from service.settings.model import ModelSettings
from tests.checks import MODES, RULES, STATEMENTS, Statement, models

NIGHTLY = {"named": [], "positional": [pytest.mark.nightly], "hashed": [pytest.mark.nightly]}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", [pytest.param(mode, marks=NIGHTLY[mode]) for mode in MODES])
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.__name__)
def test_statement(statement: Statement, rule: str, mode: str) -> None:
    count = 0
    for model in models(rule, mode):
        statement(model)
        count += 1
    assert count == (2 if rule == "threshold-unit" else 18)


def test_weights_of_other_features_are_refused() -> None:
    raw = b'{"coef":[1,2,3,4],"intercept":0,"features":{"mode":"positional","dimension":4}}'
    assert read_weights(raw, "w.json", "positional", "none").coef == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ConfigurationError, match=r"w\.json: its features are positional, the model's hashed"):
        read_weights(raw, "w.json", "hashed", "none")
    with pytest.raises(ConfigurationError, match=r'w\.json: its weights were learned with scale = "standard"'):
        read_weights(raw[:-1] + b',"scale":"standard"}', "w.json", "positional", "none")
    raw = b'{"coef":[[1],[2],[3]],"intercept":[0,0,0],"classes":["a","b","c"]}'
    with pytest.raises(ConfigurationError, match=r"^w\.json: it has weights for 3 labels: expected two"):
        read_weights(raw, "w.json", "positional", "none")


@pytest.mark.parametrize("number", ["1e101", "-1e200", "1e999"])
def test_a_start_weight_whose_square_is_not_finite_is_refused(number: str) -> None:
    """The weight is in a file, or in the settings of a threshold unit."""
    with pytest.raises(ConfigurationError):
        read_weights(b'{"coef":[%s],"intercept":0,"names":["a"]}' % number.encode(), "w.json", "named", "none")
    with pytest.raises(ValidationError):
        ModelSettings(rule="threshold-unit", weights={"a": float(number)}, threshold=1.0)


def test_row_4_a_random_start() -> None:
    """A number in [-1, 1) that depends on seed and column only, not on the number of columns or their batches."""
    weights = initial_weights(Identity(start="random:5"), 0, 10_000)
    assert (weights >= -1.0).all()
    assert (weights < 1.0).all()
    assert abs(weights.mean()) < 0.02
    assert abs(weights.var() - 1.0 / 3.0) < 0.01
    assert initial_weights(Identity(start="random:5"), 4_000, 10).tolist() == weights[4_000:4_010].tolist()
    assert (initial_weights(Identity(start="random:6"), 0, 10_000) != weights).all()
