"""Whether the records of one topic come to this process, and if not, whether its log or the client is the reason."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping

from aiokafka import TopicPartition

from service.errors import DataError, DependencyError, Stuck
from service.streaming.batches import Clients, Hole
from service.streaming.cluster import ANSWER_SECONDS, compacted, unreadable
from service.streaming.offsets import DOUBTFUL
from service.streaming.shared import Shared

POLLING_SECONDS = 15.0
"""The watchdog minds a topic that was asked for records so lately: not one that is stopped, or waits for the store."""


class Progress:
    """Of one topic: where each partition is read, and since when it is there."""

    def __init__(self, shared: Shared, topic: str) -> None:
        self.at: dict[int, int] = {}
        self._shared, self._topic = shared, topic
        self._asked = time.monotonic()
        self._moved: dict[int, float] = {}
        """When each partition moved, or had no more to give, or was not asked."""
        self._damaged: DataError | None = None

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing is known of the log yet: it may have been mended, or its settings changed."""
        self._damaged = None
        self._shared.seen.compacted.discard(self._topic)
        for tp in partitions:
            self._shared.seen.placed.pop(tp, None)

    def ask(self) -> None:
        """Records are asked for now; raises DataError where it was found out why none can come."""
        self._asked = time.monotonic()
        if self._damaged:
            raise self._damaged

    def note(self, offsets: Mapping[int, int]) -> None:
        """Where the next poll goes on."""
        for partition, offset in offsets.items():
            if self.at.get(partition) != offset:
                self.at[partition], self._moved[partition] = offset, time.monotonic()

    async def explained(self, error: Exception) -> bool:
        """Whether this hole is none: compaction made it, or the batch is in its place. Raises DependencyError."""
        if not isinstance(error, Hole):
            return False
        shared, wrong = self._shared, error.wrong
        async with shared.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
            if wrong in DOUBTFUL:
                wrong = await Clients(shared.consumer, shared.producer).misplaced(error)
            if wrong == "missing":
                async with shared.cluster.admin() as client:
                    if await compacted(client, self._topic):
                        shared.seen.compacted.add(self._topic)
                        wrong = ""
        if not wrong:
            shared.seen.placed[error.tp] = error.first, error.following
        return not wrong

    async def watch(self, ends: Mapping[int, int], held: bool) -> None:
        """The watchdog, at each look at where the topic ends: of one that is not `held`, or not known, nothing is due.

        Raises Stuck when records were asked for, and none came for long although the broker answers and has more.
        """
        now, watched, shared = time.monotonic(), set[int](), self._shared
        if held and not self._damaged and now - self._asked < min(POLLING_SECONDS, shared.watchdog):
            watched = {p for p, end in ends.items() if end > self.at.get(p, end)}
        self._moved = {p: self._moved.get(p, now) if p in watched else now for p in {*self._moved, *ends}}
        for partition in watched:
            if (still := now - self._moved[partition]) <= shared.watchdog:
                continue
            at, why = self.at[partition], ""
            with contextlib.suppress(DependencyError):
                async with shared.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
                    clients = Clients(shared.consumer, shared.producer)
                    why = await clients.nothing_there(TopicPartition(self._topic, partition), at)
            if not why:
                raise Stuck(
                    f"topic {self._topic}: {shared.cluster} answers and has more records, but none came for "
                    f"{still:.0f} s (kafka.watchdog): the process ends, so that a fresh one goes on"
                )
            # It is the log: this topic stops, alone.
            self._damaged = unreadable(self._topic, partition, at, why)
