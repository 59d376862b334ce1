"""The models that this process answers for: the one it learns, live; any other from its newest snapshot."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from service.errors import DependencyError, Diverged, SnapshotDamaged
from service.learning.learner import DEFAULT, Learner, Options
from service.snapshots import head as heads
from service.snapshots.blobs import digest
from service.snapshots.head import Head
from service.snapshots.keeper import Clock, Offload, Snapshot, fetch
from service.snapshots.rollback import KeptStore, before_growth

POLL_SECONDS = 0.1
MEND_SECONDS = 5.0
"""A damaged snapshot is tried again so often: somebody may put back what is missing."""


class Answering(NamedTuple):
    """What answers for a model: a learner's state, and the accepted head that it is at or ahead of."""

    learner: Learner
    head: Head
    digest: str

    @property
    def ahead(self) -> int:
        """How many events the answering state has learned beyond its head."""
        return self.learner.counts.events - self.head.counts.events


class Model:
    """One model by name. `answering` is swapped in one assignment, so a request sees one state throughout."""

    def __init__(self, name: str, *, options: Options = DEFAULT) -> None:
        self.name = name
        self.answering: Answering | None = None
        self.learning_here = False
        self.stopped: str | None = None
        self._options = options
        self._followed: Snapshot | None = None
        self._diverged = ""
        """The digest of the newest snapshot where that diverged, and what answers instead was looked for."""
        self._damaged, self._again = "", 0.0

    async def follow(self, store: KeptStore, clock: Clock, offload: Offload, *, tell: Any) -> None:
        """While somebody else learns the model, swap in each snapshot soon after it was accepted.

        In place of one that diverged answers the last kept from before its weights grew, or none: it stays itself, so
        that it can be looked at. `tell` hears `unavailable(error)`, `followed(head)`, `damaged(error)` and
        `stopped(error)`; the model that answers stays.
        """
        while True:
            if self.learning_here:
                self._followed, self._diverged = None, ""
            else:
                try:
                    await self._refresh(store, offload, tell, clock.now())
                except DependencyError as error:
                    tell.unavailable(error)
            await clock.sleep(POLL_SECONDS)

    async def _refresh(self, store: KeptStore, offload: Offload, tell: Any, now: float) -> None:
        digest = await store.digest(self.name)
        if not digest or digest == self._diverged or (digest == self._damaged and now < self._again):
            return
        a = self.answering
        if a and digest == a.digest and not a.ahead and not a.learner.diverged:
            return
        try:
            snapshot = await fetch(store, self.name, offload, self._options, self._followed)
        except SnapshotDamaged as error:
            if digest != self._damaged:
                tell.damaged(error)
            self._damaged, self._again = digest, now + MEND_SECONDS
            return
        self._followed = snapshot
        if snapshot is None:
            return
        instead = snapshot
        if snapshot.learner.diverged:
            instead = await before_growth(store, snapshot, offload, self._options) or snapshot
            if not self.learning_here:
                tell.stopped(Diverged(self.name, snapshot.learner.diverged))
                self._diverged = snapshot.digest
        elif not self.learning_here and (a is None or digest != a.digest):
            tell.followed(snapshot.head)
        if not self.learning_here:
            self.answering = Answering(instead.learner, instead.head, instead.digest)


class Models:
    """All models of this process, by name: those that settings list, and those that were found."""

    def __init__(self, listed: Iterable[Model]) -> None:
        self._models = {model.name: model for model in listed}
        self.listed = list(self._models.values())
        """Those that settings list."""

    def add(self, found: Model) -> Model:
        """Take in a model that was found."""
        self._models[found.name] = found
        return found

    def get(self, name: str) -> Model | None:
        """The model of this name."""
        return self._models.get(name)

    def __iter__(self) -> Any:
        return iter(list(self._models.values()))

    @property
    def ready(self) -> bool:
        """Whether every listed model can answer, and any at all. A topic just found must not take us out of service."""
        return all(model.answering for model in self.listed) and any(model.answering for model in self)


def given(name: str, learner: Learner, now: float) -> Model:
    """A model that is never learned, a threshold unit: it answers as it is, from no snapshot."""
    model, content = Model(name), heads.content(learner)
    head = Head(
        model=name,
        version=1,
        parent="",
        saved_at=now,
        identity=learner.identity,
        state_digest=content.state_digest,
        order="log",
        source=heads.Source(),
        next={},
        covered={},
        counts=learner.counts,
        observations=heads.observations(learner),
        runs=[],
        run_blobs=[],
        kept=[],
        columns=len(learner.columns),
        arrays=content.arrays,
        reference=None,
        names=content.stored.names.blobs,
    )
    model.answering = Answering(learner, head, digest(heads.encode(head)))
    return model
