"""Statements that hold for every rule, in every feature mode, with every convention: a specification.

Each statement in `STATEMENTS` is a function of one `Model` that asserts it. `tests/unit/learning/test_rules.py` crosses
them with all models of `models`.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from service.learning.classifier import initial_weights
from service.learning.columns.columns import Batch, columns_for
from service.learning.events.event_reader import EventReader
from service.learning.events.read_events import ReadEvents
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import DEFAULT, Options
from service.learning.records import Records
from service.learning.weights_file import WeightsFile
from service.snapshots import blobs
from service.snapshots import head as heads
from service.snapshots.content import observations, restore_learner, snapshot_content
from tests import formulas
from tests.kinds import BAD_NAMED, BAD_POSITIONAL
from tests.partitions import P0

NAMES = ("a", "b", "c", "d", "e", "f")
MODES: dict[str, dict[str, Any]] = {"named": {}, "positional": {"dimension": 3}, "hashed": {"bits": 2}}
RULES: dict[str, dict[str, Any]] = {
    "perceptron": {},
    "perceptron with margins": {"margin": (0.125, 0.5)},
    "error-correction bipolar": {"rule": "error-correction", "outputs": "bipolar"},
    "error-correction binary": {"rule": "error-correction", "outputs": "binary"},
    "half-step": {"rule": "half-step"},
    "lms": {"rule": "lms"},
    "logistic-delta": {"rule": "logistic-delta", "slope": 2.0},
    "threshold-unit": {"rule": "threshold-unit"},
}


def decode(identity: Identity, values: Sequence[bytes | None]) -> tuple[Batch, ReadEvents]:
    """These records as the first of a model: with columns, and as they are read."""
    events = EventReader(identity).read(values)
    return columns_for(identity).decode(events), events


def learner_of(
    identity: Identity,
    records: Sequence[bytes | None] = (),
    options: Options = DEFAULT,
    start: WeightsFile | None = None,
) -> Learner:
    """A learner, with its candidates, that has learned these records of partition 0 as one slice."""
    learner = Learner(identity, options=options, start=start)
    learner.begin({P0: 0})
    learner.reconcile()
    learner.apply(Records.from_values(0, records))
    return learner


class Event(NamedTuple):
    """An event before it is a record."""

    features: Any
    y: int
    weight: float

    @property
    def record(self) -> bytes:
        return json.dumps({"features": self.features, "label": self.y, "weight": self.weight}).encode()


class Model(NamedTuple):
    """An identity, and its initial weights if they are set by settings."""

    identity: Identity
    start: WeightsFile | None

    def with_changes(self, start: WeightsFile | None = None, **changes: Any) -> "Model":
        """A copy with other initial weights, or with other members of the identity."""
        start = start or self.start
        changes |= {"start": start.identity} if start else {}
        return Model(msgspec.structs.replace(self.identity, **changes), start)

    def learner(self, options: Options = DEFAULT) -> Learner:
        return learner_of(self.identity, (), options, self.start)

    def learner_after(self, events: Sequence[Event], options: Options = DEFAULT) -> Learner:
        """A learner that has learned the events as one slice."""
        return learner_of(self.identity, [event.record for event in events], options, self.start)

    def events(self, count: int = 60) -> list[Event]:
        """Events of the model's feature mode, most of them sparse, some repeated."""
        rng = random.Random(7)
        events: list[Event] = []
        for _ in range(count):
            names = rng.sample(NAMES, rng.randint(0, 4))
            values = [rng.uniform(-1.0, 1.0) for _ in names or NAMES]
            dense = self.identity.features == "positional"
            features: Any = values[:3] + [0.0] * (3 - len(values)) if dense else dict(zip(names, values, strict=False))
            weight = rng.choice([0.1, 0.3, 1.0])
            repeat = rng.random() >= 0.9 and bool(events)
            events.append(events[-1] if repeat else Event(features, rng.choice([-1, 1]), weight))
        return events


def models(rule: str, mode: str) -> Iterator[Model]:
    """Each tie × start × average of a rule in a feature mode; for a threshold unit only the allowed settings."""
    count = {"named": 2, "positional": 3, "hashed": 4}[mode]
    weights_file = WeightsFile([0.5, -2.0, 1.0, -0.25][:count], -0.5, ["b", "d"] if mode == "named" else None)
    unit = rule == "threshold-unit"
    averages: tuple[bool | Literal["recent"], ...] = (False, True, "recent")
    for tie, start, average in product(("negative", "positive"), ("zero", "random:7", "given"), averages):
        if unit and (start != "given" or average):
            continue
        settings: dict[str, Any] = {"eta": 0.25, "tie": tie, "average": average, "features": mode, "start": start}
        settings["half_life"] = 3 if average == "recent" else None
        model = Model(Identity(**RULES[rule] | MODES[mode] | settings), None)
        yield model.with_changes(weights_file) if start == "given" else model


