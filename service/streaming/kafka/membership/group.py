"""This process in its Kafka consumer group: one member for all of its topics.

The group's consumer gives membership, assignments and commits; `fetcher` reads. Rebalance callbacks only record what
happened and wait (for a while) until the loop has saved and let go. Commits are advisory, so they happen in the
background, and failing ones are forgotten.
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
from service.streaming.kafka.membership.group_clients import GroupClients
from service.streaming.kafka.topic import TopicLog
from service.streaming.outbox import letter_producer
from service.streaming.supervision import SupervisedTasks

CLOSE_SECONDS = 1.0
"""For the last commit at a stop, and twice that to leave the group: neither loses anything when it is cut short."""
HEAR_SECONDS = 1.0
"""Between two times that the group's member is asked for its errors."""
METADATA_SECONDS = 10
"""So often it is asked for new partitions, and for new topics where a pattern names them."""

_NONE_FOUND = "waiting for a topic that a pattern in topics finds: there is none yet"
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
        wanted: Callable[[str], bool] | None = None,
        predictions_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """`say` hears what an operator should look at, `inform` what is as it should be.

        `wanted` says which topics are learned next to `topics`, as they come to exist.
        """
        self.clients = GroupClients(cluster, watchdog, predictions_wait)
        self.logs = {topic: TopicLog(self.clients, topic) for topic in topics}
        self._group, self._say, self._create, self._session_timeout = group, say, create, session_timeout
        self._wanted, self._listed, self._inform = wanted, frozenset(topics), inform
        self._not_there: set[str] = set()
        self._connected = False
        self._health = Health(self.clients, group, say, session_timeout)

    @property
    def missing_since(self) -> float:
        """Since when it does not answer (seconds since 1970); 0 while it does."""
        return self._health.missing_since

    def awaits_assignment(self, topic: str) -> bool:
        """Whether the group has not told us yet that a topic is another member's: it may become ours, or just did."""
        return not self._health.joined or bool(self.logs[topic].assigned)

    def missing_resource(self, topic: str) -> str:
        """What a topic's model waits for that somebody has to make, in the log's words; empty where it is nothing."""
        return _NOT_THERE if topic in self._not_there else ""

    async def connect(self) -> None:
        """Connect, without joining the group yet; raises DependencyError."""
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
            # Nothing is polled, and a member must not leave the group for it.
            max_poll_interval_ms=2**31 - 1,
            metadata_max_age_ms=METADATA_SECONDS * 1000,
        )
        clients.producer = letter_producer(cluster)
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
        """Without a broker the clients raise all kinds of errors here, a cancellation of their own among them."""
        clients = self.clients
        await asyncio.gather(
            clients.consumer.stop(),
            clients.producer.stop(),
            clients.query_client.close(),
            clients.fetch_client.close(),
            return_exceptions=True,
        )

    async def run(self, found: Callable[[str], None]) -> None:
        """Join the group with the topics that exist, as they come to exist; commit; write dead letters.

        `found` hears of each `wanted` topic, whose log is there then.
        """
        async with SupervisedTasks() as tasks:
            tasks.create_task(self._subscribe(tasks, found))
            tasks.create_task(self._commit_and_hear())
            tasks.create_task(self._health.run(self.logs))
            tasks.create_task(self.clients.fetcher.run())
            for log in self.logs.values():
                tasks.create_task(log.outbox.write(self.clients.producer))

    def stop(self) -> None:
        """Every topic is lost from now on."""
        self.clients.stopping = True
        for log in self.logs.values():
            log.wake()

    async def close(self) -> None:
        """Commit what is left and leave the group."""
        if not self._connected:
            return
        for seconds, call in ((CLOSE_SECONDS, self._commit()), (2 * CLOSE_SECONDS, self._stop_clients())):
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(seconds):
                    await call

    async def _subscribe(self, tasks: asyncio.TaskGroup, found: Callable[[str], None]) -> None:
        subscribed, looked_for, say_once = set[str](), set[str](), cache(self._say)
        while self._wanted or len(subscribed) < len(self.logs):
            pause = 1.0 if len(subscribed) < len(self.logs) else METADATA_SECONDS
            try:
                async with self.clients.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
                    existing = set(await self.clients.consumer.topics())
                self._not_there -= existing
                for topic in filter(self._wanted, sorted(existing - self.logs.keys())) if self._wanted else ():
                    self.logs[topic] = TopicLog(self.clients, topic)
                    tasks.create_task(self.logs[topic].outbox.write(self.clients.producer))
                    found(topic)
                if self._wanted and not any(map(self._wanted, existing)):
                    say_once(_NONE_FOUND)
                if new := (set(self.logs) & existing) - subscribed:
                    subscribed |= new
                    self.clients.consumer.subscribe(sorted(subscribed), listener=self)
                missing = [n for topic in self.logs for n in (topic, topic_of(topic)) if n not in existing]
                # A topic that a pattern found, and that is gone, was deleted by somebody: it stays so.
                if self._create and (ours := [n for n in missing if n in self._listed or n not in self.logs]):
                    await self.clients.cluster.create_topics(ours)
                    self._inform("topics created", topics=ours)
                    pause = 0.1
                for name in set(missing) - looked_for if not self._create else ():
                    try:
                        await self.clients.cluster.partitions(name, "Read" if name in self.logs else "Write")
                        self._not_there.add(name)
                        self._say(_NOT_THERE if name in self.logs else _NO_LETTERS, topic=name)
                    except Unauthorised as error:  # it may be there
                        self._say(str(error))
                    looked_for.add(name)
            except DependencyError as error:
                say_once(str(error))
            await asyncio.sleep(pause)

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Wait until the loops have saved and let go; a save that comes later is refused if it matters."""
        self._health.joined = False
        logs = [self.logs[topic] for topic in sorted({tp.topic for tp in revoked})]
        for log in logs:
            log.assign([])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._session_timeout / 2):
                for log in logs:
                    await log.released.wait()

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Record what is ours now, be it nothing. The consumer fetches none of it."""
        for tp in assigned:
            self.clients.consumer.seek(tp, 0)
        self.clients.consumer.pause(*assigned)
        self._health.joined = True
        for topic, log in self.logs.items():
            log.assign(sorted(tp for tp in assigned if tp.topic == topic))

    async def _commit_and_hear(self) -> None:
        """Commit, and hear the consumer's errors: one that is never heard suspends the membership."""
        consumer = self.clients.consumer
        while True:
            with contextlib.suppress(KafkaError, OSError):
                await self._commit()
            await asyncio.sleep(HEAR_SECONDS)
            async with self.clients.cluster.errors(f"group {self._group}"):
                try:
                    async with asyncio.timeout(HEAR_SECONDS):  # it waits while the group rebalances
                        await consumer.getmany(timeout_ms=0)
                except TimeoutError:
                    continue
                except UNAUTHORISED:  # which `health` says; the member asks again only after another subscription
                    topics = consumer.subscription()
                    consumer.unsubscribe()
                    consumer.subscribe(sorted(topics), listener=self)

    async def _commit(self) -> None:
        offsets, self.clients.to_commit = self.clients.to_commit, {}
        assigned = self.clients.consumer.assignment()
        if ours := {tp: offset for tp, offset in offsets.items() if tp in assigned}:
            await self.clients.consumer.commit(ours)
