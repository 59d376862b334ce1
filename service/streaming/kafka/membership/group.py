"""This process in its Kafka consumer group: one member for all of its topics.

The group's consumer is used for membership, assignments and commits; `fetcher` reads. Rebalance callbacks only record
what happened and wait, for a limited time, until the loops have saved and released their topics. Commits are advisory:
they happen in the background, and a commit that fails is dropped.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import InconsistentGroupProtocolError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from service.errors import DependencyError, Unauthorised
from service.streaming.dead_letters import dead_letter_topic
from service.streaming.kafka.cluster import ANSWER_SECONDS, KafkaClients, close_clients
from service.streaming.kafka.connection import MALFORMED, UNAUTHORISED, kafka_failure
from service.streaming.kafka.fetching.fetcher import Fetcher
from service.streaming.kafka.health import Health
from service.streaming.kafka.membership.assignor import whole_topics
from service.streaming.kafka.model_log import ModelLog
from service.streaming.resume_check import lost_topic_message
from service.streaming.supervision import SupervisedTasks

COMMIT_SECONDS, LEAVE_SECONDS = 1.0, 2.0
"""The limits of the last commit at a stop, and of leaving the group. A timeout loses no data."""
POLL_SECONDS = 1.0
"""The pause between two polls of the consumer, and the limit of a poll."""
METADATA_SECONDS = 10
"""How often the consumer looks for new partitions, and this process for new topics and deleted ones."""
TOPIC_SECONDS = 1.0
"""How often this process looks for topics that do not exist yet."""
_NO_MATCH = "no topic matches a pattern in topics yet: create one, or correct the pattern"
_NOT_THERE = "waiting for the topic to exist; create it, or run with --create-topics"
_THROTTLED = "Kafka throttles fetching by a quota, consumer_byte_rate or request_percentage: raise it to learn faster"
_NO_LETTERS = "no dead-letter topic: saves wait at the first rejected event; create it, or run with --create-topics"


@dataclass(eq=False, repr=False)
class GroupMember(ConsumerRebalanceListener):
    """This process in its consumer group."""

    clients: KafkaClients
    group: str
    models: Mapping[str, Sequence[str]]
    """The topics of each model."""
    logger: Any
    stopping: asyncio.Event
    """Once it is set, the logs end."""
    stored: Callable[[], Awaitable[Sequence[str]]]
    """The names of stored models; raises DependencyError."""
    create: bool = False
    """Whether missing topics are created."""
    session_timeout: float = 10.0
    watchdog: float = 60.0
    matches: Callable[[str], bool] | None = None
    """Says which other topics are learned too, once they exist: each is a model."""
    predictions_wait: Callable[[], bool] = lambda: False
    count_ignored: Callable[[], None] = lambda: None
    """Called for each partition in a broker's response that was not asked for."""
    count_throttled: Callable[[float], None] = lambda _: None
    """Called with the seconds that a broker's quota makes a fetch wait."""

    def __post_init__(self) -> None:
        clients, cluster, session = self.clients, self.clients.cluster, int(self.session_timeout * 1000)
        self._requested = dict(self.models)
        """The topics of each model. Models whose topics match are added."""
        self._existing, self._absent, self._reported = set[str](), set[str](), set[str]()
        self._assignor: Any = whole_topics(self._requested)
        self._new_consumer = partial(
            AIOKafkaConsumer,
            **cluster.options(self.session_timeout + 15.0),  # a JoinGroup may take as long as the session timeout
            group_id=self.group,
            partition_assignment_strategy=(self._assignor,),
            enable_auto_commit=False,
            auto_offset_reset="none",
            session_timeout_ms=session,
            heartbeat_interval_ms=min(500, session // 3),
            # We poll no records, and a member must not leave the group because of that.
            max_poll_interval_ms=2**31 - 1,
            metadata_max_age_ms=METADATA_SECONDS * 1000,
            consumer_timeout_ms=METADATA_SECONDS * 1000,  # how often it looks whether it should fetch
        )
        self._consumer = self._new_consumer()
        """It fetches nothing."""
        self._fetch_client = cluster.client()
        self._fetcher = Fetcher(self._fetch_client, cluster.max_batch_bytes, self._note_ignored)
        self._fetcher.throttled = self._note_throttled
        self._new_log = partial(ModelLog, clients, self._fetcher, self.stopping, self.predictions_wait)
        self.logs = {model: self._new_log(model, topics) for model, topics in self.models.items()}
        self._committed: dict[TopicPartition, int] = {}
        self._was_foreign = False
        self._warn_once = cache(self.logger.warning)
        self.health = Health(clients, self._fetcher, self.group, self.logger, self.session_timeout, self.watchdog)

    def awaits_assignment(self, model: str) -> bool:
        """Whether a model is ours or may become ours: the group has not assigned it to another member."""
        return not self.health.joined or bool(self.logs[model].assigned)

    def missing_topic(self, model: str) -> str:
        """The first topic of this model that does not exist; "" if all do."""
        return next((topic for topic in self._requested[model] if topic in self._absent), "")

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Self]:
        """Connect without joining the group; at the end commit the last offsets and leave the group.

        Raises DependencyError.
        """
        async with self.clients.cluster.open_clients(self._consumer, self._fetch_client, close_seconds=LEAVE_SECONDS):
            try:
                yield self
            finally:
                with suppress(TimeoutError, KafkaError):
                    async with asyncio.timeout(COMMIT_SECONDS):
                        await self._commit()
                await close_clients(self._consumer, seconds=LEAVE_SECONDS)

    async def run(self, learn: Callable[[ModelLog], None]) -> None:
        """Join the group with the topics that exist, and with new ones as they appear; commit; write dead letters.

        `learn` is called with the log of each model, and later of each topic that a pattern matches.
        """
        async with SupervisedTasks() as tasks:

            def add(log: ModelLog) -> None:
                tasks.create_task(log.dead_letters.run())
                learn(log)

            for log in self.logs.values():
                add(log)
            tasks.create_task(self._subscribe(add))
            tasks.create_task(self._commit_and_poll())
            tasks.create_task(self.health.run(self.logs))
            tasks.create_task(self._fetcher.run())
            tasks.create_task(self._end_logs())

    def _note_ignored(self, tp: TopicPartition) -> None:
        self.count_ignored()
        self._warn_once("a broker sends a partition that was not asked for; it is ignored", topic=tp.topic)

    def _note_throttled(self, seconds: float) -> None:
        self.count_throttled(seconds)
        self._warn_once(_THROTTLED)

    async def _end_logs(self) -> None:
        """Wake all loops when the process stops, so that they save and release their logs."""
        await self.stopping.wait()
        for log in self.logs.values():
            log.wake()

    async def _subscribe(self, add: Callable[[ModelLog], None]) -> None:
        """Subscribe to the requested topics as they come to exist, and report those that do not, or no longer."""
        subscribed = self.health.subscribed
        while True:
            pause = TOPIC_SECONDS if self._absent or subscribed < self._topics else METADATA_SECONDS
            try:
                async with self.clients.cluster.errors(), asyncio.timeout(ANSWER_SECONDS):
                    existing = await self._find_topics()
                    for model, topics in self._requested.items():
                        if model not in self.logs:
                            self.logs[model] = self._new_log(model, topics)
                            add(self.logs[model])
                    if existing - subscribed:
                        subscribed |= existing
                        self._consumer.subscribe(sorted(subscribed), listener=self)
                    if await self._provide_missing():
                        pause = 0.1
            except DependencyError as error:
                if self.matches or subscribed < self._topics:  # else `health` reports the outage
                    self._warn_once(str(error))
            await asyncio.sleep(pause)

    @property
    def _topics(self) -> set[str]:
        """The topics of all models."""
        return {topic for topics in self._requested.values() for topic in topics}

    async def _find_topics(self) -> set[str]:
        """The topics of the models that exist; adds a model for each other topic that is requested by `matches`."""
        client, letters = self.clients.query_client, map(dead_letter_topic, self._requested)
        request = MetadataRequest(None if self.matches else [*self._topics, *letters], False)
        answer = await client.send(client.get_random_node(), request)
        self._existing = {name for code, name, *_ in answer.topics if not code}
        self._absent -= self._existing
        if self.matches:
            matching = sorted(filter(self.matches, self._existing))
            self._requested |= {topic: [topic] for topic in matching if topic not in self._requested}
            if not matching:
                self._warn_once(_NO_MATCH)
        return self._topics & self._existing

    async def _provide_missing(self) -> bool:
        """Create the topics that were not found, and topics for dead letters, or report each once.

        Returns whether topics were created.
        """
        requested, subscribed = self._topics, self.health.subscribed
        letters = map(dead_letter_topic, self._requested)
        missing = [name for name in (*sorted(requested), *letters) if name not in self._existing]
        self._reported.intersection_update(missing)
        unreported = [name for name in missing if name not in self._reported]
        stored = await self.stored() if unreported else ()
        # A topic that was there was deleted by somebody: do not create it again.
        learned = [(model, name) for model, topics in self._requested.items() for name in topics]
        lost = {name: model for model, name in learned if name in subscribed or model in stored}
        if self.create and (new := [name for name in unreported if name not in lost]):
            await self.clients.cluster.create_topics(new)
            self.logger.info("topics created", topics=new)
            return True
        for name in unreported:
            is_read = name in requested
            try:
                if await self.clients.cluster.partitions(name, "Read" if is_read else "Write"):
                    continue  # it is there now
                if is_read:
                    self._absent.add(name)
                if name in lost:
                    self.logger.warning(lost_topic_message(lost[name], name))
                else:
                    self.logger.warning(_NOT_THERE if is_read else _NO_LETTERS, topic=name)
            except Unauthorised as error:  # the topic may exist
                self.logger.warning(str(error))
            self._reported.add(name)
        return False

    async def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        """Wait until the loops have saved and released their logs. The store refuses a later save on an old head."""
        self.health.joined = False
        logs = [log for log in self.logs.values() if not {tp.topic for tp in revoked}.isdisjoint(log.topics)]
        for log in logs:
            log.assign([])
        with suppress(TimeoutError):
            async with asyncio.timeout(self.session_timeout / 2):
                for log in logs:
                    await log.released.wait()

    async def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        """Record which partitions are ours now, even if none. They are paused: the consumer fetches nothing."""
        for tp in assigned:
            self._consumer.seek(tp, 0)
        self._consumer.pause(*assigned)
        if self._assignor.is_foreign:
            assigned = []
            if not self._was_foreign:
                why = kafka_failure(InconsistentGroupProtocolError())
                self.logger.warning(f"group {self.group} gives its members parts of models: {why}")
        self._was_foreign = self._assignor.is_foreign
        self.health.joined = True
        for log in self.logs.values():
            log.assign(assigned)
        for model in self._assignor.lacking:
            self._warn_once(
                "waiting: other members of the group learn this model too from a topic that is set here; set it here "
                "too, so that this process can learn the topic",
                model=model,
            )

    async def _commit_and_poll(self) -> None:
        """Commit, and poll the consumer for its errors. After one its tasks may have ended, so it is replaced."""
        replace = False
        while True:
            try:
                async with self.clients.cluster.errors(f"group {self.group}"):
                    if replace:
                        await self._replace_consumer()
                    replace = False
                    with suppress(TimeoutError):  # it waits during a rebalance
                        async with asyncio.timeout(POLL_SECONDS):
                            await self._consumer.getmany(timeout_ms=0)
            except DependencyError as error:
                replace = True
                if not isinstance(error.__cause__, (*UNAUTHORISED, InconsistentGroupProtocolError)):  # `health` does
                    self._warn_once(f"{error}; joining again")
            else:
                with suppress(KafkaError, OSError, *MALFORMED):
                    await self._commit()
            await asyncio.sleep(POLL_SECONDS)

    async def _replace_consumer(self) -> None:
        """Leave the group once the logs are released, and join it with a new consumer."""
        await self.on_partitions_revoked(self._consumer.assignment())
        await close_clients(self._consumer, seconds=LEAVE_SECONDS)
        self._consumer = self._new_consumer()
        await self._consumer.start()
        if self.health.subscribed:
            self._consumer.subscribe(sorted(self.health.subscribed), listener=self)

    async def _commit(self) -> None:
        """Commit the offsets of the last snapshots; of models that share a partition, the smallest one."""
        offsets, assigned = dict[TopicPartition, int](), self._consumer.assignment()
        for log in self.logs.values():
            for tp, offset in log.committable.items():
                if tp in assigned:
                    offsets[tp] = min(offset, offsets.get(tp, offset))
        if new := {tp: offset for tp, offset in offsets.items() if self._committed.get(tp) != offset}:
            await self._consumer.commit(new)
            self._committed |= new
