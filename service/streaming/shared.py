"""What the topics of one process share of Kafka: how to reach it, the group's clients, and what is to be committed."""

import asyncio
from collections.abc import Callable, Mapping

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from service.streaming.batches import Seen
from service.streaming.cluster import Cluster
from service.streaming.ends import Ends


class Shared:
    """Made with the process; the clients are there once it has connected."""

    def __init__(self, cluster: Cluster, watchdog: float, asked: Callable[[], bool]) -> None:
        """`watchdog` is how many seconds may pass without a record though there are more.

        `asked` says whether predictions wait for what a poll takes.
        """
        self.cluster, self.cluster_id, self.watchdog, self.asked = cluster, "", watchdog, asked
        self.consumer: AIOKafkaConsumer | None = None
        self.producer: AIOKafkaProducer | None = None
        self.stopping = False
        self.turn = asyncio.Lock()
        """Of topics that all go on in the same turn of the event loop, each has one of its own with it."""
        self.seen = Seen()
        self.to_commit: dict[TopicPartition, int] = {}
        self.ends = Ends(lambda wanted: self.consumer.end_offsets(wanted))  # type: ignore[union-attr]  # noqa: PLW0108

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets in the background."""
        self.to_commit.update(offsets)
