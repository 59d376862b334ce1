"""The models that this process serves: from its own learners, newest snapshots, or fixed weights (threshold units).

A `Follower` swaps in the snapshots that other processes save, so that this process answers with the newest ones.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from service import errors
from service.learning.classifier import Classifier
from service.learning.learner import Learner
from service.learning.options import Options
from service.snapshots.blobs import digest
from service.snapshots.content import snapshot_content
from service.snapshots.head import Head
from service.snapshots.keeper import Snapshot, fetch_newest
from service.snapshots.ports import Clock, Store, before_reset
from service.snapshots.rollback import before_growth
from service.streaming.ports import Observer

T = TypeVar("T")
MAX_TURN_WEIGHTS = 1 << 20
"""Weights up to which all are read in a turn of the event loop."""
POLL_SECONDS, SOON_SECONDS, BUSY_SECONDS = 0.1, 0.025, 0.5
"""Time between two looks at the store: POLL_SECONDS, as a learner saves at most this often. For BUSY_SECONDS after a
save it is SOON_SECONDS: saves come in series, and a replica waits mostly for the next look.
"""
MODEL_SECONDS = 0.002
"""The time between two looks for each model: with many models a look costs milliseconds of CPU time."""
OWN_SECONDS = 1.0
"""Time between two looks at a model that is learned here: it may have been reset, or released."""
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


class ServedModel(NamedTuple):
    """A model that answers: a learner's state, and the accepted head that it is at or ahead of."""

    learner: Learner
    head: Head
    digest: str

    @property
    def ahead(self) -> int:
        """How many events the state has learned since its head."""
        return self.learner.main.counts.events - self.head.counts.events

    def classifier(self, candidate: str | None) -> tuple[str | None, Classifier]:
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


@dataclass
class ModelStatus:
    """What keeps one model from answering or learning, and the records that were set aside."""

    store_failure: Callable[[], str] = str
    """Returns why the store could not be read last; or ''."""
    awaits_assignment: Callable[[], bool] = bool
    """Returns True while the group has not yet assigned this model's topic."""
    missing_topic: Callable[[], str] = str
    """Returns a topic of the model that does not exist; or ''."""
    stopped: str | None = None
    """Why learning stopped, here or in the process that saved the newest snapshot."""
    unusable: str | None = None
    """Why the newest snapshot cannot answer: it is damaged, or another release's."""
    waits: str | None = None
    """Why learning waits or is in an odd order, while it is."""
    set_aside: dict[str, dict[str, str]] = field(default_factory=dict)
    """The last record of each reason that this process set aside: detail, topic, partition, offset."""

    @property
    def why_not(self) -> str:
        """Why the model cannot answer, while it cannot."""
        if why := self.stopped or self.unusable:
            return f"the model cannot answer: {why}"
        if failure := self.store_failure():
            return f"no snapshot could be read yet: {failure}"
        missing = self.missing_topic()
        why = f": topic {missing} does not exist; create it, or run with --create-topics" if missing else ""
        return f"the model has no snapshot yet{why}"


class Model:
    """One model by name. `answering` is swapped in one assignment, so a request sees one state throughout."""

    def __init__(self, name: str, status: ModelStatus | None = None) -> None:
        self.name = name
        self.answering: ServedModel | None = None
        self.learning_here = False
        self.status = status or ModelStatus()


class Models:
    """All models of this process by name: of listed topics, of topics that match a pattern, and threshold units."""

    def __init__(self, listed: Iterable[Model]) -> None:
        self._models = {model.name: model for model in listed}
        self.listed = dict(self._models)
        """The models that the settings name, by name."""
        self.aliases: Mapping[str, str] = {}
        """The model that answers for each alias, as the store said last."""

    def add(self, model: Model) -> Model:
        """Add a threshold unit, or the model of a topic that matches a pattern."""
        self._models[model.name] = model
        return model

    def remove(self, name: str) -> Model:
        """Remove and return a model that is from before a reset."""
        return self._models.pop(name)

    def get(self, name: str) -> Model | None:
        """The model of this name."""
        return self._models.get(name)

    def answering(self, name: str) -> tuple[Model, ServedModel]:
        """The model that answers for this name, and its state; raises UnknownModel and Unanswerable.

        The model of an alias answers as soon as it has a snapshot here. Until then the name answers as before.
        """
        models = self._answering_for(name)
        if not models:
            raise errors.UnknownModel
        for model in models:
            if model.answering is not None:
                return model, model.answering
        raise errors.Unanswerable(models[0].status.why_not)

    def _answering_for(self, name: str) -> list[Model]:
        """The models that may answer for a name: that of its alias first. A model that was reset does not answer."""
        models = list[Model]()
        for each in (self.aliases.get(name, name), name):
            kept = before_reset(each)
            if model := self._models.get(kept if self.aliases.get(each) == kept else each):
                models.append(model)
        return models

    def __iter__(self) -> Iterator[Model]:
        return iter(list(self._models.values()))

    @property
    def ready(self) -> bool:
        """Whether all `listed` models can answer, and there is a model that can. Models of patterns need not."""
        listed = (any(m.answering for m in self._answering_for(name)) for name in self.listed)
        return all(listed) and any(model.answering for model in self)


def static_model(name: str, learner: Learner, now: float) -> Model:
    """A model that never learns, such as a threshold unit. It answers without a snapshot."""
    model = Model(name)
    head = replace(snapshot_content(learner).head, model=name, version=1, saved_at=now)
    model.answering = ServedModel(learner, head, digest(head.encode()))
    return model


