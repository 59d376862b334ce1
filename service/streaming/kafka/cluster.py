"""How to connect to Kafka, as one value that makes every client.

It also answers short questions about the cluster, and reads a topic from beginning to end.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, TopicAlreadyExistsError, for_code
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from service.errors import DependencyError, PerceptronError, Unauthorised
from service.learning.records import PartitionId
from service.streaming.kafka import log_queries
from service.streaming.kafka.connection import MALFORMED, UNAUTHORISED, Security, kafka_failure, missing_right
from service.streaming.kafka.fetching.fetcher import Fetcher, ModelPartition, partitions_of
from service.streaming.kafka.fetching.record_batch import RecordsBuilder
from service.streaming.records import KafkaRecords

ANSWER_SECONDS = 5.0
"""The limit of one question to Kafka: a broker that is busy or has just lost a leader takes seconds."""
REQUEST_SECONDS = 10.0
"""The limit of a fetch or produce request: on a connection that was dropped silently it would wait forever."""
MAX_IDLE_SECONDS = 180.0
"""Idle connections are closed before a load balancer silently drops them: Azure's does so after 240 s."""
MAX_BATCH_BYTES = 16 << 20
"""The default limit of a decompressed batch. Measured: 2 to 25 ms to decompress, with gzip up to 90 ms."""
POLL_RECORDS = 4000
"""The size of a poll of a `LogReader`."""
SILENCE_SECONDS = 30.0
"""The limit of a `LogReader`'s wait for records that the log must still have."""
MAX_MESSAGE_BYTES = 64 << 20
"""The largest message that is sent."""
CLOSE_SECONDS, COMMAND_CLOSE_SECONDS = 0.5, 3.0
"""The limits of closing the clients of the service, and of a command, which sends what they hold if Kafka answers. A
message that is not acknowledged by then may be lost."""

Client: TypeAlias = AIOKafkaClient | AIOKafkaConsumer | AIOKafkaProducer
RIGHTS = {"Read": 3, "Write": 4, "DescribeConfigs": 10}
"""Kafka's number of each right: the place of its bit in the rights of a topic."""


class LogReader:
    """Reads committed records of a model's log, without a consumer group.

    `read` raises KafkaError and TimeoutError, see `Cluster.errors`.
    """

    def __init__(self, bounds: Mapping[ModelPartition, tuple[int, int, int]], fetcher: Fetcher) -> None:
        self.bounds = {each.partition: offsets[:2] for each, offsets in bounds.items()}
        """The first offset and the last stable offset of each partition, when the reader was opened."""
        self.ends = {each.partition: offsets[2] for each, offsets in bounds.items()}
        """The high watermarks at that time."""
        self._open = {each.tp: stable for each, (_, stable, end) in bounds.items() if stable < end}
        """The offsets of open transactions at that time."""
        self._partitions, self._fetcher = {each.partition: each for each in bounds}, fetcher
        self._rest: dict[PartitionId, KafkaRecords] = {}
        """Records that were polled but not returned yet, by partition."""

    async def open_transactions(self) -> list[str]:
        """A line for each open transaction that holds records back, and does so OPEN_SECONDS later."""
        standing, deadline = self._open, time.monotonic() + log_queries.OPEN_SECONDS
        while standing and time.monotonic() < deadline:
            await asyncio.sleep(1.0)
            bounds = await log_queries.log_bounds(self._fetcher.client, standing)
            standing = {tp: offset for tp, offset in standing.items() if offset == bounds[tp][1]}
        return [log_queries.open_transaction_message(tp, offset, bounds[tp][2]) for tp, offset in standing.items()]

    async def read(self, partition: PartitionId, start: int, end: int) -> AsyncIterator[KafkaRecords]:
        """The records from offset `start` to before `end`; raises DataError if the log is damaged.

        A read that starts where the previous one ended fetches nothing twice.
        """
        own, rest = self._partitions[partition], self._rest.get(partition) or RecordsBuilder().build(partition)
        rest, buffer = rest[rest.find(start) :], self._fetcher.partitions.get(own)
        if not len(rest) and (buffer is None or buffer.position != start):
            self._fetcher.seek({own: start})
        while True:
            count = rest.find(end)
            self._rest[partition] = rest[count:]
            if count:
                yield rest[:count]
            if len(self._rest[partition]) or self._fetcher.partitions[own].position >= end:
                return
            async with asyncio.timeout(SILENCE_SECONDS):
                polled = await self._fetcher.poll([own], POLL_RECORDS)
            rest = polled.get(partition, self._rest[partition])


