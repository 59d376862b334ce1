"""How to reach Kafka, as one value: every client is made here, and what one raises is told here.

Beside it: Kafka asked for a moment, and a topic read whole.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, __version__
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InvalidSessionTimeoutError,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from service.errors import DataError, DependencyError, LogGap, PerceptronError, Unauthorised
from service.streaming import whole
from service.streaming.batches import Hole, Seen, check_offsets
from service.streaming.connection import install
from service.streaming.internals import MAX_BATCH_BYTES, BatchTooLarge, fence
from service.streaming.metadata import MetadataRequest as WithRights
from service.streaming.records import Records
from service.streaming.security import Security

ANSWER_SECONDS = 5.0
"""For one question to Kafka: a broker that is busy or has just lost its leader takes seconds."""
FRESH_SECONDS = 4.0
"""For one of a client that is made for it."""
SILENCE_SECONDS = 30.0
"""A topic that is read whole and brings nothing for so long is given up."""

RIGHTS = {"Read": 3, "Write": 4, "DescribeConfigs": 10}
"""Kafka's numbers of them."""
UNAUTHORISED = TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError


@dataclass(frozen=True)
class Cluster:
    """A Kafka cluster, by the brokers that are asked first."""

    bootstrap: str
    max_batch_bytes: int = MAX_BATCH_BYTES
    security: Security = field(default_factory=Security)
    whole_batches: bool = True
    """Whether what is learned is to be polled in whole batches."""

    @property
    def polls_whole_batches(self) -> bool:
        """Whether it is: where the client is as we know it."""
        return self.whole_batches and __version__ == whole.HELD_TO

    def __str__(self) -> str:
        return f"Kafka at {self.bootstrap}"

    def consumer(self, **options: Any) -> AIOKafkaConsumer:
        """A consumer with these options, not started."""
        fence(self.max_batch_bytes)
        return AIOKafkaConsumer(**self._reached, **options)

    def producer(self, **options: Any) -> AIOKafkaProducer:
        """A producer with these options, not started, whose records all replicas have when they are acknowledged."""
        return AIOKafkaProducer(**self._reached, acks="all", **options)

    @property
    def _reached(self) -> dict[str, Any]:
        """What every client is made with."""
        # It reports each retry, and each rebalance, as a warning or error; what matters of it is said by us.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        install()
        return {"bootstrap_servers": self.bootstrap, **self.security.options}

    @asynccontextmanager
    async def errors(self, what: str = "", right: str = "Read") -> AsyncIterator[None]:
        """Turn what aiokafka raises into one DependencyError that names the address, and `what` of it was asked.

        `right` is the one that it needs, in Kafka's words.
        """
        where = f"{self}{what and ', '}{what}"
        try:
            yield
        except (TimeoutError, KafkaConnectionError, NodeNotReadyError) as error:
            why = self.security.why(self.bootstrap)
            raise DependencyError(f"{where}: {why or cause_of(error, right)}", "kafka") from error
        except BatchTooLarge as error:
            raise DataError(f"{error}, so it is not read") from error
        except (KafkaError, OSError, ValueError) as error:
            # ValueError: an address that does not resolve
            kind = Unauthorised if isinstance(error, UNAUTHORISED) else DependencyError
            raise kind(f"{where}: {cause_of(error, right)}", "kafka") from error

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        """An admin client for a moment."""
        async with self.errors(), self._admin() as client:
            yield client

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        client = AIOKafkaAdminClient(**self._reached, request_timeout_ms=int(ANSWER_SECONDS * 1000))
        try:
            await client.start()
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def _alone(self, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
        """A consumer in no group, for a moment."""
        consumer = self.consumer(**options)
        try:
            await consumer.start()
            # Its tasks begin. It awaits them as it stops: one that had not would end whoever stops it, as cancelled.
            await asyncio.sleep(0)
            yield consumer
        finally:
            await consumer.stop()

    async def answers(self) -> None:
        """Raises DependencyError where no broker answers a fresh connection."""
        async with self.errors(), asyncio.timeout(FRESH_SECONDS), self.admin():
            pass

    async def answered_afresh(self, topics: Mapping[str, Sequence[TopicPartition]]) -> set[str]:
        """Those of these topics of whose ends a client hears that is made for it."""
        request_timeout_ms = int(FRESH_SECONDS * 1000)

        async def ask(consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition]) -> None:
            async with asyncio.timeout(FRESH_SECONDS):
                await consumer.end_offsets(partitions)

        try:
            async with (
                self.errors(),
                asyncio.timeout(2 * FRESH_SECONDS),
                self._alone(request_timeout_ms=request_timeout_ms) as consumer,
            ):
                asked = [ask(consumer, partitions) for partitions in topics.values()]
                heard = await asyncio.gather(*asked, return_exceptions=True)
            return {topic for topic, error in zip(topics, heard, strict=True) if error is None}
        except DependencyError:
            return set()

    async def id(self) -> str:
        """The cluster's id; "" where it has none."""
        async with self.admin() as client:
            return str((await client.describe_cluster())["cluster_id"] or "")

    async def create_topics(self, topics: Sequence[str], partitions: int = 1) -> None:
        """Create topics with the broker's default replication; those that exist are left alone."""
        async with self.admin() as client:
            for topic in topics:
                with contextlib.suppress(TopicAlreadyExistsError):
                    # An empty assignment lets the class take -1, the broker's own default replication.
                    answer = await client.create_topics([NewTopic(topic, partitions, -1, replica_assignments={})])
                    for _, code, *rest in answer.topic_errors:
                        if code in (TopicAuthorizationFailedError.errno, ClusterAuthorizationFailedError.errno):
                            raise Unauthorised(f"{self}: {refused('Create', f'topic {topic}')}", "kafka")
                        if code not in (0, TopicAlreadyExistsError.errno):
                            raise KafkaError(f"topic {topic} cannot be created: {rest[0] if rest else code}")

    async def partitions(self, topic: str, right: str = "Read") -> list[int]:
        """The numbers of the topic's partitions; none where it does not exist.

        Raises DependencyError: Unauthorised where this user, who needs this right, may not know.
        """
        async with self.errors(right=right), self._admin() as client:
            return await _partitions(client, topic)

    async def lacking(self, topic: str, *rights: str) -> list[str]:
        """Those of these rights that this user has not on a topic, where the broker tells; raises DependencyError."""
        async with self.admin() as client:
            try:
                answer = await client._send_request(WithRights(topic, rights=True))
            except IncompatibleBrokerVersion:
                return []
            [(*_, held, _)] = answer.topics
            return [right for right in rights if not held >> RIGHTS[right] & 1]

    async def largest_batch(self, topic: str) -> int:
        """The bytes of the largest batch that a topic takes; raises DependencyError, as where we may not know."""
        async with self.admin() as client:
            return min(map(int, (await _settings(client, topic, "max.message.bytes", "segment.bytes")).values()))

    @asynccontextmanager
    async def reader(self, topic: str, missing: PerceptronError) -> AsyncIterator[tuple[Any, list[TopicPartition]]]:
        """A consumer of committed records that is in no group, and the topic's partitions.

        Raises `missing` where there is no such topic, and DependencyError.
        """
        async with self.admin() as client:
            partitions = await _partitions(client, topic)
            if not partitions:
                raise missing
            try:
                gaps = [topic] if await compacted(client, topic) else []
            except TopicAuthorizationFailedError:  # a tool that only reads need not be told
                gaps = [topic]
        options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "isolation_level": "read_committed"}
        async with self.errors(), self._alone(**options) as consumer:
            check_offsets(consumer, Seen(*gaps, strict=False))
            yield consumer, [TopicPartition(topic, partition) for partition in partitions]

    async def read_whole(self, topic: str, missing: PerceptronError) -> AsyncIterator[tuple[int, Records]]:
        """The committed records, partition after partition, as far as the topic goes now.

        Raises `missing` where there is no such topic, and DependencyError.
        """
        async with self.reader(topic, missing) as (consumer, partitions):
            for tp in partitions:
                consumer.assign([tp])
                end = (await consumer.end_offsets([tp]))[tp]
                while await consumer.position(tp) < end:
                    records = await more(consumer, tp)
                    yield tp.partition, records[: records.find(end)]


