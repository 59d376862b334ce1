"""The fold: the kernel is the formula, and neither slices, restores nor rejected records change the state."""

import json
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import OutOfOrder
from service.learning import kernel
from service.learning.events.batch import Batch
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import Records
from service.learning.start import initial
from service.snapshots import head as heads
from tests import formulas
from tests.checks import restored, state_digest
from tests.conftest import event
from tests.kinds import BAD_NAMED
from tests.oracle import Fold

pytestmark = pytest.mark.usefixtures("reading")

IDENTITIES = [
    Identity(eta=0.3),
    Identity(max_columns=3),
    Identity(features="positional", dimension=3),
    Identity(features="hashed", bits=2),
]


OPTIONS = Options(window=10)


def begun(identity: Identity) -> Learner:
    learner = Learner(identity, options=OPTIONS)
    learner.begin({0: 0})
    return learner


numbers = st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 5e-324])
named = st.dictionaries(st.sampled_from([f"n{i}" for i in range(8)]), numbers, max_size=5)
listed = st.lists(numbers, min_size=3, max_size=3)


def events(features: Any) -> Any:
    good = st.fixed_dictionaries(
        {"features": features, "label": st.sampled_from([0, 1])}, optional={"weight": st.floats(1e-3, 1e3)}
    ).map(lambda e: json.dumps(e).encode())
    bad = st.sampled_from([raw for raw, _ in BAD_NAMED if raw is None or len(raw) < 1000])
    return st.lists(good | good | good | bad, max_size=40)


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda i: i.features)
@settings(max_examples=150)
@given(data=st.data())
def test_cuts_and_restores_do_not_change_the_state(identity: Identity, data: Any) -> None:
    """Batches cut in any way, with a restore after any of them, give the same state digest."""
    records = data.draw(events(listed if identity.features == "positional" else named))
    whole = begun(identity)
    whole.apply(0, Records.of(0, records))
    cut = begun(identity)
    at = 0
    while at < len(records):
        size = data.draw(st.integers(1, len(records) - at))
        outcome = cut.apply(0, Records.of(at, records[at : at + size]))
        at += outcome.consumed
        if data.draw(st.booleans()):
            cut = restored(cut, OPTIONS)
        if outcome.diverged:
            break
    assert state_digest(cut) == state_digest(whole)
    assert cut.diverged == whole.diverged
    # Of loss and margins a snapshot keeps a summary only.
    observed = (msgspec.structs.replace(heads.observations(learner), margins=None) for learner in (cut, whole))
    assert next(observed) == next(observed)


@settings(max_examples=150)
@given(records=events(named), margins=st.sampled_from([(0.0, 0.0), (0.0, 2.5), (0.7, 0.1)]))
def test_the_state_is_the_oracles_fold(records: list[bytes | None], margins: tuple[float, float]) -> None:
    bad = {raw for raw, _ in BAD_NAMED}
    learner = begun(Identity(eta=0.3, margin=margins))
    consumed = learner.apply(0, Records.of(0, records)).consumed
    fold = Fold(eta=0.3, margins=margins).fold(raw for raw in records if raw is not None and raw not in bad)
    assert learner.columns.names == list(fold.w)
    assert learner.weights.tolist() == fold.vector
    counts = learner.counts
    assert (counts.events, counts.mistakes, counts.wrong_predictions) == (fold.events, fold.mistakes, fold.wrong)
    assert counts.updates == fold.updates
    assert learner.watch.squared_norm_limit == fold.limit
    assert sum(counts.rejected.values()) == sum(raw in bad for raw in records[:consumed])
    assert learner.next == {0: consumed}
    assert fold.diverged == (consumed < len(records)) == bool(learner.diverged)


def test_offsets_that_do_not_go_on_are_refused() -> None:
    learner = begun(Identity())
    for partition, first in ((0, 1), (1, 0)):
        with pytest.raises(OutOfOrder):
            learner.apply(partition, Records.of(first, [b"{}"]))
    learner.apply(0, Records.of(0, [b"{}"]))
    with pytest.raises(OutOfOrder):
        learner.apply(0, Records.of(0, [b"{}"]))


def test_a_model_that_diverges_stops_before_the_event() -> None:
    """An update that takes ‖w‖² beyond its limit is not applied, and nothing after it is learned, named or counted."""
    learner = begun(Identity())
    learner.apply(0, Records.of(0, [b'{"features":{"a":1},"label":1}']))
    before = learner.weights.copy()
    records = [b"bad", b'{"features":{"a":-1e16,"b":1},"label":1}', b'{"features":{"c":1},"label":1}', b"bad"]
    outcome = learner.apply(0, Records.of(1, records))
    assert outcome.diverged == learner.diverged
    assert learner.diverged == (
        "rule perceptron with eta 1: the update at offset 2 of partition 0 takes the squared norm of the weights "
        "beyond 1e+30"
    )
    assert outcome.consumed == 1
    assert [r.record for r in outcome.rejects] == [0]
    assert learner.next == {0: 2}
    assert learner.columns.names == ["a"]
    assert learner.weights.tolist() == before.tolist()
    assert learner.counts.events == 1
    assert learner.counts.rejected == {"not-json": 1}


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
    w, at = initial(start, 0, 100).tolist(), 0
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
        learner, next_ = begun(identity), 0
        while not learner.diverged and next_ < len(records):
            next_ += learner.apply(0, Records.of(next_, records[next_ : next_ + size])).consumed
            learner = restored(learner, OPTIONS) if size == 7 else learner
        assert learner.next == {0: at}
        assert learner.weights.tolist() == w[: len(learner.columns)]
        assert learner.squared_norm <= 1e30
        assert np.isfinite([learner.watch.squared_steps, *learner.arrays["late"], *learner.served]).all()


