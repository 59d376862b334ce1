"""The live mistake bound: it holds on random streams, on tight ones, and at the edge of double precision."""

import os
from collections.abc import Callable

import pytest

from service.learning.identity import Identity
from service.learning.options import Options
from service.learning.records import Records
from service.learning.weights_file import WeightsFile
from tests.bound_segments import THEOREM, Check, random_stream, random_stream_of_classes
from tests.checks import learner_of
from tests.conftest import event

REFERENCE = Options(reference=WeightsFile([1.0], 0.0, ["a"]))


def test_short_steps_count_after_long_ones() -> None:
    """A segment has its own sum of squares: in the difference of two sums of 2e30 a step of 1 would be lost."""
    learner = learner_of(Identity(), [event({"a": 1e15}, 1), event({"a": 1e15}, 0), event({"b": 1}, 1)])
    learner.main.begin_segment()
    learner.apply(Records.from_values(3, [event({"b": 1, "c": i % 3}, i % 2) for i in range(10)]))
    assert learner.main.observations.failed_check(learner.main.squared_norm) is None
    assert learner.main.observations.bound_segment is not None
    assert learner.main.observations.bound_segment.sums.squared_steps > 10.0


@pytest.mark.parametrize("weight", [5e-324, 1e-150, 1.0, 1e6])
@pytest.mark.parametrize(("later_weight", "value"), [(1e-300, 1.0), (1e6, 1e30)])
def test_events_of_any_size_set_the_grid(weight: float, later_weight: float, value: float) -> None:
    """The bound holds where a square is below the smallest number or a sum is near the largest."""
    learner = learner_of(Identity(), [event({"a": value}, 1, weight=weight)], REFERENCE)
    for i in range(1, 9):
        if not learner.main.diverged:  # its weights would be beyond their limit
            learner.apply(Records.from_values(i, [event({"a": value, "b": i % 3}, i % 2, weight=later_weight)]))
        assert learner.main.observations.failed_check(learner.main.squared_norm) is None
        bound, _ = learner.main.observations.bound
        assert bound is not None
        assert learner.main.counts.updates <= bound


@pytest.mark.parametrize("stream", [random_stream, random_stream_of_classes], ids=lambda stream: stream.__name__)
def test_random_streams(stream: Callable[[int], int]) -> None:
    """Bound, sums and integrity checks after each event; `make bounds` runs 10,000 streams of each kind.

    Separable streams of three labels and more, from zero, stay within 2R²/γ² too, by Kesler's construction.
    """
    streams = int(os.environ.get("STREAMS", "75"))
    events = sum(map(stream, range(streams)))
    print(f"{streams:,} streams, {events:,} events, each within its bound")
    assert events > 20 * streams


@pytest.mark.parametrize("check", THEOREM, ids=lambda c: c.__name__)
def test_streams_on_which_the_bound_is_tight(check: Check) -> None:
    check()
