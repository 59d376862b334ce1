"""The models that this process answers for: the one it learns, live; any other from its newest snapshot."""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from service.errors import (
    DependencyError,
    Diverged,
    SnapshotDamaged,
    SnapshotForeign,
    Unanswerable,
    UnknownCandidate,
    UnknownModel,
)
from service.learning.classifier import Classifier
from service.learning.learner import Learner
from service.learning.options import DEFAULT, Options
from service.snapshots import codec
from service.snapshots import head as heads
from service.snapshots.blobs import digest
from service.snapshots.head import Head
from service.snapshots.keeper import Snapshot, fetch_newest
from service.snapshots.ports import Clock, DigestReader, KeptStore, Offload
from service.snapshots.rollback import before_growth

POLL_SECONDS, SOON_SECONDS, BUSY_SECONDS = 0.1, 0.025, 0.5
"""So soon a follower sees a save: as often as a learner saves at most. For a while after one it looks four times as
often: most follow on each other, and the wait for a look is much of what it takes until a replica shows an event.
"""
OWN_SECONDS = 1.0
"""So often a model that is learned here is looked at too: it may have been reset."""
NOBODYS_SECONDS = 0.5
"""Where all models are learned here: so soon it is seen that one is not any more."""
MEND_SECONDS = 5.0
"""A damaged snapshot is tried again so often: somebody may put back what is missing."""


class ServedModel(NamedTuple):
    """What answers for a model: a learner's state, and the accepted head that it is at or ahead of."""

    learner: Learner
    head: Head
    digest: str

    @property
    def ahead(self) -> int:
        """How many events the answering state has learned beyond its head."""
        return self.learner.counts.events - self.head.counts.events

    def by(self, candidate: str | None) -> tuple[str | None, Classifier]:
        """Who answers: the candidate that is asked for, or the one that is to answer, or the model itself (None).

        Raises UnknownCandidate, and Unanswerable where the one that is asked for diverged.
        """
        name, learner = candidate or self.learner.answering, self.learner
        if name is not None and name not in learner.candidates:
            raise UnknownCandidate(learner.candidates)
        chosen = learner.by(name)
        if candidate and chosen.diverged:
            raise Unanswerable(f"candidate {candidate} learns no more: {chosen.diverged}")
        return name, chosen