def state_digest(learner: Learner) -> str:
    """The parts of a state that equal states share."""
    return snapshot_content(learner).head.state_digest


def restored(learner: Learner, options: Options = DEFAULT) -> Learner:
    """The learner that a reader restores from this learner's snapshot."""
    content = snapshot_content(learner)
    following = {p: heads.Position(offset) for p, offset in learner.next.items()}
    source = heads.TopicIdentity("c")
    head = msgspec.structs.replace(content.head, model="m", version=1, source=source, next=following)
    data = head.encode()
    return restore_learner(heads.Head.decode(data, blobs.digest(data)), content.blobs, options)[1]()


def close(ours: Any, theirs: Any, tolerance: float = 1e-12) -> bool:
    """Whether values are equal up to a tolerance, relative above 1 and absolute below; exactly equal if it is 0."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return bool((abs(ours - theirs) <= tolerance * np.maximum(1.0, abs(theirs))).all())


def learn_one_by_one(model: Model, events: Sequence[Event]) -> Iterator[tuple[Event, float, Learner]]:
    """Yield each event, its score before it was learned, and the learner that has just learned it."""
    learner = model.learner()
    for offset, event in enumerate(events):
        weights = learner.main.weights.tolist()
        learner.apply(Records.from_values(offset, [event.record]))
        new = initial_weights(model.identity, len(weights), len(learner.columns) - len(weights)).tolist()
        pairs, _ = learner.columns.find(event.features)
        yield event, formulas.score(weights + new, pairs), learner


def batches(model: Model) -> None:
    """The state has the same bits, and the recent window the same figures, for any division of records into slices."""
    events = model.events()
    one_slice = model.learner_after(events)
    for size in (1, 7):
        many_slices = model.learner()
        for offset in range(0, len(events), size):
            many_slices.apply(Records.from_values(offset, [event.record for event in events[offset : offset + size]]))
        assert state_digest(many_slices) == state_digest(one_slice)
        ours, theirs = many_slices.main.observations.recent, one_slice.main.observations.recent
        assert (ours.accuracy, ours.margins, ours.pairs) == (theirs.accuracy, theirs.margins, theirs.pairs)
        # The initial weights of new columns are added slice by slice, so this sum, not a part of the state, may round.
        assert close(many_slices.main.observations.squared_steps, one_slice.main.observations.squared_steps)


def restores(model: Model) -> None:
    """A restore in the middle changes neither state nor observations; only loss and margins become a summary."""
    records = [event.record for event in model.events()]
    expected, resumed = model.learner(), model.learner()
    expected.apply(Records.from_values(0, records))
    resumed.apply(Records.from_values(0, records[:31]))
    resumed = restored(resumed)
    resumed.apply(Records.from_values(31, records[31:]))
    assert state_digest(resumed) == state_digest(expected)
    ours, theirs = (msgspec.structs.replace(observations(each.main), margins=None) for each in (resumed, expected))
    assert close(ours.squared_steps, theirs.squared_steps)
    assert msgspec.structs.replace(ours, squared_steps=0.0) == msgspec.structs.replace(theirs, squared_steps=0.0)


def formula(model: Model) -> None:
    """The compiled loop equals the formula, step by step and bit by bit; for the logistic rule's exp within 1e-12."""
    tolerance = 1e-12 if model.identity.rule == "logistic-delta" else 0.0
    columns = columns_for(model.identity)
    columns.extend((model.start.names if model.start else None) or ())
    w = model.start.vector.tolist() if model.start else initial_weights(model.identity, 0, len(columns)).tolist()
    for event, _, learner in learn_one_by_one(model, model.events()):
        for name in event.features if model.identity.features == "named" else ():
            if columns.column_of(name) is None:
                columns.extend([name])
                w += initial_weights(model.identity, len(w), 1).tolist()
        pairs, _ = columns.find(event.features)
        formulas.learn(w, pairs, event.y, event.weight, model.identity)
        assert close(learner.main.weights, w, tolerance)
        assert close(learner.score(event.features, learner.main)[0], formulas.score(w, pairs), tolerance)


