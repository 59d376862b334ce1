"""The commands that change what the store has of a model: amend, join, rollback, reset, promote."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import typer

from service.errors import ConfigurationError, DataError
from service.learning.best import MAX_COMPARED
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import PartitionId
from service.settings.load import Settings, parse_start_at
from service.settings.model import TOPIC_NAME, is_topic
from service.snapshots.head import Head
from service.snapshots.keeper import Keeper
from service.snapshots.ports import before_reset
from service.snapshots.rollback import TRIES, current_head, kept_snapshot, roll_back
from service.streaming.kafka.cluster import Cluster
from service.tools.stored.inspect import not_stored, offsets_as_text


class _Clock:
    """Time in a command, where no requests wait for a turn of the event loop."""

    now, time, sleep = staticmethod(time.monotonic), staticmethod(time.time), staticmethod(asyncio.sleep)


async def amend_model(settings: Settings, name: str, yes: bool) -> None:
    """Give a model the identity of its settings, if `yes`; raises ConfigurationError if that cannot be amended."""
    identity = settings.model_settings(name).identity()

    def amend(learner: Learner) -> str:
        if not (changes := "; ".join(identity.differences(learner.identity))):
            return ""
        learner.amend(identity)
        if not yes:
            raise ConfigurationError(f"this changes model {name} from now on ({changes}): say --yes to do it")
        return f"is amended ({changes}); restart each learner that has the old settings"

    await _change(settings, name, amend, "has these settings already: there is nothing to amend")


async def resume_closing(settings: Settings, name: str, _: bool) -> None:
    """Let windows close without the partitions whose labels are silent, until their next label."""
    join = settings.model_settings(name).join
    if join is None or join.max_silence is None:
        raise ConfigurationError(f"model {name} has no join with max_silence: its windows do not wait for labels")

    def resume(learner: Learner) -> str:
        silent = ", ".join(map(str, learner.join.resume())) if learner.join else ""
        return silent and f"goes on without labels of partition {silent}, until their next one"

    await _change(settings, name, resume, "has no silent partition of labels")


async def drop_held(settings: Settings, name: str, yes: bool) -> None:
    """Forget all events that wait for their labels, if `yes`: they are never learned."""

    def drop(learner: Learner) -> str:
        if learner.join is None:
            raise ConfigurationError(f"model {name} has no join")
        held = learner.join.drop(learner.next)
        if not yes:
            raise ConfigurationError(f"this forgets {held:,} events of model {name} that wait: say --yes to do it")
        learner.main.counts.join = learner.join.counts
        return f"has forgotten {held:,} events that waited for their labels"

    await _change(settings, name, drop)


async def _change(settings: Settings, name: str, change: Callable[[Learner], str], no_change: str = "") -> None:
    """Save a model after `change`, as the child of its newest snapshot, and keep this version; print the outcome.

    `change` returns what happened to the model. If that is empty, nothing is saved, and `no_change` is printed. Raises
    DataError if a learner saves in between, TRIES times.
    """
    options, keep = settings.model_settings(name).options(), settings.snapshots.keep
    options = options._replace(window=max(options.window, MAX_COMPARED))  # all flags that `best` compares stay stored
    async with settings.redis.store() as store:
        keeper = Keeper(name, store, _Clock(), asyncio.to_thread, options, keep_every=0.0, keep=keep)
        for _ in range(TRIES):
            learner = await keeper.restore()
            if learner is None or keeper.head is None:
                raise await not_stored(store, name)
            if not (outcome := change(learner)):
                return typer.echo(f"model {name} {no_change}")
            if saved := await keeper.save(learner, {}, keeper.head.source):
                now = f"this is version {saved.head.version} now, and learning goes on at"
                return typer.echo(f"model {name} {outcome}: {now} {offsets_as_text(learner.next)}")
    raise DataError(f"model {name} moved on meanwhile, {TRIES} times: try again")


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
            begin = f"from version {current.version} with {current.counts.events:,} events"
            end = f"back to version {to} with {kept.head.counts.events:,}"
            raise ConfigurationError(f"this takes model {name} {begin} {end}: say --yes to do it")
        new = await roll_back(store, kept, offsets, time.time())
    following = offsets_as_text({partition: position.offset for partition, position in new.next.items()})
    change = f"has gone back to version {to}, which is version {new.version} now"
    typer.echo(f"model {name} {change}: {new.counts.events:,} events, learning goes on at {following}")


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
            why = f"version {version.version} has learned up to {offsets_as_text(learned)}"
            cure = "nothing is learned twice: name an offset from there on"
            raise ConfigurationError(f"--resume-at {partition}:{offset}: {why}, and {cure}")
    topic = " and ".join(topics)
    async with cluster.reader(version.model, topics, DataError(f"{cluster} has no topic {topic}")) as reader:
        for partition, offset in (learned | resume_at).items():
            begin, end = reader.bounds.get(partition, (0, 0))
            if not begin <= offset <= end:
                has = f"topic {topic}: partition {partition} has the offsets {begin} to {end}"
                cure = f"learning cannot go on at {offset}; name another offset with --resume-at"
                raise DataError(f"{has}: {cure}")


async def reset_model(settings: Settings, name: str, yes: bool, keep_answering: bool) -> None:
    """Delete a model's snapshot and kept versions, if `yes`.

    If settings are given that differ from those of the stored model, only a learner that has them begins it again.
    With `keep_answering` the last version answers until the model has been learned up to the end of its log.
    """
    identity = settings.model_settings(name).identity()
    async with settings.redis.store() as store:
        (digest,), aliases = await store.look([name])
        alias = aliases.get(name)
        # After a reset under other settings there is no snapshot, but an identity, which can be reset too.
        if digest == "" and ((keep_answering and not alias) or not await store.required_identity(name)):
            raise await not_stored(store, name)
        if not yes:
            raise ConfigurationError(f"this forgets everything that model {name} has learned: say --yes to do it")
        if keep_answering and alias not in {None, before_reset(name)}:
            raise ConfigurationError(f"--keep-answering: model {alias} answers for {name}, whatever {name} has learned")
        differences = ""
        try:
            if (stored := await current_head(store, name)) and settings.mentions(name):
                differences = "; ".join(identity.differences(stored[0].identity))
        except DataError:  # a damaged model can be forgotten
            if keep_answering:
                raise
        if alias == before_reset(name) and not keep_answering:
            await store.set_alias(name, name)
        await store.reset(name, msgspec.json.encode(identity) if differences else b"", keep_answering and not alias)
    later = "a learner that starts later begins where --start-at says"
    typer.echo(f"model {name} is forgotten: a running learner learns it again from the start of its topic, and {later}")
    if differences:
        typer.echo(f"only a learner with these settings begins it again: {differences}")
    if keep_answering:
        typer.echo("its last version answers until it has been learned up to the end")


async def promote_model(settings: Settings, name: str, alias: str) -> None:
    """Store an alias of a model, or remove it if both names are equal. Running services use it within two seconds."""
    if not is_topic(alias):
        raise ConfigurationError(f"--as: '{alias}' cannot be a model's name: it is not a {TOPIC_NAME}")
    async with settings.redis.store() as store:
        (digest,), aliases = await store.look([name])
        if name != alias and name in aliases:
            raise ConfigurationError(f"{name} is an alias of model {aliases[name]}: promote that model")
        if name != alias and digest == "":
            raise await not_stored(store, name)
        await store.set_alias(alias, name)
    typer.echo(f"model {name} answers for {alias} now" if name != alias else f"{name} is no alias any more")
