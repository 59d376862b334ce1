"""Fetches partitions, each from the offset that it is sought to, and gives their records in the order of the log.

1. `seek` starts a partition. Each broker has at most one request under way, which asks for all partitions that it leads
   and whose buffer has room, for an equal part of each, and begins with another one each time.
2. A response's batches are checked: their checksums, and by `OffsetSequence` their offsets. What may be learned goes
   into the partition's buffer, as it came.
3. `poll` unpacks what it returns, and no more. What is unpacked and not yet learned is bounded for the process.
4. An error of one partition is raised by its own `poll`, once what came before it was returned.

The client is aiokafka's, by its public interface: `send`, and what it knows of leaders.
"""

import asyncio
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    NoError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest

from service.errors import DataError, LogGap
from service.streaming.kafka.fetching.compression import DamagedBatch
from service.streaming.kafka.fetching.offset_sequence import BatchDamage, OffsetDamage, OffsetSequence
from service.streaming.kafka.fetching.record_batch import (
    HEAD,
    OpenBatch,
    RecordBatch,
    RecordsBuilder,
    mark_aborted,
    parse_batches,
)
from service.streaming.kafka.log_queries import (
    READ_COMMITTED,
    PartitionResponse,
    leader_of,
    partition_responses,
    refresh_metadata,
)
from service.streaming.records import KafkaRecords
from service.streaming.supervision import SupervisedTasks

FETCH_BYTES = 4 << 20
"""The size of a response. Measured: smaller ones cost more a record, larger ones no less."""
MIN_PARTITION_BYTES, MAX_PARTITION_BYTES = 256 << 10, 1 << 20
"""The part of one partition in it. Less brings one batch of many producers at a time; 2 MiB cost a tenth more."""
BUFFER_BYTES = 1 << 20
"""A partition whose buffer has as many bytes, not unpacked, is not asked for."""
WAIT_MS, SHORT_WAIT_MS = 500, 10
"""How long a broker waits for a first record; and while a partition of its that is being read has a full buffer, and so
is no part of the request."""
POLL_BYTES = 4 << 20
"""A poll with as many unpacked bytes takes no further batch."""
UNPACKED_BYTES = 64 << 20
"""The limit of all polls whose records are not learned yet. Beyond it the next poll waits."""
RETRY_SECONDS = 0.2
"""After an error, and the pause between two looks for partitions that nobody asks for."""
READING_SECONDS = 1.0
"""A partition that was polled within it is being read."""


class _Partition:
    """One partition since its last seek."""

    def __init__(self, tp: TopicPartition, offset: int, max_batch_bytes: int) -> None:
        self.tp, self.position = tp, offset
        """`position` is the next offset that a poll returns."""
        self.sequence: OffsetSequence[RecordBatch] = OffsetSequence(offset)
        self.error: Exception | None = None
        self.retry_at = 0.0
        self.wanted_bytes = 0
        """More than its part, if a batch needs them: it is then asked for alone."""
        self.polled_at = self.due_since = time.monotonic()
        """When a poll asked last; since when something is due, see `waits`."""
        self.waiter: asyncio.Event | None = None
        self._max_batch_bytes = max_batch_bytes
        self._batches = deque[RecordBatch]()
        self._open: OpenBatch | None = None
        """The batch that polls take records of."""
        self.buffered = 0
        """Bytes in its buffer."""
        self.taken_at = 0.0
        """When a poll last took records of it: the one that had to wait longest is next."""

    @property
    def has_data(self) -> bool:
        return bool(self._batches) or self._open is not None

    def waits(self, end: int) -> bool:
        """Whether a fetch of it is due something, where the log ends at `end`."""
        return self.error is None and not self.has_data and not self.sequence.holds and end > self.sequence.fetch_offset

    def receive(self, response: PartitionResponse, asked_bytes: int, alone: bool) -> None:
        """Buffer what came, or keep the error for the next poll."""
        answer = for_code(response.error)
        try:
            if answer is NoError:
                self._buffer(response, asked_bytes, alone)
            elif answer is OffsetOutOfRangeError and self.sequence.fetch_offset < self.sequence.position:
                self.sequence.stop_looking_back()  # what was before is not there any more
            elif answer is CorruptRecordException:
                self.sequence.doubt("the broker says that its log is corrupt")
            elif answer in (OffsetOutOfRangeError, TopicAuthorizationFailedError):
                self.error = answer(self.tp.topic)
            else:  # its leader moved, or the broker cannot tell
                self.retry_at = time.monotonic() + RETRY_SECONDS
        except OffsetDamage as error:
            kind = DataError if isinstance(error, BatchDamage) else LogGap
            self.error = unreadable(self.tp, self.sequence.position, str(error), kind)
        self.wake()

    def wake(self) -> None:
        """Let the poll that waits go on, if there is something for it."""
        if self.waiter is not None and (self.has_data or self.error is not None):
            self.waiter.set()

    def _buffer(self, response: PartitionResponse, asked_bytes: int, alone: bool) -> None:
        fetched, fetch_offset = parse_batches(response.data), self.sequence.fetch_offset
        mark_aborted(fetched.batches, response.aborted)
        admitted = self.sequence.admit(
            fetched.batches,
            fetched.cut_start,
            response.high_watermark,
            response.last_stable_offset,
            max(0, response.log_start),
        )
        self._batches.extend(admitted)
        self.buffered += sum(len(batch.data) for batch in admitted)
        if admitted:
            self.due_since = time.monotonic()
        whole = sum(len(batch.data) for batch in fetched.batches)
        last = fetched.batches[-1].end if fetched.batches else fetch_offset
        self.wanted_bytes = 0
        if fetched.damage and last >= self.sequence.position:
            self.sequence.doubt(fetched.damage)
        elif fetched.cut_size and not admitted:
            if fetched.cut_size > self._max_batch_bytes:
                self.sequence.doubt(
                    f"a batch says that it has {fetched.cut_size:,} bytes, which is more than kafka.max_batch_bytes"
                )
            elif alone and len(response.data) < asked_bytes:
                self.sequence.doubt("a batch is cut short")
            else:
                self.wanted_bytes = whole + fetched.cut_size + HEAD.size  # and where the next one begins

    def take(self, builder: RecordsBuilder, max_records: int) -> None:
        """Unpack records into the builder, and go on after them."""
        try:
            while builder.count < max_records and builder.bytes < POLL_BYTES and self.has_data:
                if self._open is None:
                    batch = self._batches.popleft()
                    self.buffered -= len(batch.data)
                    if not batch.has_records:
                        self.position = batch.end
                        continue
                    self._open = OpenBatch(batch, self._max_batch_bytes)
                last = builder.add(self._open, self.position, max_records - builder.count)
                if self._open.left > 0:
                    self.position = self.position if last is None else last + 1
                else:
                    self.position, self._open = self._open.batch.end, None
        except DamagedBatch as error:
            damaged = self._open.batch if self._open is not None else batch
            self.error = unreadable(self.tp, damaged.start, f"its batch {error}", resume_at=damaged.end)
            self._batches.clear()
            self._open, self.buffered = None, 0


