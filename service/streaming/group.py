"""This process in its Kafka consumer group: one member for all of its topics.

What the client library makes unsafe is settled here: rebalance callbacks only record what happened and wait (for a
while) until the loop has saved and let go. Commits are advisory, so they happen in the background, and failing ones
are forgotten.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from aiokafka import ConsumerRebalanceListener, TopicPartition, __version__
from aiokafka.errors import KafkaError

from service.errors import DependencyError, Unauthorised
from service.streaming import whole
from service.streaming.assignor import whole_topics
from service.streaming.batches import check_offsets
from service.streaming.cluster import ANSWER_SECONDS, Cluster
from service.streaming.dead_letters import topic_of
from service.streaming.lasting import Lasting
from service.streaming.outbox import letter_producer
from service.streaming.shared import Shared
from service.streaming.topic import TopicLog
from service.streaming.watch import Watch

CLOSE_SECONDS = 1.0
"""For the last commit at a stop, and twice that to leave the group: neither loses anything when it is cut short."""
PARTITION_BYTES, FETCH_BYTES = 2 << 20, 4 << 20
"""Of one fetch: of a partition, and of all that a broker has. Measured: smaller ones cost more a record, larger ones no
less. The client's own are 1 and 50 MiB, of which a hundred topics would have much in memory."""
METADATA_SECONDS = 10
"""So often it is asked for new partitions, and for new topics where a pattern names them."""

