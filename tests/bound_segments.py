"""The live bound, compared with an oracle that implements the theorem without the service's sums.

`random_stream(seed)` runs one stream and asserts after each event, `random_stream_of_classes(seed)` one of three labels
or more. `THEOREM` has small streams on which the theorem is tight, so that an error of one event makes them fail.
"""

import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.learning.classifier import initial_weights
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import Records
from service.learning.weights_file import WeightsFile
from tests.checks import close, learner_of, restored
from tests.oracle import Fold
from tests.partitions import P0

NAMES = [f"f{i}" for i in range(5)]
RULES: tuple[dict[str, Any], ...] = (
    {"rule": "perceptron"},
    {"rule": "error-correction", "outputs": "bipolar"},
    {"rule": "error-correction", "outputs": "binary"},
    {"rule": "half-step"},
)
Features = dict[str, float]
Vector = dict[Any, float]
"""Values by feature name ("" is the bias); for classes by (name, class)."""


class Oracle:
    """The theorem's quantities for one segment, computed only from the events."""

    def __init__(self, w: Vector, u: Vector, before: int) -> None:
        """`u` is the reference before it is rounded to single precision."""
        u = _single(u)
        length = math.sqrt(sum(v * v for v in u.values()))
        self.u = {name: v / length for name, v in u.items()}
        self.start, self.before, self.updates = dict(w), before, 0
        self.squared_radius = self.squared_steps = 0.0
        self.gammas: NDArray[np.float64] | None = None
        self.hinge = np.zeros(49)
        self.rounding = 0.0
        """The rounding error of the sums u·z, whose terms may cancel each other."""
        self.min_along = math.inf
        """The minimum of u·z: the margin γ by which u separates the events, if it is above 0."""

    def add_event(self, zs: Sequence[Vector], updated: bool, slack: float) -> None:
        """Add an event, with each possible z of its update; all have the same length.

        `slack` is the most that the update may add to ‖w‖² in addition to ‖z‖²: twice its w·z at the margin.
        """
        squared = sum(v * v for v in zs[0].values())
        if self.gammas is None:
            self.gammas = max(16.0 * math.sqrt(squared), 1e-60) * 2.0 ** (-np.arange(49) / 4.0)
        self.squared_radius = max(self.squared_radius, squared + slack)
        along = min(sum(self.u.get(name, 0.0) * v for name, v in z.items()) for z in zs)
        self.min_along = min(self.min_along, along)
        self.rounding += 1e-15 * max(sum(abs(self.u.get(name, 0.0) * v) for name, v in z.items()) for z in zs)
        self.hinge += np.maximum(0.0, self.gammas - along)
        if updated:
            self.updates += 1
            self.squared_steps += squared + slack

    def compare(self, learner: Learner, k: int) -> None:
        """Assert that the service's sums are equal, `k` is within its bound and the bound is the largest possible."""
        assert learner.main.observations.bound_segment is not None
        sums, gammas = learner.main.observations.bound_segment.sums, self.gammas
        assert gammas is not None
        start_squared = sum(v * v for v in self.start.values())
        along = sum(self.u.get(name, 0.0) * v for name, v in self.start.items())
        start_norm = math.sqrt(start_squared)
        assert (sums.before, sums.updates) == (self.before, self.updates)
        assert close([sums.radius_squared, sums.squared_steps], [self.squared_radius, self.squared_steps], 1e-9)
        assert abs(sums.start_along - along) <= 1e-9 * start_norm
        assert (abs(np.array(sums.hinge) - self.hinge) <= 1e-9 * (gammas + self.hinge) + self.rounding).all()
        bound, _ = learner.main.observations.bound
        assert bound is not None
        assert k <= bound

        def possible(k: int, slack: float) -> bool:
            room = math.sqrt(start_squared + k * self.squared_radius) - along + self.hinge
            return bool((k * gammas <= room + slack * (room + k * gammas + start_norm)).all())

        remaining = bound - self.before
        assert possible(remaining, 1e-6)
        assert not possible(remaining + 1, -1e-6) or remaining > 1e6  # above that, this comparison is not exact enough


