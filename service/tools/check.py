"""`perceptron check`: whether what is set can work, with what is stored, and whether records are what is set."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable

import typer

from service.errors import DataError, DependencyError, PerceptronError, Unauthorised
from service.learning.columns import columns_for
from service.learning.events.batch import Decoder
from service.learning.identity import Identity
from service.settings.load import Settings
from service.snapshots.codec import readable
from service.snapshots.head import Source
from service.streaming.dead_letters import topic_of
from service.streaming.kafka.cluster import Cluster, refused
from service.streaming.kafka.coordinator import coordinator
from service.streaming.kafka.topic_id import too_old
from service.streaming.recognise import same_settings
from service.streaming.records import value_of
from service.tools.in_vain import in_vain
from service.tools.sample import newest_of

RECORDS = 100
"""Of a topic: enough to see what its producers send now."""


def check(settings: Settings) -> int:
    """Print one line for each thing that must work; returns the exit code."""
    failed = asyncio.run(_check(settings))
    return max((error.exit_code for error in failed), default=0)


async def _check(settings: Settings) -> list[PerceptronError]:
    found: list[PerceptronError] = []
    try:
        settings.check_work()
        typer.echo(f"ok    settings: {len(settings.topics)} topic{'s' * (len(settings.topics) != 1)}")
    except PerceptronError as error:
        found.append(error)
        typer.echo(f"fail  {error}")
    for warning in settings.warnings:
        typer.echo(f"warn  {warning}")
    reached = False
    try:
        async with settings.redis.store() as store:
            warnings = await store.check(settings.learn)
        reached = True
        typer.echo(f"ok    Redis at {store.address}")
        for warning in warnings:
            typer.echo(f"warn  {warning}")
    except PerceptronError as error:
        found.append(error)
        typer.echo(f"fail  {error}")
    if not settings.learn:
        return found
    cluster = settings.kafka.cluster
    try:
        async with cluster.admin() as client:
            topics = set(await client.list_topics())
        async with cluster.connected() as client:
            old = await too_old(client)
    except DependencyError as error:
        typer.echo(f"fail  {error}")
        return [*found, error]
    typer.echo(f"ok    {cluster}")
    if old:
        typer.echo(f"warn  {old}")
    group = settings.kafka.group_id
    try:
        answering = await coordinator(cluster, group, settings.kafka.session_timeout)
        typer.echo(f"ok    group {group}: broker {answering.broker} coordinates it")
    except DependencyError as error:
        found.append(error)
        typer.echo(f"fail  {error}")
    found += await _check_topics(settings, topics)
    learned = [topic for topic in sorted(topics) if topic in settings.listed or settings.wanted(topic)]
    if reached:
        found += await _check_stored(settings, learned)
    return found + await _check_records(settings, learned)


async def _check_topics(settings: Settings, topics: Collection[str]) -> list[PerceptronError]:
    """A line for each topic that is named and its dead letters: whether it is there, and may be used as it must be."""
    found, cluster = list[PerceptronError](), settings.kafka.cluster
    for topic in settings.topics:
        for name in (topic, topic_of(topic)):
            right = "Read" if name == topic else "Write"
            try:
                there = name in topics or await cluster.partitions(name, right)
                lacking = await cluster.lacking(name, right, "DescribeConfigs") if there else []
                if right in lacking:
                    raise Unauthorised(f"{cluster}: {refused(right, f'topic {name}')}", "kafka")
            except DependencyError as error:
                found.append(error)
                typer.echo(f"fail  {error}")
                continue
            if there:
                typer.echo(f"ok    topic {name}")
                for missing in lacking:
                    typer.echo(f"warn  {cluster}: {refused(missing, f'topic {name}')}")
            elif settings.create_topics:
                typer.echo(f"ok    topic {name} will be created")
            else:
                said = f"topic {name} does not exist: create it, or run with --create-topics"
                typer.echo(f"fail  {said}")
                found.append(PerceptronError(said))
    return found


async def _check_stored(settings: Settings, topics: Iterable[str]) -> list[PerceptronError]:
    """A line for each stored model that cannot be gone on with here, under these settings."""
    found = list[PerceptronError]()
    async with settings.redis.store() as store:
        for topic in topics:
            try:
                if stored := await store.head(topic):
                    head, here = readable(topic, *stored), Source(await settings.kafka.cluster.id())
                    same_settings(topic, head, settings.of(topic).identity(), here)
                    typer.echo(f"ok    model {topic}: goes on with version {head.version}")
            except PerceptronError as error:
                found.append(error)
                typer.echo(f"fail  {error}")
    return found


async def _check_records(settings: Settings, topics: Iterable[str]) -> list[PerceptronError]:
    """A line for each topic that is learned: how many of its last records its model would accept."""
    found: list[PerceptronError] = []
    for topic in topics:
        own, vain = settings.of(topic), list[str]()
        try:
            level, said, values = await _judge_newest(settings.kafka.cluster, topic, own.identity())
            vain = in_vain(own, values)
        except PerceptronError as error:
            level, said = "fail", str(error)
            found.append(error)
        else:
            found += [DataError(said)] if level == "fail" else []
        typer.echo(f"{level:<4}  topic {topic}: {said}")
        for line in vain:
            typer.echo(f"warn  models.{topic}.{line}")
    return found


async def _judge_newest(cluster: Cluster, topic: str, identity: Identity) -> tuple[str, str, list[bytes | None]]:
    """Whether the last RECORDS of a topic, as many of each partition, are events: ok, warn or fail, what to say, these.

    Raises DependencyError, and DataError where a record cannot be read.
    """
    decoder, values, skipped = Decoder(identity, columns_for(identity)), list[bytes | None](), 0
    reasons, example = Counter[str](), dict[str, str]()
    async for partition, newest in newest_of(cluster, topic, DataError(f"topic {topic} does not exist"), RECORDS):
        for record in newest:
            values.append(value_of(record))
            batch, rejects = decoder.decode(values[-1:])
            skipped += len(batch.skipped)
            for _, reason, detail in rejects:
                reasons[reason] += 1
                example[reason] = f"{detail} (offset {record.offset} of partition {partition})"
    if not values:
        return "ok", "no records yet", values
    accepted = len(values) - reasons.total() - skipped
    said = f"{accepted} of the last {len(values)} records would be accepted"
    said += f"; {_are(skipped)} passed over, since `where` does not mean them" if skipped else ""
    if not reasons:
        return "ok" if accepted else "warn", said, values
    often = reasons.most_common()
    each = (
        f", {', '.join(f'{count} as {reason}' for reason, count in often)}" if len(often) > 1 else f" as {often[0][0]}"
    )
    said = f"{said}; {_are(reasons.total())} rejected{each}, such as: {example[often[0][0]]}"
    return "warn" if accepted else "fail", said, values


def _are(count: int) -> str:
    """How many records, and that they are so.

    >>> _are(1), _are(6)
    ('1 is', '6 are')
    """
    return f"{count} {'is' if count == 1 else 'are'}"
