"""The Kafka clients that all topics of one process share, and the offsets to commit."""

from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient

from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.fetching.fetcher import Fetcher


class GroupClients:
    """The clients exist once the process has connected.

    Each client has its own connections: a broker answers the requests of one connection in order, and a fetch or
    produce request may wait.
    """

    consumer: AIOKafkaConsumer
    """The member of the group. It fetches nothing."""
    producer: AIOKafkaProducer
    """For dead letters."""
    query_client: AIOKafkaClient
    """For questions that brokers answer at once."""
    fetch_client: AIOKafkaClient
    """For `fetcher`."""
    fetcher: Fetcher

    def __init__(self, cluster: Cluster, watchdog: float, predictions_wait: Callable[[], bool]) -> None:
        """`watchdog` is the limit in seconds without a record though the log has more."""
        self.cluster, self.cluster_id, self.watchdog = cluster, "", watchdog
        self.predictions_wait = predictions_wait
        """Whether a prediction waits for the event loop."""
        self.stopping = False
        self.to_commit: dict[TopicPartition, int] = {}
        """Offsets that the next background commit takes."""
