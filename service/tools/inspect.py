"""`perceptron inspect`: a model's newest snapshot, its kept versions, and how far it is behind its topic."""

import asyncio
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.errors import DataError, DependencyError
from service.learning.classifier import Classifier, largest
from service.learning.evaluation.observations import OffsetGaps
from service.learning.identity import Label, label_as_json
from service.learning.learner import Learner
from service.serving.model_info import Comparison, Description, Version
from service.serving.models import Model
from service.settings.load import Settings
from service.snapshots import codec
from service.streaming.kafka.cluster import Cluster
from service.text import printable
from service.tools.stored_models import newest_snapshot

TOP = 10
LABELS, OF_A_LABEL = 20, 3
"""So many labels at most, and the largest weights of each."""
KAFKA_SECONDS = 3.0
PIPE_WIDTH = 10_000
"""Characters of a line that goes to no terminal."""
OMITTED = ("identity", "next", "covered", "digest", "learning_here", "lag", "lag_reason")
"""Members that are not shown as they are."""
_NUMBER = re.compile(r"[-+\d,.e]+|unknown")


class Largest(msgspec.Struct):
    """A weight."""

    name: str
    weight: float


class LabelWeights(msgspec.Struct):
    """The weights of one label, where each has its own."""

    label: Label
    bias: float
    largest_weights: list[Largest]


class Inspection(Description, kw_only=True):
    """What `--json` shows: all that the API says, and what a stored model and its topic say without a service."""

    offsets_without_record: int
    gaps: dict[str, OffsetGaps]
    lag: dict[str, int] | None
    lag_reason: str | None
    versions: list[Version]
    bias: float | None
    largest_weights: list[Largest]
    label_weights: list[LabelWeights] | msgspec.UnsetType = msgspec.UNSET
    """With three labels and more, of the most frequent ones, instead of those two."""


def inspect_model(settings: Settings, name: str, *, as_json: bool) -> None:
    """Print a model's newest snapshot and its lag, without a running service."""
    about = asyncio.run(_about(settings, name))
    if as_json:
        typer.echo(msgspec.json.encode(about))
        return
    console = Console(width=None if Console().is_terminal or os.environ.get("COLUMNS") else PIPE_WIDTH)
    with console.capture() as printed:
        console.print(_facts(about))
        for title, rows in _rows(about).items():
            if rows:
                console.print()
                console.print(_table(title.split(" | "), rows))
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())  # a table is filled up to its longest line


async def _about(settings: Settings, name: str) -> Inspection:
    async with settings.redis.store() as store:
        answering = await newest_snapshot(store, name, settings.of(name).options())
        kept = await store.kept(name, [v.version for v in answering.head.kept])
    learner, by = answering.learner, answering.by(None)[1]
    lag: dict[str, int] | None = None
    reason = None
    try:
        lag = await _lag(settings.kafka.cluster, name, answering.learner.next)
    except (DependencyError, DataError) as error:
        reason = str(error)
    return Inspection(
        **msgspec.structs.asdict(Description.of(Model(name), answering)),
        offsets_without_record=_empty(answering.learner),
        gaps=answering.learner.observations.gaps,
        lag=lag,
        lag_reason=reason,
        versions=[Version.of(*v) for v in codec.kept_versions(answering.head, answering.digest, kept)],
        **_largest(learner, by),
    )


def _largest(learner: Learner, by: Classifier) -> dict[str, Any]:
    """The bias and the largest weights of who answers, or those of the most frequent labels."""
    w = by.served

    def of(w: NDArray[np.float64], count: int) -> tuple[float, list[Largest]]:
        rows = [Largest(learner.columns.name_of(c), float(w[c])) for c in largest(w, count)]
        return float(w[0]), rows

    if not learner.identity.multiclass:
        bias, weights = of(w, TOP)
        return {"bias": bias, "largest_weights": weights}
    labels, counted = learner.identity.labels or (), learner.counts.by_label
    most = sorted(sorted(range(len(labels)), key=lambda k: -counted[k])[:LABELS])
    own = [LabelWeights(labels[k], *of(w[:, k], OF_A_LABEL)) for k in most]
    return {"bias": None, "largest_weights": [], "label_weights": own}


def _empty(learner: Learner) -> int:
    """Covered offsets that held no record: those of markers and of aborted or compacted records."""
    covered = sum(to - start for ranges in learner.covered.values() for start, to in ranges)
    return covered - learner.counts.records


