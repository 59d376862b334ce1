"""Requests to the leaders of partitions: the bounds of a log, its batches from an offset on, the topic's id."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, LeaderNotAvailableError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from service.text import quantity

EARLIEST, LATEST = -2, -1
"""The timestamps that ListOffsets uses for the first offset of a log and for its end."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""The end of a log is its high watermark or, for committed records, its last stable offset. An open transaction holds
back the records between the two."""
OPEN_SECONDS = 10.0
"""An open transaction is reported after the last stable offset has not moved for this long."""
NO_OFFSET = -1
"""The answer of ListOffsets if no record has the time or a later one."""
CONSUMER = -1
"""The replica id of a client that is not a replica."""
FETCH_BYTES = 4 << 20
"""The size of a response. Measured: smaller responses cost more per record, larger ones do not cost less."""
METADATA_SECONDS = 5.0
"""The limit for the client to refresh its metadata."""
Partitions = Collection[TopicPartition]
"""Partitions of any topics."""
Offsets = Mapping[TopicPartition, int]
"""An offset of each partition."""
METADATA, VERSION = 3, 10
"""Kafka's Metadata request. aiokafka does not have this version, which tells topic ids and a user's rights."""
UNSUPPORTED = IncompatibleBrokerVersion, NotImplementedError
"""The errors of aiokafka if a broker does not have this version."""


def _compact(**fields: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a structure in the compact encoding, which ends with tags."""
    return (*fields.items(), ("tags", TaggedFields))


NUMBERS = CompactArray(Int32)
TEXT = CompactString()
BROKER = _compact(id=Int32, host=TEXT, port=Int32, rack=TEXT)
PARTITION = _compact(error=Int16, id=Int32, leader=Int32, epoch=Int32, replicas=NUMBERS, isr=NUMBERS, offline=NUMBERS)
PARTITIONS = CompactArray(*PARTITION)
TOPIC = _compact(error=Int16, name=TEXT, high=Int64, low=Int64, internal=Boolean, partitions=PARTITIONS, rights=Int32)
BROKERS, TOPICS = CompactArray(*BROKER), CompactArray(*TOPIC)
RESPONSE = _compact(throttle_ms=Int32, brokers=BROKERS, cluster_id=TEXT, controller=Int32, topics=TOPICS, rights=Int32)
REQUESTED = CompactArray(*_compact(high=Int64, low=Int64, name=TEXT))
REQUEST = _compact(topics=REQUESTED, create_topics=Boolean, with_cluster_rights=Boolean, with_topic_rights=Boolean)


class TopicResponse(Response):
    """Metadata in version 10."""

    API_KEY, API_VERSION = METADATA, VERSION
    SCHEMA = Schema(*RESPONSE)


class TopicRequestStruct(RequestStruct):
    """The fields of the request in version 10."""

    API_KEY, API_VERSION = METADATA, VERSION
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = TopicResponse
    SCHEMA = Schema(*REQUEST)


class TopicRequest(Request[TopicRequestStruct]):
    """Asks for one topic by name, without creating it; with `rights` also what this user may do with it."""

    API_KEY = METADATA

    def __init__(self, topic: str, rights: bool = False) -> None:
        self._topic, self._rights = topic, rights

    def build(self, request_struct_class: type[TopicRequestStruct]) -> TopicRequestStruct:
        """The request's fields."""
        return request_struct_class([(0, 0, self._topic, {})], False, False, self._rights, {})


class PartitionResponse(NamedTuple):
    """One partition of a fetch response. `aborted` has pairs of producer id and first offset."""

    tp: TopicPartition
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    aborted: list[tuple[int, int]]
    data: bytes


async def fetch(
    client: AIOKafkaClient, node: int, offsets: Offsets, share: int, wait_ms: int = 0, size: int = FETCH_BYTES
) -> tuple[list[PartitionResponse], float]:
    """Fetch partitions that a broker leads from these offsets on, at most `share` bytes of each, and `size` of all.

    Returns the partitions of the response, and the seconds to wait because of the broker's quota. A response that
    exceeds the quota has no partitions. It has version 5 (Kafka 1.0) or later. Raises KafkaError.
    """
    topics: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for tp, offset in offsets.items():
        topics[tp.topic].append((tp.partition, offset, share))
    request = FetchRequest(wait_ms, 1, max(size, share), READ_COMMITTED, list(topics.items()))
    response = await client.send(node, request)
    parts = [
        PartitionResponse(TopicPartition(topic, p), error, high_watermark, stable, start, aborted or [], data or b"")
        for topic, partitions in response.topics or ()
        for p, error, high_watermark, stable, start, aborted, *_, data in partitions
    ]
    return parts, response.throttle_time_ms / 1000


async def refresh_metadata(client: AIOKafkaClient) -> None:
    """Have the client ask again which brokers lead; returns even if it gets no answer."""
    await asyncio.wait([client.force_metadata_update()], timeout=METADATA_SECONDS)


