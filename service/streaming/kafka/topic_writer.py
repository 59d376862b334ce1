"""Writes records to one topic in the background: each at most once, and in order within its partition.

The client is idempotent, and repeats a batch until the broker has it. If the broker refuses a batch, its number is
missing in the sequence that the broker expects of this client. Then a new client takes its place.
"""

import asyncio
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from service.errors import DependencyError
from service.streaming.kafka.cluster import CLOSE_SECONDS, MAX_MESSAGE_BYTES, Cluster
from service.streaming.kafka.connection import kafka_failure
from service.streaming.message_queue import USUAL_LIMIT_BYTES
from service.streaming.records import Message

MAX_QUEUED_BYTES = 32 << 20
"""Bytes of memory of the records that wait for their acknowledgement."""
BATCH_BYTES = 512 << 10
ROUND_RECORDS = 1000
"""The most records that are sent at the same time: to pack them takes a few milliseconds."""
FACTS_SECONDS = 30.0
"""How old the facts of a topic may be."""
RETRY_SECONDS = 1.0


class Delivery:
    """Records on their way to a topic."""

    def __init__(self, count: int) -> None:
        self.places: list[tuple[int, int] | None] = [None] * count
        """The partition and offset of each record; None as long as it is not stored."""
        self.why = ""
        """Why records were refused."""
        self.ended = asyncio.get_running_loop().create_future()
        """Done once each record is stored or refused."""
        self._left = count

    def end(self, number: int, place: tuple[int, int] | None, why: str) -> None:
        """Note where a record is stored, or why it was refused."""
        self.places[number], self.why, self._left = place, why or self.why, self._left - 1
        if not self._left:
            self.ended.set_result(None)


class _Waiting(NamedTuple):
    """A record that waits for its acknowledgement."""

    message: Message
    delivery: Delivery
    number: int


class TopicWriter:
    """Writes to one topic, as long as `run` runs.

    A record goes to the partition that the CRC-32 of its key says, as with librdkafka; one without a key to any.
    """

    def __init__(self, cluster: Cluster, topic: str, create: bool, warn: Callable[[str], None]) -> None:
        """`create` allows to create the topic. `warn` gets the reason each time that nothing can be written."""
        self.cluster, self.topic, self._create, self._warn = cluster, topic, create, warn
        self._queue, self._bytes, self._round = deque[_Waiting](), 0, 0
        self._added, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._facts, self._facts_until, self._asking = (0, USUAL_LIMIT_BYTES), 0.0, asyncio.Lock()

    def add(self, messages: Sequence[Message]) -> Delivery | None:
        """Take records to write, at least one; takes none and returns None if too many wait."""
        delivery = Delivery(len(messages))
        waiting = [_Waiting(message, delivery, i) for i, message in enumerate(messages)]
        size = sum(message.memory for message in messages)
        if self._bytes and self._bytes + size > MAX_QUEUED_BYTES:
            return None
        self._queue += waiting
        self._bytes += size
        self._added.set()
        self._empty.clear()
        return delivery

    async def facts(self) -> tuple[int, int]:
        """The number of partitions, 0 if there is no such topic, and the bytes of the largest batch.

        Raises DependencyError.
        """
        async with self._asking:
            if time.monotonic() >= self._facts_until:
                limit, partitions = self._facts[1], len(await self.cluster.partitions(self.topic, "Write"))
                if partitions:
                    with suppress(DependencyError):  # without the right to ask, the limit stays as it is
                        limit = await self.cluster.largest_batch(self.topic)
                    self._facts_until = time.monotonic() + FACTS_SECONDS
                self._facts = partitions, limit
        return self._facts

    async def flush(self) -> None:
        """Wait until no record waits."""
        await self._empty.wait()

    async def run(self) -> None:
        """Write records as they come, for as long as the process runs."""
        while True:
            await self._added.wait()
            try:
                partitions, limit = await self.facts()
                if self._create and not partitions:
                    await self.cluster.create_topics([self.topic])
                    partitions, limit = await self.facts()
                if not partitions:
                    raise DependencyError(f"{self.cluster}: topic {self.topic} does not exist", "kafka")
                size = min(BATCH_BYTES, limit)
                producer = self.cluster.producer(
                    enable_idempotence=True, max_batch_size=size, max_request_size=MAX_MESSAGE_BYTES
                )
                async with self.cluster.open_clients(producer, close_seconds=CLOSE_SECONDS), self.cluster.errors():
                    while await self._write(producer):
                        await self._added.wait()
            except DependencyError as error:
                self._warn(f"{error}: records wait")
            await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, producer: AIOKafkaProducer) -> bool:
        """Write records that wait; returns False if the producer cannot go on."""
        batches, unsent = self._pack(producer, sorted(await producer.partitions_for(self.topic)))
        sent, goes_on = dict[int, Any](), True
        for partition, (batch, waiting) in batches.items():
            try:
                sent[partition] = await producer.send_batch(batch, self.topic, partition=partition)
            except KafkaError:
                unsent, goes_on = [*waiting, *unsent], False
        self._queue.extendleft(reversed(unsent))
        for partition, acknowledged in sent.items():
            waiting = batches[partition][1]
            try:
                first = (await acknowledged).offset
            except KafkaError as error:
                self._end(waiting, why=kafka_failure(error, "Write"))
                self._facts_until, goes_on = 0.0, False
            else:
                self._end(waiting, partition, first)
        return goes_on

    def _pack(
        self, producer: AIOKafkaProducer, partitions: Sequence[int]
    ) -> tuple[dict[int, tuple[Any, list[_Waiting]]], list[_Waiting]]:
        """Records that wait: a batch for each partition with its records, and those that do not fit."""
        batches, rest = dict[int, tuple[Any, list[_Waiting]]](), list[_Waiting]()
        self._round += 1
        anywhere = partitions[self._round % len(partitions)]
        for _ in range(min(len(self._queue), ROUND_RECORDS)):
            waiting = self._queue.popleft()
            key, value, headers, timestamp = waiting.message
            partition = partitions[zlib.crc32(key) % len(partitions)] if key else anywhere
            if partition not in batches:
                batches[partition] = producer.create_batch(), []
            batch, own = batches[partition]
            fits = batch.append(timestamp=timestamp, key=key, value=value, headers=headers)
            (own if fits else rest).append(waiting)
        return batches, rest

    def _end(self, waiting: Sequence[_Waiting], partition: int = 0, first: int = 0, why: str = "") -> None:
        """Say that records are stored, at offsets from `first` on, or why they are lost."""
        for offset, each in enumerate(waiting, first):
            each.delivery.end(each.number, None if why else (partition, offset), why)
        self._bytes -= sum(each.message.memory for each in waiting)
        if not self._bytes:
            self._added.clear()
            self._empty.set()
