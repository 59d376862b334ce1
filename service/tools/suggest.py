"""`perceptron suggest`: what a topic or a file holds, and which settings fit it, with reasons, as a perceptron.toml.

It sends and stores nothing. What was found goes to standard output, what is to be minded to standard error.
"""

import asyncio
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.items
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.errors import ConfigurationError, DataError
from service.learning.identity import Label
from service.settings.load import Settings, is_topic
from service.tools import files
from service.tools.choices import Choice, Suggested, suggested
from service.tools.formats import Name
from service.tools.labels import amount, is_amount, is_called_one, rare
from service.tools.model_selection import TIE, Baseline, Trial, best, compare
from service.tools.profile import MOST_VALUES, plain, shown
from service.tools.sample import Sample, of_file, of_topic, records

ROWS = 40
"""Members that are shown; JSON has all."""
NUMBERS = ("present", "distinct", "right", "later half", "its F1")
"""Columns that are aligned to the right."""
FEW = 1000
"""Events: of fewer, accuracies differ by chance."""


def suggest(
    settings: Settings,
    file: str | None,
    topic: str | None,
    *,
    form: Name | None,
    label: str | None,
    count: int,
    output: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Look, try, print and write."""
    if output is not None and Path(output).exists() and not yes:
        raise ConfigurationError(f"{output} is there already: say --yes to write over it")
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise ConfigurationError(f"{output}: there is no such folder")
    if file is not None:  # it is another topic's than the settings may name
        sample, name = of_file(file, form, count), topic or _name_for(file)
    elif topic := settings.topics[0] if len(settings.topics) == 1 and not settings.patterns else None:
        missing = ConfigurationError(f"topic {topic} does not exist at {settings.kafka.bootstrap_servers}")
        sample, name = asyncio.run(of_topic(settings.kafka.cluster, topic, missing, count)), topic
    else:
        raise ConfigurationError("suggest: name a FILE, or a topic with --topic TOPIC")
    sample.check("; see --format for others" if file is not None and form is None and not sample.cells else "")
    found = suggested(sample, label)
    place, rarely = rare(_labels(found), found.label)
    done, baseline = _try(found, place)
    chosen = best(done)
    choices = [*found.choices, *_why(chosen, done), *_candidate(chosen, done)]
    amounts = [amount(found.label.name, found.label)] if is_amount(found.label) else []
    notes = [*_guess(found, label), *amounts, *_cautions(done, baseline)]
    bootstrap = None if file is not None else settings.kafka.bootstrap_servers
    verdict = ". ".join(filter(None, (_verdict(chosen, baseline), rarely)))
    text = _toml(name, bootstrap, sample, verdict, choices)
    if as_json:
        typer.echo(json.dumps(_json(sample, found, choices, done, baseline, chosen, notes, text), ensure_ascii=False))
    else:
        console = Console(highlight=False, width=None if Console().is_terminal else 160)
        console.print(Text(f"{sample.said}\n"))
        console.print(_members(found))
        console.print(_accuracies(done, baseline, chosen))
        console.print(Text(f"{verdict}\n"), soft_wrap=True)
        typer.echo(text)
    for note in notes:
        typer.echo(f"note: {plain(note)}", err=True)
    if output is not None:
        files.write(output, text.encode())
        # Of a table it is not said in the settings which column is the label.
        column = f" --label {shlex.quote(found.label.name)}" if sample.cells else ""
        sends = f", `produce {shlex.quote(file)}{column}` sends it the file" if file else ""
        said = f"`perceptron -c {output} check` says whether it can run, `run` runs it{sends}"
        typer.echo(f"{output} is written: {said}", err=True)


def _name_for(file: str) -> str:
    """A topic's name for a file."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).name.partition(".")[0]).strip("-")[:200]
    return stem if stem and is_topic(stem) else "events"


def _try(found: Suggested, rare: int | None) -> tuple[list[Trial], Baseline]:
    """All trials. Raises DataError if no record is an event, or if no settings fit: a list of too many numbers."""
    try:
        with Console(stderr=True).status("trying"):  # on a terminal alone
            done, baseline = compare(_nested(found.choices), found.sample.values, rare)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{found.sample.name}: no settings fit it: {plain(said)}") from None
    if not baseline.events:
        raise DataError(f"{found.sample.name}: no record is an event: {baseline.example or 'none was left'}")
    return done, baseline


def _nested(choices: list[Choice]) -> dict[str, Any]:
    """Choices as a model's settings."""
    nested: dict[str, Any] = {}
    for choice in choices:
        section, _, key = choice.setting.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[key] = choice.value
    return nested


def _why(chosen: Trial, done: list[Trial]) -> list[Choice]:
    """Rule, scale, average and margin, each with the best trial that has another value of it."""
    measure = "right" if chosen.f1 is None else "F1"

    def compared(part: str) -> str:
        other = max((one for one in done if getattr(one, part) != getattr(chosen, part)), key=lambda one: one.merit)
        return (
            f"{measure} {_merit(chosen)} in the later half; with {_shown(getattr(other, part))} at best {_merit(other)}"
        )

    settings: dict[str, Any] = {"scale": chosen.scale, **chosen.candidate}
    parts = {"average": "weights", "serve": "weights"}
    return [Choice(name, value, compared(parts.get(name, name))) for name, value in settings.items()]


def _candidate(chosen: Trial, done: list[Trial]) -> list[Choice]:
    """A candidate to learn side by side: the best of the other rule, unless it is shown to be worse.

    Candidates are compared by accuracy, so with a rare label there is none.
    """
    others = [one for one in done if (one.scale, one.f1) == (chosen.scale, None) and one.rule != chosen.rule]
    near = max(others, key=lambda one: one.merit, default=chosen)
    if near.later is None or near is chosen or near.name in chosen.better_than:
        return []
    said = f"learned side by side: right {_merit(near)} in the later half, which shows no difference"
    return [Choice(f"candidates.{near.name}.{name}", value, said) for name, value in near.candidate.items()]


def _merit(one: Trial) -> str:
    return "diverged" if one.later is None else f"{one.merit:.1%}"


def _shown(part: str | tuple[float, float]) -> str:
    return part if isinstance(part, str) else f"{part[0]:g}, {part[1]:g}"


def _beats(chosen: Trial, baseline: Baseline) -> bool:
    if baseline.f1 is not None:
        return chosen.merit > baseline.f1 + TIE
    return chosen.merit > baseline.later + TIE and "baseline" in chosen.better_than


def _verdict(chosen: Trial, baseline: Baseline) -> str:
    name = f"{chosen.rule}, scale {chosen.scale}, {chosen.weights} weights"
    best = "Best" if _beats(chosen, baseline) else "Nothing beats the baseline"
    if baseline.f1 is not None:
        name += f", margin {_shown(chosen.margin)}" if any(chosen.margin) else ""
        return (
            f"{best}: {name}: F1 {_merit(chosen)} in the later half; always the rare label would have {baseline.f1:.1%}"
        )
    if best != "Best" and chosen.merit > baseline.later + TIE:
        best = "No difference to the baseline is shown"
    sure = " (95 %)" if best == "Best" else ""
    return (
        f"{best}: {name}: right {_merit(chosen)} in the later half, always {baseline.name} {baseline.later:.1%}{sure}"
    )


def _guess(found: Suggested, label: str | None) -> list[str]:
    """That somebody may know better what the label is."""
    if label is not None or not found.others or is_called_one(found.label):
        return []
    return [f"that {found.label.name} is the label is a guess; else perhaps --label {' or '.join(found.others[:3])}"]


def _labels(found: Suggested) -> list[Label]:
    return next(choice.value for choice in found.choices if choice.setting == "labels")


def _cautions(done: list[Trial], baseline: Baseline) -> list[str]:
    """What to mind of the figures."""
    notes = []
    if baseline.rejected:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(baseline.rejected.items()))
        total = sum(baseline.rejected.values())
        notes.append(f"{records(total)} would be dead letters ({reasons}), such as: {baseline.example}")
    if baseline.events < FEW:
        chance = min(1.0, 1.0 / math.sqrt(baseline.events / 2))  # two standard errors of a share, at most
        notes.append(f"only {baseline.events:,} events: accuracies that differ by {chance:.0%} may do so by chance")
    if any(trial.later is None for trial in done):
        notes.append("where weights diverged, values are too large for the rule: scaled ones are not")
    return notes


