"""`perceptron inspect`: a model's newest snapshot, its kept versions, and how far it is behind its topic."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import typer

from service.errors import DataError, DependencyError
from service.learning.classifier import largest
from service.learning.identity import label_as_json
from service.learning.kernel.kernel import Vector
from service.learning.learner import Learner, OffsetGaps
from service.learning.records import PartitionId, by_text
from service.serving.model_info import Description, Version
from service.serving.models import Model
from service.settings.load import Settings
from service.snapshots import codec
from service.tools.stored.newest_snapshot import newest_snapshot
from service.tools.tables import Titles, print_tables

MAX_WEIGHTS = 10
"""The largest weights that are shown."""
MAX_LABELS, MAX_LABEL_WEIGHTS = 20, 3
"""The most frequent labels that are shown, and the largest weights of each."""
KAFKA_SECONDS = 3.0
OMITTED = ("identity", "next", "covered", "digest", "learning_here", "lag", "lag_reason")
"""Members that have a table or a line of their own, or are not shown."""


class Inspection(Description, kw_only=True):
    """The JSON of `--json`: the API's description of a model, and what only its snapshot and its topic tell."""

    offsets_without_record: int
    """Covered offsets of markers, and of aborted or compacted records."""
    gaps: dict[str, OffsetGaps]
    lag: dict[str, int] | None
    lag_reason: str | None
    versions: list[Version]
    bias: float | None
    largest_weights: list[dict[str, Any]]
    label_weights: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    """With three labels and more the weights of the most frequent ones, instead of the two members above."""


async def inspect_model(settings: Settings, name: str, as_json: bool) -> None:
    """Print a model's newest snapshot and its lag, without a running service."""
    async with settings.redis.store() as store:
        served = await newest_snapshot(store, name, settings.model_settings(name).options())
        kept = await store.kept(name, [v.version for v in served.head.kept])
    learner = served.learner
    lag, lag_reason = await _lag(settings, name, learner.next)
    covered = sum(to - start for ranges in learner.covered.values() for start, to in ranges)
    about = Inspection(
        **msgspec.structs.asdict(Description.from_model(Model(name), served)),
        offsets_without_record=covered - learner.main.counts.records,
        gaps=by_text(learner.gaps),
        lag=lag,
        lag_reason=lag_reason,
        versions=[Version.from_head(*v) for v in codec.kept_versions(served.head, served.digest, kept)],
        **_largest_weights(learner, served.classifier(None)[1].served),
    )
    if as_json:
        typer.echo(msgspec.json.encode(about))
    else:
        print_tables(_tables(about))


def _largest_weights(learner: Learner, w: Vector) -> dict[str, Any]:
    """The bias and the largest weights, or those of the most frequent labels."""

    def largest_of(w: Vector, count: int) -> dict[str, Any]:
        rows = [{"name": learner.columns.name_of(c), "weight": float(w[c])} for c in largest(w, count)]
        return {"bias": float(w[0]), "largest_weights": rows}

    if not learner.identity.multiclass:
        return largest_of(w, MAX_WEIGHTS)
    labels, events = learner.identity.labels or (), learner.main.counts.by_label
    frequent = sorted(sorted(range(len(labels)), key=lambda k: -events[k])[:MAX_LABELS])
    rows = [{"label": labels[k], **largest_of(w[:, k], MAX_LABEL_WEIGHTS)} for k in frequent]
    return {"bias": None, "largest_weights": [], "label_weights": rows}


async def _lag(
    settings: Settings, model: str, following: Mapping[PartitionId, int]
) -> tuple[dict[str, int] | None, str | None]:
    """The records from the next offset of each partition on, and all records of a partition that was never learned.

    If Kafka does not answer soon, or the topic is not the one that was learned: None, and the reason.
    """
    cluster, topic = settings.kafka.cluster, settings.topic_of(model)
    missing = DataError(f"{cluster} has no topic {topic}")
    try:
        async with cluster.errors(), asyncio.timeout(KAFKA_SECONDS), cluster.reader(model, [topic], missing) as reader:
            bounds = reader.bounds
    except (DependencyError, DataError) as error:
        return None, str(error)
    lag = {partition: end - following.get(partition, begin) for partition, (begin, end) in bounds.items()}
    if not following.keys() <= lag.keys() or min(lag.values()) < 0:
        return None, f"topic {topic} ends before the model's next offset: it is not the log that was learned"
    return by_text(lag), None


def _text_of(value: Any) -> str:
    """A value on one line, without null members; -0 as 0.

    >>> _text_of({"all": 0.625, "recent": None, "interval": [-0.0, 12345], "average": True})
    'all 0.625, interval [0, 12,345], average true'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, member in value.items() if (text := _text_of(member)))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text_of, value))}]"
    if isinstance(value, float):
        return f"{value + 0.0:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _tables(about: Inspection) -> dict[Titles, list[tuple[str, ...]]]:
    """The rows of each table, by its titles. The first has the members that no other table shows."""
    parts = msgspec.to_builtins(about)
    facts = {name: value for name, value in parts.items() if name not in OMITTED and not isinstance(value, list)}
    facts["identity"] = {name: parts["identity"].get(name) for name in ("rule", "eta", "margin", "features")}
    facts["lag"] = f"unknown: {about.lag_reason}" if about.lag is None else f"{sum(about.lag.values()):,} records"
    facts["advice"] = "; ".join(about.advice)
    lag = about.lag or {}
    covered = {p: ", ".join(f"{a:,} to {b:,}" for a, b in ranges) for p, ranges in about.covered.items()}
    labels = {label_as_json(row.label): row for row in about.labels}
    weights = [(labels[label_as_json(row["label"])], row) for row in about.label_weights or []]
    return {
        ("figure", "value"): [(name, text) for name, value in facts.items() if (text := _text_of(value))],
        ("comparison", "difference", "better (95 %)"): [
            (f"{pair.first} less {pair.second}", _text_of(pair.difference), pair.better or "no difference shown")
            for pair in about.comparisons
        ],
        ("candidate", "events", "accuracy", "verdict", "settings, since"): [
            (
                candidate.name,
                f"{candidate.events:,}",
                _text_of(msgspec.to_builtins(candidate.accuracy)),
                candidate.verdict + ", answers" * candidate.answers,
                f"{_text_of(candidate.settings)}; since {_text_of(candidate.since)}",
            )
            for candidate in about.candidates
        ],
        ("partition", "covered", "lag"): [
            (p, covered.get(p) or "nothing", _text_of(lag.get(p)) or "unknown")
            for p in sorted({*covered, *lag}, key=int)
        ],
        ("kept version", "saved at", "events", "mistakes"): [
            (f"{row.version:,}", row.saved_at, f"{row.events:,}", f"{row.mistakes:,}") for row in about.versions
        ],
        ("largest weights", "weight"): [
            (row["name"], f"{row['weight']:+g}") for row in about.largest_weights if row["weight"]
        ],
        ("label", "events", "recall", "bias", "largest weights"): [
            (
                about.identity.text_of(label.label),
                f"{label.events:,}",
                _text_of(msgspec.to_builtins(label.recall)),
                _text_of(row["bias"]),
                ", ".join(f"{w['name']} {w['weight']:+g}" for w in row["largest_weights"] if w["weight"]),
            )
            for label, row in weights
        ],
    }
