"""A stored model: read for `inspect` and `export`, forgotten by `perceptron reset`."""

import asyncio

import typer

from service.errors import ConfigurationError, DataError
from service.learning.options import Options
from service.serving.models import Answering
from service.settings.load import Settings
from service.snapshots.keeper import fetch
from service.snapshots.redis.store import RedisStore


async def newest(store: RedisStore, name: str, options: Options) -> Answering:
    """A model's newest snapshot; raises DataError where there is none."""
    found = await fetch(store, name, asyncio.to_thread, options)
    if found is None:
        raise await none_stored(store, name)
    return Answering(found.learner, found.head, found.digest)


async def none_stored(store: RedisStore, name: str) -> DataError:
    """What to say where a model has no snapshot."""
    known = ", ".join(await store.models()) or "none"
    return DataError(f"model {name} has no snapshot in Redis at {store.address}; it has: {known}")


def reset_model(settings: Settings, name: str, yes: bool) -> None:
    """Delete a model's snapshot and kept versions, if `yes`."""
    asyncio.run(_reset(settings, name, yes))


async def _reset(settings: Settings, name: str, yes: bool) -> None:
    async with settings.redis.store() as store:
        if not await store.there(name):
            raise DataError(f"model {name} has no snapshot in Redis at {store.address}: there is nothing to reset")
        if not yes:
            raise ConfigurationError(f"this forgets everything that model {name} has learned: say --yes to do it")
        await store.delete(name)
        typer.echo(
            f"model {name} is forgotten: a running learner begins it anew at the log's start, "
            "one that is started where --start-at says"
        )
