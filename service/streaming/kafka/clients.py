"""The Kafka clients of a process that need no consumer group."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient

from service.streaming.kafka.cluster import ANSWER_SECONDS, Cluster

MAX_MESSAGE_BYTES = 64 << 20
"""The largest message that is sent."""
CLOSE_SECONDS = 0.5
"""The limit of closing the clients. A message that is not acknowledged by then may be lost."""


class KafkaClients(NamedTuple):
    """A cluster's id and connected clients.

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
