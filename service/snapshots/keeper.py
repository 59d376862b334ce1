"""When to save a model, what to save of it, and what a refusal means.

Rules that hold whatever crashes:
1. A save names the digest of the head that it was built on. The store accepts it only if that is still current.
2. A refused save means that another process went on from our parent: our state is dropped, never merged.
3. A save whose reply was lost is looked up before the next one: it may have been accepted.
4. Nothing changes the learner while a save runs: the learning loop awaits the save.

The keeper has no asyncio and no clock of its own. It gets `Clock` and `offload`, so that a test can step every await.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from service.errors import DependencyError, SnapshotDamaged, SnapshotForeign
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import DEFAULT, Options
from service.learning.records import PartitionId
from service.learning.weights_file import WeightsFile
from service.snapshots import blobs
from service.snapshots.content import NOTHING_STORED, Content, Stored, missing_blobs, restore_learner, snapshot_content
from service.snapshots.head import UNKNOWN_WRITER, Fingerprint, Head, KeptVersion, Position, TopicIdentity, Writer
from service.snapshots.ports import Clock, Commit, ModelStore, Offload

T = TypeVar("T")
Fingerprints = Mapping[PartitionId, Fingerprint]
"""The last record learned of each partition."""

PAUSE_PER_COST, UNPACED_MODELS = 84, 7
"""The pause after a save is this many times its cost, within the bounds below. So the saves of seven models together
take a twelfth of the process's time (7 / 84). More models share this twelfth.
"""
MAX_PARALLEL_SAVES = 2
"""Saves of one process at a time: a hundred in one turn of the event loop would make predictions wait."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 10.0
"""Bounds of the pause between two saves."""
MAX_BYTES_PER_SECOND = 8 << 20
"""Average rate of blobs, so that a large model does not take all of Redis and its disk."""
MAX_INLINE_WEIGHTS = 4096
"""Weights up to which a save is composed in the event loop: a thread would take longer, and learning waits for it."""
MAX_INLINE_BLOB_BYTES = 1 << 18
"""Bytes of blobs up to which they are uploaded by the command that makes the head current: one round trip less."""
MAX_RUNS = 512 * blobs.BLOCK_RUNS
"""Runs since the last kept version (10 MB in the store), above which a version is kept before it is due."""


class Snapshot(NamedTuple):
    """A head with its digest, the learner that it describes, and the parts of it that the store has."""

    head: Head
    digest: str
    learner: Learner
    stored: Stored


class AcceptedSave(NamedTuple):
    """An accepted save."""

    head: Head
    digest: str
    written: int
    seconds: float


class BlobMissing(SnapshotDamaged):
    """A blob of a head is not in the store. That is damage, unless the head has moved on meanwhile."""


async def fetch_newest(
    store: ModelStore, model: str, offload: Offload, options: Options, before: Snapshot | None = None
) -> Snapshot | None:
    """The newest snapshot of a model, verified; None if there is none.

    If `before` is an earlier snapshot, only blobs that it lacks are read, and its learner is updated. Raises
    SnapshotDamaged if the current head, or a blob of it, is missing or differs from its digest, and SnapshotForeign.
    """
    newest = await store.head(model)
    while newest is not None:
        digest, current = newest[0], Head.decode_current(model, *newest)
        try:
            return await read_snapshot(store, model, current, digest, offload, options, before)
        except SnapshotDamaged as error:
            if isinstance(error, BlobMissing):
                newest = await store.head(model)
                if newest is None or newest[0] != digest:
                    continue  # the head has moved on, and took the blob away
            elif before is not None:
                before = None  # another history, such as a rollback: decode all of it
                continue
            raise SnapshotDamaged(
                f"model {model}: {error}: go back with `perceptron rollback -m {model} --to VERSION --yes`, or start "
                f"again with `perceptron reset -m {model} --yes`"
            ) from error
    return None


async def read_snapshot(
    store: ModelStore, model: str, head: Head, digest: str, offload: Offload, options: Options, before: Snapshot | None
) -> Snapshot:
    """The snapshot of a model's head with this digest; raises BlobMissing and SnapshotDamaged."""
    names = missing_blobs(head, before.stored if before else NOTHING_STORED)
    parts = await store.blobs(model, names)
    if lost := [name for name in names if name not in parts]:
        raise BlobMissing(f"blob {lost[0][:12]} is missing")
    base = (before.learner, before.stored) if before else None
    stored, finish = await offload(restore_learner, head, parts, options, base)
    return Snapshot(head, digest, finish(), stored)


