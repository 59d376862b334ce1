"""`perceptron suggest`: the members of a topic's or a file's records, and settings for them, with reasons.

It sends and stores nothing. The suggestion goes to standard output, cautions go to standard error.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tomlkit
import typer
from pydantic import ValidationError

from service.errors import DataError
from service.learning.evaluation.label_runs import CURE
from service.settings.model import is_topic
from service.text import printable, quantity, short_json
from service.tools.formats.atomic_write import write_atomically
from service.tools.suggest.label_inference import is_amount, positive_is_rare
from service.tools.suggest.late_labels import LABEL, propose_join
from service.tools.suggest.model_selection import (
    FOLLOWING,
    SCALES,
    SampleComparison,
    Trial,
    best_trial,
    compare_settings,
)
from service.tools.suggest.proposal import Choice, EventChoices, choose_event
from service.tools.suggest.sample import Sample
from service.tools.tables import print_tables

MAX_ROWS = 40
"""Members that are shown; --json has all."""
MIN_EVENTS = 1000
"""With fewer events, accuracies may differ by chance."""


def suggest_settings(
    sample: Sample,
    topic: str,
    bootstrap: str | None,
    *,
    label: str | None,
    output: str | None,
    as_json: bool,
    labels: Sample | None = None,
) -> None:
    """Look at a sample, compare settings on it, print and write the best for this topic; `bootstrap` is its Kafka.

    `labels` is a sample of the topic of labels that come later. Raises DataError if no record is an object.
    """
    if next(sample.objects(), None) is None:
        total = quantity(len(sample.values), "record")
        raise DataError(f"{sample.name}: none of {total} is a JSON object; Avro and Protobuf cannot be read")
    join = propose_join(sample, labels) if labels is not None else None
    if join is not None:
        sample, label = join.sample, f"/{LABEL}"
    event = choose_event(sample, label, join.id_path if join else None)
    comparison = _compare(sample.name, event)
    chosen = best_trial(comparison.trials)
    choices = [*event.choices, *_model_choices(chosen, comparison)]
    if join is not None:
        own = {choice.setting for choice in join.choices} | {"event.label"}
        choices = [*(choice for choice in choices if choice.setting not in own), *join.choices]
    verdict = _verdict(chosen, comparison)
    notes = [*_notes(event, comparison)]
    text = _toml(topic, bootstrap, sample, verdict, choices)
    count = len(event.values)
    if as_json:
        suggestion = {
            "sample": {"from": sample.name, "records": len(sample.values), "said": sample.description},
            "members": [
                {name: getattr(member, name) for name in ("name", "kind", "distinct", "example")}
                | {"present": member.present / count, "mark": mark}
                for member, mark in event.members
            ],
            "events": comparison.events,
            "rejected": comparison.rejected,
            "baseline": comparison.baseline._asdict(),
            "previous_label": {"later": comparison.previous, "in_runs": comparison.in_runs},
            "trials": [trial._asdict() for trial in comparison.trials],
            "chosen": chosen._asdict(),
            "choices": [choice._asdict() for choice in choices],
            "notes": notes,
            "toml": text,
            "labels_within": join and join.shares,
        }
        typer.echo(json.dumps(suggestion, ensure_ascii=False, default=str))
    else:
        typer.echo(f"{sample.description}\n")
        members = [
            (each.name, each.kind, f"{each.present / count:.0%}", each.distinct, short_json(each.example), mark)
            for each, mark in event.members[:MAX_ROWS]
        ]
        previous = Trial("previous label", "", "", later=comparison.previous, by_change=FOLLOWING)
        trials = [
            (*trial[:4], *_texts("{:.1%}", trial[4:8]), *_texts("{:.3f}", trial[10:]))
            for trial in (comparison.baseline, previous, *comparison.trials)
        ]
        print_tables({("member", "kind", "present", "distinct", "example", "note"): members})
        figures = ("right", "later half", "F1", "by change", "AUC", "avg. prec.", "log loss")
        print_tables({("rule", "scale", "weights", "margin", *figures): trials})
        if len(event.members) > MAX_ROWS:
            typer.echo(f"{len(event.members) - MAX_ROWS:,} more members: --json has them all\n")
        typer.echo(f"{verdict}\n\n{text}")
    for note in notes:
        typer.echo(f"note: {printable(note)}", err=True)
    if output is not None:
        write_atomically(output, text.encode())
        typer.echo(f"{output} is written: `perceptron -c {output} check` says whether it can run", err=True)


def topic_for(file: str) -> str:
    """A name for a topic, from the name of the file."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).name.partition(".")[0]).strip("-")[:200]
    return stem if is_topic(stem) else "events"


