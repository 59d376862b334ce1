"""Rules, scales and averages tried on a sample, each by the learner itself: every event is predicted, then learned."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.classifier import usual_before
from service.learning.confidence import ERROR, Paired
from service.learning.learner import Learner
from service.learning.options import Options
from service.settings.model import ModelSettings

RULES = ("perceptron", "logistic-delta")
SCALES = ("none", "standard")
TIE = 0.002
"""Of accuracy: what is better by less is not worth another setting."""

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

    @property
    def changes(self) -> int:
        """How many settings are not as they are by default: of equals the one with fewer is simpler."""
        return (self.rule != RULES[0]) + (self.scale != SCALES[0]) + (self.weights != "last")

    @property
    def settings(self) -> dict[str, Any]:
        """The model's settings that it stands for."""
        return {
            "rule": self.rule,
            "scale": self.scale,
            "average": AVERAGE[self.weights],
            "serve": "last" if self.weights == "last" else "average",
        }


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

    @property
    def name(self) -> str:
        """What it answers with."""
        return f"the {'more' if self.labels == 2 else 'most'} frequent label"


def trials(settings: dict[str, Any], values: Sequence[bytes | None]) -> Iterator[tuple[list[Trial], Baseline]]:
    """Each rule with each scale, two or three trials at a time, with the sample's baseline.

    One run has the last weights and one average.
    """
    for rule, scale, average in product(RULES, SCALES, ("recent", "mean")):
        weights: Weights = average  # type: ignore[assignment]
        own = ModelSettings(**settings, rule=rule, scale=scale, average=AVERAGE[weights])
        learner = Learner(own.identity(), options=Options(window=max(len(values), 1)))
        learner.begin({0: 0})
        outcome = learner.apply(0, 0, values)
        recent, diverged = learner.watch.recent, outcome.diverged is not None
        kinds: dict[Weights, str] = (
            {"last": "wrong", weights: "averaged"} if weights == "recent" else {weights: "averaged"}
        )
        done = [
            Trial(rule, scale, kind, *((None, None) if diverged else _went(~recent.flag(flag))))
            for kind, flag in kinds.items()
        ]
        classes = learner.identity.classes
        truth = recent.truth.astype(np.intp) if classes > 2 else recent.flag("positive").astype(np.intp)
        usual = usual_before(np.zeros(classes, np.int64), truth)
        reasons = learner.counts.rejected
        most = max(reasons, key=lambda reason: reasons[reason], default="")
        yield (
            done,
            Baseline(
                _largest_share(truth),
                _largest_share(truth[len(truth) // 2 :]),
                learner.counts.events,
                learner.counts.skipped,
                dict(reasons),
                next((reject.detail for reject in outcome.rejects if reject.reason == most), ""),
                _went(usual == truth)[2],
                classes,
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
    """The most accurate in the later half; of those within TIE of it the simplest."""
    highest = max(trial.later or 0.0 for trial in done)
    near = [trial for trial in done if (trial.later or 0.0) >= highest - TIE]
    return min(near, key=lambda trial: (trial.changes, -(trial.later or 0.0)))