@dataclass(frozen=True)
class Cluster:
    """A Kafka cluster. `bootstrap` lists the brokers that are asked first."""

    bootstrap: str
    max_batch_bytes: int = MAX_BATCH_BYTES
    security: Security = field(default_factory=Security)

    def __str__(self) -> str:
        return f"Kafka at {self.bootstrap}"

    def producer(self, **options: Any) -> AIOKafkaProducer:
        """A producer with these options, not started. A record is acknowledged once all in-sync replicas have it."""
        return AIOKafkaProducer(**self.options(REQUEST_SECONDS), acks="all", **options)

    def client(self, request_seconds: float = REQUEST_SECONDS) -> AIOKafkaClient:
        """A client for single requests, not bootstrapped."""
        return AIOKafkaClient(**self.options(request_seconds))

    def options(self, request_seconds: float) -> dict[str, Any]:
        """The options of every client."""
        # aiokafka logs each retry and rebalance as a warning or error; we log ourselves what matters.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        return {
            "bootstrap_servers": self.bootstrap,
            "request_timeout_ms": int(request_seconds * 1000),
            "connections_max_idle_ms": int(MAX_IDLE_SECONDS * 1000),
            **self.security.options,
        }

    @asynccontextmanager
    async def errors(self, what: str = "", right: str = "Read") -> AsyncIterator[None]:
        """Turn aiokafka's errors into one DependencyError that names the address and `what`, the request's subject.

        `right` is Kafka's name of the right that the request needs.
        """
        where = f"{self}{what and ', '}{what}"
        try:
            yield
        except (TimeoutError, KafkaConnectionError, NodeNotReadyError) as error:
            why = await self.security.connection_failure(self.bootstrap)
            raise DependencyError(f"{where}: {why or kafka_failure(error, right)}", "kafka") from error
        except (KafkaError, OSError, *MALFORMED) as error:
            kind = Unauthorised if isinstance(error, UNAUTHORISED) else DependencyError
            raise kind(f"{where}: {kafka_failure(error, right)}", "kafka") from error

    @asynccontextmanager
    async def open_clients(self, *clients: Client, close_seconds: float = COMMAND_CLOSE_SECONDS) -> AsyncIterator[None]:
        """Connect these clients, and close them at the end, within this time; raises DependencyError."""
        try:
            async with self.errors():
                for client in clients:
                    await (find_brokers(client) if isinstance(client, AIOKafkaClient) else client.start())
            yield
        finally:
            await close_clients(*clients, seconds=close_seconds)

    @asynccontextmanager
    async def connected(self, right: str = "Read") -> AsyncIterator[AIOKafkaClient]:
        """A short-lived client on a fresh connection; raises DependencyError."""
        client = self.client(ANSWER_SECONDS)
        async with self.errors(right=right), self.open_clients(client, close_seconds=ANSWER_SECONDS):
            yield client

    async def ask(self, request: Any, right: str = "Read") -> Any:
        """The answer of any broker, over a fresh connection, to a request that needs this right.

        Raises DependencyError.
        """
        async with self.connected(right) as client:
            return await client.send(client.get_random_node(), request)

    async def id(self) -> str:
        """The cluster's id; "" if it has none."""
        return (await self.ask(MetadataRequest([]))).cluster_id or ""

    async def topics(self) -> set[str]:
        """The names of all topics that this user may see."""
        return {topic for _, topic, *_ in (await self.ask(MetadataRequest(None))).topics}

    async def create_topics(self, topics: Sequence[str]) -> None:
        """Create topics with one partition and the broker's default replication, unless they exist."""
        new: list[Any] = [(topic, 1, -1, [], []) for topic in topics]
        async with self.connected("Create") as client:
            if (controller := client.cluster.controller) is None:
                raise KafkaError("the cluster has no controller")
            request = CreateTopicsRequest(new, int(ANSWER_SECONDS * 1000), False)
            for topic, code, *rest in (await client.send(controller.nodeId, request)).topic_errors:
                if for_code(code) in UNAUTHORISED:
                    raise Unauthorised(f"{self}: {missing_right('Create', f'topic {topic}')}", "kafka")
                if code not in (0, TopicAlreadyExistsError.errno):
                    raise KafkaError(f"topic {topic} cannot be created: {rest[0] if rest else code}")

    async def partitions(self, topic: str, right: str = "Read") -> list[int]:
        """The numbers of the topic's partitions; none if it does not exist.

        Raises DependencyError; it is Unauthorised, and names `right`, if this user may not see the topic.
        """
        # Unlike the client's own request, this one never lets a broker create the topic.
        async with self.errors(right=right):
            [(code, _, _, partitions, *_)] = (await self.ask(MetadataRequest([topic], False), right)).topics
        if for_code(code) in UNAUTHORISED:
            raise Unauthorised(f"{self}: {missing_right(right, f'topic {topic}')}", "kafka")
        return sorted(partition for _, partition, *_ in partitions)

    async def lacking(self, topic: str, *rights: str) -> list[str]:
        """The rights that this user lacks on a topic, if the broker reports them; raises DependencyError."""
        async with self.connected() as client:
            try:
                answer = await client.send(client.get_random_node(), log_queries.TopicRequest(topic, rights=True))
            except log_queries.UNSUPPORTED:
                return []
            [(*_, granted, _)] = answer.topics
            return [right for right in rights if not granted >> RIGHTS[right] & 1]

    async def topic_settings(self, topic: str, *names: str) -> dict[str, str]:
        """Settings of a topic, by name; raises DependencyError, also if we may not ask."""
        async with self.errors():
            request = DescribeConfigsRequest([(ConfigResourceType.TOPIC, topic, list(names))], False)
            [(code, _, _, _, entries)] = (await self.ask(request)).resources
            if code:
                raise DependencyError(f"{self}: the settings of topic {topic} cannot be read", "kafka")
            return {name: value for name, value, *_ in entries}

    async def largest_batch(self, topic: str) -> int:
        """The largest batch in bytes that a topic accepts; raises DependencyError, also if we may not ask."""
        return min(map(int, (await self.topic_settings(topic, "max.message.bytes", "segment.bytes")).values()))

    async def retention_warnings(self, topics: Sequence[str], needed_ms: int) -> list[str]:
        """A line for each topic that may lose records which a join or `once` reads again at a restart."""
        warnings = []
        for topic in topics:
            found = await self.topic_settings(topic, "retention.ms", "cleanup.policy")
            if 0 <= (kept := int(found["retention.ms"])) < needed_ms:
                hours, needed = kept / 3.6e6, needed_ms / 3.6e6
                warnings.append(
                    f"topic {topic} keeps records for {hours:.3g} hours, a restart reads the last {needed:.3g} again: "
                    "raise retention.ms"
                )
            if "compact" in found["cleanup.policy"]:
                warnings.append(f"topic {topic} is compacted, so a restart may miss records that it needs again")
        return warnings

    @asynccontextmanager
    async def reader(self, model: str, topics: Sequence[str], missing: PerceptronError) -> AsyncIterator[LogReader]:
        """A reader of a model's log; raises `missing` if one of its topics does not exist, and DependencyError."""
        tps = list[TopicPartition]()
        for topic in topics:
            if not (numbers := await self.partitions(topic)):
                raise missing
            tps += [TopicPartition(topic, number) for number in numbers]
        async with self.connected() as client:
            await client.set_topics(topics)
            bounds = await log_queries.log_bounds(client, tps)
            fetcher = Fetcher(client, self.max_batch_bytes)
            fetching = asyncio.create_task(fetcher.run())
            try:
                yield LogReader({each: bounds[each.tp] for each in partitions_of(model, topics, bounds)}, fetcher)
            finally:
                fetching.cancel()
                await asyncio.wait([fetching])

    async def read_whole(self, topic: str, missing: PerceptronError) -> AsyncIterator[tuple[PartitionId, KafkaRecords]]:
        """The committed records, partition by partition, up to the present end of the topic.

        Raises `missing` if there is no such topic, DependencyError, and DataError if the log is damaged.
        """
        async with self.reader(topic, [topic], missing) as reader:
            for partition, (begin, end) in reader.bounds.items():
                async for records in reader.read(partition, begin, end):
                    yield partition, records


