"""What several commands on a stored model need: its newest snapshot, and offsets as text."""

import asyncio
from collections.abc import Mapping

from service.errors import DataError
from service.learning.options import Options
from service.learning.records import PartitionId
from service.serving.models import ServedModel
from service.snapshots.keeper import fetch_newest
from service.snapshots.ports import Store


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
