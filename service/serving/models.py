"""The models that this process serves: from its own learners, newest snapshots, or fixed weights (threshold units)."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from service import errors
from service.learning.classifier import Classifier
from service.learning.learner import Learner
from service.learning.options import DEFAULT, Options
from service.snapshots import codec
from service.snapshots.blobs import digest
from service.snapshots.content import snapshot_content
from service.snapshots.head import Head
from service.snapshots.keeper import Snapshot, fetch_newest
from service.snapshots.ports import Clock, Offload, Store
from service.snapshots.rollback import before_growth

T = TypeVar("T")
MAX_TURN_WEIGHTS = 1 << 20
"""Weights up to which all are read in a turn of the event loop."""
POLL_SECONDS, SOON_SECONDS, BUSY_SECONDS = 0.1, 0.025, 0.5
"""Time between two looks at the store: POLL_SECONDS, as a learner saves at most this often. For BUSY_SECONDS after a
save it is SOON_SECONDS: saves come in series, and a replica waits mostly for the next look.
"""
OWN_SECONDS = 1.0
"""Time between two looks at a model that is learned here: it may have been reset."""
ALL_OWN_SECONDS = 0.5
"""Time between two looks if all models are learned here: one of them may have been released."""
RETRY_SECONDS = 5.0
"""Time until a damaged snapshot is read again: somebody may have restored what is missing."""


async def read_all(learner: Learner, function: Callable[[], T]) -> T:
    """Call a function that reads all weights of a learner. If they are many, a thread does, and learning waits."""
    if learner.main.weights.size <= MAX_TURN_WEIGHTS:
        return function()
    learner.readers += 1
    try:
        return await asyncio.to_thread(function)
    finally:
        learner.readers -= 1


class FollowObserver(Protocol):
    """Hears how it goes with a model that another process learns."""

    def followed(self) -> None:
        """A newer snapshot answers now."""

    def stopped(self, error: Exception) -> None:
        """The newest snapshot diverged. An older one answers, if one from before the growth is kept."""

    def unavailable(self, error: errors.DependencyError) -> None:
        """The store does not answer."""

    def unusable(self, error: errors.DataError) -> None:
        """The newest snapshot is damaged or of another release. The model that answers stays."""


class ServedModel(NamedTuple):
    """A model that answers: a learner's state, and the accepted head that it is at or ahead of."""

    learner: Learner
    head: Head
    digest: str

    @property
    def ahead(self) -> int:
        """How many events the state has learned since its head."""
        return self.learner.main.counts.events - self.head.counts.events

    def by(self, candidate: str | None) -> tuple[str | None, Classifier]:
        """The classifier that answers: the requested candidate, the one set to answer, or the model itself (None).

        Raises UnknownCandidate, and Unanswerable if the requested candidate diverged.
        """
        name, learner = candidate or self.learner.answering, self.learner
        if name is not None and name not in learner.candidates:
            raise errors.UnknownCandidate(learner.candidates)
        chosen = learner.classifier(name)
        if candidate and chosen.diverged:
            raise errors.Unanswerable(f"candidate {candidate} learns no more: {chosen.diverged}")
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
        self._failed, self._retry_at = "", 0.0
        self._diverged = ""
        """The digest of the newest snapshot if it diverged and another one was looked for."""
        self.set_aside: dict[str, dict[str, str]] = {}
        """The last record of each reason that this process set aside: detail, topic, partition, offset."""
        self.seen_digest: str | None = None
        """The digest of the store's head at the last look; None if it was not known."""
        self.wake: Callable[[], object] = lambda: None
        """Wakes the idle local learner so that it checks its head again."""
        self.awaits_assignment: Callable[[], bool] = lambda: False
        """Returns True while the group has not yet assigned this model's topic."""
        self.missing_resource: Callable[[], str] = lambda: ""
        """Returns what somebody must make before this process can learn the model, such as its topic; or ''."""
        self._catching_up = False

    @property
    def why_not(self) -> str:
        """Why the model cannot answer, while it cannot."""
        if why := self.stopped or self.unusable:
            return f"the model cannot answer: {why}"
        missing = self.missing_resource()
        return f"the model has no snapshot yet{': ' * bool(missing)}{missing}"

    def note_digest(self, digest: str | None) -> bool:
        """Record the digest of the store's head, None if it is not known; returns whether the model must act on it."""
        before, self.seen_digest = self.seen_digest, None if self._catching_up else digest
        if self.learning_here:
            self._followed = self.unusable = None
            self._diverged = ""
        if self._catching_up or (self.seen_digest == "" == before and not self.learning_here):
            return False  # another task acts on it, or there was no head before either
        return self.unusable is not None or not (self._answers(digest) or (digest and digest == self._diverged))

    def _answers(self, digest: str | None) -> bool:
        a = self.answering  # a learner is ahead of its head, and that head is not news to it
        return bool(a and a.digest == digest and (self.learning_here or not a.ahead) and not a.learner.main.diverged)

    async def catch_up(self, store: Store, clock: Clock, offload: Offload, tell: FollowObserver) -> None:
        """Swap in the newest snapshot. After an error the model that answers stays.

        If the newest snapshot diverged, the last one kept from before its weights grew answers. Without one the
        diverged snapshot is swapped in, so that it can be inspected.
        """
        self._catching_up = True
        try:
            digest = await store.digest(self.name)
            if digest == self._failed and clock.now() < self._retry_at:
                return
            if digest and digest != self._diverged and not self._answers(digest):
                self._failed = digest
                self._followed = await fetch_newest(store, self.name, offload, self._options, self._followed)
                if self._followed is not None:
                    await self._swap_in(self._followed, store, offload, tell)
            self._failed, self.unusable = "", None
        except errors.DependencyError as error:
            tell.unavailable(error)
        except (errors.SnapshotDamaged, errors.SnapshotForeign) as error:
            if self.unusable != str(error):
                tell.unusable(error)
            self.unusable, self._retry_at = str(error), clock.now() + RETRY_SECONDS
        finally:
            self._catching_up = False

    async def hand_over(self, store: Store, clock: Clock) -> Snapshot | None:
        """Give the followed snapshot to a learner that continues it, if it is the newest, so that it is not read twice.

        It goes on answering. From now on the learner owns its state, so following does not build on it any more.
        """
        digest = await store.digest(self.name)
        while self._catching_up:
            await clock.sleep(SOON_SECONDS)
        if self._followed is None or self._followed.digest != digest:
            return None
        snapshot, self._followed = self._followed, None
        return snapshot

    async def _swap_in(self, snapshot: Snapshot, store: Store, offload: Offload, tell: FollowObserver) -> None:
        diverged, instead = snapshot.learner.main.diverged, snapshot
        if diverged:
            instead = await before_growth(store, snapshot, offload, self._options) or snapshot
        if self.learning_here:
            return
        if diverged:
            tell.stopped(errors.Diverged(self.name, diverged))
            self._diverged = snapshot.digest
        elif self.answering is None or snapshot.digest != self.answering.digest:
            tell.followed()
        self.answering = ServedModel(instead.learner, instead.head, instead.digest)


