"""Settings compared on a sample by the service's own learner and its candidates, once with each scale.

Every event is predicted, then learned, as in a service.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import DataError
from service.learning.evaluation.advice import repeated_ids
from service.learning.evaluation.confidence_sequences import ERROR_PROBABILITY
from service.learning.evaluation.label_runs import DEVIATIONS, changes, in_runs, repeated, sorted_note
from service.learning.events.event_reader import EventReader
from service.learning.events.value_buffer import ValueBuffer
from service.learning.learner import Learner
from service.learning.records import P0, Records
from service.serving.model_info import Accuracy
from service.settings.model import ModelSettings

TRIED_RULES = ("perceptron", "logistic-delta")
SCALES: dict[str, dict[str, Any]] = {"none": {}, "standard": {"clip": 6}}
"""The settings that go with each scale."""
AVERAGE: dict[str, bool | str] = {"last": False, "mean": True, "recent": "recent"}
"""The setting `average`, by the weights that predict."""
MIN_GAIN = 0.002
"""A smaller gain in accuracy or F1 does not justify another setting."""
FOLLOWING = 0.5
"""`Trial.by_change` of always predicting the label of the event before."""
RARE_MARGIN = 100.0
"""The margin of a rare positive label: of those in docs/model.md, the one with the largest recall."""


class Trial(NamedTuple):
    """Settings, and the figures of a model with them. Figures are None if the weights diverged."""

    rule: str
    scale: str
    weights: str
    margin: float = 0.0
    """The margin of the positive label."""
    accuracy: float | None = None
    later: float | None = None
    """The accuracy in the later half of the events, when the beginning is forgotten."""
    f1: float | None = None
    """The F1 of the positive one of two labels in the later half."""
    by_change: float = 0.0
    """The mean of two accuracies in the later half: on labels like the one before, and on labels that differ from it.
    A model that only follows the last label has FOLLOWING."""
    merit: float = 0.0
    """The figure that decides: `by_change` if labels come in runs, `f1` if the positive label is rare, else `later`."""
    beats_baseline: bool = False
    """Whether the trial is shown to be better than the baseline: for accuracies, at 95 % for all trials together."""
    auc: float | None = None
    average_precision: float | None = None
    log_loss: float | None = None
    """How well the scores in the later half rank its events: see `evaluation.ranking`."""

    @property
    def name(self) -> str:
        """The name of the trial as a candidate."""
        return f"{self.rule}-{self.weights}{'-margin' if self.margin else ''}"

    @property
    def changes(self) -> int:
        """The number of settings that differ from the defaults: of equal trials, the one with fewer is simpler."""
        return (self.rule != TRIED_RULES[0]) + (self.scale != "none") + (self.weights != "last") + bool(self.margin)

    @property
    def candidate(self) -> dict[str, Any]:
        """The trial's settings as those of a candidate; with `scale` they are a model's."""
        serve = "last" if self.weights == "last" else "average"
        settings = {"rule": self.rule, "average": AVERAGE[self.weights], "serve": serve}
        return settings | ({"margin": [0.0, self.margin]} if self.margin else {})


class SampleComparison(NamedTuple):
    """All trials on the events of a sample, and the sample's records that are not events."""

    trials: list[Trial]
    baseline: Trial
    """The accuracy of always predicting the most frequent label, and the F1 of always predicting a rare label."""
    events: int
    rejected: dict[str, int]
    """Records by the reason for which they are rejected."""
    example: str
    """The detail of one of these rejections."""
    repeated: str
    """A line if many events repeat an id, else ""."""
    is_sorted: str
    """If the events are sorted by their labels, a line that says so; then the trials had them in random order."""
    previous: float
    """The accuracy of the label of the event before, in the later half."""
    in_runs: bool
    """Whether labels come in runs, and the previous label is as good as any trial."""


def compare_settings(settings: dict[str, Any], values: ValueBuffer, is_rare: bool = False) -> SampleComparison:
    """Compare rules, scales and averages; if the positive label `is_rare`, also a margin for it.

    Raises DataError if no record is an event.
    """
    identity = ModelSettings(**settings).identity()
    read = EventReader(identity).read(values)
    labels, rejects, events = read.labels, read.rejects, values[read.records]
    example = rejects[0].detail if rejects else ""
    if not events:
        raise DataError(f"no record is an event: {example or '`where` skips all'}")
    if note := sorted_note("the sample", labels):
        places = np.random.default_rng(0).permutation(len(events))
        events, labels = events[places.tolist()], labels[places]
    later = labels[len(events) // 2 :]
    positives = float((later > 0).mean())
    f1 = 2.0 * positives / (1.0 + positives) if is_rare else None
    overall, recent = _majority_share(labels), _majority_share(later)
    baseline = Trial("baseline", "", "", 0.0, overall, recent, f1, merit=recent if f1 is None else f1)
    variants = [(rule, weights, 0.0) for rule in TRIED_RULES for weights in AVERAGE]
    if is_rare:
        variants += [("perceptron", weights, RARE_MARGIN) for weights in AVERAGE]
    trials = list[Trial]()
    for scale, added in SCALES.items():
        # The model itself is the first trial; the others are its candidates.
        model, *others = (Trial(rule, scale, weights, margin) for rule, weights, margin in variants)
        candidates = {trial.name: trial.candidate for trial in others}
        scaling = settings | added | {"scale": scale}
        own = ModelSettings(**scaling, bound=False, window=len(later), candidates=candidates)
        learner = Learner(own.identity(), options=own.options())
        learner.begin({P0: 0})
        learner.reconcile()
        learner.apply(Records.from_values(0, events))
        pairs = [pair for pair in learner.main.observations.recent.pairs if "baseline" in (pair.first, pair.second)]
        better = {pair.better(ERROR_PROBABILITY / (len(SCALES) * len(variants))) for pair in pairs}
        for trial in (model, *others):
            by = learner.classifier(None if trial is model else trial.name)
            if learner.main.diverged or by.diverged:
                trials.append(trial)
                continue
            seen = by.observations
            served, f1 = Accuracy.from_classifier(by, by.averaged), seen.recent_answers.f1
            merit = (f1 if is_rare else served.recent) or 0.0
            is_shown = is_rare or ("last" if trial is model else trial.name) in better
            beats = is_shown and merit > baseline.merit + MIN_GAIN
            change = seen.recent.by_change(by.averaged).balanced_accuracy or 0.0
            trials.append(Trial(*trial[:4], served.all, served.recent, f1, change, merit, beats, *seen.ranking))
    follows = in_runs(later, max(trial.later or 0.0 for trial in trials))
    if follows:
        baseline = baseline._replace(merit=FOLLOWING)
        # The standard error of the mean of two shares is at most a quarter of that root.
        least = FOLLOWING + DEVIATIONS * 0.25 / math.sqrt(changes(later))
        trials = [each._replace(merit=each.by_change, beats_baseline=each.by_change > least) for each in trials]
    reasons, said = dict(Counter(reject.reason for reject in rejects)), repeated_ids(read.ids)
    return SampleComparison(trials, baseline, len(events), reasons, example, said, note, repeated(later), follows)


def _majority_share(labels: NDArray[np.float64]) -> float:
    """The share of the most frequent label."""
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The best trial; the simplest of those within MIN_GAIN of it."""
    highest = max(trial.merit for trial in trials)
    near = [trial for trial in trials if trial.merit >= highest - MIN_GAIN]
    return min(near, key=lambda trial: (trial.changes, -trial.merit))
