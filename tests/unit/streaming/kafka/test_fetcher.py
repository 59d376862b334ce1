"""What a partition's buffer returns after damage, and a lookup of records in a log that gives none."""

import struct
from typing import Any

import pytest
from aiokafka import TopicPartition

from service.learning.records import PartitionId
from service.streaming.kafka import log_queries
from service.streaming.kafka.fetching.fetcher import ModelPartition, PartitionBuffer, records_at
from service.streaming.kafka.fetching.record_batch import RecordsBuilder
from service.streaming.kafka.log_queries import PartitionResponse
from service.streaming.records import KafkaRecord
from tests.batches import add_checksum, build_batch
from tests.partitions import P0

TP = TopicPartition("t", 0)


def batch(offset: int, codec: int = 0) -> bytes:
    """A batch of two records; with a codec its head lies about how it is compressed."""
    raw = bytearray(build_batch(0, [KafkaRecord(i, 1, None, b"1", ()) for i in range(2)]))
    raw[:8], raw[22] = struct.pack(">q", offset), codec
    return add_checksum(raw)


def response(*batches: bytes) -> PartitionResponse:
    return PartitionResponse(TP, 0, 100, 100, 0, [], b"".join(batches))


def test_nothing_after_a_damaged_batch_is_returned() -> None:
    """A response may arrive after the damage was found and before it is reported."""
    buffer = PartitionBuffer(ModelPartition("m", PartitionId(0), TP), 0, 1 << 20)
    buffer.receive(response(batch(0), batch(2, codec=1), batch(4)), 1 << 20, alone=True)
    polled = list[int]()
    for following in (6, 8):
        builder = RecordsBuilder()
        buffer.take(builder, 100)
        polled += builder.build(P0).offsets.tolist()
        buffer.receive(response(batch(following)), 1 << 20, alone=True)
    assert polled == [0, 1]
    assert (buffer.position, buffer.has_data) == (2, False)
    assert "offset 2 of partition 0 cannot be read" in str(buffer.error)


async def test_a_lookup_ends_though_the_broker_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a batch's length is damaged: the log goes on, and each response is empty."""
    requests = list[int]()

    async def find_leaders(_: object, own: dict[TopicPartition, object]) -> dict[int, list[TopicPartition]]:
        return {1: [*own]}

    async def fetch(*arguments: Any) -> tuple[list[PartitionResponse], float]:
        requests.append(len(arguments[2]))
        return [response()._replace(tp=tp) for tp in arguments[2]], 0.0

    monkeypatch.setattr(log_queries, "find_leaders", find_leaders)
    monkeypatch.setattr(log_queries, "fetch", fetch)
    own = [ModelPartition("m", PartitionId(i), TopicPartition("t", i)) for i in range(3)]
    assert await records_at(None, dict.fromkeys(own, 5), 1 << 20) == {}
    assert requests == [3, 2, 1]
