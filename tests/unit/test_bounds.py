"""The live mistake bound: it holds on random streams, on tight ones, and at the edge of double precision."""

import json
import os
from typing import Any

import numpy as np
import pytest

from service.learning.bounds import direction
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import Records
from service.learning.weights import Weights
from service.snapshots import head as heads
from tests.checks import restored
from tests.stream import NAMES, examples, separator
from tests.stretches import CHECKS, Check, random_stream, random_stream_of_classes

REFERENCE = Options(reference=Weights([1.0], 0.0, ["a"]))


def event(features: Any, label: int, weight: float = 1.0) -> bytes:
    return json.dumps({"features": features, "label": label, "weight": weight}).encode()


def begun(identity: Identity | None = None, options: Options = REFERENCE) -> Learner:
    learner = Learner(identity or Identity(), options=options)
    learner.begin({0: 0})
    return learner


def test_short_steps_count_after_long_ones() -> None:
    """A stretch has its own sum of squares: in the difference of two sums of 2e30 a step of 1 would be lost."""
    learner = begun(options=Options())
    learner.apply(0, Records.of(0, [event({"a": 1e15}, 1), event({"a": 1e15}, 0), event({"b": 1}, 1)]))
    learner.begin_stretch()
    learner.apply(0, Records.of(3, [event({"b": 1, "c": i % 3}, i % 2) for i in range(10)]))
    assert learner.watch.broken(learner.squared_norm) is None
    assert learner.watch.stretch is not None
    assert learner.watch.stretch.stored().squared_steps > 10.0


def test_the_weights_of_a_kept_version_are_the_reference_in_single_precision_and_stored_once() -> None:
    learner = begun(options=Options())
    learner.apply(0, Records.of(0, [event({"a": 0.1, "b": 0.7}, 1), event({"b": 0.3}, 0)]))
    learner.begin_stretch()
    content = heads.content(learner)
    assert content.reference == content.arrays["w"]
    ours, theirs = learner.watch.stretch, restored(learner).watch.stretch
    assert ours is not None
    assert theirs is not None
    assert ours.reference.tolist() == learner.weights.astype(np.float32).tolist() != learner.weights.tolist()
    assert (theirs.reference.dtype.name, theirs.reference.tolist()) == ("float32", ours.reference.tolist())


@pytest.mark.parametrize("weight", [5e-324, 1e-150, 1.0, 1e6])
@pytest.mark.parametrize(("then", "value"), [(1e-300, 1.0), (1e6, 1e30)])
def test_events_of_any_size_set_the_grid(weight: float, then: float, value: float) -> None:
    """The bound holds where a square is below the smallest number or a sum is near the largest."""
    learner = begun()
    learner.apply(0, Records.of(0, [event({"a": value}, 1, weight)]))
    for at in range(1, 9):
        if not learner.diverged:  # its weights would be beyond their limit
            learner.apply(0, Records.of(at, [event({"a": value, "b": at % 3}, at % 2, then)]))
        assert learner.watch.broken(learner.squared_norm) is None
        bound, _ = learner.watch.bound
        assert bound is not None
        assert learner.counts.updates <= bound


def test_random_streams() -> None:
    """Bound, sums and integrity checks after each event; `make bounds` runs 10,000 streams."""
    streams = int(os.environ.get("STREAMS", "100"))
    events = sum(map(random_stream, range(streams)))
    print(f"{streams:,} streams, {events:,} events, each within its bound")
    assert events > 20 * streams


def test_random_streams_of_classes() -> None:
    """Three to six labels, by Kesler's construction; separable ones from zero stay within 2R²/γ² too."""
    streams = int(os.environ.get("STREAMS", "50"))
    events = sum(map(random_stream_of_classes, range(streams)))
    print(f"{streams:,} streams of classes, {events:,} events, each within its bound")
    assert events > 20 * streams


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_streams_on_which_it_is_tight(check: Check) -> None:
    check()


def test_what_is_too_small_to_square_is_no_direction_and_no_damage() -> None:
    """A square below the normal numbers has too few digits for a unit vector or a comparison."""
    assert direction(np.array([3e-161])) == 0.0
    assert direction(np.array([0.0, 4.0])) == 0.25
    learner = begun()
    learner.apply(0, Records.of(0, [event({"a": 1}, 1, 3e-162)]))
    assert learner.counts.updates == 1
    assert learner.watch.broken(learner.squared_norm) is None
    assert learner.watch.stretch is not None
    assert learner.watch.stretch.broken(1e-321) is None
    assert learner.watch.stretch.broken(1e-100) is not None


@pytest.mark.nightly
def test_a_separable_stream_ends_within_ten_times_its_mistakes() -> None:
    """Against the vector that separates it: 131 mistakes, 1,091 possible."""
    intercept, *coef = separator(7)
    learner = Learner(Identity(), options=Options(reference=Weights(coef, intercept, list(NAMES))))
    learner.begin({0: 0})
    raws = [json.dumps({"features": e.features, "label": e.label}).encode() for e in examples(7, 40_000)]
    for i in range(0, len(raws), 1000):
        learner.apply(0, Records.of(i, raws[i : i + 1000]))
    assert (learner.counts.updates, learner.watch.bound) == (131, (1091, None))
    assert 1091 <= 10 * 131
