"""The fold: the kernel is the formula, and neither slices, restores nor rejected records change the state."""

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import OutOfOrder
from service.learning.identity import Identity
from service.learning.initial_weights import initial_weights
from service.learning.options import Options
from service.learning.records import Records
from tests import formulas
from tests.checks import learner_of, restored
from tests.conftest import event
from tests.kinds import BAD_NAMED
from tests.oracle import Fold

pytestmark = pytest.mark.usefixtures("reading")


OPTIONS = Options(window=10)


numbers = st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 5e-324])
named = st.dictionaries(st.sampled_from([f"n{i}" for i in range(8)]), numbers, max_size=5)


def events(features: Any) -> Any:
    good = st.fixed_dictionaries(
        {"features": features, "label": st.sampled_from([0, 1])}, optional={"weight": st.floats(1e-3, 1e3)}
    ).map(lambda e: json.dumps(e).encode())
    bad = st.sampled_from([raw for raw, _ in BAD_NAMED if raw is None or len(raw) < 1000])
    return st.lists(good | good | good | bad, max_size=40)


@settings(max_examples=150)
@given(records=events(named), margins=st.sampled_from([(0.0, 0.0), (0.0, 2.5), (0.7, 0.1)]))
def test_the_state_is_the_oracles_fold(records: list[bytes | None], margins: tuple[float, float]) -> None:
    bad = {raw for raw, _ in BAD_NAMED}
    learner = learner_of(Identity(eta=0.3, margin=margins))
    consumed = learner.apply(0, Records.of(0, records)).consumed
    fold = Fold(eta=0.3, margins=margins).fold(raw for raw in records if raw is not None and raw not in bad)
    assert learner.columns.names == list(fold.w)
    assert learner.weights.tolist() == fold.vector
    counts = learner.counts
    assert (counts.events, counts.mistakes, counts.wrong_predictions) == (fold.events, fold.mistakes, fold.wrong)
    assert counts.updates == fold.updates
    assert learner.observations.squared_norm_limit == fold.limit
    assert sum(counts.rejected.values()) == sum(raw in bad for raw in records[:consumed])
    assert learner.next == {0: consumed}
    assert fold.diverged == (consumed < len(records)) == bool(learner.diverged)


def test_offsets_that_do_not_go_on_are_refused() -> None:
    learner = learner_of(Identity())
    for partition, first in ((0, 1), (1, 0)):
        with pytest.raises(OutOfOrder):
            learner.apply(partition, Records.of(first, [b"{}"]))
    learner.apply(0, Records.of(0, [b"{}"]))
    with pytest.raises(OutOfOrder):
        learner.apply(0, Records.of(0, [b"{}"]))


@pytest.mark.parametrize(
    ("rule", "start"),
    [("logistic-delta", "zero"), ("perceptron", "random:7"), ("lms", "zero"), ("half-step", "zero")],
)
def test_a_model_stops_where_its_squared_norm_passes_its_limit(rule: Any, start: str) -> None:
    """It stops at the same event as the plain formula, in slices of any size and over restores.

    Values rise until one is too large; each event has a new name, so that columns come with every slice.
    """
    own: dict[str, Any] = {
        "eta": 0.5 if rule == "half-step" else 1.0,
        "slope": 1.0 if rule == "logistic-delta" else None,
    }
    identity = Identity(rule=rule, start=start, average=True, **own)
    rows = [*({"a": (-1.7) ** i, f"n{i}": 1.0} for i in range(80)), {"z": 1e20}]
    records = [json.dumps({"features": row, "label": 1, "weight": 3.0}).encode() for row in rows]
    w, at = initial_weights(Identity(start=start), 0, 100).tolist(), 0
    columns = {"a": 1}
    for row in rows:
        x = [(columns.setdefault(name, len(columns) + 1), value) for name, value in row.items()]
        after = list(w)
        formulas.learn(after, x, 1.0, 3.0, identity)
        if sum(v * v for v in after) > 1e30:
            break
        w, at = after, at + 1
    assert 2 < at < len(rows), "it is the limit that is met"
    for size in (1, 7, len(rows)):
        learner, next_ = learner_of(identity), 0
        while not learner.diverged and next_ < len(records):
            next_ += learner.apply(0, Records.of(next_, records[next_ : next_ + size])).consumed
            learner = restored(learner, OPTIONS) if size == 7 else learner
        assert learner.next == {0: at}
        assert learner.weights.tolist() == w[: len(learner.columns)]
        assert learner.squared_norm <= 1e30
        assert np.isfinite([learner.observations.squared_steps, *learner.arrays["late"], *learner.served]).all()


def test_a_snapshot_beyond_the_limit_is_one_that_diverged() -> None:
    """An older release could save such a state: it is restored, says so, and learns nothing more."""
    learner = learner_of(Identity(rule="lms"))
    learner.apply(0, Records.of(0, [b'{"features":{"a":1},"label":1}']))
    learner.weights[:] = 1.5e147
    assert restored(learner).diverged == "the squared norm of the weights is 4.5e+294, beyond 1e+30"


@pytest.mark.parametrize("average", [True, "recent"])
@pytest.mark.parametrize(("size", "eta", "streams", "count"), [(1.0, 1.0, 100, 30), (1e30, 1e-20, 1, 1000)])
def test_the_average_is_counted_as_it_answered(average: Any, size: float, eta: float, streams: int, count: int) -> None:
    """Small whole numbers often give a score of 0; sums of large ones overflow unless the age is scaled back."""
    rng = random.Random(6)
    half_life = 1 if average == "recent" else None
    identity = Identity(features="positional", dimension=3, average=average, half_life=half_life, eta=eta)
    ties = 0
    for _ in range(streams):
        learner, missed = learner_of(identity, options=Options(serve="average")), []
        for i in range(count):
            features, label = [size * rng.randint(-1, 1) for _ in range(3)], rng.choice((-1, 1))
            score: Any = learner.score(features)[0]
            missed.append(learner.label(score) != label)
            ties += abs(score) < 1e-9
            learner.apply(0, Records.of(i, [event(features, label)]))
        assert learner.observations.recent.averaged_wrong.last.tolist() == missed
        assert 0 < sum(missed) < count
    assert ties > 30 * (size == 1.0)
