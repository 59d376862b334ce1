"""A kept version: read and verified, and made the newest snapshot again by `perceptron rollback`.

The restored state is a new head, a child of the current one. If the old digest were put back, a process that is behind
could undo the rollback, since its parent would be current again. With a child, the store refuses every save that was
built on an earlier head.
"""

import asyncio
import math
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from service.errors import DataError, SnapshotDamaged, SnapshotForeign
from service.learning.identity import MAX_SQUARED_NORM
from service.learning.learner import with_gap
from service.learning.options import Options
from service.learning.records import PartitionId
from service.snapshots import blobs
from service.snapshots.content import Stored, digest_of
from service.snapshots.head import UNKNOWN_WRITER, Head, KeptVersion, Position
from service.snapshots.keeper import Snapshot, read_snapshot
from service.snapshots.ports import Commit, ModelStore, Store

GROWTH_FACTOR = 1000.0
"""The factor by which the mean square of a model's steps may differ before its weights count as growing without end."""
LARGE_SQUARED_NORM = math.sqrt(MAX_SQUARED_NORM)
"""The squared norm of weights with half the digits of the largest norm."""
TRIES = 20
"""A learner may save ten times a second. Each time the rollback begins again, on top of that save."""


async def kept_snapshot(store: Store, model: str, head: Head, digest: str, version: int, options: Options) -> Snapshot:
    """A version that this head of a model keeps, verified; raises DataError that names the other versions."""
    name, digests = f"model {model}", {k.version: k.digest for k in head.kept_by(digest)}
    other_versions = ", ".join(str(number) for number in digests if number != version) or "none"
    if version not in digests:
        raise DataError(f"{name} has no kept version {version}: it has {other_versions}")
    try:
        data = await store.kept(model, [version])
        if not data:
            raise SnapshotDamaged("its head is missing")
        kept = Head.decode(data[0], digests[version])
        return await read_snapshot(store, model, kept, digests[version], asyncio.to_thread, options, None)
    except SnapshotDamaged as error:
        raise DataError(f"{name}: kept version {version} is damaged ({error}): it also has {other_versions}") from error
    except SnapshotForeign as error:
        raise SnapshotForeign(f"{name}: kept version {version}: {error}") from error


async def before_growth(store: Store, model: str, diverged: Snapshot, options: Options) -> Snapshot | None:
    """The last version kept from before the weights of a diverged model began to grow; None if none is kept.

    Growth shows in the steps: their mean square, which data and rule otherwise hold about equal, rises without end. If
    growth began among the kept versions, the earlier ones have a mean square near the smallest. If it began earlier,
    their weights are large.
    """
    current = diverged.head
    stored = await store.kept(model, [k.version for k in current.kept])
    versions = [kept for _, kept in current.kept_versions(diverged.digest, stored)]
    steps = [(kept.observations.squared_steps / max(kept.counts.updates, 1), kept.version) for kept in versions]
    least = min((step for step, _ in steps if step > 0.0), default=0.0)
    for step, version in reversed(steps):
        if step <= GROWTH_FACTOR * least:
            try:
                kept = await kept_snapshot(store, model, current, diverged.digest, version, options)
            except DataError:
                continue  # it is damaged; an older one may answer
            if not kept.learner.main.diverged and kept.learner.main.squared_norm <= LARGE_SQUARED_NORM:
                return kept
    return None


async def current_head(store: ModelStore, model: str) -> tuple[Head, str] | None:
    """The current head and its digest, without its blobs: they may be damaged, which is a reason for a rollback."""
    stored = await store.head(model)
    return (Head.decode_current(model, *stored), stored[0]) if stored else None


async def roll_back(store: ModelStore, kept: Snapshot, resume_at: Mapping[PartitionId, int], now: float) -> Head:
    """Make a kept version the newest snapshot; raises DataError if a learner saves in between, TRIES times."""
    model, version = kept.head.model, kept.head.version
    for _ in range(TRIES):
        current, digest = await current_head(store, model) or (None, "")
        if current is None or kept.digest not in [k.digest for k in current.kept_by(digest)]:
            raise DataError(f"model {model} does not keep version {version} any more: it moved on meanwhile")
        new = restore_version(kept.head, kept.stored, current, digest, resume_at, now)
        data = new.encode()
        # It has the blobs of the kept version, which the store has for as long as it keeps the version.
        verdict = await store.commit(model, Commit(digest, blobs.digest(data), data, new.refs, str(new.version)))
        if verdict == "OK":
            return new
        if verdict == "MISSING":
            raise DataError(f"model {model}: blobs of version {version} vanished from the store meanwhile")
    raise DataError(f"model {model} moved on meanwhile, {TRIES} times: try again")


def restore_version(
    version: Head, stored: Stored, current: Head, digest: str, resume_at: Mapping[PartitionId, int], now: float
) -> Head:
    """A kept version as the child of the current head, which has this digest. `stored` is what the store has of it.

    The new head continues at the offsets of the version, or after a gap at `resume_at`. A partition that the version
    lacks continues at its first offset. The source is the current head's, the fingerprints are the version's.
    """
    covered = {p: list(ranges) for p, ranges in version.covered.items()}
    for partition, ranges in current.covered.items():
        covered.setdefault(partition, [(ranges[0][0], ranges[0][0])])
    for partition, offset in resume_at.items():
        covered[partition] = with_gap(covered[partition], offset)
    prints = {p: position.fingerprint for p, position in version.next.items()}
    candidates = {
        name: replace(saved, since={p: saved.since.get(p, ranges[0][0]) for p, ranges in covered.items()})
        for name, saved in version.candidate_states.items()
    }
    best = version.best and replace(version.best, since={p: r[0][0] for p, r in covered.items()} | version.best.since)
    new = replace(
        version,
        version=current.version + 1,
        parent=digest,
        saved_at=now,
        order="log" if len(covered) == 1 else "arrival",
        source=current.source,
        writer=UNKNOWN_WRITER,
        next={p: Position(ranges[-1][1], prints.get(p)) for p, ranges in covered.items()},
        covered=covered,
        candidates=candidates or msgspec.UNSET,
        best=best,
        # The next event may be another one, and shows whether the model diverges again.
        observations=replace(version.observations, diverged=None),
        # A head has the runs since its last kept version, so that `verify` can begin there. The last kept version may
        # belong to the history that this rollback leaves, and no run leads on from it. So this head is kept too, and
        # begins without runs. All kept versions stay, also the later ones, since one of them undoes this rollback. That
        # may be one more than `keep` allows; the next save lets one go.
        runs=[],
        run_blobs=[],
        kept=[*current.kept_by(digest), KeptVersion(current.version + 1, now)],
    )
    return replace(new, state_digest=digest_of(new, stored))
