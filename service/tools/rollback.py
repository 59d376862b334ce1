"""`perceptron rollback`: a kept version is the newest snapshot again, and learning goes on from there."""

import asyncio
import time
from contextlib import suppress

import typer

from service.errors import ConfigurationError, DataError
from service.learning.options import Options
from service.settings.load import Settings, parse_start_at
from service.snapshots.head import Head
from service.snapshots.rollback import current_head, kept_snapshot, roll_back
from service.streaming.kafka.cluster import Cluster
from service.tools.stored_models import none_stored


async def rollback_model(settings: Settings, name: str, to: int, resume_at: str | None, yes: bool) -> None:
    """Restore version `to` of a model, if `yes`. `resume_at` is P:OFFSET,…: the records before it are never learned."""
    offsets = _parse_offsets(resume_at)
    async with settings.redis.store() as store:
        current, digest = await current_head(store, name) or (None, "")
        if current is None:
            raise await none_stored(store, name)
        kept = await kept_snapshot(store, current, digest, to, asyncio.to_thread, Options())
        await _check_offsets(settings.kafka.cluster, name, kept.head, offsets)
        if not yes:
            raise ConfigurationError(
                f"this takes model {name} from version {current.version} with {current.counts.events:,} events back "
                f"to version {to} with {kept.head.counts.events:,}: say --yes to do it"
            )
        new = await roll_back(store, kept, offsets, time.time())
    typer.echo(
        f"model {name} has gone back to version {to}, which is version {new.version} now: {new.counts.events:,} "
        f"events, learning goes on at {_next_offsets(new)}"
    )


def _parse_offsets(text: str | None) -> dict[int, int]:
    with suppress(ValueError):
        offsets = parse_start_at(text) or {}
        if isinstance(offsets, dict):
            return offsets
    raise ConfigurationError(f"--resume-at {text}: expected PARTITION:OFFSET,…")


def _next_offsets(head: Head) -> str:
    return ", ".join(f"{partition}:{position.offset}" for partition, position in head.next.items())


async def _check_offsets(cluster: Cluster, topic: str, version: Head, resume_at: dict[int, int]) -> None:
    """Raise ConfigurationError if learned records would be left out, DataError if learning cannot go on there."""
    learned = {int(partition): position.offset for partition, position in version.next.items()}
    if any(offset < learned.get(partition, offset + 1) for partition, offset in resume_at.items()):
        raise ConfigurationError(
            f"--resume-at: version {version.version} has learned up to {_next_offsets(version)}, and nothing is "
            "learned twice: name these partitions, with these offsets or larger ones"
        )
    async with cluster.reader(topic, DataError(f"{cluster} has no topic {topic}")) as reader:
        bounds = await reader.bounds()
    for partition, offset in (learned | resume_at).items():
        begin, end = bounds.get(partition, (0, 0))
        if not begin <= offset <= end:
            raise DataError(
                f"topic {topic}: partition {partition} holds offsets {begin} to {end}, but version {version.version} "
                f"would go on at {offset}: if records are gone, leave them out with --resume-at {partition}:{begin}"
            )
