"""Advice for a model whose figures show that it is of little use: settings to try."""

import glob
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.learning.classifier import Classifier
from service.learning.columns.columns import Named
from service.learning.evaluation.confidence_sequences import lower_end
from service.learning.evaluation.confusion import CURE, MAX_LABELS, RARE, in_runs, repeated
from service.learning.identity import as_text, label_as_json
from service.learning.learner import Learner
from service.learning.options import MODEL_ITSELF
from service.learning.rules import RULES
from service.text import printable

Array = NDArray[Any]
MIN_RECORDS = 10
"""The advice about rejections or recall needs at least this many records or missed events."""
MIN_REPEATED_SHARE = 0.02
MAX_NAMES = 10
"""Names of missing features in a line."""
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
    recent, events = learner.main.observations.recent, learner.main.counts.events
    missed = _missed_labels(learner) if learner.serving.counts.events >= 2 * recent.window else ""
    accuracy, baseline = recent.average_accuracy if learner.main.averaged else recent.accuracy, recent.baseline
    frequent = "most frequent" if learner.identity.multiclass else "more frequent"
    below = accuracy is not None and baseline is not None and accuracy < baseline
    # A model that finds a rare label is wrong more often than one that never predicts it, and more useful. One that
    # misses all rare labels gains nothing from settings with which it never predicts them.
    below = below and not _finds_rare(learner.main) and not (missed and (baseline or 0.0) > 1.0 - RARE)
    lines = {"columns": _full_columns(learner)}
    # The first window does not count: the model began with nothing.
    if events >= 2 * recent.window and below:
        lines["accuracy"] = (
            f"{accuracy:.1%} of the last {recent.window:,} predictions were right, fewer than the {baseline:.1%} of "
            f"always predicting the {frequent} label: try {_accuracy_settings(learner)}"
        )
    lines["runs"] = _runs(learner) if events >= 2 * recent.window else ""
    lines |= {"recall": missed, "candidate": _better_candidate(learner) if learner.best is None else ""}
    serve = learner.serve
    if serve not in MODEL_ITSELF and learner.answering is None:
        candidate = learner.candidates.get(serve)
        why = f"it diverged: {candidate.diverged}" if candidate else "it has not begun, or the learner does not have it"
        lines["serve"] = f"{serve} does not answer, and the model itself does ({why})"
    if learner.jumps:
        jumps = [f"{printable(name)} at offset {at} of partition {p}" for name, (p, at) in learner.jumps.items()]
        partition, offset = next(iter(learner.jumps.values()))
        lines["variance"] = (
            f"one value ruined the scale of a feature: {', '.join(jumps)}: set clip = 6 {RESET_HINT}, or go back to a "
            f"version before it and leave it out (`perceptron rollback --resume-at {partition}:{offset + 1}`)"
        )
    for name, (kind, partition, offset) in learner.watch.figures.changes.items():
        before, now = ("text", "a number") if kind == "number" else ("a number", "text")
        lines[f"kind of {name}"] = (
            f"{printable(name)} was {before} until offset {offset:,} of partition {partition} and is {now} since: mend "
            f'its producer, or set event.types = {{ {label_as_json(name)} = "number" }} {RESET_HINT}'
        )
    if missing := learner.watch.figures.missing:
        names = ", ".join(map(printable, missing[:MAX_NAMES]))
        more = ", …" if len(missing) > MAX_NAMES else ""
        lines["missing"] = f"most recent events lack what was usual before: {names}{more}"
    rejected = sum(learner.main.counts.rejected.values())
    if rejected > events and rejected + events >= MIN_RECORDS:
        lines["rejected"] = (
            f"more than half of its records, {rejected:,} of {rejected + events:,}, were rejected: "
            "`perceptron suggest` says what to set"
        )
    lines["ids"] = "" if learner.identity.needs_ids else repeated_ids(learner.last_events.ids)
    return {name: line for name, line in lines.items() if line}


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


def _better_candidate(learner: Learner) -> str:
    """A line about the candidate that is shown to be better than what answers, by the most; "" if there is none.

    One that does not find a rare label is no replacement for one that does.
    """
    answering, gains = learner.answering_name, dict[str, float]()
    for pair in learner.main.observations.recent.pairs:
        name = pair.first if pair.second == answering else pair.second if pair.first == answering else ""
        candidate = learner.candidates.get(name)
        is_better = candidate and not candidate.diverged and pair.better() == name
        if candidate and is_better and (_finds_rare(candidate) or not _finds_rare(learner.serving)):
            gains[name] = abs(pair.difference or 0.0)
    if not gains:
        return ""
    best = max(gains, key=lambda name: gains[name])
    return f'candidate {best} is better by {100.0 * gains[best]:.1f} points: serve = "{best}"'