async def _lag(cluster: Cluster, topic: str, following: Mapping[int, int]) -> dict[str, int]:
    """Records after the next offset of each partition; of one that was never learned from, all that it holds.

    Raises DependencyError when Kafka does not answer soon, DataError when the topic is not the one that was learned.
    """
    none = DataError(f"{cluster} has no topic {topic}")
    async with cluster.errors(), asyncio.timeout(KAFKA_SECONDS), cluster.reader(topic, none) as reader:
        held = await reader.bounds()
    lag = {partition: end - following.get(partition, begin) for partition, (begin, end) in held.items()}
    if not following.keys() <= lag.keys() or min(lag.values()) < 0:
        raise DataError(f"topic {topic} ends before the model's next offset: it is not the log that was learned")
    return {str(partition): n for partition, n in lag.items()}


def _facts(about: Inspection) -> Table:
    """The members of the description that no table shows, by the names that the API has for them."""
    table = Table(show_header=False, box=None)
    parts = msgspec.to_builtins(about)
    facts = {name: value for name, value in parts.items() if name not in OMITTED and not isinstance(value, list)}
    facts["identity"] = {name: parts["identity"].get(name) for name in ("rule", "eta", "margin", "features")}
    if about.identity.multiclass:
        facts["labels"] = f"{len(about.labels):,}, of which {sum(row.events > 0 for row in about.labels):,} came"
    facts["comparisons"] = "\n".join(map(_compared, about.comparisons))
    facts["lag"] = f"unknown: {about.lag_reason}" if about.lag is None else f"{sum(about.lag.values()):,} records"
    facts["advice"] = "; ".join(about.advice)
    for name, value in facts.items():
        if text := _text_of(value):
            table.add_row(Text(name, "bold"), Text(text, overflow="fold"))
    return table


def _text_of(value: Any) -> str:
    """A value in one line, without the members that are null; a sum of -0 alone is 0.

    >>> _text_of({"all": 0.625, "recent": None, "interval": [-0.0, 12345], "average": True})
    'all 0.625, interval [0, 12,345], average true'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, one in value.items() if (text := _text_of(one)))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text_of, value))}]"
    if isinstance(value, float):
        return f"{value + 0.0:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _compared(pair: Comparison) -> str:
    verdict = f"{pair.better} is better (95 %)" if pair.better else "no difference shown"
    return f"{pair.first} less {pair.second}: {_text_of(pair.difference)}, {verdict}"


def _rows(about: Inspection) -> dict[str, list[tuple[str, ...]]]:
    """The rows of each table, by its titles."""
    lag = about.lag or {}
    covered = {p: ", ".join(f"{a:,} to {b:,}" for a, b in ranges) for p, ranges in about.covered.items()}
    labels = {label_as_json(row.label): row for row in about.labels}
    own = [(labels[label_as_json(one.label)], one) for one in about.label_weights or []]
    return {
        "candidate | events | accuracy | verdict | settings, since": [
            (
                one.name,
                f"{one.events:,}",
                _text_of(msgspec.to_builtins(one.accuracy)),
                one.verdict + ", answers" * one.answers,
                f"{_text_of(one.settings)}; since {_text_of(one.since)}",
            )
            for one in about.candidates
        ],
        "partition | covered | lag": [
            (p, covered.get(p) or "nothing", _text_of(lag.get(p)) or "unknown")
            for p in sorted({*covered, *lag}, key=int)
        ],
        "kept version | saved at | events | mistakes": [
            (f"{row.version:,}", row.saved_at, f"{row.events:,}", f"{row.mistakes:,}") for row in about.versions
        ],
        "largest weights | weight": [(one.name, f"{one.weight:+g}") for one in about.largest_weights if one.weight],
        "label | events | recall | bias | largest weights": [
            (
                about.identity.text_of(one.label),
                f"{row.events:,}",
                _text_of(msgspec.to_builtins(row.recall)),
                _text_of(one.bias),
                ", ".join(f"{weight.name} {weight.weight:+g}" for weight in one.largest_weights if weight.weight),
            )
            for row, one in own
        ],
    }


def _table(titles: list[str], rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None)
    for title, cells in zip(titles, zip(*rows, strict=True), strict=True):
        is_number = all(_NUMBER.fullmatch(cell) for cell in cells)
        is_cut = is_number or title == "largest weights"  # others are wrapped on a narrow terminal
        table.add_column(title, justify="right" if is_number else "left", no_wrap=is_cut, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