class Models:
    """All models of this process by name: of listed topics, of topics that match a pattern, and threshold units."""

    def __init__(self, listed: Iterable[Model]) -> None:
        self._models = {model.name: model for model in listed}
        self.listed = list(self._models.values())
        """The models of the topics that the settings name."""

    def add(self, model: Model) -> Model:
        """Add a threshold unit, or the model of a topic that matches a pattern."""
        self._models[model.name] = model
        return model

    def get(self, name: str) -> Model | None:
        """The model of this name."""
        return self._models.get(name)

    def answering(self, name: str) -> tuple[Model, ServedModel]:
        """The model of this name, and what answers for it; raises UnknownModel and Unanswerable."""
        model = self._models.get(name)
        if model is None:
            raise errors.UnknownModel
        if model.answering is None:
            raise errors.Unanswerable(model.why_not)
        return model, model.answering

    def __iter__(self) -> Iterator[Model]:
        return iter(list(self._models.values()))

    @property
    def ready(self) -> bool:
        """Whether all `listed` models can answer, and there is a model that can. Models of patterns need not."""
        return all(model.answering for model in self.listed) and any(model.answering for model in self)

    async def follow(
        self,
        store: Store,
        clock: Clock,
        offload: Offload,
        tell: Mapping[str, FollowObserver],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Swap in other processes' snapshots soon after they are saved: one look at the store for all models in `tell`.

        Each model catches up in its own task, which `spawn` makes: a large or damaged one does not delay others.
        """
        own = busy = 0.0
        while True:
            # A learner knows its model's head, unless the model was reset.
            if own_due := clock.now() >= own:
                own = clock.now() + OWN_SECONDS
            models = [model for model in self if (own_due or not model.learning_here) and model.name in tell]
            try:
                digests = await store.digests([model.name for model in models]) if models else []
            except errors.DependencyError as error:
                for model in models:
                    model.seen_digest = None
                    tell[model.name].unavailable(error)
            else:
                for model, digest in zip(models, digests, strict=True):
                    must_act = model.note_digest(digest)
                    if must_act and model.learning_here:
                        model.wake()
                    elif must_act:
                        busy = clock.now() + BUSY_SECONDS
                        spawn(model.catch_up(store, clock, offload, tell[model.name]))
            pause = SOON_SECONDS if clock.now() < busy else POLL_SECONDS
            await clock.sleep(ALL_OWN_SECONDS if all(model.learning_here for model in models) else pause)


def static_model(name: str, learner: Learner, now: float) -> Model:
    """A model that never learns, such as a threshold unit. It answers without a snapshot."""
    model = Model(name)
    head = replace(snapshot_content(learner).head, model=name, version=1, saved_at=now)
    model.answering = ServedModel(learner, head, digest(codec.encode_head(head)))
    return model