def _members(found: Suggested) -> Table:
    table = _table("member", "kind", "present", "distinct", "example", "")
    for member in found.members[:ROWS]:
        mark = "label" if member is found.label else found.left_out.get(member.name, "")
        table.add_row(
            Text(plain(member.name)),
            member.kind,
            f"{member.present / max(found.events, 1):.0%}",
            f"{member.distinct:,}{'+' * (member.distinct >= MOST_VALUES)}" if member.distinct else "-",
            Text(shown(member.example), no_wrap=True, overflow="ellipsis"),
            mark if mark in ("", "label") else f"{mark}, left out",
        )
    if len(found.members) > ROWS:
        table.add_row(f"and {len(found.members) - ROWS:,} more")
    table.add_row()
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        # An example gives way where a terminal is narrow.
        table.add_column(title, justify="right" if title in NUMBERS else "left", no_wrap=title != "example")
    return table


def _accuracies(done: list[Trial], baseline: Baseline, chosen: Trial) -> Table:
    rarely = () if baseline.f1 is None else ("its F1", "margin")
    table = _table("rule", "scale", "weights", "right", "later half", *rarely)
    rows: list[tuple[str, str, str, Trial | Baseline, str]] = [
        (f"baseline ({baseline.name})", "", "", baseline, ""),
        *((*one[:3], one, _shown(one.margin)) for one in done),
    ]
    for rule, scale, weights, one, margin in rows:
        right = ["diverged" if share is None else f"{share:.1%}" for share in (one.accuracy, one.later)]
        right += [f"{one.f1:.1%}", margin] if one.f1 is not None else []
        table.add_row(rule, scale, weights, *right, "<" * (one is chosen), style="bold" * (one is chosen))
    table.add_row()
    return table


