"""Finite data of three labels and more: the passes, Kesler's vectors, their bounds, and whether anything separates."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.learning import passes, separable
from service.learning.identity import Identity
from service.learning.kernel import Vector
from service.learning.passes import Data, Pass
from service.learning.separable import separate
from service.settings.load import load
from service.tools import fit as tool
from tests.conftest import event

LABELS = ("b", "a", "c")
Points = list[tuple[tuple[int, ...], int]]


def gather(points: Points, classes: int = 3, **more: Any) -> Data:
    """Events of two numbers, of classes by their places."""
    identity = Identity(features="positional", dimension=2, labels=tuple(range(classes)), **more)
    return passes.gather(identity, [event(list(x), k) for x, k in points])


def fitted(data: Data, identity: Identity, **more: Any) -> tuple[list[Pass], Vector]:
    w = data.start.copy()
    return list(passes.fit(identity, data.batch, w, **more)), w


def kesler(points: Points, classes: int = 3) -> Vector:
    """(e_y - e_r) ⊗ (1, x) by the definition, w having a row for each column."""
    unit = np.eye(classes)
    return np.array([np.outer([1, *x], unit[y] - unit[r]).ravel() for x, y in points for r in range(classes) if r != y])


def step(rule: str, s: float, y: float) -> float:
    if rule == "lms":
        return y - s
    o = 1.0 / (1.0 + math.exp(-s))
    return ((y > 0) - o) * (o * (1.0 - o))


@pytest.mark.parametrize("rule", ["perceptron", "lms", "logistic-delta"])
@given(
    records=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("xyz"), st.integers(-3, 3), max_size=3),
            st.sampled_from(range(3)),
            st.sampled_from([0.5, 1.0]),
        ),
        min_size=1,
        max_size=8,
    ),
    trace=st.booleans(),
    start=st.sampled_from(["zero", "random:7"]),
)
def test_passes_are_the_formula(rule: str, records: Any, trace: bool, start: str) -> None:
    """Three passes over sparse named events with weights, against the rule in plain Python, bit for bit."""
    identity = Identity(rule=rule, eta=0.0625, labels=LABELS, start=start)  # with more LMS could diverge
    data = passes.gather(identity, [event(x, LABELS[k], weight=v) for x, k, v in records])
    w = data.start.T.tolist()
    names = data.columns.names
    done, found = fitted(data, identity, max_passes=3, trace=trace)
    for one in done:
        mistakes, loss, norms = 0, 0.0, []
        for features, own, weight in records:
            x = [(0, 1.0), *((names.index(n) + 1, float(v)) for n, v in features.items())]
            s = [0.0, 0.0, 0.0]
            for k in range(3):
                s[k] = w[k][0]
                for column, value in x[1:]:
                    s[k] += w[k][column] * value
            rival = max((k for k in range(3) if k != own), key=lambda k: (s[k], -k))
            mistake = not s[own] > s[rival]
            mistakes += mistake
            rate = 0.0625 * weight
            if rule == "perceptron":
                steps = [rate * mistake * ((k == own) - (k == rival)) for k in range(3)]
            else:
                steps = [rate * step(rule, s[k], 1.0 if k == own else -1.0) for k in range(3)]
            if rule == "lms":
                loss += weight * sum(((1.0 if k == own else -1.0) - s[k]) ** 2 for k in range(3)) / 2
            else:
                loss += weight * max(0.0, s[rival] - s[own])
            for k in range(3):
                for column, value in x if steps[k] else ():
                    w[k][column] += steps[k] * value
            if mistake:
                norms.append(sum(v * v for row in w for v in row))
        assert one.mistakes == mistakes
        assert one.loss == pytest.approx(loss, abs=1e-9)
        if rule == "perceptron":
            assert one.updates == one.errors == mistakes
            assert one.squared_norms == pytest.approx(norms)
    if rule == "logistic-delta":  # its exp is outside the promise of bits
        assert found.T.ravel().tolist() == pytest.approx(np.ravel(w).tolist())
    else:
        assert found.T.tolist() == w


small = st.lists(st.tuples(st.tuples(*[st.integers(-3, 3)] * 2), st.integers(0, 3)), min_size=1, max_size=12)


@given(points=small)
def test_the_evidence_is_one_or_the_other(points: Points) -> None:
    """A vector of which each event's own class has the largest score; or a combination of Kesler's that is zero."""
    data, z = gather(points, 4), kesler(points, 4)
    found = separate(data.batch, data.start.shape, 4)
    assert found.unknown is None
    if found.vector is not None:
        assert found.vector.shape == (3, 4)
        assert np.all(z @ found.vector.ravel() > 0)
        own, _ = passes.margins(data.batch, found.vector)
        assert own == pytest.approx((z @ found.vector.ravel()).reshape(-1, 3).min(axis=1))
    else:
        assert found.combination
        assert all(part > 0 for _, part in found.combination)
        assert np.abs(sum(part * z[i] for i, part in found.combination)).max() < 1e-8


@given(
    points=st.lists(st.tuples(*[st.integers(-9, 9)] * 2), min_size=1, max_size=25),
    separating=st.lists(st.integers(-9, 9), min_size=12, max_size=12),
    eta=st.floats(0.01, 2.0),
    seed=st.none() | st.integers(0, 99),
    data=st.data(),
)
def test_bounds_hold_on_separable_data(
    points: Any, separating: list[int], eta: float, seed: int | None, data: Any
) -> None:
    """From zero 2R²/γ² with ‖u‖ = 1 and both sides of ‖w(n)‖², Hu's D² from any start; ‖w‖² as it is traced."""
    u = np.array(separating, float).reshape(3, 4)
    labelled = []
    for x in points:
        low, high = np.sort(np.array([1, *x]) @ u)[-2:]
        if high - low > 0.05 * np.linalg.norm(u) * np.linalg.norm([1, *x]):
            weight = data.draw(st.sampled_from([0.25, 1, 3]))
            labelled.append(event(list(x), int(np.argmax(np.array([1, *x]) @ u)), weight=weight))
    start = "zero" if seed is None else f"random:{seed}"
    identity = Identity(features="positional", dimension=2, labels=(0, 1, 2, 3), eta=eta, start=start)
    finite = passes.gather(identity, labelled)
    if not labelled:
        return
    done, w = fitted(finite, identity, max_passes=10_000, trace=True)
    assert done[-1].errors == 0
    norms = np.concatenate([one.squared_norms for one in done])
    states = [finite.start, *(after for one in done for after in one.trace)]
    changed = [float((b * b).sum()) for a, b in itertools.pairwise(states) if (a != b).any()]
    assert norms == pytest.approx(changed)
    bounded = passes.bounded(identity, finite, norms, {"own": w, "u": u})
    assert bounded is not None
    assert bounded.held
    assert (bounded.novikoff is None) == (bounded.norms is None) == (seed is not None)
    own, squared = passes.margins(finite.batch, u)
    lengths = eta * finite.batch.weights
    gamma = float((lengths * own).min()) / float(np.linalg.norm(u))
    radius = float((lengths * np.sqrt(squared)).max())
    separation = passes.separated(identity, finite.batch, u)
    assert separation is not None
    assert separation.updates == pytest.approx(2 * radius**2 / gamma**2)
    assert len(norms) <= separation.updates_from(finite.start, u) * (1 + 1e-9)


