"""Settings compared on a sample by the service's own learner and its candidates, once with each scale.

Every event is predicted, then learned, as in a service. The trials also tell how single members are best read, and
which one tells the label alone.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import DataError
from service.learning.evaluation.advice import repeated_ids
from service.learning.evaluation.confidence_sequences import ERROR_PROBABILITY
from service.learning.evaluation.confusion import DEVIATIONS, RARE, changes, in_runs, repeated, sorted_note
from service.learning.events.event_reader import EventReader
from service.learning.events.json_values import value_in
from service.learning.events.value_formats import ValueBuffer
from service.learning.learner import Learner
from service.learning.records import P0, Records
from service.learning.rules import RULES
from service.serving.model_info import Accuracy
from service.settings.model import ModelSettings
from service.text import printable
from service.tools.suggest.field_profile import FieldProfile, number_of

RATES: dict[str, tuple[float | None, ...]] = {"perceptron": (None,), "logistic-delta": (0.1, 0.5, 2.0)}
"""The rules that are tried, each with its rates; the scores of a perceptron that begins at 0 have any rate's sign."""
SCALES: dict[str, dict[str, Any]] = {"none": {}, "standard": {"clip": 6}}
"""The settings that go with each scale."""
AVERAGE: dict[str, bool | str] = {"last": False, "mean": True, "recent": "recent"}
"""The setting `average`, by the weights that predict."""
MIN_GAIN = 0.002
"""A smaller gain does not justify another setting."""
MIN_AUC_GAIN = 0.01
"""A smaller gain in AUC does not justify less accuracy."""
MAX_ACCURACY_LOSS = 0.005
"""The most accuracy that a better F1 may cost, if accuracy does not decide."""
UNEVEN = 0.2
"""With two labels of which one is less frequent, AUC says more than accuracy."""
CHANCE_AUC = 0.5
MAX_RIVALS = 3
"""Candidates for `serve = "best"`."""
SHARES = "accuracy", "later", "f1", "by_change"
"""The members of a trial that are shares of events, or F1."""
FIGURES = {"right": "later", "F1": "f1", "AUC": "auc", "by change": "by_change"}
"""The members of a trial by the name of the figure that decides."""
FOLLOWING = 0.5
"""`Trial.by_change` of always predicting the label of the event before."""
RARE_MARGIN = 100.0
"""The margin of a rare positive label: of those in docs/model.md, the one with the largest recall."""
MAX_COMPARED = 20
"""Members whose readings are compared one by one."""
MAX_ALONE = 100
"""Members that are tried alone, the first ones."""
MAX_VALUES, BINS = 200, 100
"""Numbers of more values are put into bins of equal counts."""
NEARLY_ALWAYS, FAR_BETTER = 0.98, 0.1
"""The share of events for which one member alone tells the label, and how much more that is than all others tell."""
FEWER_ERRORS = 5
"""It also has this many times fewer errors than the baseline."""


class Trial(NamedTuple):
    """Settings, and the figures of a model with them. Figures are None if the weights diverged."""

    rule: str
    scale: str
    weights: str
    eta: float | None = None
    """None if it is the rule's default."""
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
    """The figure that decides: see `SampleComparison.figure`."""
    beats_baseline: bool = False
    """Whether the trial is shown to be better than the baseline: for accuracies, at 95 % for all trials together."""
    auc: float | None = None
    average_precision: float | None = None
    log_loss: float | None = None
    """How well the scores in the later half rank its events: see `evaluation.prequential`."""
    equals: tuple[str, ...] = ()
    """The trials with the same scale that are not shown to be better or worse, on the whole sample."""

    @property
    def name(self) -> str:
        """The name of the trial as a candidate."""
        return f"{self.rule}-{self.weights}-{self.eta or 1:g}{'-margin' if self.margin else ''}".replace(".", "_")

    @property
    def changes(self) -> int:
        """The number of settings that differ from the defaults: of equal trials, the one with fewer is simpler."""
        changed = self.rule != "perceptron", self.eta not in (None, RULES[self.rule].eta), self.scale != "none"
        return sum(changed) + (self.weights != "last") + bool(self.margin)

    @property
    def candidate(self) -> dict[str, Any]:
        """The trial's settings as those of a candidate; with `scale` they are a model's."""
        serve = "last" if self.weights == "last" else "average"
        settings = {"rule": self.rule, "average": AVERAGE[self.weights], "serve": serve}
        own: dict[str, Any] = {} if self.eta is None else {"eta": self.eta}
        return settings | own | ({"margin": [0.0, self.margin]} if self.margin else {})


