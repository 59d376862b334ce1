"""`perceptron suggest`: the members of a topic's or a file's records, and settings for them, with reasons.

It sends and stores nothing. The suggestion goes to standard output, cautions go to standard error.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import tomlkit
import typer
from pydantic import ValidationError

from service.errors import DataError
from service.learning.evaluation.confusion import CURE
from service.learning.evaluation.prequential import Ranking
from service.learning.events.event_reader import EventReader, use_compiled_reader
from service.learning.identity import Identity, Places
from service.settings.model import is_topic
from service.text import printable, quantity, short_json
from service.tools.suggest import model_selection
from service.tools.suggest.field_profile import member_notes
from service.tools.suggest.label_inference import is_amount
from service.tools.suggest.model_selection import SampleComparison, Trial, best_trial
from service.tools.suggest.proposal import LABEL, Choice, EventChoices, choose_event, propose_join
from service.tools.suggest.sample import Sample
from service.tools.tables import print_tables

MAX_ROWS = 40
"""Members that are shown; --json has all."""
MIN_EVENTS = 1000
"""With fewer events, accuracies may differ by chance."""
MANY_EVENTS = 5000
"""With this many events, the compiled reader saves more time than it takes to load."""


def suggest_settings(
    sample: Sample, topic: str, bootstrap: str | None, *, label: str | None, as_json: bool, labels: Sample | None = None
) -> str:
    """Look at a sample, compare settings on it, print the best for this topic, and return them as TOML.

    `bootstrap` is the topic's Kafka, `labels` a sample of the topic of labels that come later. Raises DataError if no
    record is an object.
    """
    if next(sample.objects(), None) is None:
        rejects = EventReader(Identity(event=Places(features=""))).read(sample.values[:1]).rejects
        first = f", such as the first: {rejects[0].detail}" if rejects else ""
        why = "a file has one a line; Avro and Protobuf cannot be read"
        raise DataError(
            f"{sample.name}: none of {quantity(len(sample.values), 'record')} is a JSON object ({why}){first}"
        )
    join = propose_join(sample, labels) if labels is not None else None
    if join is not None:
        sample, label = join.sample, f"/{LABEL}"
    event = choose_event(sample, label, join.id_path if join else None)
    if len(event.rows) >= MANY_EVENTS:
        use_compiled_reader(True)
    compare = partial(_compare, sample.name, event)
    model_selection.choose_readings(
        event.members, lambda: best_trial(compare(quick=True).trials).merit, len(event.rows)
    )
    comparison = compare()
    chosen = best_trial(comparison.trials, comparison.min_gain)
    choices = [*event.choices, *_model_choices(chosen, comparison)]
    if join is not None:
        own = {choice.setting for choice in join.choices} | {"event.label"}
        choices = [*(choice for choice in choices if choice.setting not in own), *join.choices]
    verdict, count = _verdict(chosen, comparison), len(event.rows)
    leaking = model_selection.leaks(event.rows, event.row_labels, event.members, lambda: compare(quick=True).trials)
    notes = [*_notes(event, comparison), *leaking]
    text = _toml(topic, bootstrap, sample, verdict, choices)
    members = [(event.label, "label"), *((member, member.note) for member in event.members)]
    if as_json:
        suggestion = {
            "sample": {"from": sample.name, "records": len(sample.values), "said": sample.description},
            "members": [
                {name: getattr(member, name) for name in ("name", "kind", "distinct", "example")}
                | {"present": member.present / count, "mark": note}
                for member, note in members
            ],
            "events": comparison.events,
            "rejected": comparison.rejected,
            "baseline": comparison.baseline._asdict(),
            "previous_label": {"later": comparison.previous.later, "in_runs": comparison.figure == "by change"},
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
        rows = [
            (each.name, each.kind, f"{each.present / count:.0%}", each.distinct, short_json(each.example), note)
            for each, note in members[:MAX_ROWS]
        ]
        trials = [
            (*trial[:5], *_texts("{:.1%}", trial, model_selection.SHARES), *_texts("{:.3f}", trial, Ranking._fields))
            for trial in (comparison.baseline, comparison.previous, *comparison.trials)
        ]
        figures = ("right", "later half", "F1", "by change", "AUC", "avg. prec.", "log loss")
        members_table = ("member", "kind", "present", "distinct", "example", "note")
        print_tables({members_table: rows, ("rule", "scale", "weights", "eta", "margin", *figures): trials})
        if len(members) > MAX_ROWS:
            typer.echo(f"{len(members) - MAX_ROWS:,} more members: --json has them all\n")
        typer.echo(f"{verdict}\n\n{text}")
    for note in notes:
        typer.echo(f"note: {printable(note)}", err=True)
    return text


def topic_for(file: str) -> str:
    """A name for a topic, from the name of the file."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).name.partition(".")[0]).strip("-")[:200]
    return stem if is_topic(stem) else "events"


