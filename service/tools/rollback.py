"""`perceptron rollback`: a kept version is the newest snapshot again, and learning goes on from there."""

import asyncio
import time
from collections.abc import Mapping

import typer

from service.errors import ConfigurationError, DataError
from service.learning.options import Options
from service.settings.load import Settings, parse_start_at
from service.snapshots.head import Head
from service.snapshots.rollback import current_head, kept_snapshot, roll_back
from service.streaming.kafka.cluster import Cluster
from service.tools.stored_models import none_stored


def rollback_model(settings: Settings, name: str, to: int, resume_at: str | None, yes: bool) -> None:
    """Restore version `to` of a model, if `yes`; `resume_at` is P:OFFSET,…, behind what is never to be learned."""
    asyncio.run(_rollback(settings, name, to, _offsets(resume_at), yes))


def _offsets(text: str | None) -> dict[int, int]:
    try:
        found = parse_start_at(text) or {}
    except ValueError:
        found = ""
    if not isinstance(found, dict):
        raise ConfigurationError(f"--resume-at {text}: expected PARTITION:OFFSET,…")
    return found


async def _rollback(settings: Settings, name: str, to: int, resume_at: Mapping[int, int], yes: bool) -> None:
    async with settings.redis.store() as store:
        found = await current_head(store, name)
        if found is None:
            raise await none_stored(store, name)
        kept = await kept_snapshot(store, *found, to, asyncio.to_thread, Options())
        _check_offsets(kept.head, resume_at)
        await _check_log(settings.kafka.cluster, name, kept.head, resume_at)
        if not yes:
            raise ConfigurationError(
                f"this takes model {name} from version {found[0].version} with {found[0].counts.events:,} events back "
                f"to version {to} with {kept.head.counts.events:,}: say --yes to do it"
            )
        new = await roll_back(store, kept, resume_at, time.time())
    at = ", ".join(f"{partition}:{position.offset}" for partition, position in new.next.items())
    typer.echo(
        f"model {name} has gone back to version {to}, which is version {new.version} now: {new.counts.events:,} "
        f"events, learning goes on at {at}"
    )


def _check_offsets(version: Head, resume_at: Mapping[int, int]) -> None:
    """Only what was not learned can be left out."""
    for partition, offset in resume_at.items():
        position = version.next.get(str(partition))
        if position is None:
            raise ConfigurationError(
                f"--resume-at {partition}:{offset}: version {version.version} has partitions {', '.join(version.next)}"
            )
        if offset < position.offset:
            raise ConfigurationError(
                f"--resume-at {partition}:{offset}: version {version.version} has learned up to {position.offset}, and "
                f"nothing is learned twice: give {position.offset} or more"
            )


async def _check_log(cluster: Cluster, topic: str, version: Head, resume_at: Mapping[int, int]) -> None:
    """That learning can go on there, or the model would stop at once."""
    missing = DataError(f"{cluster} has no topic {topic}")
    async with cluster.reader(topic, missing) as reader:
        there = reader.bounds
    for name, position in version.next.items():
        partition = int(name)
        offset = resume_at.get(partition, position.offset)
        begin, end = there.get(partition, (0, 0))
        if offset < begin:
            raise DataError(
                f"topic {topic}: partition {partition} begins at {begin}, but version {version.version} would go on at "
                f"{offset}: leave out what is gone with --resume-at {partition}:{begin}"
            )
        if offset > end:
            raise DataError(f"topic {topic}: partition {partition} ends at {end}, so learning cannot go on at {offset}")