QUICK_TRIALS = [Trial("logistic-delta", "", "last", 0.1), Trial("perceptron", "", "recent")]
"""A few trials, which tell one form of the features from another."""


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
    previous: Trial
    """The accuracy of the label of the event before, in the later half."""
    figure: Literal["right", "F1", "AUC", "by change"]
    """The figure that decides, in the later half: `by change` if labels come in runs and the previous label is as good
    as any trial, `AUC` if one of two labels is infrequent, `F1` if it is too rare for that, else `right`."""

    @property
    def min_gain(self) -> float:
        """A smaller gain in the figure does not justify another setting."""
        return MIN_AUC_GAIN if self.figure == "AUC" else MIN_GAIN


def compare_settings(settings: dict[str, Any], values: ValueBuffer, quick: bool = False) -> SampleComparison:
    """Compare rules, rates, scales and averages; if the positive one of two labels is rare, also a margin for it.

    `quick` compares only a few, which tell one form of the features from another. Raises DataError if no record is an
    event.
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
    is_rare = not identity.multiclass and float((labels > 0).mean()) < RARE
    f1 = 2.0 * positives / (1.0 + positives) if is_rare else None
    baseline = Trial("baseline", "", "", accuracy=_majority_share(labels), later=_majority_share(later), f1=f1)
    variants = [Trial(rule, "", weights, eta) for rule, etas in RATES.items() for eta in etas for weights in AVERAGE]
    if is_rare:
        variants += [Trial("perceptron", "", weights, margin=RARE_MARGIN) for weights in AVERAGE]
    trials = list[Trial]()
    for scale, added in [*SCALES.items()][quick:]:
        # The model itself is the first trial; the others are its candidates.
        model, *others = (trial._replace(scale=scale) for trial in (QUICK_TRIALS if quick else variants))
        candidates = {trial.name: trial.candidate for trial in others}
        names = {model: "last", **{trial: trial.name for trial in others}}
        scaling = settings | added | {"scale": scale}
        trial_settings = ModelSettings(**scaling, bound=False, window=len(later), candidates=candidates)
        learner = Learner(trial_settings.identity(), options=trial_settings.options())
        learner.begin({P0: 0})
        learner.reconcile()
        learner.apply(Records.from_values(0, events))
        pairs = [pair for pair in learner.main.observations.recent.pairs if "baseline" in (pair.first, pair.second)]
        better = {pair.better(ERROR_PROBABILITY / (len(SCALES) * len(variants))) for pair in pairs}
        equals = [{pair.first, pair.second} for pair in learner.main.observations.recent.pairs if pair.better() is None]
        for trial, own in names.items():
            by, figures = learner.classifier(None if trial is model else trial.name), dict[str, Any]()
            if not (learner.main.diverged or by.diverged):
                seen, served = by.observations, Accuracy.from_classifier(by, by.averaged)
                figures = {"accuracy": served.all, "later": served.recent, "f1": seen.recent_answers.f1}
                figures["by_change"] = seen.recent.by_change(by.averaged).balanced_accuracy or 0.0
                figures["beats_baseline"] = own in better
                figures |= seen.ranking._asdict()
                figures["equals"] = tuple(each.name for each, other in names.items() if {own, other} in equals)
            trials.append(trial._replace(**figures))
    figure: Literal["right", "F1", "AUC", "by change"] = "F1" if is_rare else "right"
    if in_runs(later, max(trial.later or 0.0 for trial in trials)):
        figure = "by change"
    elif not identity.multiclass and (baseline.accuracy or 0.0) > 1.0 - UNEVEN and any(trial.auc for trial in trials):
        figure = "AUC"
    trials, baseline = _judged(trials, baseline, figure, later)
    previous = Trial("previous label", "", "", later=repeated(later), by_change=FOLLOWING)
    reasons, said = dict(Counter(reject.reason for reject in rejects)), repeated_ids(read.ids)
    return SampleComparison(trials, baseline, len(events), reasons, example, said, note, previous, figure)


def _judged(trials: list[Trial], baseline: Trial, figure: str, later: NDArray[np.float64]) -> tuple[list[Trial], Trial]:
    """The trials and the baseline with their merit by this figure, and whether each trial is shown to be better."""
    name, gain = FIGURES[figure], MIN_GAIN
    if figure == "by change":  # the standard error of the mean of two shares is at most a quarter of the root
        baseline, gain = baseline._replace(by_change=FOLLOWING), DEVIATIONS * 0.25 / math.sqrt(changes(later))
    elif figure == "AUC":  # the standard error by Mann and Whitney
        positives, count = np.count_nonzero(later > 0), len(later)
        gain = DEVIATIONS * math.sqrt((count + 1) / (12 * positives * (count - positives)))
        baseline = baseline._replace(auc=CHANCE_AUC)
    baseline = baseline._replace(merit=getattr(baseline, name))
    judged = [trial._replace(merit=getattr(trial, name) or 0.0) for trial in trials]
    is_shown = [(each.beats_baseline or figure != "right") and each.merit > baseline.merit + gain for each in judged]
    return [each._replace(beats_baseline=is_better) for each, is_better in zip(judged, is_shown, strict=True)], baseline


def _majority_share(labels: NDArray[np.float64]) -> float:
    """The share of the most frequent label."""
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))


def best_trial(trials: Sequence[Trial], min_gain: float = MIN_GAIN) -> Trial:
    """The best trial; of those within `min_gain` of it, the most accurate on the whole sample; of these the simplest.

    If accuracy does not decide, F1 does among the trials that are nearly as accurate in the later half.
    """
    near = _near_best(trials, [trial.merit for trial in trials], min_gain)
    if all(trial.merit == trial.later for trial in near):
        near = _near_best(near, [trial.accuracy or 0.0 for trial in near])
    else:
        near = _near_best(near, [trial.later or 0.0 for trial in near], MAX_ACCURACY_LOSS)
        near = _near_best(near, [trial.f1 or 0.0 for trial in near])
    return min(near, key=lambda trial: (trial.changes, -trial.merit))


def rivals(chosen: Trial, comparison: SampleComparison) -> list[Trial]:
    """The candidates for `serve = "best"`: trials whose accuracy is as good as that of the chosen one."""
    kinds: dict[Any, Trial] = {(chosen.rule, chosen.weights): chosen}
    for trial in sorted(comparison.trials, key=lambda trial: -trial.merit):
        if trial.scale == chosen.scale and trial.name in chosen.equals and len(kinds) <= MAX_RIVALS:
            kinds.setdefault((trial.rule, trial.weights), trial)
    return [*kinds.values()][1:] if comparison.figure == "right" and chosen.beats_baseline else []


def _near_best(trials: Sequence[Trial], figures: list[float], min_gain: float = MIN_GAIN) -> list[Trial]:
    """The trials whose figure is within `min_gain` of the best."""
    return [trial for trial, figure in zip(trials, figures, strict=True) if figure >= max(figures) - min_gain]


def choose_readings(members: Sequence[FieldProfile], merit: Callable[[], float], events: int) -> None:
    """Set how each member is read: another reading than the first one must be better on these many events.

    `merit` is the merit of the best trial with the present readings.
    """
    undecided = [member for member in members if len(member.readings) > 1]
    # Two accuracies on half of the events differ by this by chance.
    gain, best = max(MIN_GAIN, 0.5 * (events / 2) ** -0.5), merit() if undecided else 0.0
    for member in undecided[:MAX_COMPARED]:
        before, member.reading = member.reading, member.readings[1]
        if (figure := merit()) > best + gain:
            best = figure
        else:
            member.reading = before


def leaks(
    rows: Sequence[Any], labels: Sequence[Any], members: Sequence[FieldProfile], compare: Callable[[], Sequence[Trial]]
) -> Iterator[str]:
    """A line for each member that alone tells the label of nearly all rows, or of far more than all others together.

    `compare` tries settings with the present readings.
    """
    majority = max(Counter(labels).values(), default=0) / max(len(labels), 1)
    kept = [each for each in members if each.reading != "left out" and not each.kinds["list"]][:MAX_ALONE]
    told = [(_lone_accuracy(rows, labels, member), member) for member in kept]
    for place, (accuracy, member) in enumerate(sorted(told, key=lambda each: -each[0])):
        than_others = ""
        if 1.0 - accuracy > min((1.0 - majority) / FEWER_ERRORS, 1.0 - NEARLY_ALWAYS):
            if place > 0 or accuracy < majority + FAR_BETTER:
                return
            reading, member.reading = member.reading, "left out"
            others = max(trial.later or 0.0 for trial in compare())
            member.reading = reading
            if accuracy < others + FAR_BETTER:
                return
            than_others = f", all others together for {others:.1%}"
        alone = f"{printable(member.name)} alone tells the label for {accuracy:.1%} of the events{than_others}"
        yield f"{alone}: is it known when you predict? If not, leave it out with event.without"


def _lone_accuracy(rows: Sequence[Any], labels: Sequence[Any], member: FieldProfile) -> float:
    """How often the most frequent label of a value is right: counted on every second row, tried on the others."""
    values = [value_in(row, member.path) for row in rows]
    if member.distinct > MAX_VALUES and (member.kind == "number" or member.reading == "number"):
        numbers = np.array([np.nan if (x := number_of(value)) is None else float(x) for value in values])
        bins = np.unique(np.nanquantile(numbers, np.linspace(0.0, 1.0, BINS + 1)))
        keys: list[Any] = np.digitize(numbers, bins).tolist()
    else:
        keys = [*map(repr, values)]
    counts = Counter(zip(keys[::2], labels[::2], strict=True))
    usual = {key: label for (key, label), _ in reversed(counts.most_common())}
    most = Counter(labels[::2]).most_common(1)[0][0]
    right = [usual.get(key, most) == label for key, label in zip(keys[1::2], labels[1::2], strict=True)]
    return float(np.mean(right)) if right else 0.0
