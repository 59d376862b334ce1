"""Finite data: the texts' own numbers (rows of SEEDS.md by name), every bound, and whether anything separates."""

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import DataError
from service.learning.finite import batch_training, separability
from service.learning.finite.batch_training import Data, Pass, Separation
from service.learning.finite.separability import ZERO_TOLERANCE, Certificate, separate
from service.learning.identity import Identity
from service.learning.kernel.kernel import Vector
from service.learning.records import Records
from service.learning.weights_file import WeightsFile
from tests.checks import learner_of
from tests.conftest import event, perceptron
from tests.partitions import P0

SQUARE = [(0, 0), (0, 1), (1, 0), (1, 1)]
AND, OR, XOR = [0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 0]
MAX_PASSES = 10_000

Events = list[tuple[tuple[float, ...], int]]


def boolean(labels: list[int]) -> Events:
    return list(zip(SQUARE, labels, strict=True))


def positional(dimension: int = 2, **fields: Any) -> Identity:
    return Identity(features="positional", dimension=dimension, **fields)


def gather(identity: Identity, events: Events, start: WeightsFile | None = None) -> Data:
    return batch_training.read_data(identity, [event(list(x), y) for x, y in events], start)


def fit(identity: Identity, data: Data, **options: Any) -> tuple[list[Pass], Vector]:
    w = data.start.copy()
    return list(batch_training.train(identity, data.batch, w, **{"max_passes": MAX_PASSES, **options})), w


def norms(passes: list[Pass]) -> Vector:
    return np.concatenate([p.squared_norms for p in passes])


def augment(events: Events) -> list[tuple[Vector, float]]:
    return [(np.array([1.0, *x]), 1.0 if y else -1.0) for x, y in events]


def find_certificate(data: Data) -> Certificate:
    return separate(data.batch, data.start.shape)


def test_row_4_varners_stop_and_sign() -> None:
    """A random start, sign(0) = +1, and passes until errors <= ε or maxiter: his loop, in plain Python."""
    identity = positional(rule="error-correction", outputs="binary", tie="positive", start="random:3")
    for labels, epsilon, maxiter in ((AND, 0, 100), (OR, 0, 100), (AND, 1, 100), (XOR, 2, 100), (XOR, 0, 25)):
        data = gather(identity, boolean(labels))
        assert np.all(np.abs(data.start) < 1)
        assert data.start.all()
        beta = data.start.copy()
        history: list[int] = []
        while len(history) < maxiter and (not history or history[-1] > epsilon):
            errors = 0
            for x, y in augment(boolean(labels)):
                if (1.0 if beta @ x >= 0.0 else -1.0) != y:
                    beta += y * x
                    errors += 1
            history.append(errors)
        passes, w = fit(identity, data, tolerance=epsilon, max_passes=maxiter)
        assert [p.errors for p in passes] == history
        assert w == pytest.approx(beta)
    # s = 0 is an output of +1: right for a positive event, so no error and no update, though it is a mistake.
    zero = positional(rule="error-correction", tie="positive")
    passes, w = fit(zero, gather(zero, [((1, 1), 1)]))
    assert [(p.mistakes, p.updates, p.errors) for p in passes] == [(1, 0, 0)]
    assert w.tolist() == [0, 0, 0]


@pytest.mark.parametrize("labels", [AND, OR])
@pytest.mark.parametrize("start", [WeightsFile([0, 0], 0), WeightsFile([-2, 0.5], 7)])
def test_row_5_hus_extended_vectors_give_the_weights_of_the_rule(labels: list[int], start: WeightsFile) -> None:
    """Class C2's augmented vectors negated; ω += x where ω·x <= 0; passes until the FLAG stays down; any ω(0)."""
    identity = positional(start=start.identity)
    data = gather(identity, boolean(labels), start)
    rows = separability.extended(data.batch).toarray()
    assert rows.tolist() == [(x * y).tolist() for x, y in augment(boolean(labels))]
    omega, trace, flag = start.vector, [], True
    while flag:
        flag = False
        for x in rows:
            if omega @ x <= 0:
                omega, flag = omega + x, True
            trace.append(omega.tolist())
    passes, w = fit(identity, data, trace=True)
    assert [after.tolist() for p in passes for after in p.trace] == trace
    assert np.all(rows @ w > 0)


