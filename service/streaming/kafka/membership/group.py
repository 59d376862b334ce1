"""This process in its Kafka consumer group: one member for all of its topics.

The group's consumer is used for membership, assignments and commits; `fetcher` reads. Rebalance callbacks only record
what happened and wait, for a limited time, until the loops have saved and released their topics. Commits are advisory:
they happen in the background, and a commit that fails is dropped.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import cache

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from service.errors import DependencyError, Unauthorised
from service.streaming.dead_letters import topic_of
from service.streaming.kafka.cluster import ANSWER_SECONDS, Cluster, find_brokers
from service.streaming.kafka.failures import UNAUTHORISED
from service.streaming.kafka.fetching.fetcher import Fetcher
from service.streaming.kafka.health import Health
from service.streaming.kafka.membership.assignor import whole_topics
from service.streaming.kafka.topic import GroupClients, TopicLog
from service.streaming.outbox import MAX_LETTER_BYTES
from service.streaming.supervision import SupervisedTasks

CLOSE_SECONDS = 1.0
"""The limit of the last commit at a stop. Leaving the group may take twice as long. A timeout loses no data."""
POLL_SECONDS = 1.0
"""The pause between two polls of the consumer, and the limit of a poll."""
METADATA_SECONDS = 10
"""How often the consumer looks for new partitions, and this process for new topics that a pattern matches."""
TOPIC_SECONDS = 1.0
"""How often this process looks for topics that do not exist yet."""

_NO_MATCH = "no topic matches a pattern in topics yet: create one, or correct the pattern"
_NOT_THERE = "waiting for the topic to exist; create it, or run with --create-topics"
_NO_LETTERS = (
    "no dead-letter topic: saves will wait at the first rejected event; create it, or run with --create-topics"
)


class Kafka(ConsumerRebalanceListener):
    """This process in its consumer group."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        say: Callable[..., None],
        *,
        inform: Callable[..., object] = lambda *_, **__: None,
        create: bool = False,
        session_timeout: float = 10.0,
        watchdog: float = 60.0,
        matches: Callable[[str], bool] | None = None,
        predictions_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """`say` logs what an operator should look at, `inform` what is normal.

        `matches` says which other topics are learned too, once they exist.
        """
        self.clients = GroupClients(cluster, watchdog, predictions_wait)
        self.logs = {topic: TopicLog(self.clients, topic) for topic in topics}
        self._group, self._say, self._create, self._session_timeout = group, say, create, session_timeout
        self._matches, self._listed, self._inform = matches, frozenset(topics), inform
        self._not_there: set[str] = set()
        self._connected = False
        self._health = Health(self.clients, group, say, session_timeout)

    @property
    def missing_since(self) -> float:
        """Since when Kafka does not answer (seconds since 1970); 0 while it does."""
        return self._health.missing_since

    def awaits_assignment(self, topic: str) -> bool:
        """Whether a topic is ours or may become ours: the group has not assigned it to another member."""
        return not self._health.joined or bool(self.logs[topic].assigned)

    def missing_resource(self, topic: str) -> str:
        """A sentence that says what is missing before this topic's model can be learned; "" if nothing is."""
        return _NOT_THERE if topic in self._not_there else ""

    async def connect(self) -> None:
        """Connect without joining the group; raises DependencyError."""
        self._health.missing_since = self.missing_since or time.time()
        clients, cluster = self.clients, self.clients.cluster
        clients.cluster_id = await cluster.id()
        session = int(self._session_timeout * 1000)
        clients.consumer = cluster.group_consumer(
            self._session_timeout,
            group_id=self._group,
            partition_assignment_strategy=(whole_topics(),),
            enable_auto_commit=False,
            auto_offset_reset="none",
            session_timeout_ms=session,
            heartbeat_interval_ms=min(500, session // 3),
            # We poll no records, and a member must not leave the group because of that.
            max_poll_interval_ms=2**31 - 1,
            metadata_max_age_ms=METADATA_SECONDS * 1000,
        )
        # Not idempotent: an idempotent client counts a batch that the broker refused, but the broker does not count it
        # and refuses all later ones. A letter that is written twice has the same key.
        clients.producer = cluster.producer(max_request_size=MAX_LETTER_BYTES)
        clients.query_client, clients.fetch_client = cluster.client(ANSWER_SECONDS), cluster.client()
        clients.fetcher = Fetcher(clients.fetch_client, cluster.max_batch_bytes)
        async with cluster.errors():
            try:
                await find_brokers(clients.query_client)
                await find_brokers(clients.fetch_client)
                await clients.consumer.start()
                await clients.producer.start()
            except BaseException:
                await self._stop_clients()
                raise
        self._connected, self._health.missing_since = True, 0.0

    async def _stop_clients(self) -> None:
        """Stop all clients. Without a broker they raise many errors here, even a cancellation of their own tasks."""
        clients = self.clients
        await asyncio.gather(
            clients.consumer.stop(),
            clients.producer.stop(),
            clients.query_client.close(),
            clients.fetch_client.close(),
            return_exceptions=True,
        )

    async def run(self, add_topic: Callable[[str], None]) -> None:
        """Join the group with the topics that exist, and with new ones as they appear; commit; write dead letters.

        `add_topic` is called with each topic that a pattern matches, after its log was made.
        """
        async with SupervisedTasks() as tasks:
            tasks.create_task(self._subscribe(tasks, add_topic))
            tasks.create_task(self._commit_and_poll())
            tasks.create_task(self._health.run(self.logs))
            tasks.create_task(self.clients.fetcher.run())
            for log in self.logs.values():
                tasks.create_task(log.outbox.write(self.clients.producer))

    def stop(self) -> None:
        """Take all topics away from their loops, because the process is stopping."""
        self.clients.stopping = True
        for log in self.logs.values():
            log.wake()

    async def close(self) -> None:
        """Commit the last offsets and leave the group."""
        if not self._connected:
            return
        for seconds, call in ((CLOSE_SECONDS, self._commit()), (2 * CLOSE_SECONDS, self._stop_clients())):
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(seconds):
                    await call

    async def _subscribe(self, tasks: asyncio.TaskGroup, add_topic: Callable[[str], None]) -> None:
        """Subscribe to topics as they come to exist; create missing ones, or say once that they are missing."""
        subscribed, reported, say_once = set[str](), set[str](), cache(self._say)
        while self._matches or len(subscribed) < len(self.logs):
            pause = TOPIC_SECONDS if len(subscribed) < len(self.logs) else METADATA_SECONDS
            try:
                async with self.clients.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
                    existing = set(await self.clients.consumer.topics())
                self._not_there -= existing
                matching = set(filter(self._matches, existing)) if self._matches else set()
                for topic in sorted(matching - self.logs.keys()):
                    self.logs[topic] = TopicLog(self.clients, topic)
                    tasks.create_task(self.logs[topic].outbox.write(self.clients.producer))
                    add_topic(topic)
                if self._matches and not matching:
                    say_once(_NO_MATCH)
                if new := (set(self.logs) & existing) - subscribed:
                    subscribed |= new
                    self.clients.consumer.subscribe(sorted(subscribed), listener=self)
                missing = [n for topic in self.logs for n in (topic, topic_of(topic)) if n not in existing]
                # A topic that a pattern matched, and that is gone, was deleted by somebody: do not create it again.
                if self._create and (ours := [n for n in missing if n in self._listed or n not in self.logs]):
                    await self.clients.cluster.create_topics(ours)
                    self._inform("topics created", topics=ours)
                    pause = 0.1
                for name in set(missing) - reported if not self._create else ():
                    try:
                        await self.clients.cluster.partitions(name, "Read" if name in self.logs else "Write")
                        self._not_there.add(name)
                        self._say(_NOT_THERE if name in self.logs else _NO_LETTERS, topic=name)
                    except Unauthorised as error:  # the topic may exist
                        self._say(str(error))
                    reported.add(name)
            except DependencyError as error:
                say_once(str(error))
            await asyncio.sleep(pause)

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Wait until the loops have saved and released their topics. The store refuses a later save on an old head."""
        self._health.joined = False
        logs = [self.logs[topic] for topic in sorted({tp.topic for tp in revoked})]
        for log in logs:
            log.assign([])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._session_timeout / 2):
                for log in logs:
                    await log.released.wait()

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Record which partitions are ours now, even if none. They are paused: the consumer fetches nothing."""
        for tp in assigned:
            self.clients.consumer.seek(tp, 0)
        self.clients.consumer.pause(*assigned)
        self._health.joined = True
        for topic, log in self.logs.items():
            log.assign(sorted(tp for tp in assigned if tp.topic == topic))

    async def _commit_and_poll(self) -> None:
        """Commit, and poll the consumer for its errors: an error that is not polled suspends the membership."""
        consumer = self.clients.consumer
        while True:
            with contextlib.suppress(KafkaError, OSError):
                await self._commit()
            await asyncio.sleep(POLL_SECONDS)
            async with self.clients.cluster.errors(f"group {self._group}"):
                try:
                    async with asyncio.timeout(POLL_SECONDS):  # it waits during a rebalance
                        await consumer.getmany(timeout_ms=0)
                except TimeoutError:
                    continue
                except UNAUTHORISED:  # `health` reports it; the consumer tries again only after a new subscription
                    topics = consumer.subscription()
                    consumer.unsubscribe()
                    consumer.subscribe(sorted(topics), listener=self)

    async def _commit(self) -> None:
        offsets, self.clients.to_commit = self.clients.to_commit, {}
        assigned = self.clients.consumer.assignment()
        if ours := {tp: offset for tp, offset in offsets.items() if tp in assigned}:
            await self.clients.consumer.commit(ours)
