"""What the topics of one process have in common of Kafka: how to reach it, the clients, and what is to be committed."""

from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient

from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.fetching.fetcher import Fetcher


class GroupClients:
    """Made with the process; the clients are there once it has connected.

    Each has connections of its own: a broker answers the requests of one connection one after another, and a fetch or
    a produce may wait.
    """

    consumer: AIOKafkaConsumer
    """The group's member. Nothing is fetched by it."""
    producer: AIOKafkaProducer
    """For dead letters."""
    query_client: AIOKafkaClient
    """For questions, which are answered at once."""
    fetch_client: AIOKafkaClient
    """For `fetcher`."""
    fetcher: Fetcher

    def __init__(self, cluster: Cluster, watchdog: float, predictions_wait: Callable[[], bool]) -> None:
        """`watchdog` is how many seconds may pass without a record though there are more."""
        self.cluster, self.cluster_id, self.watchdog = cluster, "", watchdog
        self.predictions_wait = predictions_wait
        """Whether a prediction waits for what a poll takes."""
        self.stopping = False
        self.to_commit: dict[TopicPartition, int] = {}
        """Offsets that are committed in the background."""
