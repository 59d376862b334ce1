"""A simulated topic with the interface that learning expects. The log contract compares it with Kafka."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from service.errors import DependencyError, LogGap
from service.learning.records import PartitionId
from service.snapshots.head import TopicIdentity
from service.streaming.kafka.fetching.offset_sequence import OffsetSequence
from service.streaming.ports import Gap
from service.streaming.records import KafkaRecord, KafkaRecords, Message
from tests.batches import join_records
from tests.simulation.world import Record, Step, Topic, World, number_of, partition_at


class Batch(NamedTuple):
    """A batch with the offsets that its header states."""

    start: int
    end: int
    records: list[Record]


class Reading:
    """One partition since its last seek: the fetched batches, and the position of the polls."""

    def __init__(self, offset: int) -> None:
        self.position = offset
        self.sequence: OffsetSequence[Batch] = OffsetSequence(offset)
        self.admitted = deque[Batch]()
        self.error: LogGap | None = None
        self.end: int | None = None
        """The end of the partition in the last response."""


class SimulatedLog:
    """`streaming.ports.Log` for one process, assigned and revoked as `kafka.model_log.ModelLog` is."""

    model = "t"

    def __init__(self, world: World, name: str, foreign: bool = False) -> None:
        """`foreign` makes it a log of another cluster."""
        self._world, self.name, self._foreign = world, name, foreign
        self.partitions: list[PartitionId] = []
        self.stopping = False
        self._assignment = self._acquired = 0
        self._readings: dict[PartitionId, Reading] = {}
        self._seen_ends: dict[tuple[int, int], int] = {}
        """The end of each partition of each topic at its last fetch."""
        self._pending: list[Message] = []

    def assign(self) -> None:
        """The group assigns the topic to this process."""
        topic = self._topic
        self.partitions = [partition_at(i, topic.joined) for i in range(len(topic.partitions))]
        self._readings = {}
        self._assignment += 1

    def revoke(self) -> None:
        self.partitions = []
        self._assignment += 1

    def topic_of(self, partition: PartitionId) -> str:
        return partition.topic or self.model

    async def acquire(self) -> bool:
        await Step("acquire", lambda: self.stopping or bool(self.partitions))
        if self.stopping or not self.partitions:
            return not self.stopping and await self.acquire()
        self._acquired = self._assignment
        return True

    @property
    def held(self) -> bool:
        return bool(self.partitions) and self._acquired == self._assignment and not self.stopping

    def release(self) -> None:
        pass

    @property
    def _topic(self) -> Topic:
        return self._world.foreign_topic if self._foreign else self._world.topic

    async def _ask(self, request: str) -> Topic:
        """Return the topic; DependencyError if Kafka does not answer."""
        await Step(request)
        if self._world.chance(0.02):
            self._world.say(f"{self.name}: {request} fails")
            raise DependencyError(f"{request}: no answer", "kafka")
        return self._topic

    async def source(self) -> TopicIdentity:
        topic = await self._ask("source")
        await Step("source done")
        known = TopicIdentity("cluster", str(self._world.topics.index(topic)))
        return TopicIdentity("elsewhere", "0") if self._foreign else known

    async def bounds(self, since: int = 0) -> dict[PartitionId, tuple[int, int]]:
        partitions = self.partitions
        if not partitions:
            return {}
        topic = await self._ask("bounds")
        bounds = {}
        for p in partitions:
            part = topic.partitions[number_of(p)]
            newer = [o for o, record in part.records.items() if o >= part.begin and record.timestamp >= since]
            bounds[p] = (min(newer, default=part.end) if since else part.begin), part.end
        await Step("bounds done")
        return bounds

    def positions(self) -> dict[PartitionId, int]:
        return {p: reading.position for p, reading in self._readings.items() if p in self.partitions}

    def has_read_into(self, partition: PartitionId, start: int, end: int) -> bool:
        """Whether the last batch read of a partition ends between these offsets."""
        reading = self._readings.get(partition)
        return reading is not None and start < reading.sequence.position < end

    def take_gaps(self) -> Sequence[Gap]:
        gaps = [Gap(p, *gap) for p, reading in self._readings.items() for gap in reading.sequence.gaps]
        for reading in self._readings.values():
            reading.sequence.gaps = []
        return gaps

    async def records_at(self, offsets: Mapping[PartitionId, int]) -> dict[PartitionId, KafkaRecord]:
        records = {partition: await self._read(partition, offset) for partition, offset in offsets.items()}
        return {partition: record for partition, record in records.items() if record is not None}

    async def _read(self, partition: PartitionId, offset: int) -> KafkaRecord | None:
        topic = await self._ask("read")
        part = topic.partitions[number_of(partition)]
        if not self.held or not part.begin <= offset < part.end:
            return None
        reading = Reading(offset)
        while not reading.admitted and not reading.sequence.waiting:
            self._fetch(topic, partition, reading)
            if reading.error:
                raise reading.error
        matches = [record for batch in reading.admitted for record in batch.records if record.offset == offset]
        return matches[0].kafka if matches else None

    def seek(self, offsets: Mapping[PartitionId, int]) -> None:
        self._readings.update({p: Reading(o) for p, o in offsets.items() if p in self.partitions})

    def at_end(self) -> set[PartitionId]:
        return {p for p, r in self._readings.items() if r.end is not None and r.position >= r.end}

    async def poll(
        self,
        idle: bool = False,  # noqa: ARG002 - time has no weight here
        partitions: Collection[PartitionId] | None = None,
    ) -> dict[PartitionId, KafkaRecords]:
        if not self.held:
            return {}
        readings, rng = self._readings, self._world.rng
        partitions = [p for p in self.partitions if partitions is None or p in partitions]
        topic = await self._ask("poll")
        polled: dict[PartitionId, KafkaRecords] = {}
        advanced = False
        rng.shuffle(partitions)
        for p in partitions:
            reading = readings.get(p)
            if reading is None or rng.random() < 0.2:
                continue
            if not reading.admitted and not reading.error:
                self._fetch(topic, p, reading)
            records = list[Record]()
            for _ in range(rng.randint(1, 7)):
                if reading.admitted:
                    batch = reading.admitted.popleft()
                    records += [record for record in batch.records if record.offset >= reading.position]
                    reading.position, advanced = batch.end, True
            if records:
                polled[p] = join_records([record.kafka for record in records], p)
        for p in partitions:
            if (reading := readings.get(p)) and reading.error and not advanced:
                raise reading.error
        await Step("polled")
        if not polled:
            self._world.now += 0.2
        return polled

    def _fetch(self, topic: Topic, partition: PartitionId, reading: Reading) -> None:
        """One response of a broker. It reads the high watermark before the data, and may cut the response short."""
        part, sequence, rng = topic.partitions[number_of(partition)], reading.sequence, self._world.rng
        offset, key = sequence.fetch_offset, (id(topic), number_of(partition))
        if not part.begin <= offset <= part.end:
            if offset < sequence.position:
                sequence.looking_back = False
                return
            raise DependencyError("offset out of range", "kafka")
        end = max(self._seen_ends.get(key, 0), part.end - offset % 2)
        self._seen_ends[key] = part.end
        reading.end = end
        batches = [Batch(*batch) for batch in part.batches(offset, topic.compacted)] if offset < part.end else []
        if part.flipped and offset < part.end and not batches:
            reading.error = LogGap(f"the log has nothing from offset {offset} of partition {partition} on")
            return  # as the watchdog of the real log reports it
        count = rng.randint(1, 9) + 2 * (offset < sequence.position)
        cut = batches[count].start if count < len(batches) else None
        # A response shows where the next batch begins, except after the last batch of a segment.
        visible = batches[:count]
        hides_next = part.flipped is not None and bool(visible) and visible[-1].start == part.flipped[2]
        if not hides_next and rng.random() < 0.5:
            cut = None
        try:
            reading.admitted.extend(sequence.admit(visible, cut, end, end, part.begin))
        except LogGap as error:
            reading.error = error

    def commit(self, offsets: Mapping[PartitionId, int]) -> None:
        if self.held and not self._foreign:
            self._world.committed.update({number_of(p): offset for p, offset in offsets.items()})

    async def publish(self, letter: Message) -> None:
        self._pending.append(letter)
        await Step("publish")
        if self._world.rng.random() < 0.3:
            self._acknowledge()

    async def flush(self) -> None:
        await Step("flush")
        if self._pending and (self._world.refusing or self._world.chance(0.1)):
            self._world.say(f"{self.name}: flush fails")
            raise DependencyError("dead letters: no answer", "kafka")
        self._acknowledge()
        await Step("flushed")

    def _acknowledge(self) -> None:
        if self._world.refusing:
            return
        for letter in self._pending:
            self._world.letters.setdefault(letter.key or b"", set()).add(letter.value)
        self._pending = []