_NONE_FOUND = "waiting for a topic that a pattern in topics finds: there is none yet"
_NOT_THERE = "waiting for the topic to exist; create it, or run with --create-topics"


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
        asked: Callable[[], bool] = lambda: False,
    ) -> None:
        """`wanted` says which topics are learned beside `topics`, as they come to exist; `asked`, see `Shared`."""
        self.shared = Shared(cluster, watchdog, asked)
        self.logs = {topic: TopicLog(self.shared, topic) for topic in topics}
        self._group, self._say, self._create, self._session_timeout = group, say, create, session_timeout
        self._wanted, self._listed = wanted, frozenset(topics)
        self._not_there: set[str] = set()
        self._watch = Watch(cluster, group, say, session_timeout, watchdog)

    @property
    def missing_since(self) -> float:
        """Since when it does not answer (seconds since 1970); 0 while it does."""
        return self._watch.missing_since

    def waits(self, topic: str) -> bool:
        """Whether the group has not told us yet that a topic is another member's: it may become ours, or just did."""
        return not self._watch.joined or bool(self.logs[topic].assigned)

    def lacks(self, topic: str) -> str:
        """What a topic's model waits for that somebody has to make, in the log's words; empty where it is nothing."""
        return _NOT_THERE if topic in self._not_there else ""

    async def connect(self) -> None:
        """Connect, without joining the group yet; raises DependencyError."""
        self._watch.missing_since = self.missing_since or time.time()
        shared, cluster = self.shared, self.shared.cluster
        shared.cluster_id = await cluster.id()
        session = int(self._session_timeout * 1000)
        if cluster.whole_batches and not cluster.polls_whole_batches:
            self._say(f"kafka.whole_batches needs aiokafka {whole.HELD_TO}, not {__version__}: records come one by one")
        consumer = cluster.consumer(
            value_deserializer=whole.in_batches if cluster.polls_whole_batches else None,
            max_partition_fetch_bytes=PARTITION_BYTES,
            fetch_max_bytes=FETCH_BYTES,
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
        producer = letter_producer(cluster)
        async with cluster.errors():
            try:
                await consumer.start()
                await producer.start()
            except BaseException:
                await consumer.stop()
                await producer.stop()
                raise
        check_offsets(consumer, shared.seen)
        shared.consumer, shared.producer, self._watch.missing_since = consumer, producer, 0.0

    async def run(self, found: Callable[[str], None]) -> None:
        """Join the group with the topics that exist, as they come to exist; commit; write dead letters.

        `found` hears of each `wanted` topic, whose log is there then.
        """
        async with Lasting() as tasks:
            tasks.create_task(self._subscribe(tasks, found))
            tasks.create_task(self._commit_and_check())
            tasks.create_task(self._watch.run(self.shared.consumer, self.logs))
            for log in self.logs.values():
                tasks.create_task(log.outbox.write(self.shared.producer))

    def stop(self) -> None:
        """Every topic is lost from now on."""
        self.shared.stopping = True
        for log in self.logs.values():
            log.wake()

    async def close(self) -> None:
        """Commit what is left and leave the group."""
        clients = [client for client in (self.shared.consumer, self.shared.producer) if client is not None]
        # Without a broker the clients raise all kinds of errors here, a cancellation of their own among them.
        for seconds, calls in ((CLOSE_SECONDS, [self._commit()]), (2 * CLOSE_SECONDS, [c.stop() for c in clients])):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.gather(*calls, return_exceptions=True)

    async def _subscribe(self, tasks: asyncio.TaskGroup, found: Callable[[str], None]) -> None:
        assert self.shared.consumer is not None  # noqa: S101 - run follows connect
        subscribed: set[str] = set()
        said: set[str] = set()
        while self._wanted or len(subscribed) < len(self.logs):
            pause = 1.0 if len(subscribed) < len(self.logs) else METADATA_SECONDS
            try:
                async with self.shared.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
                    existing = set(await self.shared.consumer.topics())
                self._not_there -= existing
                for topic in filter(self._wanted, sorted(existing - self.logs.keys())) if self._wanted else ():
                    self.logs[topic] = TopicLog(self.shared, topic)
                    tasks.create_task(self.logs[topic].outbox.write(self.shared.producer))
                    found(topic)
                if self._wanted and not any(map(self._wanted, existing)) and _NONE_FOUND not in said:
                    self._say(_NONE_FOUND)
                    said.add(_NONE_FOUND)
                wanted = [name for topic in self.logs for name in (topic, topic_of(topic))]
                if new := (set(self.logs) & existing) - subscribed:
                    subscribed |= new
                    self.shared.consumer.subscribe(sorted(subscribed), listener=self)
                missing = [name for name in wanted if name not in existing]
                for name in set(missing) - said:
                    try:
                        await self.shared.cluster.partitions(name, "Read" if name in self.logs else "Write")
                    except Unauthorised as error:  # it may be there
                        self._say(str(error))
                        said.add(name)
                # A topic that a pattern found, and that is gone, was deleted by somebody: it stays so.
                if self._create and (ours := [n for n in missing if n in self._listed or n not in self.logs]):
                    await self.shared.cluster.create_topics(ours)
                    self._say("topics created", topics=ours)
                    pause = 0.1
                for name in set(missing) - said if not self._create else ():
                    self._not_there.add(name)
                    self._say(
                        _NOT_THERE
                        if name in self.logs
                        else "no dead-letter topic: saves will wait at the first rejected event; "
                        "create it, or run with --create-topics",
                        topic=name,
                    )
                said.update(missing)
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

    async def _commit_and_check(self) -> None:
        while True:
            with contextlib.suppress(KafkaError, OSError):
                await self._commit()
            await asyncio.sleep(1.0)
            if self.shared.consumer is not None:
                coordination = self.shared.consumer._coordinator
                try:
                    # A group member whose coordination has died would wait for ever; the process must not.
                    async with self.shared.cluster.errors(f"group {self._group}"):
                        coordination.check_errors()
                except Unauthorised:  # which is said where it is polled, and where we are outside the group
                    coordination.request_rejoin()  # else it never asks again whether we may now

    async def _commit(self) -> None:
        offsets, self.shared.to_commit = self.shared.to_commit, {}
        if self.shared.consumer is not None:
            held = self.shared.consumer.assignment()
            if ours := {tp: offset for tp, offset in offsets.items() if tp in held}:
                await self.shared.consumer.commit(ours)
