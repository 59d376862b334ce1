"""Every statement about rules, crossed with every rule, feature mode, tie, start, and with or without the average."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from service.errors import ConfigurationError
from service.learning.learner import Learner
from service.learning.records import Records
from service.learning.start import initial
from service.learning.weights import read
from service.settings.model import ModelSettings
from tests.checks import MODES, RULES, STATEMENTS, Statement, models


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: s.__name__)
def test_statement(statement: Statement, rule: str, mode: str) -> None:
    tried = 0
    for model in models(rule, mode):
        statement(model)
        tried += 1
    assert tried == (2 if rule == "threshold-unit" else 18)


def test_weights_of_other_features_are_refused() -> None:
    raw = b'{"coef":[1,2,3,4],"intercept":0,"features":{"mode":"positional","dimension":4}}'
    assert read(raw, "w.json", "positional", "none").coef == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ConfigurationError, match=r"w\.json: its features are positional, the model's hashed"):
        read(raw, "w.json", "hashed", "none")
    with pytest.raises(
        ConfigurationError, match=r'w\.json: its weights are of scale = "standard", the model has "none"'
    ):
        read(raw[:-1] + b',"scale":"standard"}', "w.json", "positional", "none")
    raw = b'{"coef":[[1],[2],[3]],"intercept":[0,0,0],"classes":["a","b","c"]}'
    with pytest.raises(
        ConfigurationError, match=r"^w\.json: its weights are of 3 labels, and only those of two can be taken up$"
    ):
        read(raw, "w.json", "positional", "none")


@pytest.mark.parametrize("number", ["1e101", "-1e200", "1e999"])
def test_a_given_weight_whose_square_is_no_number_is_refused(number: str) -> None:
    """In a file and in the settings of a threshold unit."""
    with pytest.raises(ConfigurationError):
        read(b'{"coef":[%s],"intercept":0,"names":["a"]}' % number.encode(), "w.json", "named", "none")
    with pytest.raises(ValidationError):
        ModelSettings(rule="threshold-unit", weights={"a": float(number)}, threshold=1.0)


AND = [((0.0, 0.0), 0), ((0.0, 1.0), 0), ((1.0, 0.0), 0), ((1.0, 1.0), 1)]


def learned(settings: ModelSettings, events: Sequence[tuple[tuple[float, ...], int]]) -> list[list[float]]:
    """The weights after each event."""
    learner = Learner(settings.identity(), start=settings.start_weights())
    learner.begin({0: 0})
    trace = []
    for at, (features, label) in enumerate(events):
        learner.apply(0, Records.of(at, [json.dumps({"features": features, "label": label}).encode()]))
        trace.append(learner.weights.tolist())
    return trace


def test_row_6_the_worked_example() -> None:
    """Ahmed and Pavlu's AND, η = 1 from zero: [-1 0 0] first, [0 1 1] after a pass, [-4 3 2] for good."""
    trace = learned(ModelSettings(features="positional", dimension=2), AND * 20)
    assert trace[0] == [-1.0, 0.0, 0.0]
    assert trace[3] == [0.0, 1.0, 1.0]
    assert trace[-1] == trace[-5] == [-4.0, 3.0, 2.0]


@pytest.mark.parametrize(("outputs", "eta", "step"), [("bipolar", 0.25, 0.5), ("binary", 0.25, 0.25)])
@pytest.mark.parametrize(("tie", "label"), [("negative", 1), ("positive", 0)])
def test_rows_2_to_4_the_first_event(outputs: Any, eta: float, step: float, tie: Any, label: int) -> None:
    """At s = 0 the error-correction and half-step forms update the class that the tie does not predict, by 2η or η."""
    rules: list[tuple[dict[str, Any], float]] = [({"rule": "error-correction", "outputs": outputs}, step)]
    rules.append(({"rule": "half-step"}, eta))
    sign = 1.0 if label else -1.0
    for rule, length in rules:
        settings = ModelSettings(features="positional", dimension=1, eta=eta, tie=tie, **rule)
        assert learned(settings, [((3.0,), label)]) == [[sign * length, 3.0 * sign * length]]
        assert learned(settings, [((3.0,), 1 - label)]) == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("weights", "threshold", "truth"),
    [([1, 1], 2, [0, 0, 0, 1]), ([1, 1], 1, [0, 1, 1, 1]), ([-1, 0], 0, [1, 1, 0, 0])],
    ids=["AND", "OR", "NOT"],
)
def test_row_14_mcculloch_and_pitts(weights: list[float], threshold: float, truth: list[int]) -> None:
    """It fires where w·x reaches the threshold, and learns from nothing."""
    settings = ModelSettings(
        features="positional", dimension=2, rule="threshold-unit", weights=weights, threshold=threshold
    )
    learner = Learner(settings.identity(), start=settings.start_weights())
    assert [learner.label(learner.score(x)[0]) == 1 for x, _ in AND] == [bool(t) for t in truth]
    wrong = [(x, 1 - t) for (x, _), t in zip(AND, truth, strict=True)]
    assert learned(settings, wrong)[-1] == learner.weights.tolist()


def test_row_4_a_random_start() -> None:
    """A number in [-1, 1) of seed and column alone: neither how many columns come nor in which batches plays a part."""
    whole = initial("random:5", 0, 10_000)
    assert (whole >= -1.0).all()
    assert (whole < 1.0).all()
    assert abs(whole.mean()) < 0.02
    assert abs(whole.var() - 1.0 / 3.0) < 0.01
    assert initial("random:5", 4_000, 10).tolist() == whole[4_000:4_010].tolist()
    assert (initial("random:6", 0, 10_000) != whole).all()