def test_a_program_that_would_be_too_large_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gather([((i, i % 7), i % 3) for i in range(50)])
    monkeypatch.setattr(separable, "KESLER", 599)
    found = separate(data.batch, data.start.shape, 3)
    assert found.unknown == "Kesler's vectors have 600 numbers, and the linear program takes 599"
    monkeypatch.setattr(separable, "KESLER", 600)
    assert separate(data.batch, data.start.shape, 3).unknown is None


def fit(rows: list[tuple[Any, Any]], capsys: Any) -> Any:
    """What `perceptron fit --json` prints for these events."""
    settings = load(None, {"model": {"labels": LABELS}})
    asked = tool.FitOptions(tolerance=0, max_passes=20, batch=False, trace=False)
    own = tool.settings_of(settings, None, {}, asked)
    lines: list[bytes | None] = [event(x, k) for x, k in rows]
    source = tool.Source("test", [f"line {i + 1}" for i in range(len(lines))], lines)
    assert tool.fit(source, own, asked, None, True) == 0
    return json.loads(capsys.readouterr().out)


CORNERS = [({"x": 0, "y": 2}, "b"), ({"x": 2, "y": 0}, "a"), ({"x": -1, "y": -1}, "c")]


def test_what_is_printed_of_separable_data(capsys: Any) -> None:
    told = fit(CORNERS, capsys)
    assert (told["separable"], told["bounds"]["norms_between_their_sides"]) == (True, True)
    assert told["bounds"]["radius"] == pytest.approx(math.sqrt(5))
    assert told["bounds"]["updates"] <= told["bounds"]["novikoff"]
    assert [len(told["weights"]["coef"]), len(told["evidence"]["separating"])] == [3, 3]
    assert told["weights"]["classes"] == list(LABELS)


def test_what_is_printed_where_nothing_separates(capsys: Any) -> None:
    """The same event under two labels: their vectors against each other are opposite."""
    told = fit([*CORNERS, ({"x": 2, "y": 0}, "c")], capsys)
    assert (told["ended"], told["separable"], told["bounds"]) == ("max-passes", False, None)
    assert told["evidence"]["combination"] == [
        {"event": "line 2", "coefficient": 0.5, "against": "c"},
        {"event": "line 4", "coefficient": 0.5, "against": "a"},
    ]
