"""Models of three labels and more: the kernel is a plain fold, bit for bit, however records are cut, and restored."""

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning.classifier import initial_weights
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from tests import formulas
from tests.checks import MODES, close, learner_of, restored, state_digest
from tests.conftest import event
from tests.fuzz.events import JudgedStream

pytestmark = pytest.mark.usefixtures("reading")

LABELS = ("a", 1, True, 2.5, "b")
RULES: tuple[dict[str, Any], ...] = ({}, {"rule": "lms"}, {"rule": "logistic-delta", "slope": 2.0})
Event = tuple[Any, int, float]
"""Features, the place of the label, the weight."""


class Oracle:
    """The texts' rule over columns and values, a list of weights for each class."""

    def __init__(self, identity: Identity) -> None:
        self.identity, self.k, self.judge = identity, identity.classes, JudgedStream(identity)
        self.columns = 1 + (identity.dimension or 0) + (2**identity.bits if identity.bits else 0)
        self.w = initial_weights(identity, 0, self.columns).T.tolist()
        self.history: list[list[list[float]]] = []
        """The weights after each event, if they are averaged."""
        self.confusion = [[0] * self.k for _ in range(self.k)]
        self.mistakes = self.updates = 0

    def learn(self, features: Any, label: int, weight: float) -> bool:
        """Learn an event; False, and no change, if its update would take the squared norm beyond 1e30."""
        judge, w = copy.deepcopy(self.judge), copy.deepcopy(self.w)
        pairs = judge.pairs(list(features.items()) if isinstance(features, dict) else features)
        new = initial_weights(self.identity, len(w[0]), self.columns + len(judge.names) - len(w[0])).T.tolist()
        w = [row + columns for row, columns in zip(w, new, strict=True)]
        s, changed = formulas.learn_classes(w, pairs, label, weight, self.identity)
        if not sum(v * v for row in w for v in row) <= 1e30:
            return False
        self.judge, self.w = judge, w
        self.confusion[label][s.index(max(s))] += 1
        self.mistakes += any(score >= s[label] for k, score in enumerate(s) if k != label)
        self.updates += changed
        if self.identity.average:
            self.history.append(w)
        return True

    @property
    def average(self) -> Any:
        """The mean of the weights after each event, or the recent one; a column begins before it comes."""
        initial = np.array(initial_weights(self.identity, 0, len(self.w[0])).T)
        history: list[Any] = []
        for weights in self.history:
            history.append(initial.copy())
            history[-1][:, : len(weights[0])] = weights
        if not self.identity.half_life:
            return np.mean(history, axis=0)
        beta, average = 0.5 ** (1 / self.identity.half_life), initial
        for w in history:
            average = beta * average + (1.0 - beta) * w
        return average

    def compare(self, learner: Learner) -> None:
        exact = self.identity.rule != "logistic-delta"
        w = np.array(self.w)
        assert close(learner.main.weights.T, w, 0.0 if exact else 1e-9)
        assert learner.main.counts.confusion == self.confusion
        assert (learner.main.counts.mistakes, learner.main.counts.updates) == (self.mistakes, self.updates)
        if self.history:
            assert close(learner.main.average, self.average.T, 1e-9 * max(1.0, abs(w).max()))


def record(identity: Identity, features: Any, label: int, weight: float) -> bytes:
    assert identity.labels is not None
    return event(features, identity.labels[label], weight=weight)


def fold(identity: Identity, events: Sequence[Event], cuts: Sequence[tuple[int, bool]] = ()) -> Learner:
    """A learner compared with the oracle after slices of these sizes, some followed by a restore, and the rest."""
    learner, oracle, offset = learner_of(identity), Oracle(identity), 0
    for size, restore in (*cuts, (len(events), False)):
        part = events[offset : offset + size] if not learner.main.diverged else []
        outcome = learner.apply(Records.from_values(offset, [record(identity, *entry) for entry in part]))
        assert all(oracle.learn(*entry) for entry in part[: outcome.consumed])
        if outcome.diverged:
            assert not oracle.learn(*part[outcome.consumed])
        offset += outcome.consumed
        oracle.compare(learner)
        if restore:
            learner = restored(learner)
            oracle.compare(learner)
    return learner


