"""Fetches partitions, each from the offset given to `seek`, and returns their records in the order of the log.

1. `seek` starts a partition for one model. Each broker gets at most one request at a time. It asks for the partitions
   that the broker leads and whose buffer has room, for an equal share of each, and begins with another partition each
   time. A request names a partition once: models that read it from one offset share the response, others take turns.
2. The batches of a response are checked: their checksums, and by `OffsetSequence` their offsets. Batches that may be
   learned go into the partition's buffer, still compressed.
3. `poll` decompresses only what it returns. Decompressed bytes that are not learned yet are limited for the process.
4. `poll` raises the error of a partition after the records before the error were returned.
5. Under a quota of the broker, `QuotaPace` makes requests smaller and spreads them.

The client is aiokafka's. Only its public interface is used: `send`, and its metadata about leaders.
"""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from aiokafka import TopicPartition, errors
from aiokafka.client import AIOKafkaClient

from service.errors import DataError
from service.learning.records import PartitionId
from service.streaming.kafka import log_queries
from service.streaming.kafka.connection import MALFORMED, UNAUTHORISED
from service.streaming.kafka.fetching.compression import DamagedBatch
from service.streaming.kafka.fetching.offset_sequence import OffsetSequence
from service.streaming.kafka.fetching.record_batch import HEAD, OpenBatch, RecordBatch, RecordsBuilder, parse_batches
from service.streaming.records import KafkaRecord, KafkaRecords
from service.streaming.supervision import SupervisedTasks

MIN_PARTITION_BYTES, MAX_PARTITION_BYTES = 256 << 10, 1 << 20
"""Bounds of one partition's share. A smaller one brings one batch of many producers at a time; 2 MiB cost 10 % more."""
BUFFER_BYTES = 1 << 20
"""A partition whose buffer has this many bytes, still compressed, is not fetched."""
WAIT_MS, SHORT_WAIT_MS = 2000, 10
"""How long a broker waits for a first record. Meanwhile the request cannot be changed, and the broker answers no other
one of this client. So it waits at most as long as there has been no new partition. It waits for the short time while a
partition that is being polled has a full buffer, since the request does not ask for that one."""
POLL_BYTES = 4 << 20
"""A poll that has this many decompressed bytes takes no further batch."""
MAX_UNPACKED_BYTES = 64 << 20
"""The limit of decompressed bytes of all polls whose records are not learned yet. Beyond it the next poll waits."""
RETRY_SECONDS = 0.2
"""The pause after an error, and until partitions are looked at again that no request can ask for now."""
READING_SECONDS = 1.0
"""A partition is being polled if the last poll was within this time."""
QUOTA_SECONDS = 10.0
"""A broker limits the mean rate over this time (quota.window.num and quota.window.size.seconds have this default)."""
STEP_SECONDS, MAX_PAUSE_SECONDS, MIN_RATE = 0.25, 1.0, 16 << 10
"""Under a quota each request asks for the bytes of STEP_SECONDS, and the next one comes when their time is over. A
quota of less than MIN_RATE bytes a second is used in bursts."""
WHOLE_BATCHES = 16
"""A request for fewer batches asks for a single one: the broker would cut the last one, and count its bytes."""
HEADROOM, FASTER_SECONDS, UNTRIED_SECONDS = 1.5, 5.0, 3.0
"""The rate under a quota is HEADROOM times the measured mean. It doubles after FASTER_SECONDS without throttling, and
after each response while the bytes received are fewer than UNTRIED_SECONDS of the rate. This uses 90 to 97 % of a quota
of 0.02 to 5 MB a second (simulated with the broker's rule; measured for 0.1 MB: 93 %)."""


SHARE_BYTES = 64 << 10
"""Bytes that the first request asks for of each partition: a batch of a usual producer has 16 KiB."""


class ModelPartition(NamedTuple):
    """A partition of a model's log, and Kafka's name of it."""

    model: str
    partition: PartitionId
    tp: TopicPartition


def partitions_of(model: str, topics: Collection[str], partitions: Iterable[TopicPartition]) -> list[ModelPartition]:
    """The partitions that belong to a model with these topics, in order."""
    own = sorted(tp for tp in partitions if tp.topic in topics)
    return [ModelPartition(model, PartitionId(tp.partition, tp.topic if len(topics) > 1 else ""), tp) for tp in own]