class KafkaClients(NamedTuple):
    """A cluster, its id, and the connected clients of a process that need no consumer group.

    Each client has its own connections: a broker answers the requests of one connection in order, and a fetch or
    produce request may wait.
    """

    cluster: Cluster
    cluster_id: str
    query_client: AIOKafkaClient
    """For questions that brokers answer at once."""
    producer: AIOKafkaProducer
    """For messages that are sent again until they are acknowledged."""


@asynccontextmanager
async def connected_clients(cluster: Cluster) -> AsyncIterator[KafkaClients]:
    """Connect the clients, and close them at the end; raises DependencyError."""
    # Not idempotent: an idempotent client counts a batch that the broker refused, but the broker does not count it and
    # refuses all later ones. A message may be written twice.
    query_client, producer = cluster.client(ANSWER_SECONDS), cluster.producer(max_request_size=MAX_MESSAGE_BYTES)
    async with cluster.open_clients(query_client, producer, close_seconds=CLOSE_SECONDS):
        yield KafkaClients(cluster, await cluster.id(), query_client, producer)


async def close_clients(*clients: Client, seconds: float) -> None:
    """Close these clients within this time, whatever errors they raise."""
    closing = [client.close() if isinstance(client, AIOKafkaClient) else client.stop() for client in clients]
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            # Without a broker they raise many errors here, even a cancellation of their own tasks.
            await asyncio.gather(*closing, return_exceptions=True)


async def find_brokers(client: AIOKafkaClient) -> None:
    """Connect a client to the cluster; raises KafkaConnectionError."""
    await client.bootstrap()
    if not client.cluster.brokers():
        raise KafkaConnectionError("the cluster names no broker")
