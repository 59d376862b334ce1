"""Kafka through aiokafka: one group member for all topics of this process, and each topic as an `interfaces.Log`.

What the client library makes unsafe is settled here:
- Rebalance callbacks only record what happened and wait (for a while) until the loop has saved and let go.
- Positions are ours: offsets live in snapshots, so every assignment is followed by a seek, and a complaint that the
  group has no committed offset is not an error.
- Commits are advisory, so they happen in the background, and failing ones are forgotten.
- `getmany` has no bound while the group rebalances; here it has.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaError, NoOffsetForPartitionError

from service.errors import DataError, DependencyError
from service.snapshots.head import Source
from service.streaming.assignor import whole_topics
from service.streaming.batches import Seen, check_offsets
from service.streaming.cluster import ANSWER_SECONDS, Cluster, bounds, unreadable
from service.streaming.dead_letters import DeadLetter, topic_of
from service.streaming.ends import Ends
from service.streaming.outbox import Outbox, letter_producer
from service.streaming.progress import Progress
from service.streaming.records import Record, Records
from service.streaming.topic_id import topic_id
from service.streaming.watch import Watch

POLL_RECORDS = 500  # measured: larger polls cost more a record, in garbage collection
POLL_SECONDS, IDLE_SECONDS = 0.2, 10.0
CLOSE_SECONDS = 1.0
METADATA_SECONDS = 10
"""So often it is asked for new partitions, and for new topics where a pattern names them."""


class Kafka(ConsumerRebalanceListener):
    """This process in its consumer group."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        say: Callable[..., None],
        *,
        create: bool = False,
        session_timeout: float = 10.0,
        watchdog: float = 60.0,
        wanted: Callable[[str], bool] | None = None,
    ) -> None:
        """`wanted` says which topics are learned beside `topics`, as they come to exist."""
        self.cluster, self.cluster_id, self.watchdog = cluster, "", watchdog
        self.logs = {topic: TopicLog(self, topic) for topic in topics}
        self.stopping = False
        self.consumer: AIOKafkaConsumer | None = None
        self.producer: AIOKafkaProducer | None = None
        self.seen = Seen()
        self._group, self._say, self._create, self._session_timeout = group, say, create, session_timeout
        self._wanted, self._listed = wanted, frozenset(topics)
        self._to_commit: dict[TopicPartition, int] = {}
        self._watch = Watch(cluster, group, say, session_timeout, watchdog)
        self.ends = Ends(lambda wanted: self.consumer.end_offsets(wanted))  # type: ignore[union-attr]  # noqa: PLW0108

    @property
    def missing_since(self) -> float:
        """Since when it does not answer (seconds since 1970); 0 while it does."""
        return self._watch.missing_since

    async def connect(self) -> None:
        """Connect, without joining the group yet; raises DependencyError."""
        self._watch.missing_since = self.missing_since or time.time()
        self.cluster_id = await self.cluster.id()
        session = int(self._session_timeout * 1000)
        consumer = self.cluster.consumer(
            group_id=self._group,
            partition_assignment_strategy=(whole_topics(),),
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            session_timeout_ms=session,
            heartbeat_interval_ms=min(500, session // 3),
            # A standby never polls, and must not leave the group for it.
            max_poll_interval_ms=2**31 - 1,
            metadata_max_age_ms=METADATA_SECONDS * 1000,
        )
        producer = letter_producer(self.cluster)
        async with self.cluster.errors():
            try:
                await consumer.start()
                await producer.start()
            except BaseException:
                await consumer.stop()
                await producer.stop()
                raise
        check_offsets(consumer, self.seen)
        self.consumer, self.producer, self._watch.missing_since = consumer, producer, 0.0

    async def run(self, found: Callable[[str], None]) -> None:
        """Join the group with the topics that exist, as they come to exist; commit; write dead letters.

        `found` hears of each `wanted` topic, whose log is there then.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._subscribe(tasks, found))
            tasks.create_task(self._commit_and_check())
            tasks.create_task(self._watch.run(self.consumer, self.logs))
            for log in self.logs.values():
                tasks.create_task(log.outbox.write(self.producer))

    def stop(self) -> None:
        """Every topic is lost from now on."""
        self.stopping = True
        for log in self.logs.values():
            log.wake()

    async def close(self) -> None:
        """Commit what is left and leave the group."""
        clients = [client for client in (self.consumer, self.producer) if client is not None]
        # Without a broker the clients raise all kinds of errors here, a cancellation of their own among them.
        for seconds, calls in ((CLOSE_SECONDS, [self._commit()]), (2 * CLOSE_SECONDS, [c.stop() for c in clients])):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*calls, return_exceptions=True)

    async def _subscribe(self, tasks: asyncio.TaskGroup, found: Callable[[str], None]) -> None:
        assert self.consumer is not None  # noqa: S101 - run follows connect
        subscribed: set[str] = set()
        said: set[str] = set()
        while self._wanted or len(subscribed) < len(self.logs):
            pause = 1.0 if len(subscribed) < len(self.logs) else METADATA_SECONDS
            try:
                async with self.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
                    existing = set(await self.consumer.topics())
                for topic in filter(self._wanted, sorted(existing - self.logs.keys())) if self._wanted else ():
                    self.logs[topic] = TopicLog(self, topic)
                    tasks.create_task(self.logs[topic].outbox.write(self.producer))
                    found(topic)
                wanted = [name for topic in self.logs for name in (topic, topic_of(topic))]
                missing = [name for name in wanted if name not in existing]
                # A topic that a pattern found, and that is gone, was deleted by somebody: it stays so.
                if self._create and (ours := [n for n in missing if n in self._listed or n not in self.logs]):
                    await self.cluster.create_topics(ours)
                    self._say("topics created", topics=ours)
                    pause = 0.1
                for name in set(missing) - said if not self._create else ():
                    self._say(
                        "waiting for the topic to exist; create it, or run with --create-topics"
                        if name in self.logs
                        else "no dead-letter topic: saves will wait at the first rejected event; "
                        "create it, or run with --create-topics",
                        topic=name,
                    )
                said.update(missing)
                if new := (set(self.logs) & existing) - subscribed:
                    subscribed |= new
                    self.consumer.subscribe(sorted(subscribed), listener=self)
            except DependencyError as error:
                if str(error) not in said:
                    self._say(str(error))
                    said.add(str(error))
            await asyncio.sleep(pause)

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Wait until the loops have saved and let go; a save that comes later is refused if it matters."""
        self._watch.joined = False
        logs = [self.logs[topic] for topic in {tp.topic for tp in revoked}]
        for log in logs:
            log.assign([])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._session_timeout / 2):
                for log in logs:
                    await log.released.wait()

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Record what is ours now, be it nothing."""
        self._watch.joined = True
        for topic, log in self.logs.items():
            log.assign(sorted(tp for tp in assigned if tp.topic == topic))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets in the background."""
        self._to_commit.update(offsets)

    async def _commit_and_check(self) -> None:
        while True:
            with contextlib.suppress(KafkaError, OSError):
                await self._commit()
            await asyncio.sleep(1.0)
            if self.consumer is not None:
                # A group member whose coordination has died would wait for ever; the process must not.
                async with self.cluster.errors(f"group {self._group}"):
                    self.consumer._coordinator.check_errors()

    async def _commit(self) -> None:
        offsets, self._to_commit = self._to_commit, {}
        if self.consumer is not None:
            held = self.consumer.assignment()
            if ours := {tp: offset for tp, offset in offsets.items() if tp in held}:
                await self.consumer.commit(ours)


