"""`perceptron rollback`: make a kept version the newest one."""

import time
from contextlib import suppress

import typer

from service.errors import ConfigurationError, DataError
from service.learning.options import Options
from service.learning.records import PartitionId
from service.settings.load import Settings, parse_start_at
from service.snapshots.head import Head
from service.snapshots.rollback import current_head, kept_snapshot, roll_back
from service.streaming.kafka.cluster import Cluster
from service.tools.stored.newest_snapshot import not_stored


async def rollback_model(settings: Settings, name: str, to: int, resume_at: str | None, yes: bool) -> None:
    """Restore version `to` of a model, if `yes`. `resume_at` is P:OFFSET,…: the records before it are never learned."""
    offsets = _parse_offsets(resume_at)
    async with settings.redis.store() as store:
        if (newest := await current_head(store, name)) is None:
            raise await not_stored(store, name)
        current, digest = newest
        kept = await kept_snapshot(store, name, current, digest, to, Options())
        await _check_offsets(settings.kafka.cluster, settings.topics_of(name), kept.head, offsets)
        if not yes:
            raise ConfigurationError(
                f"this takes model {name} from version {current.version} with {current.counts.events:,} events back "
                f"to version {to} with {kept.head.counts.events:,}: say --yes to do it"
            )
        new = await roll_back(store, kept, offsets, time.time())
    following = ", ".join(f"{partition}:{position.offset}" for partition, position in new.next.items())
    typer.echo(
        f"model {name} has gone back to version {to}, which is version {new.version} now: {new.counts.events:,} "
        f"events, learning goes on at {following}"
    )


def _parse_offsets(text: str | None) -> dict[PartitionId, int]:
    with suppress(ValueError):
        if isinstance(offsets := parse_start_at(text) or {}, dict):
            return offsets
    raise ConfigurationError(f"--resume-at {text}: expected PARTITION:OFFSET,…")


async def _check_offsets(cluster: Cluster, topics: list[str], version: Head, resume_at: dict[PartitionId, int]) -> None:
    """Raise ConfigurationError if learned records would be learned again, DataError if learning cannot go on there."""
    learned = {partition: position.offset for partition, position in version.next.items()}
    for partition, offset in resume_at.items():
        if offset < learned.get(partition, offset + 1):
            ends = ", ".join(f"{partition}:{end}" for partition, end in learned.items())
            raise ConfigurationError(
                f"--resume-at {partition}:{offset}: version {version.version} has learned up to {ends}, and nothing is "
                "learned twice: name an offset from there on"
            )
    topic = " and ".join(topics)
    async with cluster.reader(version.model, topics, DataError(f"{cluster} has no topic {topic}")) as reader:
        for partition, offset in (learned | resume_at).items():
            begin, end = reader.bounds.get(partition, (0, 0))
            if not begin <= offset <= end:
                raise DataError(
                    f"topic {topic}: partition {partition} has the offsets {begin} to {end}: learning cannot go on at "
                    f"{offset}; name another offset with --resume-at"
                )
