"""The first partitions of a model that has one topic."""

from service.learning.records import PartitionId

P0, P1, P2 = map(PartitionId, range(3))