def test_row_6_the_boolean_and() -> None:
    """Order (0,0) (0,1) (1,0) (1,1), η = 1, zero start; bias first."""
    identity = positional()
    passes, w = fit(identity, gather(identity, boolean(AND)), trace=True)
    assert passes[0].trace[0].tolist() == [-1, 0, 0]
    assert passes[0].trace[-1].tolist() == [0, 1, 1]
    assert w.tolist() == [-4, 3, 2]
    assert [p.mistakes for p in passes] == [2, 3, 3, 2, 2, 3, 2, 1, 0]
    assert (passes[-1].number, sum(p.mistakes for p in passes)) == (9, 18)
    untraced, untraced_w = fit(identity, gather(identity, boolean(AND)))
    assert untraced_w.tolist() == w.tolist()
    assert [p[:5] for p in untraced] == [p[:5] for p in passes]


def test_row_7_the_mistake_bound_whatever_the_order() -> None:
    """k <= (R/γ)²·‖w_opt‖²: AND's last weights have R² = 3, γ = 1, ‖w_opt‖² = 29, so 87; the program's 51."""
    identity = positional()
    w_opt = np.array([-4.0, 3.0, 2.0])
    for order in itertools.permutations(boolean(AND)):
        data = gather(identity, list(order))
        separation = batch_training.find_separation(identity, data.batch, w_opt)
        assert separation == Separation(3.0, 1.0, 29.0)
        assert separation.updates == 87.0
        passes, w = fit(identity, data)
        vector: Any = find_certificate(data).vector
        bound: Any = batch_training.check_bound(identity, data, norms(passes), {"own": w, "program": vector})
        assert (bound.vector, bound.held) == ("program", True)
        assert bound.novikoff == pytest.approx(51.0)
        assert bound.updates == sum(p.mistakes for p in passes) <= 51


def test_row_8_both_sides_at_every_update() -> None:
    """n²α²/‖w0‖² <= ‖w(n)‖² <= n·β² with AND's α = 1, β² = 3, ‖w0‖² = 29, at each of its 18 updates."""
    identity = positional()
    data = gather(identity, boolean(AND))
    passes, _ = fit(identity, data, trace=True)
    states = [data.start, *(after for p in passes for after in p.trace)]
    squared_norms = [float(b @ b) for a, b in itertools.pairwise(states) if (a != b).any()]
    assert norms(passes).tolist() == squared_norms
    assert len(squared_norms) == 18
    separation: Any = batch_training.find_separation(identity, data.batch, np.array([-4.0, 3.0, 2.0]))
    low, high = separation.sides(np.arange(1.0, 19.0))
    for n, squared in enumerate(squared_norms, 1):
        assert (low[n - 1], high[n - 1]) == (n * n / 29, 3 * n)
        assert n * n / 29 <= squared <= 3 * n
    assert batch_training.sides_hold(separation, norms(passes))
    for broken in (3.1, 0.03):  # beyond one side and the other, at the first update
        assert not batch_training.sides_hold(separation, np.array([broken, *squared_norms[1:]]))


def test_row_9_hus_bound_from_any_start() -> None:
    """D² = ‖ω(0) - a·ω_opt‖², a = (β² + 1)/(2γ): AND from ω(0) = (7, -2, 0.5)."""
    start = WeightsFile([-2, 0.5], 7)
    identity = positional(start=start.identity)
    data = gather(identity, boolean(AND), start)
    passes, w = fit(identity, data)
    bound: Any = batch_training.check_bound(identity, data, norms(passes), {"own": w})
    gamma = min(y * (w @ x) for x, y in augment(boolean(AND))) / np.linalg.norm(w)
    d_squared = float(np.sum((start.vector - (3 + 1) / (2 * gamma) * w / np.linalg.norm(w)) ** 2))
    assert bound.hu == pytest.approx(d_squared)
    assert (bound.novikoff, bound.norms, bound.held) == (None, None, True)
    assert 0 < bound.updates <= d_squared


points = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.integers(-20, 20)), min_size=1, max_size=25)
ERROR_DRIVEN: list[dict[str, Any]] = [
    {}, {"rule": "error-correction", "outputs": "bipolar"}, {"rule": "error-correction", "outputs": "binary"},
    {"rule": "half-step"}, {"rule": "half-step", "tie": "positive"}, {"margin": (0.01, 0.05)},
]  # fmt: skip


def classify(u: Vector, x: Any) -> tuple[int, float]:
    """The class of a point by the weights u, of shape (columns,) or (columns, classes), and the margin to the next."""
    s = np.array([1.0, *x]) @ u
    if u.ndim == 1:
        return int(s > 0), abs(float(s))
    second, first = np.sort(s)[-2:]
    return int(np.argmax(s)), float(first - second)


