"""Every statement about rules, crossed with every rule, feature mode, tie, start, and with or without the average."""

import pytest
from pydantic import ValidationError

from service.errors import ConfigurationError
from service.learning.identity import Identity
from service.learning.initial_weights import initial_weights
from service.learning.weights_file import read_weights
from service.settings.model import ModelSettings
from tests.checks import MODES, RULES, STATEMENTS, Statement, models

NIGHTLY = {"named": [], "positional": [pytest.mark.nightly], "hashed": [pytest.mark.nightly]}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", [pytest.param(mode, marks=NIGHTLY[mode]) for mode in MODES])
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.__name__)
def test_statement(statement: Statement, rule: str, mode: str) -> None:
    tried = 0
    for model in models(rule, mode):
        statement(model)
        tried += 1
    assert tried == (2 if rule == "threshold-unit" else 18)


def test_weights_of_other_features_are_refused() -> None:
    raw = b'{"coef":[1,2,3,4],"intercept":0,"features":{"mode":"positional","dimension":4}}'
    assert read_weights(raw, "w.json", "positional", "none").coef == [1.0, 2.0, 3.0, 4.0]
    classes = b'{"coef":[[1],[2],[3]],"intercept":[0,0,0],"classes":["a","b","c"]}'
    for data, features, said in (
        (raw, "hashed", r"w\.json: its features are positional, the model's hashed"),
        (raw[:-1] + b',"scale":"standard"}', "positional", r'weights are of scale = "standard", the model has "none"'),
        (classes, "positional", r"^w\.json: its weights are of 3 labels, and only those of two can be taken up$"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            read_weights(data, "w.json", features, "none")


@pytest.mark.parametrize("number", ["1e101", "-1e200", "1e999"])
def test_a_given_weight_whose_square_is_no_number_is_refused(number: str) -> None:
    """In a file and in the settings of a threshold unit."""
    with pytest.raises(ConfigurationError):
        read_weights(b'{"coef":[%s],"intercept":0,"names":["a"]}' % number.encode(), "w.json", "named", "none")
    with pytest.raises(ValidationError):
        ModelSettings(rule="threshold-unit", weights={"a": float(number)}, threshold=1.0)


def test_row_4_a_random_start() -> None:
    """A number in [-1, 1) of seed and column alone: neither how many columns come nor in which batches plays a part."""
    whole = initial_weights(Identity(start="random:5"), 0, 10_000)
    assert (whole >= -1.0).all()
    assert (whole < 1.0).all()
    assert abs(whole.mean()) < 0.02
    assert abs(whole.var() - 1.0 / 3.0) < 0.01
    assert initial_weights(Identity(start="random:5"), 4_000, 10).tolist() == whole[4_000:4_010].tolist()
    assert (initial_weights(Identity(start="random:6"), 0, 10_000) != whole).all()