class PartitionBuffer:
    """What was fetched of one partition since its last seek."""

    def __init__(self, of: ModelPartition, offset: int, max_batch_bytes: int) -> None:
        self.of, self.position = of, offset
        """`position` is the offset where the next poll starts."""
        self.sequence: OffsetSequence[RecordBatch] = OffsetSequence(offset)
        self.error: Exception | None = None
        """The next poll raises it, after the records before it."""
        self.retry_at = 0.0
        self.end, self.high_watermark, self.end_at = offset, offset, 0.0
        """The last stable offset and the high watermark in the newest response, and when that came."""
        self._standing_since = time.monotonic()
        """Since when the last stable offset has stood before the high watermark, if it does."""
        self.wanted_bytes = 0
        """More than a share, if the next batch needs it: the next request then asks for this partition alone."""
        self.polled_at = self.due_since = time.monotonic()
        """When it was last polled, and since when it has been starving, see `starving_seconds`."""
        self.arrived = asyncio.Event()
        """Set if there may be something for the poll that waits."""
        self._max_batch_bytes = max_batch_bytes
        self._batches = deque[RecordBatch]()
        self._open: OpenBatch | None = None
        """The batch from which polls take records."""
        self.buffered = self.batch_bytes = 0
        """Bytes in the buffer, still compressed, and of the last batch."""
        self.taken_at = 0.0
        """When a poll last took records from it: the partition that has waited longest is next."""

    @property
    def has_data(self) -> bool:
        """Whether the buffer has a batch."""
        return bool(self._batches) or self._open is not None

    @property
    def held_back(self) -> int:
        """How many records an open transaction has held back for OPEN_SECONDS, if all records before it were polled."""
        is_held = self.position >= self.end and time.monotonic() > self._standing_since + log_queries.OPEN_SECONDS
        return self.high_watermark - self.end if is_held else 0

    def starving_seconds(self, end: int) -> float:
        """How long fetches have brought nothing though the log, which ends at `end`, has more."""
        now, sequence = time.monotonic(), self.sequence
        if self.error is not None or self.has_data or sequence.waiting or end <= sequence.fetch_offset:
            self.due_since = max(self.due_since, now)
        return now - self.due_since

    def take_gaps(self) -> list[tuple[int, int]]:
        """Gaps between batches that were accepted since the last call: the first offset, and the one after the last."""
        gaps, self.sequence.gaps = self.sequence.gaps, []
        return gaps

    def receive(self, response: log_queries.PartitionResponse, share: int, alone: bool) -> None:
        """Buffer the batches of a response, or keep its error for the next poll. `share` bytes were requested.

        Batches that arrive after an error are dropped: the records before them were not all returned.
        """
        if self.error is not None:
            return
        error = errors.for_code(response.error)
        try:
            if error is errors.NoError:
                self._buffer(response, share, alone)
            elif error is errors.OffsetOutOfRangeError and self.sequence.fetch_offset < self.sequence.position:
                self.sequence.looking_back = False  # the batches before `position` were deleted
            elif error is errors.CorruptRecordException:
                self.sequence.doubt("the broker says that its log is corrupt")
            elif error in (errors.OffsetOutOfRangeError, *UNAUTHORISED):
                self.error = error(self.of.tp.topic)
            else:  # the leader moved, or the broker cannot answer now
                self.end_at = 0.0
                self.retry_at = time.monotonic() + RETRY_SECONDS
        except DataError as damage:
            self.error = unreadable(self.of, self.sequence.position, str(damage), type(damage))
        self.arrived.set()

    def _buffer(self, response: log_queries.PartitionResponse, share: int, alone: bool) -> None:
        fetched, fetch_offset = parse_batches(response.data, response.aborted), self.sequence.fetch_offset
        end, stable, log_start = response.high_watermark, response.last_stable_offset, max(0, response.log_start)
        if stable != self.end or stable == end:
            self._standing_since = time.monotonic()
        self.end, self.high_watermark, self.end_at = stable, end, time.monotonic()
        admitted = self.sequence.admit(fetched.batches, fetched.cut_start, end, stable, log_start)
        self._batches.extend(admitted)
        self.buffered += sum(len(batch.data) for batch in admitted)
        if admitted:
            self.due_since, self.batch_bytes = time.monotonic(), len(admitted[-1].data)
        last = fetched.batches[-1].end if fetched.batches else fetch_offset
        self.wanted_bytes = 0
        if fetched.damage and last >= self.sequence.position:
            self.sequence.doubt(fetched.damage)
        elif fetched.cut_size and not admitted:
            if fetched.cut_size > self._max_batch_bytes:
                self.sequence.doubt(f"a batch of {fetched.cut_size:,} bytes is larger than kafka.max_batch_bytes")
            elif alone and len(response.data) < share:
                self.sequence.doubt("a batch is cut short")
            else:
                # All of these batches and the beginning of another.
                self.wanted_bytes = sum(len(batch.data) for batch in fetched.batches) + fetched.cut_size + HEAD.size

    def take(self, builder: RecordsBuilder, max_records: int) -> None:
        """Decompress records into the builder, and move `position` after them."""
        try:
            while builder.count < max_records and builder.bytes < POLL_BYTES and self.has_data:
                if self._open is None:
                    batch = self._batches.popleft()
                    self.buffered -= len(batch.data)
                    if not batch.has_records:
                        self.position = batch.end
                        continue
                    self._open = OpenBatch(batch, self._max_batch_bytes)
                self.position = builder.add(self._open, self.position, max_records - builder.count)
                if self._open.remaining <= 0:
                    self._open = None
        except DamagedBatch as error:
            damaged = self._open.batch if self._open is not None else batch
            self.error = unreadable(self.of, damaged.start, f"its batch {error}", resume_at=damaged.end)
            self._batches.clear()
            self._open, self.buffered = None, 0