@pytest.mark.parametrize("classes", [2, 4])
@given(
    points=points,
    direction=st.lists(st.integers(-9, 9), min_size=16, max_size=16),
    rule=st.sampled_from(ERROR_DRIVEN),
    eta=st.floats(0.01, 0.99),
    seed=st.none() | st.integers(0, 99),
    data=st.data(),
)
def test_bounds_hold_on_separable_data(
    classes: int, points: Any, direction: list[int], rule: Any, eta: float, seed: int | None, data: st.DataObject
) -> None:
    """Rows 7, 8 and 9 for rules 1 to 3, with margins, any η and importance weights, from zero or a random start.

    With three labels and more the one rule is the perceptron's, and from zero the bound is 2R²/γ² with ‖u‖ = 1.
    """
    several = classes > 2
    u = np.array(direction, float).reshape(4, 4) if several else np.array(direction[:4], float)
    records = []
    for x in points:
        label, margin = classify(u, x)
        if margin > 0.05 * np.linalg.norm(u) * np.linalg.norm([1.0, *x]):
            records.append(event(list(x), label, weight=data.draw(st.sampled_from([0.25, 1, 3]))))
    rule = {"labels": tuple(range(classes))} if several else rule
    identity = positional(3, eta=eta, start="zero" if seed is None else f"random:{seed}", **rule)
    training = batch_training.read_data(identity, records)
    passes, w = fit(identity, training, max_passes=20_000)
    if not records:
        return
    assert passes[-1].errors == 0, "by the theorem, training converges"
    vector: Any = separate(training.batch, training.start.shape, classes).vector
    bound: Any = batch_training.check_bound(identity, training, norms(passes), {"own": w, "program": vector, "u": u})
    assert bound.held
    assert bound.updates == sum(p.updates for p in passes) == sum(p.errors for p in passes)
    assert (bound.novikoff is None) == (bound.norms is None) == (seed is not None)
    if len(norms(passes)):
        assert norms(passes)[-1] == pytest.approx(float((w * w).sum()), rel=1e-6, abs=1e-9)
    if several:
        margins, squared = batch_training.margins(training.batch, u)
        lengths = eta * training.batch.weights
        gamma, radius = (lengths * margins).min() / np.linalg.norm(u), (lengths * np.sqrt(squared)).max()
        separation: Any = batch_training.find_separation(identity, training.batch, u)
        assert separation.updates == pytest.approx(2 * radius**2 / gamma**2)


@pytest.mark.parametrize(("label", "margin"), [(1, (0.0, 100.0)), (0, (100.0, 0.0))])
def test_bounds_count_what_a_margin_lets_an_update_add(label: int, margin: tuple[float, float]) -> None:
    """An event with ‖x‖² = 10: y·s is beyond 100 after 11 updates, one of them a mistake, and 21 are possible."""
    identity = positional(1, margin=margin)
    data = gather(identity, [((3.0,), label)])
    passes, w = fit(identity, data)
    assert (sum(p.mistakes for p in passes), passes[-1].updates, passes[-1].errors) == (1, 0, 0)
    assert norms(passes).tolist() == [10.0 * n * n for n in range(1, 12)]
    bound: Any = batch_training.check_bound(identity, data, norms(passes), {"own": w})
    assert (bound.updates, bound.held) == (11, True)
    assert bound.novikoff == pytest.approx(21.0)


def test_row_11_batch_gradient_descent_of_the_linear_unit() -> None:
    """o = w·x, E = ½ Σ (y - o)², w -= η∇E over the whole set: the formula step by step, and where it ends."""
    for labels, minimum, loss in ((AND, [-1.5, 1, 1], 0.5), (OR, [-0.5, 1, 1], 0.5), (XOR, [0, 0, 0], 2.0)):
        data = gather(positional(), boolean(labels))
        x = np.array([row for row, _ in augment(boolean(labels))])
        y = data.batch.labels
        identity = positional(rule="lms", eta=0.2)
        w = data.start.copy()
        passes = list(batch_training.descend(identity, data.batch, w, max_passes=MAX_PASSES, trace=True))
        v = np.zeros(3)
        for p in passes[:-1]:
            assert p.loss == pytest.approx(((y - x @ v) ** 2).sum() / 2)
            v -= 0.2 * (x.T @ (x @ v - y))
            assert p.trace[0] == pytest.approx(v)
        assert passes[-1].updates == 0, "the weights settled"
        assert w == pytest.approx(minimum, abs=1e-5)
        assert w == pytest.approx(np.linalg.lstsq(x, y, rcond=None)[0], abs=1e-5)
        assert passes[-1].loss == pytest.approx(loss)
        losses = [p.loss for p in passes]
        assert losses == sorted(losses, reverse=True)


