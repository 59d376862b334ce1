"""Rules, scales and averages tried on a sample, each by the learner itself: every event is predicted, then learned."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.classifier import usual_before
from service.learning.confidence import ERROR, Paired
from service.learning.confusion import Confusion
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import Records
from service.settings.model import ModelSettings

RULES = ("perceptron", "logistic-delta")
SCALES = ("none", "standard")
TIE = 0.002
"""Of accuracy, or of F1: what is better by less is not worth another setting."""
MARGIN = 100
"""For a rare label: of those in docs/model.md the one that finds most."""

Weights = Literal["last", "mean", "recent"]
"""Which weights predict."""
AVERAGE: dict[Weights, bool | str] = {"last": False, "mean": True, "recent": "recent"}
_NONE = np.zeros(0, bool)


class Trial(NamedTuple):
    """How one of them went. Accuracies are None where the weights diverged."""

    rule: str
    scale: str
    weights: Weights
    accuracy: float | None
    later: float | None
    """Over the later half of the events, when the beginning is forgotten."""
    right: NDArray[np.bool_] = _NONE
    """Of each of the later half, if it is known."""
    margin: tuple[float, float] = (0.0, 0.0)
    f1: float | None = None
    """Of the later half, of a rare label, where one is: then it is what the trial is judged by."""

    @property
    def merit(self) -> float:
        """What the best has most of."""
        return (self.later if self.f1 is None else self.f1) or 0.0

    @property
    def changes(self) -> int:
        """How many settings are not as they are by default: of equals the one with fewer is simpler."""
        margin = self.margin != (0.0, 0.0)
        return (self.rule != RULES[0]) + (self.scale != SCALES[0]) + (self.weights != "last") + margin

    @property
    def settings(self) -> dict[str, Any]:
        """The model's settings that it stands for."""
        return {
            "rule": self.rule,
            "scale": self.scale,
            "average": AVERAGE[self.weights],
            "serve": "last" if self.weights == "last" else "average",
        } | ({"margin": [*self.margin]} if any(self.margin) else {})


class Baseline(NamedTuple):
    """How often the most frequent label is right, and what became of the records."""

    accuracy: float
    later: float
    events: int
    skipped: int
    rejected: dict[str, int]
    example: str
    """Of the most frequent reason to reject a record."""
    right: NDArray[np.bool_] = _NONE
    """Who answers with the most frequent label so far, in the later half."""
    labels: int = 2
    f1: float | None = None
    """Of who always says the rare label, where one is."""

    @property
    def name(self) -> str:
        """What it answers with."""
        return f"the {'more' if self.labels == 2 else 'most'} frequent label"


def runs(rare: int | None) -> list[tuple[str, str, Weights, tuple[float, float]]]:
    """Rule, scale, average and margin of each run; `rare` is the place of a rare label, which a margin may find."""
    alike: tuple[Weights, ...] = ("recent", "mean")
    plain = [(*some, (0.0, 0.0)) for some in product(RULES, SCALES, alike)]
    if rare is None:
        return plain
    return plain + [(*some, (0, MARGIN) if rare else (MARGIN, 0)) for some in product(RULES[:1], SCALES, alike)]


def trials(
    settings: dict[str, Any], values: Sequence[bytes | None], rare: int | None = None
) -> Iterator[tuple[list[Trial], Baseline]]:
    """Each of `runs`, two trials at a time, with the sample's baseline: one has the last weights and one average."""
    for rule, scale, weights, margin in runs(rare):
        more = {"margin": margin} if any(margin) else {}
        own = ModelSettings(**settings, rule=rule, scale=scale, average=AVERAGE[weights], **more)
        learner = Learner(own.identity(), options=Options(window=max(len(values), 1)))
        learner.begin({0: 0})
        outcome = learner.apply(0, Records.of(0, values))
        recent, diverged = learner.watch.recent, outcome.diverged is not None
        kinds: dict[Weights, str] = (
            {"last": "wrong", weights: "averaged"} if weights == "recent" else {weights: "averaged"}
        )
        classes = learner.identity.classes
        truth = recent.truth.astype(np.intp) if classes > 2 else recent.flag("positive").astype(np.intp)
        later = truth[len(truth) // 2 :]
        done = []
        for kind, flag in kinds.items():
            accuracy, half, right = (None, None, _NONE) if diverged else _went(~recent.flag(flag))
            f1 = None if rare is None else 0.0 if diverged else Confusion.of(later == rare, ~right).f1 or 0.0
            done.append(Trial(rule, scale, kind, accuracy, half, right, margin, f1))
        share = None if rare is None else float(np.mean(later == rare)) if len(later) else 0.0
        usual = usual_before(np.zeros(classes, np.int64), truth)
        reasons = learner.counts.rejected
        most = max(reasons, key=lambda reason: reasons[reason], default="")
        yield (
            done,
            Baseline(
                _largest_share(truth),
                _largest_share(later),
                learner.counts.events,
                learner.counts.skipped,
                dict(reasons),
                next((reject.detail for reject in outcome.rejects if reject.reason == most), ""),
                _went(usual == truth)[2],
                classes,
                None if share is None else 2.0 * share / (1.0 + share),
            ),
        )


def _went(right: NDArray[np.bool_]) -> tuple[float, float, NDArray[np.bool_]]:
    """The share of all that are true, and of the later half; and these."""
    later = right[len(right) // 2 :]
    return (float(np.mean(right)), float(np.mean(later)), later) if len(right) else (0.0, 0.0, right)


def _largest_share(truth: NDArray[np.intp]) -> float:
    return float(np.bincount(truth).max() / len(truth)) if len(truth) else 0.0


def is_better(one: Trial | Baseline, other: Trial | Baseline, of: int) -> bool:
    """Whether the later half shows it: with 95 % for all that can be said so of each two of so many, together."""
    if len(one.right) != len(other.right):
        return False  # weights diverged
    return Paired("one", "other").then(one.right, other.right).better(ERROR / math.comb(of, 2)) == "one"


def best(done: Sequence[Trial]) -> Trial:
    """The best of the later half; of those within TIE of it the simplest."""
    highest = max(trial.merit for trial in done)
    near = [trial for trial in done if trial.merit >= highest - TIE]
    return min(near, key=lambda trial: (trial.changes, -trial.merit))