class TopicLog:
    """One topic as this process sees it: see `interfaces.Log`."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.topic = topic
        self.released = asyncio.Event()
        self.released.set()
        self._kafka = kafka
        self._partitions: list[TopicPartition] = []
        # An assignment is numbered, so that one that comes after a revocation does not look like the one before.
        self._assignment = self._acquired = 0
        self._changed = asyncio.Event()
        self._polling: Any = None
        self._idle = False
        self._unreadable, self._turn = False, 0
        self._progress = Progress(kafka, topic)
        self.ends: dict[int, int] = {}
        self.outbox = Outbox(topic_of(topic), kafka.cluster)

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
        """See interfaces.Log."""
        while not self._kafka.stopping:
            if self._partitions:
                self._acquired = self._assignment
                self._unreadable = False
                self._progress.begin(self._partitions)
                self.released.clear()
                return True
            self._changed.clear()
            await self._changed.wait()
        return False

    @property
    def held(self) -> bool:
        """See interfaces.Log."""
        return bool(self._partitions) and self._acquired == self._assignment and not self._kafka.stopping

    def release(self) -> None:
        """See interfaces.Log."""
        self.released.set()

    @property
    def _consumer(self) -> Any:
        return self._kafka.consumer

    async def source(self) -> Source:
        """See interfaces.Log."""
        kafka = self._kafka
        return Source(kafka.cluster_id, await topic_id(kafka.cluster, kafka.producer, self._consumer, self.topic))

    async def bounds(self) -> dict[int, tuple[int, int]]:
        """See interfaces.Log."""
        partitions = self._partitions
        if not partitions:
            return {}
        async with self._kafka.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
            return await bounds(self._consumer, partitions)

    async def positions(self) -> dict[int, int]:
        """See interfaces.Log."""
        async with self._kafka.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
            at = {tp.partition: await self._consumer.position(tp) for tp in self._partitions}
        self._progress.note(at)
        return at

    async def read(self, partition: int, offset: int) -> Record | None:
        """See interfaces.Log."""
        tp = TopicPartition(self.topic, partition)
        async with self._kafka.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
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
                    if records := found.get(tp):
                        return records[0] if records[0].offset == offset else None
                    if await self._consumer.position(tp) > offset:  # only markers follow it
                        return None
        return None

    def seek(self, offsets: Mapping[int, int]) -> None:
        """See interfaces.Log."""
        for tp in self._partitions:
            if tp.partition in offsets:
                with contextlib.suppress(KafkaError):  # revoked meanwhile
                    self._consumer.seek(tp, offsets[tp.partition])
                    self._consumer.resume(tp)
        self._progress.note(offsets)

    async def poll(self, idle: bool = False) -> dict[int, Records]:
        """See interfaces.Log."""
        if not self.held:
            return {}
        self._ask()
        partitions, most = self._partitions, POLL_RECORDS
        seconds = min(IDLE_SECONDS, self._kafka.watchdog / 4) if idle else POLL_SECONDS
        if self._unreadable:  # somewhere among what comes next: record by record, a partition at a time
            partitions, most, seconds = [self._partitions[self._turn % len(self._partitions)]], 1, POLL_SECONDS
            self._turn += 1
        try:
            async with asyncio.timeout(seconds + 4 * POLL_SECONDS) as self._polling:
                self._idle = idle
                records = await self._consumer.getmany(*partitions, timeout_ms=int(seconds * 1000), max_records=most)
        except (TimeoutError, NoOffsetForPartitionError):
            return {}
        except (CorruptRecordException, UnicodeDecodeError) as error:
            # What the client had parsed of the fetch is lost with the exception: fetch it again.
            self.seek(dict(self._progress.at))
            if await self._progress.explained(error):
                return {}
            if self._unreadable:
                partition = partitions[0].partition
                raise unreadable(self.topic, partition, self._progress.at.get(partition), error) from error
            self._unreadable = True
            return {}
        except KafkaError as error:
            if not self.held:
                return {}
            raise DependencyError(f"{self._kafka.cluster}, topic {self.topic}: {error}", "kafka") from error
        self._progress.note({tp.partition: part[-1].offset + 1 for tp, part in records.items()})
        return {tp.partition: Records(part) for tp, part in records.items()}

    def _ask(self) -> None:
        """Say that records are asked for; raises DataError where none can come."""
        try:
            self._progress.ask()
        except DataError:
            with contextlib.suppress(KafkaError):  # revoked meanwhile
                self._consumer.pause(*self._partitions)  # else it is fetched again and again
            raise

    def commit(self, offsets: Mapping[int, int]) -> None:
        """See interfaces.Log."""
        self._kafka.commit({TopicPartition(self.topic, partition): o for partition, o in offsets.items()})

    def lag(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Records between these offsets and the log's end, by partition, as of the last look at it."""
        return {p: max(0, end - offsets[p]) for p, end in self.ends.items() if p in offsets}

    async def look(self) -> None:
        """Look where the log ends, whether or not anything is polled; raises DependencyError and Stuck."""
        ends: dict[int, int] = {}
        try:
            async with self._kafka.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
                found = await self._kafka.ends.of(self._partitions)
            self.ends = ends = {tp.partition: end for tp, end in found.items()}
            if self._idle and any(end > self._progress.at.get(partition, end) for partition, end in ends.items()):
                self.wake()  # what is there may be no record, which ends no poll
        finally:
            await self._progress.watch(ends, self.held)

    async def publish(self, letter: DeadLetter) -> None:
        """See interfaces.Log."""
        await self.outbox.put(letter, lambda: self.held)

    async def flush(self) -> None:
        """See interfaces.Log."""
        await self.outbox.flush()