def leader_of(client: AIOKafkaClient, tp: TopicPartition) -> int | None:
    """The broker that leads a partition, or None if the client does not know it."""
    node = client.cluster.leader_for_partition(tp)
    return None if node in (None, -1) else int(node)


async def refresh_unknown_leaders(client: AIOKafkaClient, partitions: Partitions) -> None:
    """Refresh the metadata once if the leader of a partition is unknown."""
    if any(leader_of(client, tp) is None for tp in partitions):
        await refresh_metadata(client)


async def find_leaders(client: AIOKafkaClient, partitions: Partitions) -> dict[int | None, list[TopicPartition]]:
    """The partitions by the broker that leads them; the key None is for an unknown leader."""
    await refresh_unknown_leaders(client, partitions)
    by_leader: dict[int | None, list[TopicPartition]] = defaultdict(list)
    for tp in partitions:
        by_leader[leader_of(client, tp)].append(tp)
    return by_leader


async def list_offsets(
    client: AIOKafkaClient, partitions: Partitions, time: int, isolation: int = READ_COMMITTED
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]:
    """The first offsets (EARLIEST), the ends (LATEST), or the offsets of the first records since a time.

    Also the errors of partitions without an answer.
    """
    offsets, errors = dict[TopicPartition, int](), dict[TopicPartition, KafkaError]()
    by_leader = await find_leaders(client, partitions)
    for tp in by_leader.pop(None, ()):
        errors[tp] = LeaderNotAvailableError(f"no topic {tp.topic}, or its partition {tp.partition} has no leader")

    async def ask(node: int, led: list[TopicPartition]) -> None:
        topics: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for tp in led:
            topics[tp.topic].append((tp.partition, time))
        try:
            response = await client.send(node, OffsetRequest(CONSUMER, isolation, list(topics.items())))
        except KafkaError as error:
            errors.update(dict.fromkeys(led, error))
            return
        for topic, parts in response.topics:
            for partition, code, *_, offset in parts:
                if code:
                    errors[TopicPartition(topic, partition)] = for_code(code)(topic)
                else:
                    offsets[TopicPartition(topic, partition)] = offset

    await asyncio.gather(*(ask(node, led) for node, led in by_leader.items() if node is not None))
    if any(error.retriable for error in errors.values()):
        await refresh_metadata(client)
    return offsets, errors


async def log_bounds(
    client: AIOKafkaClient, partitions: Partitions, since: int = 0
) -> dict[TopicPartition, tuple[int, int, int]]:
    """The first offset, the last stable one and the high watermark; raises KafkaError if one is unknown.

    With a time in milliseconds, the first offset is that of the first record of this time or later, or else the last
    stable offset.
    """
    # The ends first: a record that is written meanwhile is not left out.
    stable, errors = await list_offsets(client, partitions, LATEST)
    ends, end_errors = await list_offsets(client, partitions, LATEST, READ_UNCOMMITTED)
    begins, begin_errors = await list_offsets(client, partitions, since or EARLIEST)
    for error in (errors | end_errors | begin_errors).values():
        raise error
    return {tp: (stable[tp] if begins[tp] == NO_OFFSET else begins[tp], stable[tp], ends[tp]) for tp in partitions}


def open_transaction_message(tp: TopicPartition, stable: int, end: int) -> str:
    """The message for an open transaction, which begins at the last stable offset."""
    return (
        f"topic {tp.topic}: an open transaction since offset {stable} of partition {tp.partition} holds "
        f"{quantity(end - stable, 'record')} back, until its producer or `kafka-transactions.sh abort` ends it"
    )


async def topic_id(client: AIOKafkaClient, topic: str) -> str:
    """The topic's id according to the leaders of its partitions; all ids if they differ, "" if brokers have none.

    Kafka gives a topic an id when it is created. A client that asks by name cannot notice that a topic was deleted and
    created again, if the new topic has the client's offset: only the id differs.

    Only leaders are asked: other brokers may hear of a new topic after its records were read. Raises KafkaError.
    """
    await refresh_unknown_leaders(client, [TopicPartition(topic, 0)])  # now the client knows the topic's partitions
    partitions = client.cluster.partitions_for_topic(topic) or (0,)
    ids = set[str]()
    for node in await find_leaders(client, [TopicPartition(topic, partition) for partition in partitions]):
        if node is None:
            raise LeaderNotAvailableError(f"topic {topic} does not exist, or has no leader")
        try:
            answer = await client.send(node, TopicRequest(topic))
        except UNSUPPORTED:
            return ""
        code, _, high, low, *_ = answer.topics[0]
        if code:
            raise for_code(code)(topic)
        if not (high or low):
            return ""
        ids.add(f"{high % 2**64:016x}{low % 2**64:016x}")
    return " ".join(sorted(ids))
