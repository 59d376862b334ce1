"""What a sample's labels say about single members: how each is best read, and which one tells the label alone."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from service.text import printable
from service.tools.formats.readers import at
from service.tools.suggest.field_profile import FieldProfile, number_of
from service.tools.suggest.model_selection import MIN_GAIN, Trial

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
    values = [at(row, member.path) for row in rows]
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