def _single(u: Vector) -> Vector:
    return {name: float(np.float32(v)) for name, v in u.items()}


def _event(features: Features | list[float], y: int, weight: float) -> bytes:
    return json.dumps({"features": features, "label": y, "weight": weight}).encode()


class Run:
    """A learner and its oracle, which learn the same events; every event is checked."""

    def __init__(
        self, identity: Identity, start: WeightsFile | None, reference: WeightsFile | None, theorem_alone: bool = False
    ) -> None:
        self.theorem_alone = theorem_alone
        self.identity, self.options = identity, Options(reference=reference)
        self.learner = learner_of(identity, (), self.options, start)
        self.names = ["", *self.learner.columns.names, *(f"f{i}" for i in range(identity.dimension or 0))]
        self.w = self._vector(self.learner.main.weights)
        self.oracle: Oracle | None = None
        if reference:
            names = ["", *(reference.names or ())]
            self.oracle = Oracle(self.w, dict(zip(names, reference.vector.tolist(), strict=True)), 0)
        self.updates = 0
        self.scale = Fold(scaled=identity.scale == "standard", clip=identity.clip or None)

    def _vector(self, array: Any) -> Vector:
        return dict(zip(self.names, array.tolist(), strict=True))

    def score(self, features: Features) -> float:
        s = self.w[""]
        for name, v in features.items():
            s += self.w.get(name, 0.0) * v
        return s

    def margin(self, features: Features, y: int) -> float:
        """y·s."""
        return y * self.score(features)

    def learn(self, raw: Features, y: int, weight: float) -> None:
        """Learn one event by the rule from the literature, and by the learner."""
        pairs, self.scale.sums = self.scale.features(raw)
        features = dict(pairs)
        for name in features:
            if name not in self.w:
                self.w[name] = float(initial_weights(self.identity, len(self.w), 1)[0])
                if self.oracle:
                    self.oracle.start[name] = self.w[name]
        s = self.score(features)
        rate = self.identity.eta * weight * y
        z = {"": rate} | {name: rate * v for name, v in features.items()}
        if self.identity.rule == "error-correction" and self.identity.outputs == "bipolar":
            z = {name: 2.0 * v for name, v in z.items()}
        positive = s > 0 or (s == 0 and self.identity.tie == "positive")
        margin = self.identity.margins[y > 0]
        updated = y * s <= margin if self.identity.rule == "perceptron" else positive != (y > 0)
        if updated:
            self.updates += 1
            for name, v in z.items():
                self.w[name] += v
        self.follow(_event(raw, y, weight), [z], updated, 2.0 * abs(rate) * margin)

    def follow(self, record: bytes, zs: Sequence[Vector], updated: bool, slack: float) -> None:
        """Let the learner and the oracle learn the event too, and compare them; see `Oracle.add_event`."""
        self.learner.apply(Records.from_values(self.learner.next[P0], [record]))
        assert self.learner.main.observations.failed_check(self.learner.main.squared_norm) is None
        limit = self.learner.main.observations.squared_norm_limit
        assert limit is not None
        assert self.learner.main.squared_norm <= limit * (1.0 + 1e-9) + 1e-120
        if self.theorem_alone:
            self.updates = self.learner.main.counts.updates
            assert self.updates <= self.bound
            return
        assert self.learner.main.counts.updates == self.updates
        if self.oracle:
            self.oracle.add_event(zs, updated, slack)
            self.oracle.compare(self.learner, self.updates)
        else:
            assert self.learner.main.observations.bound[0] is None

    @property
    def bound(self) -> int:
        """The bound of the learner, or the number of events, which is a bound too."""
        bound, _ = self.learner.main.observations.bound
        assert bound is not None
        return min(bound, self.learner.main.counts.events)

    def begin_segment(self) -> None:
        """Begin a segment whose reference is the present weights or their average, unless these are 0."""
        self.learner.main.begin_segment()
        mean = self.learner.main.average
        u = self.w if mean is None else dict(zip(self.w, mean.ravel().tolist(), strict=True))
        if not self.options.reference and math.sqrt(sum(v * v for v in _single(u).values())) > 1e-60:
            self.oracle = Oracle(self.w, u, self.updates)

    def restore(self) -> None:
        self.learner = restored(self.learner, self.options)


