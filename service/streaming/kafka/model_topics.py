"""The topics of a model's log, and their partitions as Kafka and as the model name them."""

from aiokafka import TopicPartition

from service.learning.records import PartitionId


class ModelTopics(tuple[str, ...]):
    """The topics that one model learns from.

    >>> ModelTopics(["clicks"]).partition_id(TopicPartition("clicks", 3))
    PartitionId(3)
    >>> ModelTopics(["views", "clicks"]).topic_partition(PartitionId(3, "clicks"))
    TopicPartition(topic='clicks', partition=3)
    """

    __slots__ = ()

    def partition_id(self, tp: TopicPartition) -> PartitionId:
        """The model's name of a partition of one of its topics."""
        return PartitionId(tp.partition, tp.topic if len(self) > 1 else "")

    def topic_of(self, partition: PartitionId) -> str:
        """The topic of one of the model's partitions."""
        return partition.topic or self[0]

    def topic_partition(self, partition: PartitionId) -> TopicPartition:
        """Kafka's name of one of the model's partitions."""
        return TopicPartition(self.topic_of(partition), partition.number)
