"""One topic through aiokafka, as `ports.Log`.

Positions are ours: offsets live in snapshots, so every assignment is followed by a seek, and a complaint that the
group has no committed offset is not an error. `getmany` has no bound while the group rebalances; here it has.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaError, NoOffsetForPartitionError

from service.errors import DataError, DependencyError
from service.snapshots.head import Source
from service.streaming.cluster import ANSWER_SECONDS, bounds, cause_of, unreadable
from service.streaming.dead_letters import DeadLetter, topic_of
from service.streaming.outbox import Outbox
from service.streaming.progress import Progress
from service.streaming.records import Record, Records, records_of
from service.streaming.shared import Shared
from service.streaming.topic_id import topic_id

POLL_RECORDS, POLL_ASKED, POLL_WHOLE = 500, 2000, 4000
"""Where each is an object, where predictions wait for a poll, and where nobody does. Measured: larger polls cost more a
record, in garbage collection where each is an object, else in memory."""
ANSWER_TURNS = 2
"""Of the loop, after a poll that took as long as a slice of learning: for a request that came meanwhile."""
POLL_SECONDS, IDLE_SECONDS = 0.2, 10.0
"""A poll that brings nothing: while there is something to save, and while there is nothing to do."""


class TopicLog:
    """One topic as this process sees it: see `ports.Log`."""

    def __init__(self, shared: Shared, topic: str) -> None:
        self.topic = topic
        self.released = asyncio.Event()
        self.released.set()
        self._shared = shared
        self._partitions: list[TopicPartition] = []
        # An assignment is numbered, so that one that comes after a revocation does not look like the one before.
        self._assignment = self._acquired = 0
        self._changed = asyncio.Event()
        self._polling: Any = None
        self._idle = False
        self._careful: dict[TopicPartition, int] = {}
        """Among so many records that come next of each of these one was unreadable: they are read one by one."""
        self._progress = Progress(shared, topic)
        self._looked_at: dict[int, int] = {}
        """How far it was read at the last look."""
        self.ends: dict[int, int] = {}
        self.outbox = Outbox(topic_of(topic), shared.cluster)

    @property
    def assigned(self) -> Sequence[TopicPartition]:
        """What the group gave us of the topic: all of its partitions, or none."""
        return self._partitions

    def assign(self, partitions: list[TopicPartition]) -> None:
        """The group gave us these partitions, all of the topic or none."""
        self._partitions = partitions
        self._assignment += 1
        self.wake()

    def wake(self) -> None:
        """Let whoever waits look again."""
        self._changed.set()
        with contextlib.suppress(AttributeError, RuntimeError):  # nobody polls
            self._polling.reschedule(0)

    async def acquire(self) -> bool:
        while not self._shared.stopping:
            if self._partitions:
                self._acquired = self._assignment
                self._careful.clear()
                self._progress.begin(self._partitions)
                self.released.clear()
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    @property
    def held(self) -> bool:
        return bool(self._partitions) and self._acquired == self._assignment and not self._shared.stopping

    def release(self) -> None:
        self.released.set()

    @property
    def _consumer(self) -> Any:
        return self._shared.consumer

    async def source(self) -> Source:
        shared = self._shared
        return Source(shared.cluster_id, await topic_id(shared.cluster, shared.producer, self._consumer, self.topic))

    async def bounds(self) -> dict[int, tuple[int, int]]:
        partitions = self._partitions
        if not partitions:
            return {}
        async with self._shared.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
            return await bounds(self._consumer, partitions)

    async def positions(self) -> dict[int, int]:
        async with self._shared.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
            at = {tp.partition: await self._consumer.position(tp) for tp in self._partitions}
        self._progress.note(at)
        return at

    async def read(self, partition: int, offset: int) -> Record | None:
        tp = TopicPartition(self.topic, partition)
        async with self._shared.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
            begin, end = (await bounds(self._consumer, [tp]))[partition]
            if not begin <= offset < end:
                return None
            again = False
            while self.held:
                self._ask()
                self.seek({partition: offset})
                with contextlib.suppress(NoOffsetForPartitionError):
                    try:
                        found = await self._consumer.getmany(tp, timeout_ms=int(POLL_SECONDS * 1000), max_records=1)
                    except (CorruptRecordException, UnicodeDecodeError) as error:
                        if await self._progress.explained(error):
                            continue
                        if again:
                            raise unreadable(self.topic, partition, offset, error) from error
                        again = True
                        continue
                    if part := found.get(tp):
                        record = records_of(part).record(0)
                        return record if record.offset == offset else None
                    if await self._consumer.position(tp) > offset:  # only markers follow it
                        return None
        return None

    def seek(self, offsets: Mapping[int, int]) -> None:
        for tp in self._partitions:
            if tp.partition in offsets:
                with contextlib.suppress(KafkaError):  # revoked meanwhile
                    self._consumer.seek(tp, offsets[tp.partition])
                    self._consumer.resume(tp)
        self._progress.note(offsets)

    async def poll(self, idle: bool = False) -> dict[int, Records]:
        if not self.held:
            return {}
        self._ask()
        partitions, most = self._partitions, POLL_ASKED if self._shared.asked() else POLL_WHOLE
        if not self._shared.cluster.polls_whole_batches:
            most = POLL_RECORDS
        seconds = min(IDLE_SECONDS, self._shared.watchdog / 4) if idle else POLL_SECONDS
        careful = next(iter(self._careful), None)
        if careful:
            partitions, most, seconds = [careful], 1, POLL_SECONDS
        try:
            async with asyncio.timeout(seconds + 4 * POLL_SECONDS) as self._polling:
                self._idle = idle
                polled = await self._consumer.getmany(*partitions, timeout_ms=int(seconds * 1000), max_records=most)
        except (TimeoutError, NoOffsetForPartitionError):
            return {}
        except (CorruptRecordException, UnicodeDecodeError) as error:
            # What the client had parsed of the fetch is lost with the exception: fetch it again.
            self.seek(dict(self._progress.at))
            if await self._progress.explained(error):
                return {}
            if careful:
                partition = careful.partition
                raise unreadable(self.topic, partition, self._progress.at.get(partition), error) from error
            self._careful = dict.fromkeys(partitions, most)
            return {}
        except KafkaError as error:
            if not self.held:
                return {}
            raise DependencyError(f"{self._shared.cluster}: {cause_of(error)}", "kafka") from error
        found = {tp.partition: records_of(part) for tp, part in polled.items()}
        if careful and (left := self._careful.pop(careful) - 1) and found:
            self._careful[careful] = left  # behind the others; what is not met again was damaged on its way alone
        self._progress.note({partition: records.record(-1).offset + 1 for partition, records in found.items()})
        for _ in range(ANSWER_TURNS if found else 0):
            await asyncio.sleep(0)
        return found

    def _ask(self) -> None:
        """Say that records are asked for; raises DataError where none can come."""
        try:
            self._progress.ask()
        except DataError:
            with contextlib.suppress(KafkaError):  # revoked meanwhile
                self._consumer.pause(*self._partitions)  # else it is fetched again and again
            raise

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._shared.commit({TopicPartition(self.topic, partition): o for partition, o in offsets.items()})

    def lag(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Records between these offsets and the log's end, by partition, as of the last look at it."""
        return {p: max(0, end - offsets[p]) for p, end in self.ends.items() if p in offsets}

    async def look(self) -> None:
        """Look where the log ends, whether or not anything is polled; raises DependencyError and Stuck."""
        ends: dict[int, int] = {}
        try:
            async with self._shared.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
                found = await self._shared.ends.of(self._partitions)
            async with self._shared.turn:
                await asyncio.sleep(0)
            self.ends = ends = {tp.partition: end for tp, end in found.items()}
            at, before = dict(self._progress.at), self._looked_at
            if self._idle and any(before.get(p) == at.get(p, end) < end for p, end in ends.items()):
                self.wake()  # what is there may be no record, which ends no poll
            self._looked_at = at
        finally:
            await self._progress.watch(ends, self.held)

    async def publish(self, letter: DeadLetter) -> None:
        await self.outbox.put(letter, lambda: self.held)

    async def flush(self) -> None:
        await self.outbox.flush()