class ClassRun(Run):
    """A run of three labels or more, which are numbers from 0 on; weights and z are by (name, class)."""

    def __init__(self, identity: Identity, u: Any = None, theorem_alone: bool = False) -> None:
        """`u` is a reference for all columns, of shape (columns, classes)."""
        self.classes = range(identity.classes)
        super().__init__(identity, None, None, theorem_alone)
        if u is not None:
            self.set_reference(u)

    def _vector(self, array: Any) -> Vector:
        return dict(zip([(n, k) for n in self.names for k in self.classes], array.ravel().tolist(), strict=True))

    def set_reference(self, u: Any) -> None:
        """Begin a segment with this reference, which settings cannot do for classes."""
        self.updates = self.learner.main.counts.updates
        self.learner.main.observations.begin_segment(u, "given", u, self.learner.main.weights, self.updates)
        self.oracle = Oracle(self.w, self._vector(u), self.updates)

    def scores(self, features: Features) -> list[float]:
        return [sum(v * self.w.get((n, k), 0.0) for n, v in {"": 1.0, **features}.items()) for k in self.classes]

    def margin(self, features: Features, own: int) -> float:
        """The score of its own class minus the largest other score."""
        s = self.scores(features)
        return s.pop(own) - max(s)

    def learn(self, raw: Features, own: int, weight: float) -> None:
        pairs, self.scale.sums = self.scale.features(raw)
        for name in (name for name, _ in pairs if name not in self.names):
            for k, initial in enumerate(initial_weights(self.identity, len(self.names), 1)[0].tolist()):
                self.w[name, k] = initial
                if self.oracle:
                    self.oracle.start[name, k] = initial
            self.names.append(name)
        rate, x = self.identity.eta * weight, {"": 1.0, **dict(pairs)}
        s, rivals = self.scores(dict(pairs)), [k for k in self.classes if k != own]
        zs = [{(n, own): rate * v for n, v in x.items()} | {(n, k): -rate * v for n, v in x.items()} for k in rivals]
        rival = max(rivals, key=lambda k: s[k])
        if updated := s[own] <= s[rival]:
            self.updates += 1
            for key, v in zs[rivals.index(rival)].items():
                self.w[key] += v
        features: Any = list(raw.values()) if self.identity.dimension else raw
        self.follow(_event(features, own, weight), zs, updated, 0.0)


def _features(rng: random.Random, sparse: bool) -> Features:
    names = rng.sample(NAMES, rng.randint(0, 3)) if sparse else NAMES
    return {name: rng.choice([-1.0, 0.0, 1.0, rng.gauss(0, 1), rng.gauss(0, 10)]) for name in names}


def _learn_random_events(run: Run, rng: random.Random, sparse: bool, truth: Callable[[Features], list[float]]) -> int:
    """Let a run learn random events, labelled by the scores of `truth`, with restores and new segments in between.

    `truth` returns a score for each class, for two labels (0, s). Returns the number of events.
    """
    classes, labels = len(truth({})), range(run.identity.classes) if run.identity.labels else (-1, 1)
    noise, margin = rng.choice([0.0, 0.0, 0.1, 0.5]), rng.choice([0.0, 0.3])
    weights = rng.choice([(0.0, 0.0), (-1.0, 1.0), (-3.0, 6.0), (-300.0, 6.0)])
    adversarial, repeats, restarts = rng.random() < 0.4, rng.choice([0.0, 0.3]), rng.choice([0.0, 0.05])
    last_event: tuple[Features, int, float] | None = None

    def draw() -> tuple[Features, int]:
        while True:
            features = _features(rng, sparse)
            s = truth(features)
            best = s.index(max(s))
            if max(s) - sorted(s)[-2] >= margin or rng.random() < 0.1:
                return features, labels[
                    (best + rng.randint(1, classes - 1)) % classes if rng.random() < noise else best
                ]

    for _ in range(count := rng.randint(1, 60)):
        if last_event is None or rng.random() >= repeats:
            pool = [draw() for _ in range(8 if adversarial else 1)]
            features, y = min(pool, key=lambda e: run.margin(dict(run.scale.features(e[0])[0]), e[1]))
            last_event = features, y, 10.0 ** rng.uniform(*weights)
        run.learn(*last_event)
        if rng.random() < 0.1:
            run.restore()
        if rng.random() < restarts:
            run.begin_segment()
    return count