@given(points=points, labels=st.data())
def test_batch_descent_never_diverges_at_its_own_rate(points: Any, labels: st.DataObject) -> None:
    data = gather(positional(3), [(x, labels.draw(st.integers(0, 1))) for x in points])
    eta = batch_training.stable_eta(data.batch)
    w = data.start.copy()
    losses = [p.loss for p in batch_training.descend(positional(3, rule="lms", eta=eta), data.batch, w, max_passes=200)]
    assert all(b <= a * (1 + 1e-9) + 1e-9 for a, b in itertools.pairwise(losses))


def test_a_rate_too_large_is_reported_to_diverge() -> None:
    identity = positional(rule="lms", eta=3.0)
    data = gather(identity, boolean(AND))
    with pytest.raises(DataError, match="eta 3 diverges"):
        fit(identity, data)
    with pytest.raises(DataError, match=r"0\.125 never does"):
        list(batch_training.descend(identity, data.batch, data.start.copy(), max_passes=9))
    repeated = gather(identity, boolean(AND) * 600)
    with pytest.raises(DataError, match=r"event \d+ in pass 1 .* beyond 1e\+30"):
        fit(identity, repeated)


def test_row_15_data_that_nothing_separates() -> None:
    """XOR: the rule never settles, the passes say so, and a combination of its events that sums to zero shows why."""
    identity = positional()
    data = gather(identity, boolean(XOR))
    passes, _ = fit(identity, data, max_passes=50)
    assert [p.mistakes for p in passes] == [4] * 50
    certificate = find_certificate(data)
    assert certificate.vector is None
    assert certificate.residual == 0.0
    assert certificate.combination == [(i, 0.25) for i in range(4)]
    assert batch_training.check_bound(identity, data, norms(passes), {"own": np.array([-4.0, 3.0, 2.0])}) is None


@pytest.mark.parametrize("classes", [2, 4])
@given(points=st.lists(st.tuples(st.tuples(*[st.integers(-3, 3)] * 2), st.integers(0, 3)), min_size=1, max_size=12))
def test_the_evidence_is_a_vector_or_a_combination(classes: int, points: Any) -> None:
    """A vector separates, checked in exact fractions; or a combination of events is zero within the tolerance.

    With classes it is made of Kesler's vectors (e_y - e_r) ⊗ (1, x), for each r that is not the event's own y.
    """
    events = [(x, k % classes) for x, k in points]
    identity = positional(labels=tuple(range(classes)))
    data, unit = gather(identity, events), np.eye(classes)
    z = np.array([y * x for x, y in augment(events)])
    if classes > 2:
        rivals = [(x, y, r) for x, y in events for r in range(classes) if r != y]
        z = np.array([np.outer([1, *x], unit[y] - unit[r]).ravel() for x, y, r in rivals])
    certificate = separate(data.batch, data.start.shape, classes)
    assert certificate.unknown is None
    if certificate.vector is not None:
        w = [Fraction(v) for v in certificate.vector.ravel()]
        assert all(sum(a * int(b) for a, b in zip(w, row, strict=True)) > 0 for row in z)
    else:
        assert certificate.combination
        assert np.abs(sum(coefficient * z[i] for i, coefficient in certificate.combination)).max() < 1e-8
        assert certificate.residual <= ZERO_TOLERANCE
        assert all(coefficient > 0 for _, coefficient in certificate.combination)
        assert sum(coefficient for _, coefficient in certificate.combination) == pytest.approx(1)


def test_columns_of_very_different_size_are_told_apart() -> None:
    """A feature of 1e-9 separates next to one of 1e9 that does not; with mixed signs nothing separates."""
    rows: Events = [((1e-9, 1e9), 1), ((-1e-9, 1e9), 0), ((2e-9, -1e9), 1), ((-2e-9, -1e9), 0)]
    certificate = find_certificate(gather(positional(), rows))
    assert certificate.vector is not None
    mixed = [*rows, ((-1e-9, 1e9), 1)]
    assert find_certificate(gather(positional(), mixed)).combination