class SaveBudget:
    """The saves of one process, which share its time. A save is counted while it is within this context."""

    def __init__(self, models: Callable[[], int] = lambda: 1) -> None:
        """`models` returns the number of models that the process learns now."""
        self.models, self.under_way = models, 0

    def __enter__(self) -> None:
        self.under_way += 1

    def __exit__(self, *_: object) -> None:
        self.under_way -= 1


@dataclass(eq=False, repr=False)
class Keeper:
    """Saves one model. From `restore` to the first refusal it knows the head that its learner goes on from."""

    model: str
    store: ModelStore
    clock: Clock
    offload: Offload
    options: Options = DEFAULT
    start: WeightsFile | None = None
    keep_every: float = 300.0
    """Seconds from one kept version to the next."""
    keep: int = 12
    """The number of kept versions."""
    writer: Writer = UNKNOWN_WRITER
    """Names this process in heads."""
    followed: Callable[[], Awaitable[Snapshot | None]] | None = None
    """Returns the current snapshot if it was read already."""
    budget: SaveBudget = field(default_factory=SaveBudget)
    """Shared with the other keepers of the process."""

    def __post_init__(self) -> None:
        self.head: Head | None = None
        self.digest = ""
        self._stored = NOTHING_STORED
        self._doubtful: tuple[Snapshot, blobs.Runs] | None = None
        """A save without a reply, and the runs that the learner gave up for the kept version."""
        self._next_save = 0.0
        self._cost = 0.0
        self._failures, self._missed = 0, False

    async def compute(self, learner: Learner, function: Callable[[], T]) -> T:
        """Call a function of a learner's state: in a thread if the state is large."""
        weights = len(learner.columns) * learner.identity.classes * (1 + len(learner.candidates))
        is_small = weights <= MAX_INLINE_WEIGHTS and len(learner.runs) <= blobs.BLOCK_RUNS
        return function() if is_small else await self.offload(function)

    async def new_learner(self, identity: Identity) -> Learner:
        """A learner that has learned nothing, with its candidates.

        A learner with all its columns from the start is made in a thread: a gigabyte takes a second.
        """

        def make() -> Learner:
            learner = Learner(identity, options=self.options, start=self.start)
            learner.reconcile()
            return learner

        return make() if identity.features == "named" else await self.offload(make)

    async def restore(self) -> Learner | None:
        """The learner of the current head, which the next save goes on from; None if there is no head."""
        snapshot = await self.followed() if self.followed else None
        snapshot = snapshot or await fetch_newest(self.store, self.model, self.offload, self.options)
        self._doubtful = None
        self.head, self.digest, learner, self._stored = snapshot or (None, "", None, NOTHING_STORED)
        return learner

    async def current(self) -> bool:
        """Whether the store's head is still the one that our learner goes on from."""
        await self._resolve()
        return await self.store.digest(self.model) == self.digest

    async def required_identity(self) -> Identity | None:
        """The identity that a reset requires of the next model; None if it may have any. Raises SnapshotForeign."""
        data = await self.store.required_identity(self.model)
        try:
            return msgspec.json.decode(data, type=Identity) if data else None
        except msgspec.DecodeError as error:
            raise SnapshotForeign(f"a newer release reset the model ({error}): run that release") from error

    def ahead(self, learner: Learner) -> bool:
        """Whether the learner covers records that the current head does not."""
        return self.head is None or learner.next != {p: position.offset for p, position in self.head.next.items()}

    def due(self, learner: Learner) -> bool:
        """Whether it is time to save. It is also time once an outage of the store ends for any model here."""
        if self.budget.under_way >= MAX_PARALLEL_SAVES:
            return False
        back = self._missed and not self.store.missing_since
        return (back or self.clock.now() >= self._next_save) and self.ahead(learner)

    async def save(self, learner: Learner, fingerprints: Fingerprints, source: TopicIdentity) -> AcceptedSave | None:
        """Save the learner's state as the child of the head it goes on from; None if that head is not current any more.

        Raises DependencyError if the store did not answer. The next save then includes this one.
        """
        started = self.clock.now()
        await self._resolve()
        keep = self._keeping(learner)
        cut = blobs.Runs()
        stored, turn = self._stored, 0.0
        if keep:
            cut, learner.runs = learner.runs, cut
            stored = stored._replace(runs=[])
        # The bound's next segment begins here. Its reference is the weights, which are stored anyway, or their average.
        begins = keep or learner.main.observations.needs_reference
        if begins and await self.compute(learner, learner.main.begin_segment):
            stored = stored._replace(reference=None)
        # The store says MISSING if it lost blobs that it had. Then the second try uploads everything.
        for before in (stored, NOTHING_STORED):
            content = await self.compute(learner, partial(snapshot_content, learner, before))
            began = self.clock.now()
            await self.clock.sleep(0)  # a turn for predictions: the rest of the save takes as long again
            turn += self.clock.now() - began
            new, evict = self._compose(learner, content, fingerprints, source, keep)
            data = new.encode()
            digest = blobs.digest(data)
            # From here on the head may be accepted although no reply comes.
            self._doubtful = Snapshot(new, digest, learner, content.stored), cut
            blob_bytes = sum(map(len, content.blobs.values()))
            inline = content.blobs if blob_bytes <= MAX_INLINE_BLOB_BYTES else {}
            if not inline:
                await self.store.put(self.model, content.blobs)
            commit = Commit(self.digest, digest, data, new.refs, str(new.version) if keep else "", evict, inline)
            verdict = await self.store.commit(self.model, commit)
            if verdict != "MISSING":
                break
        else:
            raise DependencyError(f"model {self.model}: Redis loses blobs as soon as they are written", "redis")
        self._doubtful = None
        self._failures, self._missed = 0, False
        if verdict == "CONFLICT":
            return None
        self.head, self.digest, self._stored = new, digest, content.stored
        written = len(data) + blob_bytes
        seconds = self.clock.now() - started
        self._pace(seconds - turn, written)
        return AcceptedSave(new, digest, written, seconds)

    def _pace(self, cost: float, written: int) -> None:
        """Set the time of the next save. `cost` is the seconds of this one without the turn that predictions had."""
        # A save that waited for a store that hung does not tell the cost of the next one: the smaller of the last two
        # costs counts.
        least, self._cost = min(cost, self._cost), cost
        pause = PAUSE_PER_COST * least * max(1.0, self.budget.models() / UNPACED_MODELS)
        pause = min(max(pause, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)
        self._next_save = self.clock.now() + max(pause, written / MAX_BYTES_PER_SECOND)

    def postpone(self) -> None:
        """Put off the next save after a failed one, for longer each time."""
        self._failures, self._missed = self._failures + 1, bool(self.store.missing_since)
        self._next_save = self.clock.now() + min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2**self._failures)

    def _most_kept(self, learner: Learner) -> int:
        """The number of versions to keep: at least one if there are several partitions, even if `keep` is 0.

        `verify` needs the order in which their records were learned, which is recorded since the last kept version.
        """
        return max(self.keep, int(len(learner.covered) > 1))

    def _keeping(self, learner: Learner) -> bool:
        """Whether the next head is to be kept for rollback."""
        if self.head is None or len(self.head.kept) > self._most_kept(learner):
            return False  # if there are too many, each save lets one go
        if len(learner.runs) > MAX_RUNS:
            return True
        if not self.keep or not self.head.kept:
            return bool(self.keep)
        # If the clock was or is wrong, the last kept version may lie in the future: its distance counts as its age.
        return abs(self.clock.time() - self.head.kept[-1].saved_at) >= self.keep_every

    def _compose(
        self, learner: Learner, content: Content, fingerprints: Fingerprints, source: TopicIdentity, keep: bool
    ) -> tuple[Head, str]:
        """The new head, and the kept version to evict or ''."""
        before, now = self.head, self.clock.time()
        version = before.version + 1 if before else 1
        kept = before.kept_by(self.digest) if before else []
        evict = ""
        if keep:
            kept.append(KeptVersion(version, now))
        if len(kept) > self._most_kept(learner):
            evict = str(kept.pop(0).version)
        # A partition in which nothing was learned since then keeps the parent's fingerprint.
        parents = {p: position.fingerprint for p, position in before.next.items()} if before else {}
        positions = {p: Position(offset, fingerprints.get(p) or parents.get(p)) for p, offset in learner.next.items()}
        new = replace(
            content.head,
            model=self.model,
            version=version,
            parent=self.digest,
            saved_at=now,
            source=source,
            writer=self.writer,
            next=positions,
            kept=kept,
        )
        return new, evict

    async def _resolve(self) -> None:
        """Find out whether a save whose reply was lost was accepted."""
        if self._doubtful is None:
            return
        new, cut = self._doubtful
        if await self.store.digest(self.model) == new.digest:
            self.head, self.digest, self._stored = new.head, new.digest, new.stored
        else:
            new.learner.runs[:0] = cut
        self._doubtful = None
