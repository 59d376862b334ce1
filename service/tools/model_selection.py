"""Settings compared on a sample by the service's own learner and its candidates, once with each scale.

Every event is predicted, then learned, as in a service.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

from service.learning.columns import columns_for
from service.learning.confidence import ERROR
from service.learning.confusion import Confusion
from service.learning.events.batch import Decoder
from service.learning.learner import Learner
from service.learning.records import Records
from service.serving.report import Accuracy
from service.settings.model import ModelSettings

RULES = ("perceptron", "logistic-delta")
SCALES = ("none", "standard")
TIE = 0.002
"""A gain in accuracy or F1 up to this size does not justify another setting."""
MARGIN = 100.0
"""For a rare label: of those in docs/model.md the one that finds most."""

Weights = Literal["last", "mean", "recent"]
"""Which weights predict."""
AVERAGE: dict[Weights, bool | str] = {"last": False, "mean": True, "recent": "recent"}


class Trial(NamedTuple):
    """Settings, and how they did. Accuracies are None where the weights diverged."""

    rule: str
    scale: str
    weights: Weights
    margin: tuple[float, float] = (0.0, 0.0)
    accuracy: float | None = None
    later: float | None = None
    """Over the later half of the events, when the beginning is forgotten."""
    f1: float | None = None
    """The rare label's F1 in the later half, if a label is rare: then it decides."""
    better_than: tuple[str, ...] = ()
    """The baseline, and trials of the same scale by name, if the later half shows it (95 % for all pairs together)."""

    @property
    def name(self) -> str:
        """Its name as a candidate."""
        return f"{self.rule}-{self.weights}{'-margin' * any(self.margin)}"

    @property
    def merit(self) -> float:
        """What the best has most of."""
        return (self.later if self.f1 is None else self.f1) or 0.0

    @property
    def changes(self) -> int:
        """How many settings differ from the defaults: of equals the trial with fewer is simpler."""
        return (self.rule != RULES[0]) + (self.scale != SCALES[0]) + (self.weights != "last") + any(self.margin)

    @property
    def candidate(self) -> dict[str, Any]:
        """The settings of a candidate that learns so; with `scale` they are a model's."""
        serve = "last" if self.weights == "last" else "average"
        own = {"rule": self.rule, "average": AVERAGE[self.weights], "serve": serve}
        return own | ({"margin": [*self.margin]} if any(self.margin) else {})


class Baseline(NamedTuple):
    """How often the most frequent label is right, and what became of the records."""

    accuracy: float
    later: float
    events: int
    skipped: int
    rejected: dict[str, int]
    example: str
    """The detail of a rejection, for the most frequent reason."""
    labels: int = 2
    f1: float | None = None
    """The F1 of a prediction that is always the rare label, if a label is rare."""

    @property
    def name(self) -> str:
        """What it predicts."""
        return f"the {'more' if self.labels == 2 else 'most'} frequent label"


def compare(
    settings: dict[str, Any], values: Sequence[bytes | None], rare: int | None = None
) -> tuple[list[Trial], Baseline]:
    """All trials on these records, and the baseline; `rare` is the place of a rare label, which a margin may find."""
    identity = ModelSettings(**settings).identity()
    batch, rejects = Decoder(identity, columns_for(identity)).decode(values)
    events, rejected = [values[i] for i in batch.records], Counter(reject.reason for reject in rejects)
    done = list[Trial]()
    variants = [(*some, (0.0, 0.0)) for some in product(RULES, AVERAGE)]
    if rare is not None:
        variants += [(*some, (0.0, MARGIN) if rare else (MARGIN, 0.0)) for some in product(RULES[:1], AVERAGE)]
    half, pairs = len(events) // 2, math.comb(len(SCALES) * len(variants) + 1, 2)
    for scale in SCALES:
        # The model itself is the first: its name among those that predict is `last`.
        model, *others = (Trial(rule, scale, weights, margin) for rule, weights, margin in variants)
        own = ModelSettings(
            **settings,
            scale=scale,
            bound=False,
            window=max(len(events) - half, 1),
            candidates={one.name: one.candidate for one in others},
        )
        learner = Learner(own.identity(), options=own.options())
        learner.begin({0: 0})
        learner.reconcile()
        for part in (events[:half], events[half:]):
            learner.watch.recent.pairs = []
            if not learner.diverged:
                learner.apply(0, Records.of(learner.next[0], part))
        for one in (model, *others):
            by = learner.by(None if one is model else one.name)
            lost = learner.diverged or by.diverged
            right, name = Accuracy.served(by), "last" if one is model else one.name
            f1 = None if rare is None else _of_rare(by.watch.recent.confusion(by.averaged), rare).f1 or 0.0
            worse = (
                pair.second if name == pair.first else pair.first
                for pair in learner.watch.recent.pairs
                if pair.better(ERROR / pairs) == name
            )
            better = tuple(model.name if other == "last" else other for other in worse)
            done.append(
                one._replace(f1=f1 and 0.0)
                if lost
                else one._replace(accuracy=right.all, later=right.recent, f1=f1, better_than=better)
            )
    counts, recent, share = learner.counts, learner.watch.recent, 0.0
    if rare is not None:
        of_rare = _of_rare(recent.confusion(averaged=False), rare)
        share = (of_rare.false_negatives + of_rare.true_positives) / max(sum(of_rare), 1)
    return done, Baseline(
        max(counts.by_label) / max(counts.events, 1),
        recent.baseline or 0.0,
        len(events),
        len(batch.skipped),
        dict(rejected),
        next((reject.detail for reject in rejects if reject.reason == max(rejected, key=rejected.__getitem__)), ""),
        identity.classes,
        None if rare is None else 2.0 * share / (1.0 + share),
    )


def _of_rare(confusion: Confusion, rare: int) -> Confusion:
    """The confusion with the rare label as the positive one."""
    return confusion if rare else Confusion(*confusion[::-1])


def best(done: Sequence[Trial]) -> Trial:
    """The best of the later half; of those within TIE of it the simplest."""
    highest = max(trial.merit for trial in done)
    near = [trial for trial in done if trial.merit >= highest - TIE]
    return min(near, key=lambda trial: (trial.changes, -trial.merit))
