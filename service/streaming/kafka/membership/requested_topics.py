"""The topics that the settings request, by name or by pattern. Creates the missing ones, or reports them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from service.errors import Unauthorised
from service.streaming.dead_letters import topic_of
from service.streaming.kafka.clients import KafkaClients

_NO_MATCH = "no topic matches a pattern in topics yet: create one, or correct the pattern"
_NOT_THERE = "waiting for the topic to exist; create it, or run with --create-topics"
_NO_LETTERS = (
    "no dead-letter topic: saves will wait at the first rejected event; create it, or run with --create-topics"
)


class RequestedTopics:
    """The topics that this process should learn. Its methods raise DependencyError and aiokafka's errors."""

    def __init__(
        self,
        clients: KafkaClients,
        listed: Sequence[str],
        matches: Callable[[str], bool] | None,
        create: bool,
        logger: Any,
    ) -> None:
        """`matches` says which topics are requested in addition to those listed. `create` allows to create topics."""
        self._clients, self._listed, self.matches, self._create = clients, frozenset(listed), matches, create
        self._logger, self._warn_once = logger, cache(logger.warning)
        self._requested = dict.fromkeys(listed)
        self._existing, self._absent, self._reported = set[str](), set[str](), set[str]()

    def missing_resource(self, topic: str) -> str:
        """A sentence that says what is missing before this topic's model can be learned; "" if nothing is."""
        return _NOT_THERE if topic in self._absent else ""

    async def find(self) -> set[str]:
        """The requested topics that exist."""
        self._existing = set((await self._clients.query_client.fetch_all_metadata()).topics())
        self._absent -= self._existing
        if self.matches:
            matching = sorted(filter(self.matches, self._existing))
            self._requested |= dict.fromkeys(matching)
            if not matching:
                self._warn_once(_NO_MATCH)
        return self._requested.keys() & self._existing

    async def provide_missing(self) -> bool:
        """Create the topics that were not found, and topics for dead letters, or report each once.

        Returns whether topics were created.
        """
        wanted = [name for topic in self._requested for name in (topic, topic_of(topic))]
        missing = [name for name in wanted if name not in self._existing]
        if self._create:
            # A topic that a pattern matched, and that is gone, was deleted by somebody: do not create it again.
            ours = [name for name in missing if name in self._listed or name not in self._requested]
            if ours:
                await self._clients.cluster.create_topics(ours)
                self._logger.info("topics created", topics=ours)
            return bool(ours)
        for name in missing:
            if name not in self._reported:
                requested = name in self._requested
                try:
                    await self._clients.cluster.partitions(name, "Read" if requested else "Write")
                    self._absent.add(name)
                    self._logger.warning(_NOT_THERE if requested else _NO_LETTERS, topic=name)
                except Unauthorised as error:  # the topic may exist
                    self._logger.warning(str(error))
                self._reported.add(name)
        return False
