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


def advise(wrong: int, positive: int, averaged: int | None = None, events: int = 200, **fields: Any) -> dict[str, str]:
    """The advice of a model after `events` events, with these counts among the last hundred."""
    serve = fields.pop("serve", "last")
    learner = Learner(Identity(**fields), options=Options(window=100, serve=serve))
    order = np.random.default_rng(1).permutation(100)  # labels in no runs
    average_wrong = order[: 0 if averaged is None else 100] < (averaged or 0)
    learner.main.observations.recent = PrequentialWindow(100, 2, order < positive, order < wrong, average_wrong)
    learner.main.counts = Counts([[events, 0], [0, 0]])
    return advice(learner)


def test_a_model_as_good_as_its_baseline_is_not_below_it() -> None:
    for share in range(51):
        assert "accuracy" not in advise(wrong=share, positive=share)
        assert "accuracy" not in advise(wrong=share, positive=100 - share)
        assert share == 50 or "accuracy" in advise(wrong=share + 1, positive=share)


def test_the_first_window_does_not_count() -> None:
    assert not advise(wrong=30, positive=10, events=199)
    assert advise(wrong=30, positive=10, events=200).keys() == {"accuracy", "recall"}


def test_a_rare_positive_label_that_is_never_predicted_is_reported() -> None:
    """The label has at least ten recent events, fewer than half of all, and the served weights predicted none."""
    assert [positive for positive in range(101) if "recall" in advise(wrong=positive, positive=positive)] == [
        *range(10, 50)
    ]
    assert "recall" not in advise(wrong=19, positive=20)
    assert "recall" in advise(wrong=19, positive=20, averaged=20, average=True, serve="average")
    assert "recall" not in advise(wrong=20, positive=20, averaged=19, average=True, serve="average")


POOR, RARE = {"wrong": 30, "positive": 10}, {"wrong": 20, "positive": 20, "labels": ("no", "yes")}
AVERAGED = {"rule": "logistic-delta", "average": True}


@pytest.mark.parametrize(
    ("kind", "model", "suggestion"),
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
def test_a_poor_model_is_told_what_to_try(kind: str, model: dict[str, Any], suggestion: str) -> None:
    """One model is below its baseline, and one misses a rare label."""
    assert suggestion in advise(**model)[kind]