def _compare(name: str, event: EventChoices) -> SampleComparison:
    """All trials. Raises DataError if no settings fit, as with lists of too many numbers."""
    settings: dict[str, Any] = {"event": {}}
    for choice in event.choices:
        section, _, key = choice.setting.rpartition(".")
        (settings[section] if section else settings)[key] = choice.value
    try:
        return compare_settings(settings, event.values, positive_is_rare(event.labels, event.label))
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{name}: no settings fit it: {printable(reason)}") from None


def _model_choices(chosen: Trial, comparison: SampleComparison) -> Iterator[Choice]:
    """Scale, rule, average and margin, each with the best trial that has another value of it."""
    for setting, value in {"scale": chosen.scale, **chosen.candidate}.items():
        part = "weights" if setting in ("average", "serve") else setting
        other = best_trial([trial for trial in comparison.trials if getattr(trial, part) != getattr(chosen, part)])
        why = f"{_figure(chosen)} in the later half; {part} {getattr(other, part)} has {_figure(other)} at best"
        yield Choice(setting, value, why)
        for added, limit in SCALES.get(value, {}).items():
            yield Choice(added, limit, "one wild value does not ruin the scale of its column")


def _texts(form: str, figures: Iterable[Any]) -> Iterator[str]:
    return (form.format(figure) if figure else "-" for figure in figures)


def _figure(trial: Trial) -> str:
    return "diverged weights" if trial.later is None else f"{trial.merit:.1%}"


def _verdict(chosen: Trial, comparison: SampleComparison) -> str:
    best = "Best" if chosen.beats_baseline else "Nothing is shown to beat the baseline"
    margin = f", margin {chosen.margin:g}" if chosen.margin else ""
    name = f"{chosen.rule}, scale {chosen.scale}, {chosen.weights} weights{margin}"
    is_rare = comparison.baseline.f1 is not None  # then accuracy says little
    figure, always = ("F1", "positive label, which is rare") if is_rare else ("right", "most frequent label")
    if comparison.in_runs:
        figure, always = "right (the mean over repeated and over changed labels)", "label of the event before"
    baseline = f"always the {always}: {_figure(comparison.baseline)}"
    return f"{best}: {name}: {_figure(chosen)} {figure} in the later half; {baseline}"


def _notes(event: EventChoices, comparison: SampleComparison) -> Iterator[str]:
    """Cautions about the label and the figures."""
    if comparison.is_sorted:
        yield f"{comparison.is_sorted}; here settings are compared on the sample in random order"
    elif comparison.in_runs:
        best = max(trial.later or 0.0 for trial in comparison.trials)
        yield (
            f"labels come in runs: the label of the event before is right for {comparison.previous:.1%} in the later "
            f"half, the best setting for {best:.1%}: so the mean of two accuracies decides, on labels like the one "
            f"before and on labels that differ; if the order is that of a file, {CURE}"
        )
    if is_amount(event.label):
        values = f"{event.label.distinct:,} different values in {quantity(event.label.present, 'record')}"
        yield f"{event.label.name} has {values}: a number to be predicted is not a class"
    for member, mark in event.members:
        if not mark and (line := member.far_value):
            yield f"{member.name} {line}: without clip = 6 such a value ruins a scaled model"
    if comparison.rejected:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(comparison.rejected.items()))
        total = quantity(sum(comparison.rejected.values()), "record")
        yield f"{total} would be dead letters ({reasons}), such as: {comparison.example}"
    if comparison.repeated:
        yield comparison.repeated
    if comparison.events < MIN_EVENTS:
        chance = min(1.0, 1.0 / math.sqrt(comparison.events / 2))  # two standard errors of a share, at most
        yield f"only {comparison.events:,} events: accuracies that differ by {chance:.0%} may do so by chance"


def _toml(topic: str, bootstrap: str | None, sample: Sample, verdict: str, choices: list[Choice]) -> str:
    """The settings, each after the reason for it."""
    document, model = tomlkit.document(), tomlkit.table()
    document.add(tomlkit.comment(f"Suggested by `perceptron suggest` from {sample.description}."))
    document.add(tomlkit.comment(f"{verdict}."))
    document.add("topics", [topic])
    document.add("create_topics", True)
    if bootstrap is not None:
        document.add("kafka", {"bootstrap_servers": bootstrap})
    for choice in sorted(choices, key=lambda choice: choice.setting.count(".")):  # sections after plain settings
        section, _, key = choice.setting.rpartition(".")
        table = model.setdefault(section, tomlkit.table()) if section else model
        for line in choice.reason.split("\n"):
            table.add(tomlkit.comment(line))
        value = choice.value
        if isinstance(value, dict):
            value = tomlkit.inline_table()
            value.update(choice.value)
        table.add(key, value)
    document.add("models", tomlkit.table(is_super_table=True).add(topic, model))
    # A terminal may obey what is not printable; TOML's strings may have it escaped.
    text = tomlkit.dumps(document)
    return "".join(char if char.isprintable() or char == "\n" else f"\\U{ord(char):08X}" for char in text)
