"""Stored models, for the commands that read them."""

import asyncio

from service.errors import DataError
from service.learning.options import Options
from service.serving.models import ServedModel
from service.snapshots.keeper import fetch_newest
from service.snapshots.ports import Store


async def newest_snapshot(store: Store, name: str, options: Options) -> ServedModel:
    """A model's newest snapshot; raises DataError where there is none."""
    found = await fetch_newest(store, name, asyncio.to_thread, options)
    if found is None:
        raise await none_stored(store, name)
    return ServedModel(found.learner, found.head, found.digest)


async def none_stored(store: Store, name: str) -> DataError:
    """The error for a model without a snapshot."""
    known = ", ".join(await store.models()) or "none"
    return DataError(f"model {name} has no snapshot in Redis at {store.address}; it has: {known}")