def rejection(model: Model) -> None:
    """A rejected event changes only the count of its reason, and the offset."""
    kinds = BAD_POSITIONAL if model.identity.features == "positional" else BAD_NAMED
    bad = [raw for raw, _ in kinds if raw is None or len(raw) < 1000]
    records: list[bytes | None] = [event.record for event in model.events()]
    plain, mixed = model.learner(), model.learner()
    plain.apply(Records.from_values(0, records))
    mixed.apply(
        Records.from_values(0, [raw for i, record in enumerate(records) for raw in (bad[i % len(bad)], record)])
    )
    assert mixed.next == {P0: 2 * len(records)}
    assert sum(mixed.main.counts.rejected.values()) == len(records)
    assert msgspec.structs.replace(mixed.main.counts, rejected={}) == plain.main.counts
    assert mixed.columns.names == plain.columns.names
    assert observations(mixed.main) == observations(plain.main)
    for name, array in plain.arrays.items():
        assert mixed.arrays[name].tobytes() == array.tobytes()


def counts(model: Model) -> None:
    """A mistake is y·s <= 0; an update changes weights, up to the margin; a wrong prediction has the other label."""
    rule, tie = model.identity.rule, model.identity.tie
    mistakes = updates = wrong = near = 0
    w, learner = model.learner().main.weights.copy(), model.learner()
    for event, s, learner in learn_one_by_one(model, model.events()):
        predicted = 1 if s > 0 or (s == 0 and tie == "positive") else -1
        mistakes += event.y * s <= 0
        near += event.y * s <= model.identity.margins[event.y > 0]
        wrong += predicted != event.y
        updates += bool((learner.main.weights[: len(w)] != w).any())
        w = learner.main.weights.copy()
    assert (learner.main.counts.mistakes, learner.main.counts.updates) == (mistakes, updates)
    assert (learner.main.counts.wrong_predictions, learner.main.counts.events) == (wrong, 60)
    by_rule = {"perceptron": near, "error-correction": wrong, "half-step": wrong, "threshold-unit": 0}
    assert updates == by_rule.get(rule, 60)


def average(model: Model) -> None:
    """The average equals its formula over the weights after each event, is served if set, and changes no learning."""
    if not model.identity.average:
        assert model.learner().main.average is None
        return
    events = model.events(40)
    weights = [learner.main.weights.tolist() for _, _, learner in learn_one_by_one(model, events)]
    width = len(weights[-1])
    # A column that does not exist yet has its future initial weight.
    padded = [w + initial_weights(model.identity, len(w), width - len(w)).tolist() for w in weights]
    if not model.identity.half_life:
        mean = [float(sum(map(Fraction, column), Fraction(0)) / len(events)) for column in zip(*padded, strict=True)]
    else:
        initial = model.learner().main.weights.tolist()
        mean = initial + initial_weights(model.identity, len(initial), width - len(initial)).tolist()
        beta = 0.5 ** (1.0 / model.identity.half_life)
        for w in padded:
            mean = [beta * e + (1.0 - beta) * v for e, v in zip(mean, w, strict=True)]
    learner = model.learner_after(events, DEFAULT._replace(serve="average"))
    assert close(learner.main.average, mean, 1e-9)
    assert (
        learner.main.weights.tolist() == model.with_changes(average=False).learner_after(events).main.weights.tolist()
    )
    for event in events:
        pairs, _ = learner.columns.find(event.features)
        assert close(learner.score(event.features, learner.main)[0], formulas.score(mean, pairs), 1e-9)


def quality(model: Model) -> None:
    """Over the recent window: the mean of max(0, -y·s), and quantiles of y·s/‖x‖; without a window no figures."""
    assert model.learner().main.observations.recent.margins is None
    products, margins = [], []
    for event, s, learner in learn_one_by_one(model, model.events()):
        pairs, _ = learner.columns.find(event.features)
        products.append(event.y * s)
        margins.append(event.y * s / (1.0 + sum(value * value for _, value in pairs)) ** 0.5)
    figures = model.learner_after(model.events(), DEFAULT._replace(window=17)).main.observations.recent.margins
    assert figures is not None
    assert close(figures.loss, sum(max(0.0, -product) for product in products[-17:]) / 17)
    assert close(figures.quantiles, np.quantile(margins[-17:], [0.1, 0.5, 0.9]))


Statement = Callable[[Model], None]
STATEMENTS: tuple[Statement, ...] = (batches, restores, formula, rejection, counts, average, quality)