def _full_columns(learner: Learner) -> str:
    """A line about a model that has a column for none of the new names; "" if it has room."""
    columns, ignored = learner.columns, learner.main.counts.ignored_features
    if not (ignored and isinstance(columns, Named)):
        return ""
    count, (prefix, members) = len(columns.names), columns.largest_group
    tries = ['features = "hashed"']
    if prefix:
        name = glob.escape(prefix[:-1]) + ("" if prefix[-1] == "=" else ".*")
        without = ", ".join(map(label_as_json, (*learner.identity.event.without, name)))
        tries = [f"event.without = [{without}]", *tries]
    taken = f"{members:,} of {count:,} columns are {prefix}…" if prefix else "each column is another name"
    return (
        f"all {count:,} columns are taken, so new names are ignored ({ignored:,} features so far): {taken}: "
        f"{', or '.join(tries)} {RESET_HINT}"
    )


def _finds_rare(classifier: Classifier) -> bool:
    """Whether a rare one of two labels is found, in the window or, if it is too rare for that, since the start."""
    return classifier.observations.recent_answers.finds_rare or classifier.answers.finds_rare


def _missed(events: Array, right: Array, share: Array) -> Array:
    """Which labels are not shown to be found more often than by chance, from figures of each.

    A label that is not rare is missed if it is never predicted rightly.
    """
    found: Array = lower_end(events, right) > np.where(share < RARE, share, 0.0)
    return (events >= MIN_RECORDS) & (share < 0.5) & ~found


def _missed_labels(learner: Learner) -> str:
    """A line about labels that are missed, the most frequent one by name; "" if there are none.

    The window decides about a label if it has enough events of it, else all events since the start.
    """
    serving = learner.serving
    overall, recent = serving.answers, serving.observations.recent_answers
    # Rows: events of each label, those predicted rightly, and its share in the events.
    figures = [np.array([*c, np.divide(c.events, max(sum(c.events), 1))]) for c in (recent, overall)]
    events, right, share = np.where(figures[0][0] >= MIN_RECORDS, *figures)
    missed = _missed(events, right, share)
    if not missed.any():
        return ""
    k = int(np.argmax(missed * share))
    spans = (overall, "since the start", 1), (recent, f"among the last {sum(recent.events):,}", MIN_RECORDS)
    counts = [f"{c.right[k] or 'none'} of {c.events[k]:,} {words}" for c, words, least in spans if c.events[k] >= least]
    others = f"; other labels that are not found: {missed.sum() - 1:,}" if missed.sum() > 1 else ""
    label = as_text((learner.identity.labels or (-1, 1))[k])
    tries = ", or ".join(_rare_settings(learner, k, float(share[k])))
    return f"events of label {label} are not found ({', '.join(counts)}){others}: try {tries}"


def _rare_settings(learner: Learner, k: int, share: float) -> list[str]:
    """What finds more events of a label with this share: the figures are in docs/model.md."""
    main, identity = learner.main, learner.serving.identity
    predictors = {"last": main.confusion(averaged=False)}
    if main.identity.average:
        predictors["average"] = main.confusion(averaged=True)
    predictors |= {name: c.answers for name, c in learner.candidates.items() if not c.diverged}
    predictors.pop(learner.answering_name)
    tries = [
        f'serve = "{name}", which found {confusion.recalls[k]:.1%} of them'
        for name, confusion in predictors.items()
        if confusion.events[k] >= MIN_RECORDS
        and not _missed(*map(np.array, (confusion.events[k], confusion.right[k], share)))
        if identity.multiclass or share >= RARE or confusion.finds_rare
    ]
    if not identity.multiclass:
        above = learner.serving.observations.options.positive_above or 0.0
        tries.append(f"positive_above {'below' if k else 'above'} {above:g}")
    if identity.rule == "perceptron" and not identity.multiclass and share >= RARE:
        margin = [0.0, 0.0]
        margin[k] = 10.0 * identity.margins[k] or 100.0
        tries.append(f"margin = [{margin[0]:g}, {margin[1]:g}] {RESET_HINT}")
    if not identity.join:  # else the label is not known when the event is written
        average = "" if identity.average else f"average = true {RESET_HINT} and "
        average = f', with {average}serve = "average"'
        needs_average = RULES[identity.rule].mistake_driven and not learner.serving.averaged
        weight = f"a weight of {2.0 / math.sqrt(share):.0f} for each of its events"
        tries.append(weight + average if needs_average else weight)
    return tries or ["more events of it"]


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
