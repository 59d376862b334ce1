"""The models that this process serves: from its own learners, newest snapshots, or fixed weights (threshold units)."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from service import errors
from service.learning.classifier import Classifier
from service.learning.learner import Learner
from service.snapshots.blobs import digest
from service.snapshots.content import snapshot_content
from service.snapshots.head import Head
from service.snapshots.ports import before_reset

T = TypeVar("T")
MAX_TURN_WEIGHTS = 1 << 20
"""Weights up to which all are read in a turn of the event loop."""


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
    missing_resource: Callable[[], str] = str
    """Returns what somebody must make before this process can learn the model, such as its topic; or ''."""
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
        missing = self.missing_resource()
        return f"the model has no snapshot yet{': ' * bool(missing)}{missing}"


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
