"""Stored models, for the commands that read them."""

import asyncio

from service.errors import DataError
from service.learning.options import Options
from service.serving.models import Answering
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