def _compare(name: str, event: EventChoices, quick: bool = False) -> SampleComparison:
    """All trials, or a few. Raises DataError if no settings fit, as with lists of too many numbers."""
    try:
        return model_selection.compare_settings(event.settings, event.values, quick)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{name}: no settings fit it: {printable(reason)}") from None


def _model_choices(chosen: Trial, comparison: SampleComparison) -> Iterator[Choice]:
    """Scale, rule, average and margin, each with the best trial that has another value of it."""
    figure = partial(_figure, comparison)
    others = model_selection.rivals(chosen, comparison) if comparison.events >= MIN_EVENTS else []
    for setting, value in {"scale": chosen.scale, **chosen.candidate}.items():
        if setting == "serve" and others:
            yield Choice(
                "serve", "best", "no setting is clearly best: of the model and its candidates, the best answers"
            )
            for other in others:
                yield Choice(f"candidates.{other.name}", other.candidate, f"{figure(other)} in the later half")
            continue
        part = "weights" if setting in ("average", "serve") else setting
        trials = [trial for trial in comparison.trials if part != "eta" or trial.rule == chosen.rule]
        different = [trial for trial in trials if getattr(trial, part) != getattr(chosen, part)]
        other = best_trial(different, comparison.min_gain)
        why = f"{figure(chosen)} in the later half; {part} {getattr(other, part)} has {figure(other)} at best"
        yield Choice(setting, value, why)
        for added, limit in (model_selection.SCALES[value] if setting == "scale" else {}).items():
            yield Choice(added, limit, "one wild value does not ruin the scale of its column")


def _texts(form: str, trial: Trial, names: Iterable[str]) -> Iterator[str]:
    """The figures of a trial with these names, as text."""
    return (form.format(figure) if (figure := getattr(trial, name)) else "-" for name in names)


def _figure(comparison: SampleComparison, trial: Trial) -> str:
    form = "{:.3f}" if comparison.figure == "AUC" else "{:.1%}"
    return "diverged weights" if trial.later is None else form.format(trial.merit)


def _verdict(chosen: Trial, comparison: SampleComparison) -> str:
    best = "Best" if chosen.beats_baseline else "Nothing is shown to beat the baseline"
    margin, eta = (f", {each} {x:g}" if (x := getattr(chosen, each)) else "" for each in ("margin", "eta"))
    name = f"{chosen.rule}{eta}, scale {chosen.scale}, {chosen.weights} weights{margin}"
    shown = [_figure(comparison, trial) for trial in (chosen, comparison.baseline)]
    figure, baseline = {
        "right": ("right", "always the most frequent label"),
        "F1": ("F1", "always the positive label, which is rare"),
        "AUC": ("AUC, which decides as one label is infrequent,", "scores that know nothing"),
        "by change": ("right (the mean over repeated and over changed labels)", "always the label of the event before"),
    }[comparison.figure]
    return f"{best}: {name}: {shown[0]} {figure} in the later half; {baseline}: {shown[1]}"


def _notes(event: EventChoices, comparison: SampleComparison) -> Iterator[str]:
    """Cautions about the label and the figures."""
    if event.label_doubt:
        yield event.label_doubt
    if comparison.is_sorted:
        yield f"{comparison.is_sorted}; here settings are compared on the sample in random order"
    elif comparison.figure == "by change":
        best, previous = max(trial.later or 0.0 for trial in comparison.trials), comparison.previous.later
        shares = f"right for {previous:.1%} in the later half, the best setting for {best:.1%}"
        decides = "so the mean of two accuracies decides, on labels like the one before and on labels that differ"
        cure = f"if the order is that of a file, {CURE}"
        yield f"labels come in runs: the label of the event before is {shares}: {decides}; {cure}"
    if is_amount(event.label):
        values = f"{event.label.distinct:,} different values in {quantity(event.label.present, 'record')}"
        yield f"{event.label.name} has {values}: a number to be predicted is not a class"
    yield from member_notes(event.members)
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
