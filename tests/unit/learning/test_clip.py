"""Clipped scaling: one wild value does not ruin a model; without it, the value is named."""

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from service.learning.columns.columns import columns_for
from service.learning.evaluation.advice import advice
from service.learning.identity import Identity
from service.learning.kernel.scaling import StandardScaler
from service.learning.records import Records
from tests.checks import learner_of, restored, state_digest
from tests.conftest import event
from tests.oracle import Fold

RECENT: dict[str, Any] = {"scale": "standard", "average": "recent", "half_life": 1000}
CLIPPED, PLAIN = Identity(**RECENT, clip=6.0), Identity(**RECENT)


def stream(features: int, count: int, wild: dict[int, float]) -> list[bytes]:
    """Features of N(50, 10) and the side of a plane through their mean. The first feature of some records is wild."""
    rng = random.Random(features)
    plane, events = [rng.gauss(0, 1) for _ in range(features)], []
    for i in range(count):
        x = [rng.gauss(50, 10) for _ in range(features)]
        side = sum(a * (v - 50) for a, v in zip(plane, x, strict=True)) > 0
        events.append(event({f"x{k}": v for k, v in enumerate([wild.get(i, x[0]), *x[1:]])}, int(side)))
    return events


def accuracies(identity: Identity, events: list[bytes]) -> tuple[float, float]:
    """The shares of the last 1,000 that last weights and their average predicted rightly."""
    recent = learner_of(identity, events).main.observations.recent
    return recent.accuracy or 0.0, recent.average_accuracy or 0.0


@pytest.mark.parametrize("features", [1, 5])
@pytest.mark.parametrize("place", [1, 10, 1000])
def test_a_wild_value_is_forgotten(features: int, place: int) -> None:
    """The thousand events that begin 2,000 later are within one point of the stream without it."""
    _, clean = accuracies(CLIPPED, stream(features, place + 3000, {}))
    for wild in (1e4, 1e6, 1_790_000_000_000.0, 1e9):
        events = stream(features, place + 3000, {place - 1: wild})
        last, average = accuracies(CLIPPED, events)
        assert average > clean - 0.01, wild
        assert last > 0.95, wild
        assert accuracies(PLAIN, events)[1] < 0.93, wild


def test_a_stream_without_wild_values_is_learned_as_without_clip() -> None:
    """The same bits, so no accuracy is lost."""
    clipped, plain = (learner_of(identity, stream(5, 4000, {})) for identity in (CLIPPED, PLAIN))
    assert all(array.tobytes() == clipped.arrays[name].tobytes() for name, array in plain.arrays.items())


def scaled(scaler: StandardScaler, values: list[float]) -> NDArray[np.float64]:
    batch = columns_for(Identity(scale="standard")).assign_columns([{"x": v} for v in values])
    return scaler.learn(batch).values


def test_a_column_of_few_numbers_or_without_variance_is_not_clipped() -> None:
    for first in ([1.0, 2.0] * 4 + [1.0], [7.0] * 500):
        scaler = StandardScaler(Identity(scale="standard", clip=1.0), 2)
        plain = StandardScaler(Identity(scale="standard"), 2)
        scaled(scaler, first), scaled(plain, first)
        assert scaler.value(1, 1e6) == plain.value(1, 1e6)
        scaled(scaler, [1e6]), scaled(plain, [1e6])
        assert scaler.arrays(2)["m2"][1] == plain.arrays(2)["m2"][1] > 1e11
    later = scaled(scaler, [float(i % 5) for i in range(1100)])
    assert np.ptp(later[-5:]) > 1.0, "a column that was constant begins to vary with a wild value"


@pytest.mark.parametrize("eta", [1.0, 1e15])
def test_the_fold_is_the_oracles_and_the_same_in_any_slices(eta: float) -> None:
    """Also if it diverges in a slice, which takes back what the scaler learned after that event."""
    rng, wild = random.Random(1), {i: 10.0 ** (i % 7) for i in range(3, 600, 17)}
    identity, events = Identity(scale="standard", clip=1.5, eta=eta), stream(3, 600, wild)
    whole, sliced, done = learner_of(identity, events), learner_of(identity), 0
    while done < len(events) and not sliced.main.diverged:
        done += sliced.apply(Records.from_values(done, events[done : done + rng.randint(1, 60)])).consumed
        sliced = restored(sliced) if rng.random() < 0.5 else sliced
    assert state_digest(sliced) == state_digest(whole)
    fold = Fold(eta, scaled=True, clip=1.5).fold(events)
    assert (whole.main.diverged is not None) == fold.diverged == (eta > 1)
    assert whole.main.weights.tolist() == fold.vector
    sums = [*zip(*(fold.sums[name] for name in fold.w), strict=True)]
    assert [array[1:].tolist() for array in list(whole.arrays.values())[1:]] == [list(each) for each in sums]


def test_the_record_of_which_one_value_made_a_variance_jump_is_named() -> None:
    def jumps(wild: dict[int, float], **settings: Any) -> str:
        learner = restored(learner_of(Identity(scale="standard", **settings), stream(2, 1500, wild)))
        return advice(learner).get("variance", "")

    line = jumps({1000: 1e9, 1200: 1e12})
    assert "x0 at offset 1000 of partition 0: set clip = 6" in line, "once, the first"
    assert "`perceptron rollback --resume-at 0:1001`" in line
    assert not jumps({50: 1e9, 1000: 200.0}), "among the first hundred, or not wild enough"
    assert not jumps({1000: 1e9}, clip=6.0)
