"""The live mistake bound: where its sums are at the edge of double precision."""

import json
from typing import Any

import pytest

from service.learning.identity import Identity
from service.learning.learner import Learner, Options
from service.learning.start import Weights
from tests.checks import restored

REFERENCE = Options(reference=Weights([1.0], 0.0, ["a"]))


def event(features: Any, label: int, weight: float = 1.0) -> bytes:
    return json.dumps({"features": features, "label": label, "weight": weight}).encode()


def begun(identity: Identity | None = None, options: Options = REFERENCE) -> Learner:
    learner = Learner(identity or Identity(), options=options)
    learner.begin({0: 0})
    return learner


def test_short_steps_count_after_long_ones() -> None:
    """A stretch has its own sum of squares: 1 is lost in a difference of two sums of 2e30, and the state looks corrupt."""  # noqa: E501
    learner = begun(options=Options())
    learner.apply(0, 0, [event({"a": 1e15}, 1), event({"a": 1e15}, 0), event({"b": 1}, 1)])
    learner.refer("1")
    learner.apply(0, 3, [event({"b": 1, "c": i % 3}, i % 2) for i in range(10)])
    assert learner.broken is None
    assert learner.stretch is not None
    assert learner.stretch.stored().squared_steps > 10.0


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1e-150, 1e-80, 1.0, 1e6])
@pytest.mark.parametrize("then", [1e-300, 1.0, 1e6])
@pytest.mark.parametrize("value", [1.0, 1e30])
def test_events_of_any_size_set_the_grid(weight: float, then: float, value: float) -> None:
    """A square that is below the smallest number, or a sum near the largest, makes no bound below the updates."""
    learner = begun()
    learner.apply(0, 0, [event({"a": value}, 1, weight)])
    for at in range(1, 9):
        learner.apply(0, at, [event({"a": value, "b": at % 3}, at % 2, then)])
        assert learner.broken is None
        bound, _ = learner.bound
        assert bound is not None
        assert learner.counts.updates <= bound


def test_a_bound_that_is_not_wanted_is_not_kept() -> None:
    """Also where the snapshot has one."""
    learner = begun()
    learner.apply(0, 0, [event({"a": 1}, 1)])
    assert restored(learner, Options()).stretch is not None
    assert restored(learner, Options(bound=False)).stretch is None