def random_stream(seed: int) -> int:
    """Run one stream of two labels, of a random kind; returns its number of events."""
    rng = random.Random(seed)
    rule = rng.choice(RULES)
    if rule["rule"] == "perceptron" and rng.random() < 0.7:
        rule = rule | {"margin": tuple(rng.choice([0.0, 10.0 ** rng.uniform(-3.0, 5.0)]) for _ in range(2))}
    identity = Identity(
        **rule,
        eta=10.0 ** rng.uniform(-3.0, -0.1) if seed % 2 else 10.0 ** rng.uniform(-3.0, 3.0),
        tie=rng.choice(["negative", "positive"]),
        start=rng.choice(["zero", "zero", f"random:{seed}", "given"]),
        average=rng.random() < 0.2,
        scale="standard" if seed % 3 == 1 else "none",
    )
    start = None
    if identity.start == "given":
        size = 10.0 ** rng.uniform(-3.0, 5.0)
        start = WeightsFile([size * rng.gauss(0, 1) for _ in NAMES[:3]], size * rng.gauss(0, 1), NAMES[:3])
    truth = {name: rng.gauss(0, 1) for name in ["", *NAMES]}
    kind = rng.choice(["its own", "its own", "any", "against", "later"])
    sign = {"its own": 1.0, "against": -1.0}.get(kind)
    u = {name: sign * v if sign else rng.gauss(0, 1) for name, v in truth.items()}
    if rng.random() < 0.2:
        u["never seen"] = 1.0
    bias = u.pop("")
    run = Run(identity, start, None if kind == "later" else WeightsFile(list(u.values()), bias, list(u)))
    return _learn_random_events(
        run, rng, rng.random() < 0.5, lambda x: [0.0, truth[""] + sum(truth[name] * v for name, v in x.items())]
    )


def random_stream_of_classes(seed: int) -> int:
    """Run one stream of three to six labels; returns its number of events."""
    rng = random.Random(f"classes of {seed}")
    classes, listed = rng.choice([3, 3, 4, 6]), rng.random() < 0.7
    identity = Identity(
        labels=tuple(range(classes)),
        eta=10.0 ** rng.uniform(-3.0, 3.0),
        start=rng.choice(["zero", "zero", f"random:{seed}"]),
        average=rng.random() < 0.2,
        scale="standard" if rng.random() < 0.3 else "none",
        features="positional" if listed else "named",
        dimension=len(NAMES) if listed else None,
    )
    truth = np.array([[rng.gauss(0, 1) for _ in range(classes)] for _ in ["", *NAMES]])
    u = rng.choice([truth, truth, np.array([[rng.gauss(0, 1) for _ in row] for row in truth]), -truth])
    run = ClassRun(identity, u if listed else None)

    def scores(x: Features) -> list[float]:
        values: list[float] = (truth[0] + sum(v * truth[1 + NAMES.index(name)] for name, v in x.items())).tolist()
        return values

    count = _learn_random_events(run, rng, not listed, scores)
    oracle = run.oracle
    radius = math.sqrt(oracle.squared_radius) if oracle else 0.0
    if oracle and not any(oracle.start.values()) and oracle.min_along > 1e-6 * max(radius, 1e-100):
        # A separable stream from zero: 2R²/γ² with ‖u‖_F = 1, where R is the norm of η·weight·x.
        assert run.updates <= oracle.squared_radius / oracle.min_along**2 * (1.0 + 1e-9)
    return count