class QuotaPace:
    """How fast one broker is asked for records, so that they come evenly if it has a quota for us.

    A broker lets all bytes of QUOTA_SECONDS through at once, then nothing until the mean is below the quota. So after a
    response that it throttles, requests ask for a part of the mean rate.
    """

    def __init__(self) -> None:
        self.requests = 0
        self._rate = math.inf
        """In bytes a second; there is no limit until the first response that is throttled."""
        self._received, self._received_at, self._faster_at = 0.0, 0.0, 0.0
        """Bytes of the last QUOTA_SECONDS, as a decaying sum."""

    def request_bytes(self, batch_bytes: int) -> int:
        """The size of the next request, if batches have this size; 1 is a single batch."""
        step = min(self._rate * STEP_SECONDS, log_queries.FETCH_BYTES)
        return int(step) if step > WHOLE_BATCHES * batch_bytes or step == log_queries.FETCH_BYTES else 1

    def pause(self, received: int, throttle: float) -> float:
        """Seconds until the next request, after a response with these bytes, which requires to wait for `throttle`."""
        now = time.monotonic()
        self._received = received + self._received * math.exp((self._received_at - now) / QUOTA_SECONDS)
        self._received_at = now
        if throttle:
            self._rate = max(HEADROOM * self._received / QUOTA_SECONDS, MIN_RATE)
            self._faster_at = now + throttle + FASTER_SECONDS
        elif now > self._faster_at or self._received < UNTRIED_SECONDS * self._rate:
            self._rate, self._faster_at = 2 * self._rate, now + FASTER_SECONDS
        return max(throttle, min(received / self._rate, MAX_PAUSE_SECONDS))


