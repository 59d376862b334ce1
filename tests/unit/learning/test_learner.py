"""The fold: the kernel is the formula, and neither slices, restores nor rejected records change the state."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import OutOfOrder
from service.learning.classifier import initial_weights
from service.learning.identity import Identity
from service.learning.options import Options
from service.learning.records import Records
from tests import formulas
from tests.checks import learner_of, restored
from tests.kinds import BAD_NAMED
from tests.oracle import Fold
from tests.partitions import P0, P1

pytestmark = pytest.mark.usefixtures("reading")


OPTIONS = Options(window=10)


numbers = st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 5e-324])
named_features = st.dictionaries(st.sampled_from([f"n{i}" for i in range(8)]), numbers, max_size=5)


def events(features: Any) -> Any:
    good = st.fixed_dictionaries(
        {"features": features, "label": st.sampled_from([0, 1])}, optional={"weight": st.floats(1e-3, 1e3)}
    ).map(lambda e: json.dumps(e).encode())
    bad = st.sampled_from([raw for raw, _ in BAD_NAMED if raw is None or len(raw) < 1000])
    return st.lists(good | good | good | bad, max_size=40)


@settings(max_examples=150)
@given(records=events(named_features), margins=st.sampled_from([(0.0, 0.0), (0.0, 2.5), (0.7, 0.1)]))
def test_the_state_is_the_oracles_fold(records: list[bytes | None], margins: tuple[float, float]) -> None:
    bad = {raw for raw, _ in BAD_NAMED}
    learner = learner_of(Identity(eta=0.3, margin=margins))
    consumed = learner.apply(Records.from_values(0, records)).consumed
    fold = Fold(eta=0.3, margins=margins).fold(raw for raw in records if raw is not None and raw not in bad)
    assert learner.columns.names == list(fold.w)
    assert learner.main.weights.tolist() == fold.vector
    counts = learner.main.counts
    assert (counts.events, counts.mistakes, counts.wrong_predictions) == (fold.events, fold.mistakes, fold.wrong)
    assert counts.updates == fold.updates
    assert learner.main.observations.squared_norm_limit == fold.limit
    assert sum(counts.rejected.values()) == sum(raw in bad for raw in records[:consumed])
    assert learner.next == {P0: consumed}
    assert fold.diverged == (consumed < len(records)) == bool(learner.main.diverged)


def test_offsets_that_do_not_go_on_are_refused() -> None:
    learner = learner_of(Identity())
    with pytest.raises(OutOfOrder):
        learner.apply(Records.from_values(0, [b"{}"], P1))
    learner.apply(Records.from_values(2, [b"{}"]))
    assert learner.next == {P0: 3}  # the offsets before it have no record
    for first in range(3):
        with pytest.raises(OutOfOrder):
            learner.apply(Records.from_values(first, [b"{}"]))


@pytest.mark.parametrize(
    ("rule", "start"), [("logistic-delta", "zero"), ("perceptron", "random:7"), ("lms", "zero"), ("half-step", "zero")]
)
def test_a_model_stops_where_its_squared_norm_passes_its_limit(rule: Any, start: str) -> None:
    """The model stops at the same event as the plain formula, in slices of any size and over restores.

    Values rise until one is too large; each event has a new name, so that columns come with every slice.
    """
    fields: dict[str, Any] = {
        "eta": 0.5 if rule == "half-step" else 1.0,
        "slope": 1.0 if rule == "logistic-delta" else None,
    }
    identity = Identity(rule=rule, start=start, average=True, **fields)
    rows = [*({"a": (-1.7) ** i, f"n{i}": 1.0} for i in range(80)), {"z": 1e20}]
    records = [json.dumps({"features": row, "label": 1, "weight": 3.0}).encode() for row in rows]
    w, learned = initial_weights(Identity(start=start), 0, 100).tolist(), 0
    columns = {"a": 1}
    for row in rows:
        x = [(columns.setdefault(name, len(columns) + 1), value) for name, value in row.items()]
        new_w = list(w)
        formulas.learn(new_w, x, 1.0, 3.0, identity)
        if sum(v * v for v in new_w) > 1e30:
            break
        w, learned = new_w, learned + 1
    assert 2 < learned < len(rows), "the limit is met"
    for size in (1, 7, len(rows)):
        learner, offset = learner_of(identity), 0
        while not learner.main.diverged and offset < len(records):
            offset += learner.apply(Records.from_values(offset, records[offset : offset + size])).consumed
            learner = restored(learner, OPTIONS) if size == 7 else learner
        assert learner.next == {P0: learned}
        assert learner.main.weights.tolist() == w[: len(learner.columns)]
        assert learner.main.squared_norm <= 1e30
        assert np.isfinite(
            [learner.main.observations.squared_steps, *learner.arrays["late"], *learner.main.served]
        ).all()


def test_a_snapshot_beyond_the_limit_is_one_that_diverged() -> None:
    """An older release could save such a state: it is restored, says so, and learns nothing more."""
    learner = learner_of(Identity(rule="lms"))
    learner.apply(Records.from_values(0, [b'{"features":{"a":1},"label":1}']))
    learner.main.weights[:] = 1.5e147
    assert restored(learner).main.diverged == "the squared norm of the weights is 4.5e+294, beyond 1e+30"
