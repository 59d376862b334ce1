"""The advice that a model gives: when it is of little use, and what to try."""

from typing import Any

import numpy as np
import pytest

from service.learning.classifier import Counts
from service.learning.evaluation.advice import advice
from service.learning.evaluation.prequential import PrequentialWindow
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from tests.checks import learner_of


def seen(wrong: int, positive: int, averaged: int | None = None, events: int = 200, **identity: Any) -> dict[str, str]:
    """The advice of a model after `events` events, with these counts among the last hundred."""
    serve = identity.pop("serve", "last")
    learner = Learner(Identity(**identity), options=Options(window=100, serve=serve))
    of_average = np.arange(0 if averaged is None else 100) < (averaged or 0)
    learner.observations.recent = PrequentialWindow(
        100, 2, np.arange(100) < positive, np.arange(100) < wrong, of_average
    )
    learner.counts = Counts([[events, 0], [0, 0]])
    return advice(learner)


def test_a_model_as_good_as_its_baseline_is_not_below_it() -> None:
    for share in range(51):
        assert "accuracy" not in seen(wrong=share, positive=share)
        assert "accuracy" not in seen(wrong=share, positive=100 - share)
        assert share == 50 or "accuracy" in seen(wrong=share + 1, positive=share)


def test_the_first_window_does_not_count() -> None:
    assert not seen(wrong=30, positive=10, events=199)
    assert seen(wrong=30, positive=10, events=200).keys() == {"accuracy", "recall"}


def test_a_rare_positive_label_that_is_never_predicted_is_said() -> None:
    """A label with at least ten recent events, fewer than half of all, of which the served weights found none."""
    assert [positive for positive in range(101) if "recall" in seen(wrong=positive, positive=positive)] == [
        *range(10, 50)
    ]
    assert "recall" not in seen(wrong=19, positive=20)
    assert "recall" in seen(wrong=19, positive=20, averaged=20, average=True, serve="average")
    assert "recall" not in seen(wrong=20, positive=20, averaged=19, average=True, serve="average")


POOR, RARE = {"wrong": 30, "positive": 10}, {"wrong": 20, "positive": 20, "labels": ("no", "yes")}
AVERAGED = {"rule": "logistic-delta", "average": True}


@pytest.mark.parametrize(
    ("advice", "model", "tries"),
    [
        (
            "accuracy",
            POOR,
            'scale = "standard" or average = "recent" with serve = "average" or rule =',
        ),
        ("accuracy", POOR | {"rule": "lms", "scale": "standard"}, 'rule = "logistic-delta"'),
        ("accuracy", POOR | AVERAGED | {"averaged": 20}, 'serve = "average", which was right in 80.0%'),
        ("accuracy", POOR | AVERAGED | {"averaged": 40, "serve": "average", "scale": "standard"}, "other features"),
        ("recall", RARE, "margin = [0, 100]"),
        ("recall", RARE | {"margin": (0.0, 30.0), "scale": "standard"}, "margin = [0, 300]"),
        ("recall", RARE | {"rule": "logistic-delta", "scale": "standard"}, "a lower threshold than 0.5"),
        ("recall", RARE | {"wrong": 6, "averaged": 20, "average": True, "serve": "average"}, 'serve = "last"'),
    ],
)
def test_a_poor_model_is_told_what_to_try(advice: str, model: dict[str, Any], tries: str) -> None:
    """One below its baseline, and one that misses a rare label."""
    assert tries in seen(**model)[advice]


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (['{"w1":1}', '{"w2":1,"n":3}', '{"n":5}'], "2 of the 3"),
        (['{"w1":1}', '{"w2":1,"n":3,"m":7}', '{"n":5,"m":8}'], ""),  # half of them
        (['{"w1":true,"a":2}', '{"w2":true,"a":2}'], ""),  # no numbers, and one that is always there
    ],
)
def test_numbers_that_scaling_makes_nothing_are_said(features: list[str], expected: str) -> None:
    records = [f'{{"features":{one},"label":{i % 2}}}'.encode() for i, one in enumerate(features)]
    scaled, plain = (learner_of(Identity(scale=scale), records * 10) for scale in ("standard", "none"))
    assert "scale" not in advice(plain)
    assert ("scale" in advice(scaled)) == bool(expected)
    assert expected in advice(scaled).get("scale", "")
