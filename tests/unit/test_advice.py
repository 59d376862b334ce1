"""When a model says that it is of little use, and what it says to try."""

from typing import Any

import numpy as np
import pytest

from service.learning.advice import advice
from service.learning.classifier import Counts
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.recent import Recent
from service.learning.records import Records

ANEW = "(for which `perceptron reset` has the log learned again)"
MARGIN = "a margin for it, such as margin"
SCALE = 'scale = "standard"'


def seen(wrong: int, positive: int, averaged: int | None = None, events: int = 200, **identity: Any) -> dict[str, str]:
    """What is said of a model of so many events, the last hundred of which went so."""
    serve = identity.pop("serve", "last")
    learner = Learner(Identity(**identity), options=Options(window=100, serve=serve))
    counts = {"wrong": wrong, "positive": positive} | ({} if averaged is None else {"averaged": averaged})
    learner.watch.recent = Recent(100, {name: np.arange(100) < n for name, n in counts.items()})
    learner.counts = Counts([[events, 0], [0, 0]])
    return advice(learner)


def test_a_model_as_good_as_its_baseline_is_not_below_it() -> None:
    for share in range(51):
        assert "accuracy" not in seen(wrong=share, positive=share)
        assert "accuracy" not in seen(wrong=share, positive=100 - share)
        assert share == 50 or "accuracy" in seen(wrong=share + 1, positive=share)


@pytest.mark.parametrize(("positive", "silent"), [(4, True), (5, False)])
def test_who_finds_a_rare_label_is_not_blamed_for_its_accuracy(positive: int, silent: bool) -> None:
    """Half of the positives are found, for as many false alarms as there are: who never alarms is more often right."""
    learner = Learner(Identity(), options=Options(window=100))
    at = np.arange(100)
    wrong = (at < positive // 2) | ((at >= 50) & (at < 50 + positive))
    learner.watch.recent = Recent(100, {"wrong": wrong, "positive": at < positive})
    learner.counts = Counts([[200, 0], [0, 0]])
    assert ("accuracy" not in advice(learner)) == silent


def test_the_first_window_does_not_count() -> None:
    """Then it had just begun."""
    assert not seen(wrong=30, positive=10, events=199)
    assert seen(wrong=30, positive=10, events=200).keys() == {"accuracy", "recall"}


@pytest.mark.parametrize(
    ("model", "tries"),
    [
        ({}, f'{SCALE} or average = "recent" with serve = "average" or rule = "logistic-delta" {ANEW}'),
        ({"rule": "logistic-delta", "average": True, "averaged": 40}, f"{SCALE} {ANEW}"),
        ({"rule": "lms", "average": True, "averaged": 40, "scale": "standard"}, f'rule = "logistic-delta" {ANEW}'),
        (
            {"rule": "logistic-delta", "average": True, "averaged": 20},
            f'serve = "average", which was right in 80.0%, or {SCALE} {ANEW}',
        ),
        (
            {"rule": "logistic-delta", "average": True, "averaged": 40, "serve": "average", "scale": "standard"},
            "other features",
        ),
    ],
)
def test_what_is_to_be_tried(model: dict[str, Any], tries: str) -> None:
    said = seen(wrong=30, positive=10, **model)["accuracy"]
    assert said.endswith(f"always the more frequent label would have been in 90.0%: try {tries}")


def test_a_rare_positive_label_that_is_never_predicted_is_said() -> None:
    """Of ten events and more, fewer than half of all, of which none was found by what answers."""
    assert [positive for positive in range(101) if "recall" in seen(wrong=positive, positive=positive)] == [
        *range(10, 50)
    ]
    assert "recall" not in seen(wrong=19, positive=20)
    assert "recall" in seen(wrong=19, positive=20, averaged=20, average=True, serve="average")
    assert "recall" not in seen(wrong=20, positive=20, averaged=19, average=True, serve="average")


@pytest.mark.parametrize(
    ("model", "tries"),
    [
        ({}, f"{SCALE} or {MARGIN} = [0, 100] {ANEW}"),
        ({"margin": (0.0, 30.0), "scale": "standard"}, f"{MARGIN} = [0, 300] {ANEW}"),
        ({"rule": "lms"}, f'{SCALE} or rule = "perceptron" with {MARGIN} = [0, 100] {ANEW}'),
        (
            {"rule": "logistic-delta", "scale": "standard"},
            f'a lower threshold than 0.5 for its `probability`, or rule = "perceptron" with {MARGIN} = [0, 100] {ANEW}',
        ),
        (
            {"wrong": 6, "averaged": 20, "average": True, "serve": "average"},
            f'serve = "last", which found 70.0% of them, or {SCALE} or {MARGIN} = [0, 100] {ANEW}',
        ),
    ],
)
def test_what_is_to_be_tried_to_find_more(model: dict[str, Any], tries: str) -> None:
    about: dict[str, Any] = {"wrong": 20, "positive": 20, "labels": ("no", "yes")}
    said = seen(**about | model)["recall"]
    assert said == f"none of the 20 events of label yes among the last 100 was predicted so: try {tries}"


def test_an_average_that_is_not_kept_does_not_answer() -> None:
    """So it is where a replica's settings ask for one that the stored model does not have."""
    learner = Learner(Identity(), options=Options(serve="average"))
    learner.begin({0: 0})
    learner.apply(0, Records.of(0, [b'{"features":{"a":2},"label":1}']))
    assert learner.score({"a": 1.0}) == (3.0, 0)
    assert learner.served.tolist() == learner.weights.tolist() == [1.0, 2.0]
    assert not learner.averaged


@pytest.mark.parametrize(
    ("features", "said"),
    [
        (['{"w1":1}', '{"w2":1,"n":3}', '{"n":5}'], "2 of the 3 that are there in some events"),
        (['{"w1":1}', '{"w2":1,"n":3,"m":7}', '{"n":5,"m":8}'], ""),  # half of them
        (['{"w1":true,"a":2}', '{"w2":true,"a":2}'], ""),  # no numbers, and one that is always there
        (['{"w1":0}', '{"w3":0,"w2":1}', '{"w2":2}'], ""),  # 0 is what it would be scaled to
    ],
)
def test_numbers_that_scaling_makes_nothing_are_said(features: list[str], said: str) -> None:
    records = [f'{{"features":{one},"label":{i % 2}}}'.encode() for i, one in enumerate(features)]
    cases: list[tuple[int, Any]] = [(9, "standard"), (10, "standard"), (10, "none")]
    for count, scale in cases:
        learner = Learner(Identity(scale=scale))
        learner.begin({0: 0})
        learner.apply(0, Records.of(0, records * count))
        expected = said if count == 10 and scale == "standard" else ""
        assert ("scale" in advice(learner)) == bool(expected)
        assert expected in advice(learner).get("scale", "")