@st.composite
def streams(draw: Any) -> tuple[Identity, list[Event], list[tuple[int, bool]]]:
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    average = draw(st.sampled_from([False, True, "recent"]))
    mode = draw(st.sampled_from(list(MODES)))
    count = draw(st.integers(3, 5))
    identity = Identity(
        **draw(st.sampled_from(RULES)), **MODES[mode], features=mode, labels=LABELS[:count],
        eta=draw(st.sampled_from([1.0, 0.3, 0.01, 1e14])), start=draw(st.sampled_from(["zero", "random:7"])),
        average=average, half_life=3 if average == "recent" else None,
        **draw(st.sampled_from([{}, {}, {"scale": "standard"}, {"scale": "standard", "clip": 1.0}])),
    )  # fmt: skip
    integral, events = draw(st.booleans()), []
    for _ in range(draw(st.integers(1, 40))):
        values = [float(rng.randint(-3, 3)) if integral else rng.gauss(0, 3) for _ in range(3)]
        features: Any = values if mode == "positional" else dict(zip(rng.sample("abcdef", 3), values, strict=True))
        events.append((features, rng.randrange(count), rng.choice([1.0, 1.0, 0.3, 2.0])))
    return identity, events, draw(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=4))


@settings(max_examples=300)
@given(streams())
def test_the_fold_is_the_texts(stream: tuple[Identity, list[Event], list[tuple[int, bool]]]) -> None:
    """Weights, averages and counts are the oracle's: in slices of any size, with restores, and after divergence."""
    identity, events, cuts = stream
    learner = fold(identity, events, cuts)
    whole = learner_of(identity, [record(identity, *entry) for entry in events])
    assert state_digest(learner) == state_digest(whole)
    assert learner.main.diverged == whole.main.diverged
    truth, whole_truth = (each.main.observations.recent.truth.values for each in (learner, whole))
    assert truth.tolist() == whole_truth.tolist()


def test_a_recent_average_over_many_half_lives() -> None:
    """The age of the average is scaled back after 900 half-lives."""
    rng = random.Random(5)
    identity = Identity(features="positional", dimension=2, labels=LABELS[:3], average="recent", half_life=1)
    fold(identity, [([rng.gauss(0, 1), rng.gauss(0, 1)], rng.randrange(3), 1.0) for _ in range(1000)], [(950, True)])


def test_an_update_whose_square_is_0_is_an_update() -> None:
    identity = Identity(rule="logistic-delta", eta=0.1, features="positional", dimension=1, labels=LABELS[:3])
    learner = fold(identity, [([1000.0], 0, 1.0), ([24.0], 0, 1.0)])
    assert learner.main.counts.updates == 2


def train(*events: tuple[dict[str, float], int]) -> Learner:
    return learner_of(Identity(labels=(0, 1, 2, 3)), [event(features, label) for features, label in events])


def test_the_first_class_of_equal_scores_is_predicted_and_is_the_rival() -> None:
    """From zero all scores are equal: the rival of each class is the first, and that of the first is the second."""
    assert train(({"a": 2}, 2)).main.weights.T.tolist() == [[-1, -2], [0, 0], [1, 2], [0, 0]]
    assert train(({"a": 2}, 0)).main.weights.T.tolist() == [[1, 2], [-1, -2], [0, 0], [0, 0]]
    assert train(({"a": 2}, 0)).main.label(np.array([0.0, 0.0, 1.0, 1.0])) == 2
    learner = train(({"a": 1}, 2), ({"a": 1}, 3))
    # At the second event the scores are -2, 0, 2, 0: class 2 is the rival of class 3.
    assert learner.main.weights.T.tolist() == [[-1, -1], [0, 0], [0, 0], [1, 1]]
    assert learner.main.counts.confusion == [[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]]
    assert learner.main.counts.mistakes == 2


def test_labels_are_told_apart_as_values() -> None:
    """1 and true are two labels; 1.0 is 1."""
    learner = learner_of(Identity(labels=LABELS))
    raws = [b'{"features":{},"label":%s}' % label for label in (b'"a"', b"1", b"1.0", b"true", b"2.5", b'"b"', b"2")]
    outcome = learner.apply(Records.from_values(0, raws))
    assert [reject.reason for reject in outcome.rejects] == ["unknown-label"]
    assert [sum(row) for row in learner.main.counts.confusion] == [1, 2, 1, 1, 1]
