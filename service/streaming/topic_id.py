"""The id that Kafka gives a topic when it is created: a topic of the same name that comes later has another.

The client library asks by name alone, so its consumer goes on in a topic that was deleted and created again as if
nothing had happened, where the new one has its offset. `metadata` has the one request that tells them apart.
"""

import asyncio
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, LeaderNotAvailableError, for_code

from service.streaming.cluster import Cluster
from service.streaming.metadata import MetadataRequest

IDENTITY_SECONDS = 2.0
"""For the leaders to say it, since a save waits for their answer."""
UNKNOWN = ""
"""Of a broker that gives no ids: Kafka before 2.8, and some that only speak its protocol."""


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