def test_a_snapshot_beyond_the_limit_is_one_that_diverged() -> None:
    """An older release could save such a state: it is restored, says so, and learns nothing more."""
    learner = begun(Identity(rule="lms"))
    learner.apply(0, Records.of(0, [b'{"features":{"a":1},"label":1}']))
    learner.weights[:] = 1.5e147
    assert restored(learner).diverged == "the squared norm of the weights is 4.5e+294, beyond 1e+30"


def test_runs_record_the_order_across_partitions() -> None:
    learner = Learner(Identity())
    learner.begin({0: 0, 1: 5})
    raw = b'{"features":{},"label":1}'
    for partition, first, n in ((0, 0, 2), (0, 2, 1), (1, 5, 2), (0, 3, 1)):
        learner.apply(partition, Records.of(first, [raw] * n))
    assert learner.runs == [(0, 0, 3), (1, 5, 7), (0, 3, 4)]
    assert learner.covered == {0: [(0, 4)], 1: [(5, 7)]}


def test_the_recent_average_over_many_half_lives() -> None:
    """It is the formula's although its age is scaled back after 900 half-lives, in slices of any size."""
    rng = random.Random(4)
    rows = [([rng.gauss(0, 1), rng.gauss(0, 1)], rng.choice((-1, 1))) for _ in range(2000)]
    records = [event(*row) for row in rows]
    identity = Identity(features="positional", dimension=2, average="recent", half_life=1)
    plain, mean, means = begun(Identity(features="positional", dimension=2)), [0.0] * 3, []
    for i, record in enumerate(records):
        plain.apply(0, Records.of(i, [record]))
        mean = [0.5 * e + 0.5 * w for e, w in zip(mean, plain.weights.tolist(), strict=True)]
        means.append(mean)
    states = set()
    for size in (2000, 900, 7):
        learner = begun(identity)
        for at in range(0, 2000, size):
            learner.apply(0, Records.of(at, records[at : at + size]))
            learner = restored(learner, OPTIONS)
            assert learner.average is not None
            seen = learner.counts.events
            assert learner.average.tolist() == pytest.approx(means[seen - 1], rel=1e-9, abs=1e-9)
        states.add(state_digest(learner))
    assert len(states) == 1


@pytest.mark.parametrize("average", [True, "recent"])
@pytest.mark.parametrize(("size", "eta", "streams", "count"), [(1.0, 1.0, 100, 30), (1e30, 1e-20, 1, 1000)])
def test_the_average_is_counted_as_it_answered(average: Any, size: float, eta: float, streams: int, count: int) -> None:
    """Small whole numbers often give a score of 0; sums of large ones overflow unless the age is scaled back."""
    rng = random.Random(6)
    half_life = 1 if average == "recent" else None
    identity = Identity(features="positional", dimension=3, average=average, half_life=half_life, eta=eta)
    ties = 0
    for _ in range(streams):
        learner, missed = Learner(identity, options=Options(serve="average")), []
        learner.begin({0: 0})
        for i in range(count):
            features, label = [size * rng.randint(-1, 1) for _ in range(3)], rng.choice((-1, 1))
            score: Any = learner.score(features)[0]
            missed.append(learner.label(score) != label)
            ties += abs(score) < 1e-9
            learner.apply(0, Records.of(i, [event(features, label)]))
        assert learner.watch.recent.flag("averaged").tolist() == missed
        assert 0 < sum(missed) < count
    assert ties > 30 * (size == 1.0)


@pytest.mark.parametrize("average", [False, True])
def test_columns_far_from_each_other_learn_as_neighbours_do(average: bool) -> None:
    """The bits are the same although other loops, which prefetch, learn the columns of a large state."""
    rng, events, nonzeros, apart = np.random.default_rng(3), 50, 60, 1000
    columns = np.concatenate([1 + rng.choice(300, nonzeros, replace=False) for _ in range(events)]).astype(np.uint32)
    starts, labels = np.uint64(nonzeros) * np.arange(events + 1, dtype=np.uint64), rng.choice([-1.0, 1.0], events)
    batch = Batch(starts, columns, rng.normal(size=len(columns)), labels, np.ones(events))
    near, far = np.zeros((301, 1 + average)), np.zeros((300 * apart + 1, 1 + average))
    nearby, distant = rng.normal(size=301).astype(np.float32), np.zeros(len(far), np.float32)
    distant[::apart] = nearby
    identity = Identity(average=average)
    ours = kernel.learn(identity, near, batch, reach=0.0, reference=nearby)
    batch = batch._replace(columns=columns * np.uint32(apart))
    theirs = kernel.learn(identity, far, batch, reach=0.0, reference=distant)
    assert 0 < np.count_nonzero(ours.steps) < events
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(own, other)
    np.testing.assert_array_equal(near, far[::apart])
    assert not np.delete(far, np.s_[::apart], axis=0).any()
