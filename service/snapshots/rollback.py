"""A kept version: read and verified, and made the newest snapshot again by `perceptron rollback`.

The restored state is a new head, child of the current one. To put the old digest back would let a process that is
behind undo it: its parent would be current again. As a child, it refuses every save built on what was current before.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from service.errors import DataError, SnapshotDamaged, SnapshotNewer
from service.learning.learner import Options
from service.snapshots import blobs, codec, head
from service.snapshots.head import Head
from service.snapshots.keeper import Offload, Snapshot, verified
from service.snapshots.store import Store

TRIES = 20
"""A learner may save ten times a second; each time the rollback begins again on top of that save."""


class KeptStore(Store, Protocol):
    """A store that also reads what it keeps."""

    async def kept(self, model: str, versions: Iterable[int]) -> list[bytes]:
        """The heads of kept versions, as far as they are there."""


async def kept_snapshot(
    store: KeptStore, current: Head, digest: str, version: int, offload: Offload, options: Options
) -> Snapshot:
    """A version that this head keeps, verified; raises DataError, naming those that are there."""
    name, others = f"model {current.model}", [k.version for k in current.kept if k.version != version]
    wanted = next((k.digest or digest for k in current.kept if k.version == version), None)
    if wanted is None:
        raise DataError(f"{name} has no kept version {version}: it has {listed(others)}")
    try:
        found = await store.kept(current.model, [version])
        if not found:
            raise SnapshotDamaged("its head is missing")
        kept = codec.decode(found[0], wanted)
        needed = head.needed(kept)
        parts = await store.blobs(current.model, needed)
        if missing := [d for d in needed if d not in parts]:
            raise SnapshotDamaged(f"blob {missing[0][:12]} is missing")
        stored, finish = await offload(verified, kept, parts, options, None)
    except SnapshotDamaged as error:
        detail = str(error).removeprefix(f"{name}: ")
        raise DataError(f"{name}: kept version {version} is damaged ({detail}): others are {listed(others)}") from error
    except SnapshotNewer as error:
        raise SnapshotNewer(f"{name}: kept version {version}: {error}") from error
    return Snapshot(kept, wanted, finish(), stored)


def listed(versions: Sequence[int]) -> str:
    """Versions for a message."""
    return ", ".join(map(str, versions)) or "none"


async def current_head(store: Store, model: str) -> tuple[Head, str] | None:
    """The current head and its digest, without its blobs: they may be damaged, which is a reason to go back."""
    found = await store.head(model)
    return (codec.readable(model, *found), found[0]) if found else None


async def roll_back(store: Store, kept: Snapshot, resume_at: Mapping[int, int], now: float) -> Head:
    """Make a kept version the newest snapshot; raises DataError when the model moves on faster than that."""
    model, version = kept.head.model, kept.head.version
    for _ in range(TRIES):
        found = await current_head(store, model)
        if found is None or not any((k.digest or found[1]) == kept.digest for k in found[0].kept):
            raise DataError(f"model {model} does not keep version {version} any more: it moved on meanwhile")
        new = head.restored(kept.head, kept.stored, *found, resume_at, now)
        data = codec.encode(new)
        # Its blobs are those of the kept version, which the store holds for as long as it keeps that.
        verdict = await store.commit(model, found[1], blobs.digest(data), data, new.refs, str(new.version), "")
        if verdict == "OK":
            return new
        if verdict == "MISSING":
            raise DataError(f"model {model}: blobs of version {version} vanished from the store meanwhile")
    raise DataError(f"model {model} moved on meanwhile, {TRIES} times: try again")
