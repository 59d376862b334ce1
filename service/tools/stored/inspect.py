"""`perceptron inspect`: a model's newest snapshot, its kept versions, and how far it is behind its topic.

The other commands on stored models read the newest snapshot from here too.
"""

import asyncio
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import msgspec
import typer

from service.errors import DataError, DependencyError
from service.learning.classifier import largest
from service.learning.identity import Identity, label_as_json
from service.learning.kernel.kernel import Vector
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import PartitionId, by_text
from service.serving.model_info import Description, Version
from service.serving.models import Model, ServedModel
from service.settings.load import Settings
from service.snapshots.keeper import fetch_newest
from service.snapshots.ports import Store
from service.tools.tables import Titles, figures, print_tables

MAX_WEIGHTS = 10
"""The largest weights that are shown."""
MAX_LABELS, MAX_LABEL_WEIGHTS = 20, 3
"""The most frequent labels that are shown, and the largest weights of each."""
KAFKA_SECONDS = 3.0
OMITTED = ("identity", "next", "covered", "digest", "learning_here", "lag", "lag_reason")
"""Members that have a table or a line of their own, or are not shown."""


async def inspect_model(settings: Settings, name: str, as_json: bool) -> None:
    """Print a model's newest snapshot and its lag, without a running service."""
    async with settings.redis.store() as store:
        served = await newest_snapshot(store, name, settings.model_settings(name).options())
        kept = await store.kept(name, [v.version for v in served.head.kept])
    learner = served.learner
    lag, lag_reason = await _lag(settings, name, learner.next)
    covered = sum(to - start for ranges in learner.covered.values() for start, to in ranges)
    only_here = {
        "offsets_without_record": covered - learner.main.counts.records,
        "gaps": by_text(learner.gaps),
        "lag": lag,
        "lag_reason": lag_reason,
        "versions": [Version.from_head(*v) for v in served.head.kept_versions(served.digest, kept)],
    }
    description = msgspec.to_builtins(Description.from_model(Model(name), served))
    about = description | msgspec.to_builtins(only_here) | _largest_weights(learner, served.classifier(None)[1].served)
    if as_json:
        return typer.echo(msgspec.json.encode(about))
    return print_tables(_tables(about, learner.identity))


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

    If Kafka does not answer soon, or the topic is not the one that was learned: None, and the reason. If open
    transactions hold records back: the lines that say so.
    """
    cluster, topics = settings.kafka.cluster, settings.topics_of(model)
    topic = " and ".join(topics)
    missing = DataError(f"{cluster} has no topic {topic}")
    try:
        limit = asyncio.timeout(KAFKA_SECONDS)
        async with cluster.errors(), limit, cluster.reader(model, topics, missing) as reader:
            limit.reschedule(None)
            held_back = await reader.open_transactions()
    except (DependencyError, DataError) as error:
        return None, str(error)
    lag = {p: reader.ends[p] - following.get(p, begin) for p, (begin, _) in reader.bounds.items()}
    if not following.keys() <= lag.keys() or min(lag.values()) < 0:
        return None, f"topic {topic} ends before the model's next offset: it is not the log that was learned"
    return by_text(lag), "; ".join(held_back) or None


def _tables(about: dict[str, Any], identity: Identity) -> dict[Titles, list[tuple[Any, ...]]]:
    """The rows of each table, by its titles. The first has the members that no other table shows."""
    lag, labels = about["lag"] or {}, {label_as_json(row["label"]): row for row in about["labels"]}
    facts = {name: value for name, value in about.items() if name not in OMITTED}
    facts["identity"] = {name: about["identity"].get(name) for name in ("rule", "eta", "margin", "features")}
    lag_texts = f"{sum(lag.values()):,} records" if lag else "unknown", about["lag_reason"]
    facts["lag"] = ": ".join(filter(None, lag_texts))
    facts["advice"] = "; ".join(about["advice"])
    covered = {p: ", ".join(f"{a:,} to {b:,}" for a, b in ranges) for p, ranges in about["covered"].items()}
    candidate = ("name", "answers", "events", "accuracy", "auc", "verdict", "settings", "since")
    version = itemgetter("version", "saved_at", "events", "mistakes")
    return {
        ("figure", "value"): figures(facts),
        ("comparison", "difference", "better (95 %)"): [
            (f"{pair['first']} less {pair['second']}", pair["difference"], pair["better"] or "no difference shown")
            for pair in about["comparisons"]
        ],
        ("candidate", *candidate[1:]): [*map(itemgetter(*candidate), about["candidates"])],
        ("partition", "covered", "lag"): [
            (p, covered.get(p) or "nothing", lag.get(p, "unknown"))
            for p in sorted({*covered, *lag}, key=PartitionId.from_text)
        ],
        ("kept version", "saved at", "events", "mistakes"): [*map(version, about["versions"])],
        ("largest weights", "weight"): [
            (row["name"], f"{row['weight']:+g}") for row in about["largest_weights"] if row["weight"]
        ],
        ("label", "events", "recall", "bias", "largest weights"): [
            (
                identity.text_of(row["label"]),
                *itemgetter("events", "recall")(labels[label_as_json(row["label"])]),
                row["bias"],
                ", ".join(f"{w['name']} {w['weight']:+g}" for w in row["largest_weights"] if w["weight"]),
            )
            for row in about.get("label_weights", ())
        ],
    }


async def newest_snapshot(store: Store, name: str, options: Options) -> ServedModel:
    """A model's newest snapshot; raises DataError if there is none."""
    if (snapshot := await fetch_newest(store, name, asyncio.to_thread, options)) is None:
        raise await not_stored(store, name)
    return ServedModel(snapshot.learner, snapshot.head, snapshot.digest)


async def not_stored(store: Store, name: str) -> DataError:
    """The error for a model without a snapshot."""
    stored = ", ".join(await store.models()) or "none"
    return DataError(f"model {name} has no snapshot in Redis at {store.address}; it has: {stored}")


def offsets_as_text(offsets: Mapping[PartitionId, int]) -> str:
    """An offset of each partition on one line."""
    return ", ".join(f"{partition}:{offset}" for partition, offset in offsets.items())