def _theorem_run(identity: Identity, u: Features, start: WeightsFile | None = None) -> Run:
    """A run that asserts only the bound and the integrity checks, without the oracle."""
    return Run(identity, start, WeightsFile(list(u.values()), 0.0, list(u)), theorem_alone=True)


def axes() -> None:
    """One event on each of 64 axes, labels in turn, u on the diagonal: Σ u·z is nearly sqrt(S), so S is complete."""
    ys = [1 if i % 2 == 0 else -1 for i in range(64)]
    run = _theorem_run(Identity(), {f"f{i}": float(y) for i, y in enumerate(ys)})
    for i, y in enumerate(ys):
        run.learn({f"f{i}": 100.0}, y, 1.0)
    assert run.updates == 64


def rates() -> None:
    """Short steps from long opposite weights: as many updates as w(0) is steps long, for any η and weight."""
    for eta, weight in ((0.01, 1.0), (1.0, 0.01), (0.1, 0.1), (100.0, 1.0), (1.0, 100.0)):
        identity = Identity(eta=eta, start="given")
        run = _theorem_run(identity, {"a": 1.0}, WeightsFile([-50.0 * eta * weight], 0.0, ["a"]))
        for _ in range(40):
            run.learn({"a": 1.0}, 1, weight)
        assert 25 <= run.updates <= 26


def margins() -> None:
    """One event, repeated, of either label: it is an update until its y·s exceeds the margin of its label."""
    for y, margin, weight in ((1, (0.0, 100.0), 1.0), (-1, (100.0, 0.0), 1.0), (1, (0.0, 400.0), 4.0)):
        run = _theorem_run(Identity(margin=margin), {"a": float(y)})
        for _ in range(40):
            run.learn({"a": 3.0}, y, weight)
        assert (run.updates, run.learner.main.counts.mistakes) == (11, 1)


def axes_of_classes() -> None:
    """One event on each of 60 axes, labels in turn: each is a mistake with nearly equal scores."""
    u = np.zeros((61, 3))
    for i in range(60):
        u[i + 1] = [1.0 if k == i % 3 else -0.5 for k in range(3)]
    run = _class_run(60, u)
    for i in range(60):
        run.learn({f"f{j}": 100.0 * (j == i) for j in range(60)}, i % 3, 1.0)
    assert run.updates == 60


def contradiction_of_classes() -> None:
    """One event with each label in turn: only the contributions of the other labels to Ξ allow its updates."""
    run = _class_run(1, np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0]]))
    for i in range(12):
        run.learn({"f0": 10.0}, i % 3, 1.0)
    assert run.updates == 12


def rates_of_classes() -> None:
    """Short steps after one long step in the opposite direction: as many updates as it is steps long, for any η."""
    for eta, weight in ((0.01, 1.0), (1.0, 0.01), (0.1, 0.1), (100.0, 1.0), (1.0, 100.0)):
        u = np.array([[0.0, 0.0, 0.0], [-1.0, 1.0, 0.0]])
        run = _class_run(1, u, eta)
        run.learn({"f0": 1.0}, 0, 50.0 * weight)
        run.set_reference(u)
        for _ in range(60):
            run.learn({"f0": 1.0}, 1, weight)
        assert 50 <= run.updates <= 53


def _class_run(dimension: int, u: NDArray[np.float64], eta: float = 1.0) -> ClassRun:
    labels = tuple(range(u.shape[1]))
    return ClassRun(Identity(labels=labels, eta=eta, features="positional", dimension=dimension), u, True)


Check = Callable[[], None]
THEOREM: tuple[Check, ...] = (axes, rates, margins, axes_of_classes, contradiction_of_classes, rates_of_classes)
