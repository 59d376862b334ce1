"""The id that Kafka gives a topic when it is created: a topic of the same name that comes later has another.

The client library asks by name alone, so its consumer goes on in a topic that was deleted and created again as if
nothing had happened, where the new one has its offset. `metadata` has the one request that tells them apart.
"""

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion, LeaderNotAvailableError, for_code

from service.streaming.kafka.log_queries import find_leaders
from service.streaming.kafka.metadata import MetadataRequest

UNKNOWN = ""
"""Of a broker that gives no ids, as some do that only speak Kafka's protocol."""


async def topic_id(client: AIOKafkaClient, topic: str) -> str:
    """The topic's id, as each leader of its partitions knows it; all of them while they differ.

    The leaders are asked: other brokers may hear of a new topic after its records were read. Raises KafkaError.
    """
    ids = set[str]()
    await find_leaders(client, [TopicPartition(topic, 0)])  # now the client knows the topic
    partitions = client.cluster.partitions_for_topic(topic) or (0,)
    leaders = await find_leaders(client, [TopicPartition(topic, partition) for partition in partitions])
    for node in set(leaders.values()):
        if node is None:
            raise LeaderNotAvailableError(f"topic {topic} is not there, or has no leader")
        try:
            answer = await client.send(node, MetadataRequest(topic))
        except IncompatibleBrokerVersion:
            return UNKNOWN
        code, _, high, low, *_ = answer.topics[0]
        if code:
            raise for_code(code)(f"topic {topic}")
        if not (high or low):
            return UNKNOWN
        ids.add(f"{high % 2**64:016x}{low % 2**64:016x}")
    return " ".join(sorted(ids))