class Follower:
    """Follows the snapshots of one model, while another process learns it."""

    def __init__(self, model: Model, store: Store, clock: Clock, options: Options, observer: Observer) -> None:
        self.model, self.observer = model, observer
        self._store, self._clock, self._options = store, clock, options
        self._name, self._status = model.name, model.status
        self.seen_digest: str | None = None
        """The digest of the store's head at the last look; None if it was not known."""
        self._followed: Snapshot | None = None
        self._failed, self._retry_at = "", 0.0
        self._diverged = ""
        """The digest of the newest snapshot if it diverged and another one was looked for."""
        self._catching_up = False
        self.is_paused = False
        """Whether snapshots are not swapped in, as the model was reset and its last version answers."""

    def note_digest(self, digest: str | None) -> bool:
        """Record the digest of the store's head, None if it is not known; returns whether the model must act on it."""
        before, self.seen_digest = self.seen_digest, None if self._catching_up else digest
        if self.model.learning_here:
            self._followed = self._status.unusable = None
            self._diverged = ""
        if self._catching_up or (self.seen_digest == "" == before and not self.model.learning_here):
            return False  # another task acts on it, or there was no head before either
        return self._status.unusable is not None or not (self._answers(digest) or (digest and digest == self._diverged))

    def _answers(self, digest: str | None) -> bool:
        served = self.model.answering
        if served is None or served.digest != digest or served.learner.main.diverged:
            return False
        return self.model.learning_here or not served.ahead  # a learner is ahead of its head, which is not news to it

    async def catch_up(self) -> None:
        """Swap in the newest snapshot. After an error the model that answers stays.

        If the newest snapshot diverged, the last one kept from before its weights grew answers. Without one the
        diverged snapshot is swapped in, so that it can be inspected.
        """
        self._catching_up = True
        try:
            digest = await self._store.digest(self._name)
            if digest == self._failed and self._clock.now() < self._retry_at:
                return
            if digest and digest != self._diverged and not self._answers(digest):
                self._failed = digest
                before = self._followed
                self._followed = await fetch_newest(self._store, self._name, asyncio.to_thread, self._options, before)
                if self._followed is not None:
                    await self._swap_in(self._followed)
            self._failed, self._status.unusable = "", None
        except errors.DependencyError as error:
            self.observer.unavailable(error)
        except (errors.SnapshotDamaged, errors.SnapshotForeign) as error:
            if self._status.unusable != str(error):
                self.observer.unusable(error)
            self._status.unusable, self._retry_at = str(error), self._clock.now() + RETRY_SECONDS
        finally:
            self._catching_up = False

    def pause(self) -> ServedModel | None:
        """Keep the state that answers, which is returned. Following does not build on it any more."""
        self.is_paused, self._followed = True, None
        return self.model.answering

    def resume(self, instead: ServedModel | None) -> None:
        """Follow again. If nothing answers here, `instead` does until the newest snapshot is read."""
        self.is_paused, self.model.answering = False, self.model.answering or instead

    async def hand_over(self) -> Snapshot | None:
        """Give the followed snapshot to a learner that continues it, if it is the newest, so that it is not read twice.

        It goes on answering. From now on the learner owns its state, so following does not build on it any more.
        """
        digest = await self._store.digest(self._name)
        while self._catching_up:
            await self._clock.sleep(SOON_SECONDS)
        if self._followed is None or self._followed.digest != digest:
            return None
        snapshot, self._followed = self._followed, None
        return snapshot

    async def _swap_in(self, snapshot: Snapshot) -> None:
        diverged, instead = snapshot.learner.main.diverged, snapshot
        if diverged:
            instead = await before_growth(self._store, self._name, snapshot, self._options) or snapshot
        if self.model.learning_here or self.is_paused:
            return
        if diverged:
            self.observer.stopped(errors.Diverged(self._name, diverged))
            self._diverged = snapshot.digest
        elif self.model.answering is None or snapshot.digest != self.model.answering.digest:
            self.observer.followed()
        self.model.answering = ServedModel(instead.learner, instead.head, instead.digest)


async def follow(
    followers: Mapping[str, Follower],
    store: Store,
    clock: Clock,
    wake: Callable[[str], object],
    note_aliases: Callable[[Mapping[str, str]], Awaitable[None]],
    spawn: Callable[[Coroutine[Any, Any, None]], object],
) -> None:
    """Swap in other processes' snapshots soon after they are saved: one look at the store for all models.

    Each model catches up in its own task, which `spawn` makes: a large or damaged one does not delay others. `wake`
    lets the idle learner of a model check its head again. `note_aliases` gets the model that answers for each alias.
    More `followers` may come meanwhile.
    """
    own = busy = 0.0
    while True:
        # A learner knows its model's head, unless the model was reset.
        if own_due := clock.now() >= own:
            own = clock.now() + OWN_SECONDS
        due = {name: each for name, each in followers.items() if own_due or not each.model.learning_here}
        try:
            digests, aliases = await store.look([*due])
            await note_aliases(aliases)
        except errors.DependencyError as error:
            for follower in due.values():
                follower.seen_digest = None
                follower.observer.unavailable(error)
        else:
            for (name, follower), digest in zip(due.items(), digests, strict=True):
                must_act = follower.note_digest(digest)
                if must_act and follower.model.learning_here:
                    wake(name)
                elif must_act and not follower.is_paused:
                    busy = clock.now() + BUSY_SECONDS
                    spawn(follower.catch_up())
        pause = SOON_SECONDS if clock.now() < busy else max(POLL_SECONDS, MODEL_SECONDS * len(due))
        await clock.sleep(OWN_SECONDS if all(each.model.learning_here for each in due.values()) else pause)