LABELS = ("b", "a", "c")
RULES: list[dict[str, Any]] = [
    {}, {"rule": "error-correction", "outputs": "bipolar"}, {"rule": "half-step", "tie": "positive"},
    {"margin": (0.5, 2.0)}, {"rule": "lms", "eta": 0.05}, {"rule": "logistic-delta", "eta": 0.5, "slope": 2.0},
    {"labels": LABELS}, {"labels": LABELS, "rule": "lms", "eta": 0.0625},
    {"labels": LABELS, "rule": "logistic-delta", "start": "random:7"},
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("trace", [False, True])
def test_passes_are_what_a_learner_learns_of_the_same_events(rule: dict[str, Any], trace: bool) -> None:
    """Three passes over sparse named events with weights, bit for bit."""
    rng, identity = random.Random(1), Identity(**{"eta": 0.5, **rule})
    records = [
        event(
            {name: rng.randint(-3, 3) for name in rng.sample("abc", rng.randint(0, 3))},
            rng.choice(identity.labels or (-1, 1)),
            weight=rng.choice([0.5, 1.0]),
        )
        for _ in range(30)
    ]
    learner, mistakes, updates = learner_of(identity), 0, 0
    passes, w = fit(identity, batch_training.read_data(identity, records), max_passes=3, trace=trace)
    for p in passes:
        learner.apply(Records.from_values(learner.next[P0], records))
        mistakes, updates = mistakes + p.mistakes, updates + p.updates
        assert (mistakes, updates) == (learner.main.counts.mistakes, learner.main.counts.updates)
    assert w.tolist() == learner.main.weights.tolist()


def test_the_loss_of_a_pass() -> None:
    """Σ ½·(y - o)² of LMS with o = 0 and then ½, and Σ max(0, -y·s) of the perceptron with s = 0 and then 3."""
    for identity, second, loss in ((positional(rule="lms", eta=0.25), (1, 1), 0.625), (positional(), (2, 0), 3.0)):
        x, label = second
        passes, _ = fit(identity, gather(identity, [((1, 0), 1), ((x, 0), label)]), max_passes=1)
        assert passes[0].loss == loss


def test_start_weights_have_their_names_and_new_columns_begin_at_zero() -> None:
    start = WeightsFile([2.0, -1.0], 0.5, ["a", "b"])
    records: list[bytes | None] = [event({"c": 1, "b": 1}, 1), b"bad", json.dumps({"features": {}}).encode()]
    data = batch_training.read_data(Identity(start=start.identity), records, start)
    assert data.columns.names == ["a", "b", "c"]
    assert data.start.tolist() == [0.5, 2.0, -1.0, 0.0]
    assert [(reject.record, reject.reason) for reject in data.rejects] == [(1, "not-json"), (2, "missing-field")]
    assert data.batch.records == [0]


def test_a_margin_below_the_programs_sight_is_not_denied() -> None:
    """1 and 1 + 1e-12 can be told apart, though the sum of their z is zero to the solver."""
    certificate = find_certificate(gather(positional(1), [((1.0,), 1), ((1.0 + 1e-12,), 0)]))
    assert certificate.combination is None
    assert certificate.vector is not None or certificate.unknown
    # The same number under both labels is exactly inseparable.
    certificate = find_certificate(gather(positional(1), [((0.1,), 1), ((0.3,), 1), ((0.1,), 0)]))
    assert certificate.combination == [(0, 0.5), (2, 0.5)]
    assert certificate.residual == 0.0


def test_a_program_that_runs_out_of_time_says_so() -> None:
    rng = np.random.default_rng(0)
    events = [(tuple(row), int(rng.integers(2))) for row in rng.normal(size=(2000, 30))]
    data = gather(positional(30), events)
    certificate = separate(data.batch, data.start.shape, seconds=0.0)
    assert certificate.unknown is not None
    assert "ime limit" in certificate.unknown


def test_fit_prints_the_evidence_of_three_inseparable_labels(tmp_path: Path) -> None:
    """`perceptron fit` names two events with the same features and different labels."""
    rows = [({"x": 0, "y": 2}, "b"), ({"x": 2, "y": 0}, "a"), ({"x": -1, "y": -1}, "c"), ({"x": 2, "y": 0}, "c")]
    (tmp_path / "perceptron.toml").write_text(f"[model]\nlabels = {list(LABELS)}\n")
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(event(x, k) for x, k in rows))
    report = json.loads(perceptron("fit", "rows.jsonl", "--json", "--max-passes", "20", cwd=tmp_path).stdout)
    assert (report["ended"], report["separable"], report["bounds"]) == ("max-passes", False, None)
    assert report["evidence"]["combination"] == [
        {"event": "line 2", "coefficient": 0.5, "against": "c"},
        {"event": "line 4", "coefficient": 0.5, "against": "a"},
    ]