def refused(right: str, what: str) -> str:
    """What to say where this user has not this right on something."""
    return f"authorisation: this user lacks {right} on {what}: grant it (docs/security.md lists what is needed)"


def cause_of(error: Exception, right: str = "Read") -> str:
    """What to say of an error of Kafka's, to a user who needs this right."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, TopicAuthorizationFailedError):
        about = error.args[0] if error.args else ()
        about = [about] if isinstance(about, str | TopicPartition) else about
        names = sorted({each.topic if isinstance(each, TopicPartition) else each for each in about})
        return refused(right, f"topic {', '.join(names)}".strip())
    if isinstance(error, GroupAuthorizationFailedError):
        return refused("Read", "the group (kafka.group_id)")
    if isinstance(error, ClusterAuthorizationFailedError):
        return refused("IdempotentWrite", "the cluster, as before Kafka 2.8,")
    if isinstance(error, InvalidSessionTimeoutError):
        return "its group.min.session.timeout.ms, 6 s where nobody set it, allows no such kafka.session_timeout"
    return str(error) or type(error).__name__


def unreadable(topic: str, partition: int, offset: int | None, error: Exception | str) -> DataError:
    """What to say of a record that the client cannot read, however often it is fetched."""
    if isinstance(error, BatchTooLarge):
        resume = f"{partition}:{error.to}"
        return DataError(
            f"{error}, so it is not read: leave it out with `perceptron rollback -t {topic} --to VERSION --resume-at "
            f"{resume} --yes`, or `perceptron reset -t {topic} --yes` and --start-at {resume}"
        )
    return (LogGap if isinstance(error, Hole) else DataError)(
        f"topic {topic}: the record at offset {offset} of partition {partition} cannot be read ({error}): mend the "
        f"log, or leave the whole of its batch out with `perceptron rollback -t {topic} --to VERSION --resume-at "
        f"{partition}:OFFSET --yes`, or `perceptron reset -t {topic} --yes` and --start-at {partition}:OFFSET"
    )


async def _partitions(client: AIOKafkaAdminClient, topic: str) -> list[int]:
    # Unlike the client's own question it lets no broker create the topic.
    [(code, _, _, found, *_)] = (await client._send_request(MetadataRequest([topic], False))).topics
    if code == TopicAuthorizationFailedError.errno:
        raise TopicAuthorizationFailedError(topic)
    return sorted(partition for _, partition, *_ in found)


async def compacted(client: AIOKafkaAdminClient, topic: str) -> bool:
    """Whether records of this topic may be missing because a later one has the same key; raises KafkaError."""
    [policy] = (await _settings(client, topic, "cleanup.policy")).values()
    return "compact" in policy


async def _settings(client: AIOKafkaAdminClient, topic: str, *names: str) -> dict[str, str]:
    [answer] = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(names))])
    code, _, _, _, entries = answer.resources[0]
    if code:
        raise for_code(code)(f"the settings of topic {topic} cannot be asked")
    return {name: value for name, value, *_ in entries}


async def bounds(consumer: Any, partitions: Sequence[TopicPartition]) -> dict[int, tuple[int, int]]:
    """First and next offset of each partition."""
    begin, end = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    return {tp.partition: (begin[tp], end[tp]) for tp in partitions}


async def more(consumer: Any, tp: TopicPartition, most: int | None = None) -> Records:
    """The partition's next records, or none where its position passed over offsets that hold none.

    Of what lies behind the `most` that are wanted nothing is decoded: it may be nothing that can be read.

    Raises TimeoutError: a broker that is gone would be asked for ever.
    """
    at, records = await consumer.position(tp), list[Any]()
    async with asyncio.timeout(SILENCE_SECONDS):
        while await consumer.position(tp) == at:
            records += (await consumer.getmany(tp, timeout_ms=200, max_records=most)).get(tp, ())
    return Records(records)
