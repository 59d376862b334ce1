"""The topics that the settings request, by name or by pattern. Creates the missing ones, or reports them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from service.errors import Unauthorised
from service.streaming.dead_letters import dead_letter_topic
from service.streaming.kafka.cluster import KafkaClients

_NO_MATCH = "no topic matches a pattern in topics yet: create one, or correct the pattern"
_NOT_THERE = "waiting for the topic to exist; create it, or run with --create-topics"
_NO_LETTERS = "no dead-letter topic: saves wait at the first rejected event; create it, or run with --create-topics"


@dataclass(eq=False, repr=False)
class RequestedTopics:
    """The topics that this process should learn. Its methods raise DependencyError and aiokafka's errors."""

    clients: KafkaClients
    models: dict[str, Sequence[str]]
    """The topics of each model. Models whose topics match are added."""
    matches: Callable[[str], bool] | None
    """Says which topics are requested in addition: each is a model of its own."""
    create: bool
    """Allows to create topics."""
    logger: Any

    def __post_init__(self) -> None:
        self._listed, self._warn_once = self.topics, cache(self.logger.warning)
        self._existing, self._absent, self._reported = set[str](), set[str](), set[str]()

    @property
    def topics(self) -> set[str]:
        """The topics of all models."""
        return {topic for topics in self.models.values() for topic in topics}

    def missing_resource(self, model: str) -> str:
        """A sentence that says what is missing before this model can be learned; "" if nothing is."""
        return "" if self._absent.isdisjoint(self.models[model]) else _NOT_THERE

    async def find(self) -> set[str]:
        """The requested topics that exist."""
        self._existing = set((await self.clients.query_client.fetch_all_metadata()).topics())
        self._absent -= self._existing
        if self.matches:
            matching = sorted(filter(self.matches, self._existing))
            self.models |= {topic: [topic] for topic in matching if topic not in self.models}
            if not matching:
                self._warn_once(_NO_MATCH)
        return self.topics & self._existing

    async def provide_missing(self) -> bool:
        """Create the topics that were not found, and topics for dead letters, or report each once.

        Returns whether topics were created.
        """
        requested = self.topics
        letters = map(dead_letter_topic, self.models)
        missing = [name for name in (*sorted(requested), *letters) if name not in self._existing]
        if self.create:
            # A topic that a pattern matched, and that is gone, was deleted by somebody: do not create it again.
            ours = [name for name in missing if name in self._listed or name not in requested]
            if ours:
                await self.clients.cluster.create_topics(ours)
                self.logger.info("topics created", topics=ours)
            return bool(ours)
        for name in missing:
            if name not in self._reported:
                is_read = name in requested
                try:
                    await self.clients.cluster.partitions(name, "Read" if is_read else "Write")
                    self._absent.add(name)
                    self.logger.warning(_NOT_THERE if is_read else _NO_LETTERS, topic=name)
                except Unauthorised as error:  # the topic may exist
                    self.logger.warning(str(error))
                self._reported.add(name)
        return False