class Fetcher:
    """The partitions that one process reads."""

    def __init__(self, client: AIOKafkaClient, max_batch_bytes: int) -> None:
        """The caller bootstraps the client, and closes it."""
        self._client, self._max_batch_bytes = client, max_batch_bytes
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._busy: set[int] = set()
        self._requests = 0
        self._tasks: SupervisedTasks | None = None
        self._turn = asyncio.Lock()
        self._unpacked: dict[str, int] = {}
        """Bytes that were polled and not released, by topic."""
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Fetch for as long as the process runs."""
        async with SupervisedTasks() as tasks:
            self._tasks = tasks
            try:
                while True:
                    self._request_all()
                    await asyncio.sleep(RETRY_SECONDS)
                    if any(leader_of(self._client, tp) is None for tp in self._partitions):
                        await refresh_metadata(self._client)
            finally:
                self._tasks = None  # the group takes no more

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read the partition from this offset on; whatever was fetched of it is dropped."""
        known = {each.topic for each in self._partitions}
        self._partitions[tp] = _Partition(tp, offset, self._max_batch_bytes)
        if tp.topic not in known:
            self._client.set_topics({*known, tp.topic})
        self._request_all()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Do not read these any more."""
        for tp in partitions:
            self._partitions.pop(tp, None)
            self.release(tp.topic)

    def position(self, tp: TopicPartition) -> int:
        """The next offset that a poll returns; raises KeyError without a seek."""
        return self._partitions[tp].position

    def positions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions of those of these partitions that were sought."""
        return {tp: self._partitions[tp].position for tp in partitions if tp in self._partitions}

    def take_gaps(self, tp: TopicPartition) -> list[tuple[int, int]]:
        """Gaps between batches that were accepted since the last call: first offset, and the one after the last."""
        partition = self._partitions.get(tp)
        if partition is None:
            return []
        gaps, partition.sequence.gaps = partition.sequence.gaps, []
        return gaps

    def starving_seconds(self, tp: TopicPartition, end: int) -> float:
        """How long a fetch of this partition has been due something, where its log ends at `end`."""
        partition, now = self._partitions.get(tp), time.monotonic()
        if partition is None:
            return 0.0
        if not partition.waits(end):
            partition.due_since = max(partition.due_since, now)
        return now - partition.due_since

    def fetch_offset(self, tp: TopicPartition) -> int:
        """Where the next fetch of this partition starts."""
        return self._partitions[tp].sequence.fetch_offset

    def fail(self, tp: TopicPartition, error: Exception) -> None:
        """Have the partition's next poll raise this, if it is read."""
        if partition := self._partitions.get(tp):
            partition.error = error
            partition.wake()

    def release(self, topic: str) -> None:
        """What was polled of this topic is learned, or waits for something else than memory."""
        if self._unpacked.pop(topic, 0):
            self._room.set()

    async def poll(self, partitions: Sequence[TopicPartition], max_records: int) -> dict[TopicPartition, KafkaRecords]:
        """Records by partition of one topic, at most `max_records` and one batch's; waits for the first.

        Returns nothing if a position went on without a record. Raises KafkaError, and DataError if the log cannot be
        read on.
        """
        states, arrived = [self._partitions[tp] for tp in partitions if tp in self._partitions], asyncio.Event()
        topic = partitions[0].topic
        self.release(topic)
        for state in states:
            state.waiter, state.polled_at = arrived, time.monotonic()
        while not any(state.has_data or state.error for state in states):
            await arrived.wait()
            arrived.clear()
        while sum(self._unpacked.values()) > UNPACKED_BYTES:
            self._room.clear()
            await self._room.wait()
        async with self._turn:  # topics that wake together unpack in a turn of the event loop each
            await asyncio.sleep(0)
            polled = self._take([s for s in states if self._partitions.get(s.tp) is s], max_records)
        self._unpacked[topic] = sum(records.size for records in polled.values())
        self._request_all()
        return polled

    def _take(self, states: Sequence[_Partition], max_records: int) -> dict[TopicPartition, KafkaRecords]:
        """Take from each partition in turn; raise an error if nothing is before it."""
        polled, moved, left = dict[TopicPartition, KafkaRecords](), False, max_records
        for state in sorted(states, key=lambda state: state.taken_at):
            builder, before = RecordsBuilder(), state.position
            if left > 0:
                state.take(builder, left)
            if builder.count:
                polled[state.tp] = builder.build()
                left -= builder.count
                state.taken_at = time.monotonic()
            moved |= state.position != before
        if not polled and not moved:
            for state in states:
                if error := state.error:
                    if isinstance(error, KafkaError):  # it is asked again
                        state.error, state.retry_at = None, time.monotonic() + RETRY_SECONDS
                    raise error
        return polled

    def _request_all(self) -> None:
        """Start a request to each broker that has none under way and leads partitions that need records."""
        if self._tasks is None:
            return
        now, due, full = time.monotonic(), dict[int, list[_Partition]](), set[int]()
        for tp, state in self._partitions.items():
            node = leader_of(self._client, tp)
            if node is None or node in self._busy or state.error is not None or now < state.retry_at:
                continue
            if state.buffered < BUFFER_BYTES:
                due.setdefault(node, []).append(state)
            elif now - state.polled_at < READING_SECONDS:
                full.add(node)
        for node, states in due.items():
            self._busy.add(node)
            self._tasks.create_task(self._request(node, states, SHORT_WAIT_MS if node in full else WAIT_MS))

    async def _request(self, node: int, states: list[_Partition], wait_ms: int) -> None:
        """One request to one broker, and what comes of it."""
        try:
            self._requests += 1
            first = self._requests % len(states)
            states = states[first:] + states[:first]
            wanting = next((state for state in states if state.wanted_bytes), None)
            if wanting is not None:
                states = [wanting]
            share = min(max(FETCH_BYTES // len(states), MIN_PARTITION_BYTES), MAX_PARTITION_BYTES)
            share = max(share, states[0].wanted_bytes)
            topics: dict[str, list[tuple[int, int, int]]] = {}
            for state in states:
                asked_part = state.tp.partition, state.sequence.fetch_offset, share
                topics.setdefault(state.tp.topic, []).append(asked_part)
            request = FetchRequest(wait_ms, 1, max(FETCH_BYTES, share), READ_COMMITTED, list(topics.items()))
            asked = {(state.tp.topic, state.tp.partition): (state, state.sequence.fetch_offset) for state in states}
            response = await self._client.send(node, request)
            for part in partition_responses(response):
                state, offset = asked[part.topic, part.partition]
                if self._partitions.get(state.tp) is state and state.sequence.fetch_offset == offset:
                    state.receive(part, share, len(states) == 1)
            await self._pause(states, response)
        except (KafkaError, OSError, RuntimeError):
            # RuntimeError: uvloop's for a socket that has just closed. Why Kafka is away is said by `health`.
            await refresh_metadata(self._client)
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._busy.discard(node)
        self._request_all()

    async def _pause(self, states: Sequence[_Partition], response: Any) -> None:
        """Keep to the broker's quota, and hear of leaders that moved."""
        if throttle := response.throttle_time_ms / 1000:
            for state in states:
                state.due_since = time.monotonic() + throttle
            await asyncio.sleep(throttle)
        if any(state.retry_at > time.monotonic() for state in states):
            await refresh_metadata(self._client)


def unreadable(
    tp: TopicPartition, offset: int, why: str, kind: type[DataError] = DataError, resume_at: int | str = "OFFSET"
) -> DataError:
    """What to say of a log that cannot be read from this offset on; `resume_at` is where its batch ends, if known."""
    resume = f"{tp.partition}:{resume_at}"
    return kind(
        f"topic {tp.topic}: the record at offset {offset} of partition {tp.partition} cannot be read ({why}): mend the "
        f"log, or leave the whole of its batch out with `perceptron rollback -t {tp.topic} --to VERSION --resume-at "
        f"{resume} --yes`, or `perceptron reset -t {tp.topic} --yes` and --start-at {resume}"
    )