def _toml(name: str, bootstrap: str | None, sample: Sample, verdict: str, choices: list[Choice]) -> str:
    """The settings, each after the reason for it."""
    document, model = tomlkit.document(), tomlkit.table()
    _explain(document, f"Suggested by `perceptron suggest` from {sample.said}.\n{verdict}.")
    document.add("topics", [name])
    _explain(document, "Where they are missing, its topic and that of its dead letters are made.")
    document.add("create_topics", True)
    if bootstrap is not None:
        document.add("kafka", {"bootstrap_servers": bootstrap})
    for choice in sorted(choices, key=lambda choice: choice.setting.count(".")):  # sections after plain settings
        *sections, key = choice.setting.split(".")
        table = model
        for section in sections:
            table = table.setdefault(section, tomlkit.table())
        _explain(table, choice.why)
        value = choice.value
        if isinstance(value, dict):
            value = tomlkit.inline_table()
            value.update(choice.value)
        table.add(key, value)
    document.add("models", tomlkit.table(is_super_table=True).add(name, model))
    # A terminal may obey what is not printable; in TOML's strings it may be escaped.
    text = tomlkit.dumps(document)
    return "".join(one if one.isprintable() or one == "\n" else f"\\U{ord(one):08X}" for one in text)


def _explain(table: tomlkit.TOMLDocument | tomlkit.items.Table, why: str) -> None:
    for line in why.split("\n"):
        table.add(tomlkit.comment(plain(line)))


def _json(
    sample: Sample,
    found: Suggested,
    choices: list[Choice],
    done: list[Trial],
    baseline: Baseline,
    chosen: Trial,
    notes: list[str],
    text: str,
) -> dict[str, Any]:
    members = [
        {
            "name": member.name,
            "kind": member.kind,
            "present": member.present / max(found.events, 1),
            "distinct": member.distinct,
            "example": member.example,
            "mark": "label" if member is found.label else found.left_out.get(member.name),
        }
        for member in found.members
    ]
    return {
        "sample": {"from": sample.name, "records": len(sample.values), "said": sample.said},
        "members": members,
        "labels_else": found.others,
        "baseline": _figures(baseline),
        "trials": [_figures(trial) for trial in done],
        "chosen": _figures(chosen),
        "beats_baseline": _beats(chosen, baseline),
        "choices": [{"setting": one.setting, "value": one.value, "reason": one.why} for one in choices],
        "notes": notes,
        "toml": text,
    }


def _figures(one: Trial | Baseline) -> dict[str, Any]:
    return {name: value for name, value in one._asdict().items() if name != "better_than"}