class Fetcher:
    """Reads the partitions of one process."""

    def __init__(
        self, client: AIOKafkaClient, max_batch_bytes: int, ignored: Callable[[TopicPartition], object] = lambda _: None
    ) -> None:
        """The caller bootstraps and closes the client. `ignored` hears of partitions that a broker sends unasked."""
        self.client, self._max_batch_bytes, self._ignored = client, max_batch_bytes, ignored
        self.throttled: Callable[[float], object] = lambda _: None
        """Called with the seconds that a broker's quota makes a fetch wait."""
        self._paces = defaultdict[int, QuotaPace](QuotaPace)
        """The pace of each broker, by its number."""
        self.partitions: dict[ModelPartition, PartitionBuffer] = {}
        """The partitions that are read: those with a seek."""
        self._busy: set[int] = set()
        self._tasks: SupervisedTasks | None = None
        self._new_at = 0.0
        """When there last was a seek. It is at most RETRY_SECONDS ago while no request can ask for some partition."""
        self._passed_over = asyncio.Event()
        """Set if a partition without a known leader, or whose last request failed, must be looked at again."""
        self._turn = asyncio.Lock()
        self._unpacked: dict[str, int] = {}
        """Decompressed bytes that were polled and not released yet, by model."""
        self._room = asyncio.Event()

    async def run(self) -> None:
        """Fetch for as long as the process runs."""
        async with SupervisedTasks() as tasks:
            self._tasks = tasks
            try:
                while True:
                    self._request_all()
                    await self._passed_over.wait()
                    await asyncio.sleep(RETRY_SECONDS)
                    await log_queries.refresh_unknown_leaders(self.client, {each.tp for each in self.partitions})
            finally:
                self._tasks = None  # the task group takes no new tasks

    def seek(self, offsets: Mapping[ModelPartition, int]) -> None:
        """Read the partitions from these offsets on. Batches that were fetched before are dropped."""
        for partition, offset in offsets.items():
            before = self.partitions.get(partition)
            buffer = self.partitions[partition] = PartitionBuffer(partition, offset, self._max_batch_bytes)
            if before is not None:  # a seek brings no records, so the time that the watchdog counts goes on
                buffer.due_since = before.due_since
            self.client.add_topic(partition.tp.topic)
        self._new_at = time.monotonic()
        self._request_all()

    def drop(self, partitions: Iterable[ModelPartition]) -> None:
        """Stop reading these partitions."""
        for partition in partitions:
            self.partitions.pop(partition, None)
            self.release(partition.model)
        if topics := {each.tp.topic for each in self.partitions}:
            self.client.set_topics(topics)

    def release(self, model: str) -> None:
        """Say that the polled records of a model are learned, or that learning waits for something else than memory."""
        if self._unpacked.pop(model, 0):
            self._room.set()

    async def poll(self, partitions: Sequence[ModelPartition], max_records: int) -> dict[PartitionId, KafkaRecords]:
        """At most `max_records` records of these partitions of one model; waits for the first one.

        Returns nothing if a position moved past offsets without records. Raises KafkaError, and DataError if the log is
        damaged.
        """
        states, arrived = [self.partitions[p] for p in partitions if p in self.partitions], asyncio.Event()
        model = partitions[0].model
        self.release(model)
        for state in states:
            state.arrived, state.polled_at = arrived, time.monotonic()
        while not any(state.has_data or state.error for state in states):
            await arrived.wait()
            arrived.clear()
        while sum(self._unpacked.values()) > MAX_UNPACKED_BYTES:
            self._room.clear()
            await self._room.wait()
        async with self._turn:  # each model decompresses in a turn of the event loop of its own
            await asyncio.sleep(0)
            polled = self._take([s for s in states if self.partitions.get(s.of) is s], max_records)
        self._unpacked[model] = sum(len(records.values.data) for records in polled.values())
        self._request_all()
        return polled

    def _take(self, states: Sequence[PartitionBuffer], max_records: int) -> dict[PartitionId, KafkaRecords]:
        """Take records from each partition in turn. If no position moves, raise the error of a partition, if any."""
        polled, moved, remaining = dict[PartitionId, KafkaRecords](), False, max_records
        for state in sorted(states, key=lambda state: state.taken_at):
            builder, before = RecordsBuilder(), state.position
            state.take(builder, remaining)
            if builder.count:
                polled[state.of.partition] = builder.build(state.of.partition)
                remaining -= builder.count
                state.taken_at = time.monotonic()
            moved |= state.position != before
        if not polled and not moved:
            for state in states:
                if error := state.error:
                    if isinstance(error, errors.KafkaError):  # the next request may succeed
                        state.error, state.retry_at = None, time.monotonic() + RETRY_SECONDS
                    raise error
        return polled

    def _request_all(self) -> None:
        """Start a request to each broker that has none and leads partitions that need records."""
        self._passed_over.clear()
        if self._tasks is None:
            return
        now, due, full = time.monotonic(), dict[int, list[PartitionBuffer]](), set[int]()
        for partition, state in self.partitions.items():
            node = log_queries.leader_of(self.client, partition.tp)
            if node is None or now < state.retry_at:
                self._passed_over.set()
                self._new_at = max(self._new_at, now - RETRY_SECONDS)
            elif node in self._busy or state.error is not None:
                continue
            elif state.buffered < BUFFER_BYTES:
                due.setdefault(node, []).append(state)
            elif now - state.polled_at < READING_SECONDS:
                full.add(node)
        for node, states in due.items():
            self._busy.add(node)
            quiet_ms = 0 if node in full else int(1000 * (now - self._new_at))
            wait_ms = max(SHORT_WAIT_MS, min(quiet_ms, WAIT_MS))
            self._tasks.create_task(self._request(node, states, wait_ms))

    async def _request(self, node: int, states: list[PartitionBuffer], wait_ms: int) -> None:
        """Send one request to one broker, and handle its response."""
        try:
            pace = self._paces[node]
            pace.requests += 1
            first, size = pace.requests % len(states), pace.request_bytes(max(state.batch_bytes for state in states))
            states = states[first:] + states[:first]
            states = [state for state in states if state.wanted_bytes][:1] or states
            share = min(max(size // len(states), MIN_PARTITION_BYTES), MAX_PARTITION_BYTES, size)
            share = max(share, states[0].wanted_bytes)
            offsets, readers = dict[TopicPartition, int](), dict[TopicPartition, list[PartitionBuffer]]()
            for state in states:
                readers.setdefault(state.of.tp, []).append(state)
                if offsets.setdefault(state.of.tp, state.sequence.fetch_offset) != state.sequence.fetch_offset:
                    wait_ms = SHORT_WAIT_MS  # another model reads this partition elsewhere, in one of the next requests
            parts, throttle = await log_queries.fetch(self.client, node, offsets, share, wait_ms, size)
            for part in parts:
                if part.tp not in offsets:
                    self._ignored(part.tp)
                for state in readers.get(part.tp, ()):
                    if self.partitions.get(state.of) is state and state.sequence.fetch_offset == offsets[part.tp]:
                        state.receive(part, share, len(offsets) == 1)
            if throttle:
                self.throttled(throttle)
                for state in states:
                    state.due_since = time.monotonic() + throttle
            if pause := pace.pause(sum(len(part.data) for part in parts), throttle):
                await asyncio.sleep(pause)
            if any(state.retry_at > time.monotonic() for state in states):  # a leader may have moved
                await log_queries.refresh_metadata(self.client)
        except (errors.KafkaError, OSError, RuntimeError, *MALFORMED):
            # uvloop raises RuntimeError for a socket that has just closed. `health` says why Kafka is away.
            await log_queries.refresh_metadata(self.client)
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._busy.discard(node)
        self._request_all()


def unreadable(
    of: ModelPartition, offset: int, why: str, kind: type[DataError] = DataError, resume_at: int | str = "OFFSET"
) -> DataError:
    """The error for a log that is unreadable from an offset on; `resume_at` is where the damage ends, if known."""
    rollback = f"perceptron rollback -m {of.model} --to VERSION --resume-at {of.partition}:{resume_at} --yes"
    reset = f"perceptron reset -m {of.model} --yes"
    return kind(
        f"topic {of.tp.topic}: the record at offset {offset} of partition {of.tp.partition} cannot be read ({why}): "
        f"repair the log, or leave out its whole batch with `{rollback}`, or `{reset}` and --start-at "
        f"{of.partition}:{resume_at}"
    )


async def records_at(
    client: AIOKafkaClient, offsets: Mapping[ModelPartition, int], max_batch_bytes: int
) -> dict[PartitionId, KafkaRecord]:
    """The committed records at these offsets. An offset without a record is left out.

    A broker sends the first batch of a request whole, and others as far as they fit: partitions whose batch is cut or
    missing are asked for again, unless they were the first. Raises KafkaError, and DataError for a batch that is
    damaged twice.
    """
    remaining, share = dict(offsets), SHARE_BYTES
    records, damaged = dict[PartitionId, KafkaRecord](), set[ModelPartition]()
    while remaining:
        own = {each.tp: each for each in remaining}
        for node, tps in (await log_queries.find_leaders(client, own)).items():
            if node is None:
                raise errors.LeaderNotAvailableError(tps[0].topic)
            requested = {tp: remaining[own[tp]] for tp in tps}
            parts, throttle = await log_queries.fetch(client, node, requested, share)
            responses = {part.tp: part for part in parts}
            for tp, offset in requested.items() if parts or not throttle else ():
                each, response = own[tp], responses[tp]
                if (error := errors.for_code(response.error)) not in (errors.NoError, errors.OffsetOutOfRangeError):
                    await log_queries.refresh_metadata(client)
                    raise error(tp.topic)
                try:
                    record, is_complete = _find(response, each.partition, offset, max_batch_bytes)
                except DamagedBatch as damage:
                    if each in damaged:
                        raise unreadable(each, offset, str(damage)) from None
                    damaged.add(each)
                    continue
                if record is not None:
                    records[each.partition] = record
                if is_complete or (tp == tps[0] and not throttle):
                    del remaining[each]
            await asyncio.sleep(throttle)
        share = min(4 * share, log_queries.FETCH_BYTES)
    return records


def _find(
    response: log_queries.PartitionResponse, partition: PartitionId, offset: int, max_batch_bytes: int
) -> tuple[KafkaRecord | None, bool]:
    """The record at an offset, and whether the response has all that the log has there; raises DamagedBatch."""
    fetched = parse_batches(response.data, response.aborted)
    batch = next((batch for batch in fetched.batches if batch.end > offset), None)
    if batch is None:
        if fetched.damage:
            raise DamagedBatch(fetched.damage)
        return None, not fetched.cut_size and response.last_stable_offset <= offset
    if not batch.has_records or batch.start > offset:
        return None, True
    builder = RecordsBuilder()
    builder.add(OpenBatch(batch, max_batch_bytes), offset, batch.count)
    records = builder.build(partition)
    return (records.record(0) if len(records) and records.offsets[0] == offset else None), True