class Model:
    """One model by name. `answering` is swapped in one assignment, so a request sees one state throughout."""

    def __init__(self, name: str, *, options: Options = DEFAULT) -> None:
        self.name = name
        self.answering: ServedModel | None = None
        self.learning_here = False
        self.stopped: str | None = None
        self._options = options
        self._followed: Snapshot | None = None
        self.unusable: str | None = None
        """Why the newest snapshot cannot answer: it is damaged, or another release's."""
        self._failed, self._again = "", 0.0
        self._diverged = ""
        """The digest of the newest snapshot where that diverged, and what answers instead was looked for."""
        self.set_aside: dict[str, dict[str, str]] = {}
        """The last record that this process set aside, of each reason: detail, topic, partition, offset."""
        self.seen_digest: str | None = None
        """The digest of the store's head when that was last looked at; None where it could not be told."""
        self.wake: Callable[[], object] = lambda: None
        """What makes its learner, where that is here and has nothing to do, look whether it still may."""
        self.awaits_assignment: Callable[[], bool] = lambda: False
        """Whether it is to be learned here too, and the group has not yet said who of its members is to."""
        self.missing_resource: Callable[[], str] = lambda: ""
        """What it waits for that somebody has to make, such as its topic, where it is to be learned here; or empty."""
        self._catching_up = False

    @property
    def why_not(self) -> str:
        """Why it does not answer, while it does not."""
        why = self.stopped or self.unusable
        if why:
            return f"the model cannot answer: {why}"
        lacks = self.missing_resource()
        return f"the model has no snapshot yet{': ' * bool(lacks)}{lacks}"

    def found(self, digest: str | None) -> bool:
        """Take down what a look at the store found; whether it is to be followed up: that is not what answers."""
        before, self.seen_digest = self.seen_digest, None if self._catching_up else digest
        if self.learning_here:
            self._followed = self.unusable = None
            self._diverged = ""
        if self._catching_up or (self.seen_digest == "" == before and not self.learning_here):
            return False  # it is followed up, or was: there is nothing, or nothing any more
        return self.unusable is not None or not (self._answers(digest) or (digest and digest == self._diverged))

    def _answers(self, digest: str | None) -> bool:
        a = self.answering  # of who learns it is ahead of its head, and that head is no news to it
        return bool(a and a.digest == digest and (self.learning_here or not a.ahead) and not a.learner.diverged)

    async def catch_up(self, store: KeptStore, clock: Clock, offload: Offload, tell: Any) -> None:
        """Swap in the newest snapshot.

        In place of one that diverged answers the last kept from before its weights grew, or none: it stays itself, so
        that it can be looked at. `tell` hears `unavailable(error)`, `followed()`, `unusable(error)` and
        `stopped(error)`; the model that answers stays.
        """
        self._catching_up = True
        try:
            await self._refresh(store, offload, tell, clock.now())
        except DependencyError as error:
            tell.unavailable(error)
        except (SnapshotDamaged, SnapshotForeign) as error:
            if self.unusable != str(error):
                tell.unusable(error)
            self.unusable, self._again = str(error), clock.now() + MEND_SECONDS
        finally:
            self._catching_up = False

    async def hand_over(self, store: KeptStore, clock: Clock) -> Snapshot | None:
        """The newest snapshot to whoever learns on from it, where that is what was followed: read once, not twice.

        It goes on answering, and is not followed on: its learner is another's from now on.
        """
        digest = await store.digest(self.name)
        while self._catching_up:
            await clock.sleep(SOON_SECONDS)
        if self._followed is None or self._followed.digest != digest:
            return None
        snapshot, self._followed = self._followed, None
        return snapshot

    async def _refresh(self, store: KeptStore, offload: Offload, tell: Any, now: float) -> None:
        digest = await store.digest(self.name)
        if digest == self._failed and now < self._again:
            return
        if digest and not self._answers(digest) and digest != self._diverged:
            self._failed = digest
            snapshot = await fetch_newest(store, self.name, offload, self._options, self._followed)
            self._followed = snapshot
            if snapshot is not None:
                await self._swap_in(snapshot, store, offload, tell)
        self._failed, self.unusable = "", None

    async def _swap_in(self, snapshot: Snapshot, store: KeptStore, offload: Offload, tell: Any) -> None:
        diverged, instead = snapshot.learner.diverged, snapshot
        if diverged:
            instead = await before_growth(store, snapshot, offload, self._options) or snapshot
        if self.learning_here:
            return
        if diverged:
            tell.stopped(Diverged(self.name, diverged))
            self._diverged = snapshot.digest
        elif self.answering is None or snapshot.digest != self.answering.digest:
            tell.followed()
        self.answering = ServedModel(instead.learner, instead.head, instead.digest)


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

    def answering(self, name: str) -> tuple[Model, ServedModel]:
        """The model of this name, and what answers for it; raises UnknownModel and Unanswerable."""
        model = self._models.get(name)
        if model is None:
            raise UnknownModel
        if model.answering is None:
            raise Unanswerable(model.why_not)
        return model, model.answering

    def __iter__(self) -> Any:
        return iter(list(self._models.values()))

    @property
    def ready(self) -> bool:
        """Whether every listed model can answer, and any at all. A topic just found must not take us out of service."""
        return all(model.answering for model in self.listed) and any(model.answering for model in self)

    async def follow(
        self,
        store: DigestReader,
        clock: Clock,
        offload: Offload,
        tell: Mapping[str, Any],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Swap in each snapshot of somebody else's soon after it was accepted, by one look for all who have a `tell`.

        A model that is large, or damaged, holds up no other: each catches up as a task of its own, which `spawn` makes.
        """
        own = busy = 0.0
        while True:
            # Who learns a model knows how it stands, unless it was reset.
            if all_ := clock.now() >= own:
                own = clock.now() + OWN_SECONDS
            wanted = [model for model in self if (all_ or not model.learning_here) and model.name in tell]
            try:
                looks = await store.digests([model.name for model in wanted]) if wanted else []
            except DependencyError as error:
                for model in wanted:
                    model.seen_digest = None
                    tell[model.name].unavailable(error)
            else:
                for model, digest in zip(wanted, looks, strict=True):
                    if not model.found(digest):
                        continue
                    if model.learning_here:
                        model.wake()
                    else:
                        busy = clock.now() + BUSY_SECONDS
                        spawn(model.catch_up(store, clock, offload, tell[model.name]))
            pause = SOON_SECONDS if clock.now() < busy else POLL_SECONDS
            await clock.sleep(NOBODYS_SECONDS if all(model.learning_here for model in wanted) else pause)


def static_model(name: str, learner: Learner, now: float) -> Model:
    """A model that is never learned, a threshold unit: it answers as it is, from no snapshot."""
    model = Model(name)
    head = replace(heads.snapshot_content(learner).head, model=name, version=1, saved_at=now)
    model.answering = ServedModel(learner, head, digest(codec.encode_head(head)))
    return model
