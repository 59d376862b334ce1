"""One topic, read through the process's fetcher: the real `ports.Log`.

Snapshots have the offsets, so the loop seeks after every assignment.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition

from service.errors import DependencyError
from service.learning.records import PartitionId
from service.snapshots.head import Source
from service.streaming.dead_letters import topic_of, truncate
from service.streaming.kafka.clients import KafkaClients
from service.streaming.kafka.cluster import ANSWER_SECONDS
from service.streaming.kafka.fetching.fetcher import Fetcher, Partition
from service.streaming.kafka.log_queries import log_bounds, topic_id
from service.streaming.message import Message
from service.streaming.message_queue import MessageQueue
from service.streaming.ports import Gap
from service.streaming.records import KafkaRecord, KafkaRecords

SHORT_POLL_RECORDS, POLL_RECORDS = 2000, 4000
"""Records of a poll while predictions wait, and while none waits. Measured: larger polls cost more per record."""
YIELDS_AFTER_POLL = 2
"""Turns of the event loop after a poll: a poll takes as long as a slice, and requests may have come meanwhile."""
FULL_QUEUE_SECONDS = 0.1
"""The pause until the queue of dead letters is checked for room again."""
POLL_SECONDS, IDLE_SECONDS = 0.2, 10.0
"""The limit of a poll while there is something to save, and while there is nothing to do."""


class TopicLog:
    """One topic as this process sees it, see `ports.Log`."""

    def __init__(
        self,
        clients: KafkaClients,
        fetcher: Fetcher,
        stopping: asyncio.Event,
        watchdog: float,
        predictions_wait: Callable[[], bool],
        topic: str,
    ) -> None:
        """`stopping` is set when the process stops. An idle poll takes at most a quarter of `watchdog`, in seconds.

        `predictions_wait` says whether a prediction waits for the event loop.
        """
        self.topic = topic
        self.released = asyncio.Event()
        self.released.set()
        self._clients, self._fetcher, self._stopping = clients, fetcher, stopping
        self._idle_seconds, self._predictions_wait = min(IDLE_SECONDS, watchdog / 4), predictions_wait
        self.assigned: Sequence[TopicPartition] = []
        """The partitions that the group assigned to us: all of the topic's, or none."""
        # Assignments are numbered, so that an assignment after a revocation differs from the one before.
        self._assignment = self._acquired = 0
        self._changed = asyncio.Event()
        self._polling: Any = None
        self.ends: dict[PartitionId, int] = {}
        """The end of each partition at the last check of `health`."""
        self._to_commit: dict[TopicPartition, int] = {}
        letters = topic_of(topic)
        failure = f"dead letters cannot be written to {letters}, so saves wait"
        self.dead_letters = MessageQueue(letters, clients, failure, truncate)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Take the group's assignment: all partitions of the topic, or none."""
        self._fetcher.drop(self.assigned)
        if partitions:
            self._clients.query_client.add_topic(self.topic)
        self.assigned = partitions
        self._assignment += 1
        self.wake()

    def wake(self) -> None:
        """End the waits of `acquire` and `poll`."""
        self._changed.set()
        with contextlib.suppress(AttributeError, RuntimeError):  # nobody polls
            self._polling.reschedule(0)

    async def acquire(self) -> bool:
        while not self._stopping.is_set():
            if self.assigned:
                self._acquired = self._assignment
                self.released.clear()
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    @property
    def held(self) -> bool:
        return bool(self.assigned) and self._acquired == self._assignment and not self._stopping.is_set()

    def release(self) -> None:
        self.released.set()

    async def source(self) -> Source:
        async with self._clients.cluster.errors():
            return Source(self._clients.cluster_id, await topic_id(self._clients.query_client, self.topic))

    async def bounds(self) -> dict[PartitionId, tuple[int, int]]:
        async with self._clients.cluster.errors():
            bounds = await log_bounds(self._clients.query_client, self.assigned)
        return {PartitionId(tp.partition): pair for tp, pair in bounds.items()}

    def positions(self) -> dict[PartitionId, int]:
        return {PartitionId(state.tp.partition): state.position for state in self._read_partitions()}

    def take_gaps(self) -> list[Gap]:
        return [
            Gap(PartitionId(state.tp.partition), *gap) for state in self._read_partitions() for gap in state.take_gaps()
        ]

    def _read_partitions(self) -> list[Partition]:
        """The partitions that are read: after an assignment none, until a seek."""
        partitions = self._fetcher.partitions
        return [partitions[tp] for tp in self.assigned if tp in partitions]

    async def read(self, partition: PartitionId, offset: int) -> KafkaRecord | None:
        tp, clients = TopicPartition(self.topic, partition.number), self._clients
        if not self.held:
            return None
        async with clients.cluster.errors():
            begin, end = (await log_bounds(clients.query_client, [tp]))[tp]
            if not begin <= offset < end:
                return None
            self._fetcher.seek(tp, offset)
            async with asyncio.timeout(ANSWER_SECONDS):
                polled = await self._fetcher.poll([tp], 1)
        record = polled[tp].record(0) if tp in polled else None
        return record if record is not None and record.offset == offset else None

    def seek(self, offsets: Mapping[PartitionId, int]) -> None:
        for tp in self.assigned:
            if (offset := offsets.get(PartitionId(tp.partition))) is not None:
                self._fetcher.seek(tp, offset)

    async def poll(self, idle: bool = False) -> dict[PartitionId, KafkaRecords]:
        if not self.held:
            return {}
        max_records = SHORT_POLL_RECORDS if self._predictions_wait() else POLL_RECORDS
        seconds = self._idle_seconds if idle else POLL_SECONDS
        try:
            async with asyncio.timeout(seconds) as self._polling, self._clients.cluster.errors():
                polled = await self._fetcher.poll(self.assigned, max_records)
        except TimeoutError:
            return {}
        except DependencyError:
            if self.held:
                raise
            return {}
        for _ in range(YIELDS_AFTER_POLL if polled else 0):
            await asyncio.sleep(0)
        return {PartitionId(tp.partition): records for tp, records in polled.items()}

    def commit(self, offsets: Mapping[PartitionId, int]) -> None:
        self._to_commit.update({TopicPartition(self.topic, p.number): offset for p, offset in offsets.items()})

    def take_commits(self) -> dict[TopicPartition, int]:
        """The offsets that are not committed yet. The next background commit takes them."""
        offsets, self._to_commit = self._to_commit, {}
        return offsets

    def lag(self, offsets: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """Offsets between these and the ends of the partitions, at the last check of `health`."""
        return {p: max(0, end - offsets[p]) for p, end in self.ends.items() if p in offsets}

    async def publish(self, letter: Message) -> None:
        self.dead_letters.add(letter)
        while self.dead_letters.full and self.held:
            self._fetcher.release(self.topic)  # other topics must not wait for its memory
            await asyncio.sleep(FULL_QUEUE_SECONDS)

    async def flush(self) -> None:
        self._fetcher.release(self.topic)  # all polled records are learned
        await self.dead_letters.flush()
