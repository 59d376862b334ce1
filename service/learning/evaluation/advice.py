"""Advice for a model whose figures show that it is of little use: settings to try."""

from collections.abc import Iterable

from service.learning.classifier import Classifier
from service.learning.evaluation.label_runs import CURE, MAX_LABELS, in_runs, repeated
from service.learning.identity import as_text
from service.learning.learner import Learner
from service.learning.options import MODEL_ITSELF
from service.text import printable

MIN_RECORDS = 10
"""The advice about rejections or recall needs at least this many records or missed events."""
MIN_REPEATED_SHARE = 0.02
RESET_HINT = "(for which `perceptron reset` has the log learned again)"


def advice(learner: Learner) -> dict[str, str]:
    """A line for each thing that is wrong with the model, by a name that stays the same while the figures change.

    >>> from service.learning.identity import Identity
    >>> from service.learning.records import P0, Records
    >>> learner = Learner(Identity())
    >>> learner.begin({P0: 0})
    >>> _ = learner.apply(Records.from_values(0, [b"no event"] * 12))
    >>> advice(learner)["rejected"]
    'more than half of its records, 12 of 12, were rejected: `perceptron suggest` says what to set'
    """
    lines, recent, events = {}, learner.main.observations.recent, learner.main.counts.events
    accuracy, baseline = recent.average_accuracy if learner.main.averaged else recent.accuracy, recent.baseline
    frequent = "most frequent" if learner.identity.multiclass else "more frequent"
    below = accuracy is not None and baseline is not None and accuracy < baseline
    # A model that finds a rare label is wrong more often than one that never predicts it, and more useful.
    below = below and not recent.confusion(learner.main.averaged).finds_rare
    # The first window does not count: the model began with nothing.
    if events >= 2 * recent.window and below:
        lines["accuracy"] = (
            f"{accuracy:.1%} of the last {recent.window:,} predictions were right, fewer than the {baseline:.1%} of "
            f"always predicting the {frequent} label: try {_accuracy_settings(learner)}"
        )
    serving = learner.serving
    if events >= 2 * recent.window and (line := _runs(learner)):
        lines["runs"] = line
    confusion = serving.observations.recent_answers
    missed, of = confusion.events[1] - confusion.right[1], sum(confusion.events)
    if serving.counts.events >= 2 * recent.window and confusion.recall == 0.0 and MIN_RECORDS <= missed < of / 2:
        positive = as_text((learner.identity.labels or (-1, 1))[1])
        lines["recall"] = (
            f"none of the {missed:,} events of label {positive} among the last {of:,} was predicted so: "
            f"try {_recall_settings(serving)}"
        )
    serve = learner.options.serve
    if serve not in MODEL_ITSELF and learner.answering is None:
        candidate = learner.candidates.get(serve)
        why = f"it diverged: {candidate.diverged}" if candidate else "it has not begun, or the learner does not have it"
        lines["serve"] = f"candidate {serve} does not answer, and the model itself does ({why})"
    if learner.jumps:
        jumps = [f"{printable(name)} at offset {at} of partition {p}" for name, (p, at) in learner.jumps.items()]
        partition, offset = next(iter(learner.jumps.values()))
        lines["variance"] = (
            f"one value ruined the scale of a feature: {', '.join(jumps)}: set clip = 6 {RESET_HINT}, or go back to a "
            f"version before it and leave it out (`perceptron rollback --resume-at {partition}:{offset + 1}`)"
        )
    rejected = sum(learner.main.counts.rejected.values())
    if rejected > events and rejected + events >= MIN_RECORDS:
        lines["rejected"] = (
            f"more than half of its records, {rejected:,} of {rejected + events:,}, were rejected: "
            "`perceptron suggest` says what to set"
        )
    if not learner.identity.needs_ids and (line := repeated_ids(learner.last_events.ids)):
        lines["ids"] = line
    return lines


def _runs(learner: Learner) -> str:
    """A line if recent labels come in runs, and the label of the event before is as good as the model; "" if not."""
    recent, averaged = learner.serving.observations.recent, learner.serving.averaged
    labels, accuracy = recent.truth.newest(min(recent.window, MAX_LABELS)), recent.confusion(averaged).accuracy
    if accuracy is None or not in_runs(labels, accuracy):
        return ""
    _, changed, _, right = (*recent.by_change(averaged).events, *recent.by_change(averaged).right)
    return (
        f"labels come in runs: the label of the event before was right for {repeated(labels):.1%} of the last "
        f"{len(labels):,} events, the model for {accuracy:.1%}, but only for {right:,} of the {changed:,} whose label "
        f"differs from the one before: it may know nothing but the last labels; if they come from a file, {CURE}"
    )


def repeated_ids(ids: Iterable[str | None]) -> str:
    """A line if many of these ids of events that follow each other are repeated; "" if not."""
    known = [id_ for id_ in ids if id_ is not None]
    repeated = len(known) - len(set(known))
    if repeated < max(MIN_RECORDS, MIN_REPEATED_SHARE * len(known)):
        return ""
    return f'{repeated:,} of {len(known):,} events repeat an id: event.once = "1h" learns each id once an hour'


def _recall_settings(serving: Classifier) -> str:
    """The settings that may find more events of a rare positive label."""
    tries, last = [], serving.observations.recent.confusion(averaged=False).recall
    if serving.averaged and last:
        tries.append(f'serve = "last", which found {last:.1%} of them')
    rule, margin = serving.identity.rule, serving.identity.margins[1]
    if rule == "logistic-delta":
        tries.append("a lower threshold than 0.5 for its `probability`")
    other = "" if rule == "perceptron" else 'rule = "perceptron" with '
    scaled = "" if serving.identity.scale == "standard" else 'scale = "standard" or '
    tries.append(f"{scaled}{other}a margin for it, such as margin = [0, {10 * margin or 100:g}] {RESET_HINT}")
    return ", or ".join(tries)


def _accuracy_settings(learner: Learner) -> str:
    """The settings that may raise the accuracy."""
    identity, recent = learner.identity, learner.main.observations.recent
    tries = []
    if not learner.main.averaged and (recent.average_accuracy or 0.0) > (recent.accuracy or 0.0):
        tries.append(f'serve = "average", which was right in {recent.average_accuracy:.1%}')
    retrained = [] if identity.scale == "standard" else ['scale = "standard"']
    retrained += [] if identity.average else ['average = "recent" with serve = "average"']
    retrained += [] if identity.rule == "logistic-delta" else ['rule = "logistic-delta"']
    if retrained:
        tries.append(f"{' or '.join(retrained)} {RESET_HINT}")
    return ", or ".join(tries) or "other features"
