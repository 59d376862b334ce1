"""The id that Kafka gives a topic when it is created: a topic of the same name that comes later has another.

The client library asks by name alone, so its consumer goes on in a topic that was deleted and created again as if
nothing had happened, where the new one has its offset. The one request that tells them apart is spelled out here.
"""

import asyncio
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, LeaderNotAvailableError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from service.streaming.cluster import Cluster

IDENTITY_SECONDS = 2.0
"""For the leaders to say it, since a save waits for their answer."""
UNKNOWN = ""
"""Of a broker that gives no ids: Kafka before 2.8, and some that only speak its protocol."""
KEY, VERSION = 3, 10


class MetadataResponse(Response):
    """Metadata, version 10."""

    API_KEY, API_VERSION = KEY, VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString()),
                ("port", Int32),
                ("rack", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString()),
                ("high", Int64),
                ("low", Int64),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class MetadataRequestStruct(RequestStruct):
    """Metadata, version 10."""

    API_KEY, API_VERSION = KEY, VERSION
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = MetadataResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("high", Int64), ("low", Int64), ("name", CompactString()), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class MetadataRequest(Request[MetadataRequestStruct]):
    """Asks for one topic by its name."""

    API_KEY = KEY

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[MetadataRequestStruct]) -> MetadataRequestStruct:
        """The request's members."""
        return request_struct_class([(0, 0, self._topic, {})], False, False, False, {})

    def prepare(self, versions: dict[int, tuple[int, int]]) -> MetadataRequestStruct:
        """The request for a broker of these versions; raises IncompatibleBrokerVersion where it has no ids."""
        least, most = versions.get(KEY, (0, 0))
        if not least <= VERSION <= most:
            raise IncompatibleBrokerVersion("no topic ids")
        return self.build(MetadataRequestStruct)


async def too_old(client: Any) -> str:
    """What to say of a broker that gives topics no ids; '' of one that does. Raises what the client raises."""
    try:
        await client.send(client.get_random_node(), MetadataRequest("_"))
    except IncompatibleBrokerVersion:
        return (
            "Kafka gives topics no ids here, as before 2.8, which is the least version: a topic that was created again "
            "is then told by the last record learned alone"
        )
    return ""


async def topic_id(cluster: Cluster, producer: Any, consumer: Any, topic: str) -> str:
    """The topic's id, as each leader of its partitions knows it; of several, while they differ.

    It is the leaders that are asked: other brokers may hear of a new topic after its records were read. And over the
    producer's connections: an answer on the consumer's waits behind a fetch. Raises DependencyError.
    """
    known, found = consumer._client.cluster, set[str]()
    async with cluster.errors(), asyncio.timeout(IDENTITY_SECONDS):
        partitions = known.partitions_for_topic(topic) or ()
        leaders = {known.leader_for_partition(TopicPartition(topic, p)) for p in partitions}
        if not leaders or leaders & {None, -1}:
            raise LeaderNotAvailableError(f"topic {topic} is not there, or has no leader")
        for node in sorted(leaders):
            try:
                answer = await producer.client.send(node, MetadataRequest(topic))
            except IncompatibleBrokerVersion:
                return UNKNOWN
            code, _, high, low, *_ = answer.topics[0]
            if code:
                raise for_code(code)(f"topic {topic}")
            if not (high or low):
                return UNKNOWN
            found.add(f"{high % 2**64:016x}{low % 2**64:016x}")
    return " ".join(sorted(found))
