"""The log of a model, which has one topic or several, read through the process's fetcher: the real `ports.Log`.

Snapshots have the offsets, so the loop seeks after every assignment.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition

from service.errors import DependencyError
from service.learning.records import PartitionId
from service.snapshots.head import TopicIdentity
from service.streaming.dead_letters import dead_letter_topic
from service.streaming.kafka.cluster import KafkaClients
from service.streaming.kafka.fetching.fetcher import Fetcher, ModelPartition, PartitionBuffer, partitions_of, records_at
from service.streaming.kafka.log_queries import log_bounds, topic_id
from service.streaming.message_queue import MessageQueue
from service.streaming.ports import Gap
from service.streaming.records import KafkaRecord, KafkaRecords, Message

SHORT_POLL_RECORDS, POLL_RECORDS = 2000, 4000
"""Records of a poll while predictions wait, and while none waits. Measured: larger polls cost more per record."""
YIELDS_AFTER_POLL = 2
"""Turns of the event loop after a poll: a poll takes as long as a slice, and requests may have come meanwhile."""
FULL_QUEUE_SECONDS = 0.1
"""The pause until the queue of dead letters is checked for room again."""
ANSWER_SECONDS = 5.0
"""A partition is at its end if its leader said so within this time. An idle leader answers every two seconds."""
POLL_SECONDS, IDLE_SECONDS = 0.2, 30.0
"""The limit of a poll while there is something to save, and while there is nothing to do."""


@dataclass(eq=False, repr=False)
class ModelLog:
    """The log of one model as this process sees it, see `ports.Log`."""

    clients: KafkaClients
    fetcher: Fetcher
    stopping: asyncio.Event
    """Set when the process stops."""
    predictions_wait: Callable[[], bool]
    """Says whether a prediction waits for a turn."""
    model: str
    topics: Sequence[str]

    def __post_init__(self) -> None:
        self.released = asyncio.Event()
        self.released.set()
        self.assigned: Mapping[PartitionId, ModelPartition] = {}
        """The partitions that the group assigned to us: all of the model's topics, or none."""
        # Assignments are numbered, so that an assignment after a revocation differs from the one before.
        self._assignment = self._acquired = 0
        self._changed = asyncio.Event()
        self._polling: Any = None
        self.ends: Mapping[TopicPartition, int] = {}
        """The last stable offset of each partition at the last check of `health`."""
        self.committable: Mapping[TopicPartition, int] = {}
        """The next offsets of the last snapshot."""
        self.dead_letters = MessageQueue(dead_letter_topic(self.model), self.clients)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Take what the group assigned to this process. A log of which it lacks a topic is not assigned."""
        self.fetcher.drop(self.assigned.values())
        own = partitions_of(self.model, self.topics, partitions)
        whole = {each.tp.topic for each in own} == set(self.topics)
        for topic in self.topics if whole else ():
            self.clients.query_client.add_topic(topic)
        self.assigned = {each.partition: each for each in own} if whole else {}
        self._assignment += 1
        self.wake()

    def wake(self) -> None:
        """End the waits of `acquire` and `poll`."""
        self._changed.set()
        with contextlib.suppress(AttributeError, RuntimeError):  # nobody polls
            self._polling.reschedule(0)

    async def acquire(self) -> bool:
        while not self.stopping.is_set():
            if self.assigned:
                self._acquired = self._assignment
                self.released.clear()
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    @property
    def held(self) -> bool:
        return bool(self.assigned) and self._acquired == self._assignment and not self.stopping.is_set()

    def release(self) -> None:
        self.released.set()

    def topic_of(self, partition: PartitionId) -> str:
        return partition.topic or self.topics[0]

    async def source(self) -> TopicIdentity:
        async with self.clients.cluster.errors():
            ids = [await topic_id(self.clients.query_client, topic) for topic in self.topics]
        return TopicIdentity(self.clients.cluster_id, " ".join(ids))

    async def bounds(self, since: int = 0) -> dict[PartitionId, tuple[int, int]]:
        async with self.clients.cluster.errors():
            bounds = await log_bounds(self.clients.query_client, [each.tp for each in self.assigned.values()], since)
        return {partition: bounds[each.tp][:2] for partition, each in self.assigned.items() if each.tp in bounds}

    def positions(self) -> dict[PartitionId, int]:
        return {buffer.of.partition: buffer.position for buffer in self._buffers()}

    def take_gaps(self) -> list[Gap]:
        return [Gap(buffer.of.partition, *gap) for buffer in self._buffers() for gap in buffer.take_gaps()]

    def _buffers(self) -> list[PartitionBuffer]:
        """The buffers of the partitions that are read: after an assignment none, until a seek."""
        return [buffer for each in self.assigned.values() if (buffer := self.fetcher.partitions.get(each))]

    async def records_at(self, offsets: Mapping[PartitionId, int]) -> dict[PartitionId, KafkaRecord]:
        own = {each: offsets[partition] for partition, each in self.assigned.items() if partition in offsets}
        cluster = self.clients.cluster
        async with cluster.errors():
            return await records_at(self.clients.query_client, own if self.held else {}, cluster.max_batch_bytes)

    def seek(self, offsets: Mapping[PartitionId, int]) -> None:
        self.fetcher.seek({own: offsets[partition] for partition, own in self.assigned.items() if partition in offsets})

    def at_end(self) -> set[PartitionId]:
        oldest = time.monotonic() - ANSWER_SECONDS
        return {b.of.partition for b in self._buffers() if b.position >= b.end and b.end_at >= oldest}

    async def poll(
        self, idle: bool = False, partitions: Collection[PartitionId] | None = None
    ) -> dict[PartitionId, KafkaRecords]:
        if not self.held:
            return {}
        polled_partitions = [own for p, own in self.assigned.items() if partitions is None or p in partitions]
        max_records = SHORT_POLL_RECORDS if self.predictions_wait() else POLL_RECORDS
        seconds = IDLE_SECONDS if idle else POLL_SECONDS
        try:
            async with asyncio.timeout(seconds) as self._polling, self.clients.cluster.errors():
                polled = await self.fetcher.poll(polled_partitions, max_records)
        except TimeoutError:
            return {}
        except DependencyError:
            if self.held:
                raise
            return {}
        for _ in range(YIELDS_AFTER_POLL if polled else 0):
            await asyncio.sleep(0)
        return polled

    def commit(self, offsets: Mapping[PartitionId, int]) -> None:
        self.committable = {self.assigned[p].tp: offset for p, offset in offsets.items() if p in self.assigned}

    def lag(self, offsets: Mapping[PartitionId, int]) -> dict[TopicPartition, int]:
        """Offsets between these and the ends of the partitions, with those that open transactions hold back."""
        own = {each.tp: offsets[p] for p, each in self.assigned.items() if p in offsets and each.tp in self.ends}
        ends = {buffer.of.tp: buffer.high_watermark for buffer in self._buffers()}
        return {tp: max(0, self.ends[tp] - offset, ends.get(tp, 0) - offset) for tp, offset in own.items()}

    def held_back(self) -> dict[TopicPartition, int]:
        """The records that open transactions hold back, by partition."""
        return {buffer.of.tp: buffer.held_back for buffer in self._buffers()}

    def has_reached_end(self, offsets: Mapping[PartitionId, int]) -> bool:
        """Whether no committed record followed these offsets at the last check: open transactions may last."""
        ends = {p: self.ends[each.tp] for p, each in self.assigned.items() if each.tp in self.ends}
        return bool(ends) and all(offsets.get(p, end) >= end for p, end in ends.items())

    async def publish(self, letter: Message) -> None:
        self.dead_letters.add(letter)
        while self.dead_letters.full and self.held:
            self.fetcher.release(self.model)  # other models must not wait for its memory
            await asyncio.sleep(FULL_QUEUE_SECONDS)

    async def flush(self) -> None:
        self.fetcher.release(self.model)  # all polled records are learned
        await self.dead_letters.flush()
