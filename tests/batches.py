"""Record batches of any size, including larger ones than aiokafka's producer would send."""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from service.learning.records import PartitionId
from service.streaming.kafka.fetching.record_batch import OpenBatch, RecordsBuilder, parse_batches
from service.streaming.records import Headers, KafkaRecord, KafkaRecords
from tests.partitions import P0

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MAX_BYTES = 1 << 30


def open_builder(codec: int = 0, producer: int = -1, transactional: bool = False) -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        2, codec, is_transactional=transactional, producer_id=producer, producer_epoch=0, base_sequence=0,
        batch_size=MAX_BYTES,
    )  # fmt: skip


def build_batch(codec: int, records: Iterable[KafkaRecord]) -> bytes:
    """The bytes of a batch of these records."""
    builder = open_builder(codec)
    for offset, timestamp, key, value, headers in records:
        assert builder.append(offset, timestamp, key, value, list(headers))
    return bytes(builder.build())


def add_checksum(raw: bytes | bytearray) -> bytes:
    """A batch with the checksum that it should have."""
    return bytes(raw[:17]) + struct.pack(">I", calc_crc32c(bytes(raw[21:]))) + bytes(raw[21:])


def impossible_batch(deltas: Sequence[int], last: int, count: int, value: bytes = b"1") -> bytes:
    """A batch of records with these relative offsets, whose head states its last one and how many records it has."""
    raw = bytearray(build_batch(0, [KafkaRecord(delta, 1_700_000_000_000, None, value, ()) for delta in deltas]))
    raw[23:27], raw[57:61] = struct.pack(">i", last), struct.pack(">i", count)
    return add_checksum(raw)


def build_batch_of_values(codec: str, values: Iterable[tuple[bytes | None, Headers]]) -> bytes:
    """A batch of records with these values and headers."""
    records = (KafkaRecord(i, 1_700_000_000_000, None, value, headers) for i, (value, headers) in enumerate(values))
    return build_batch(CODECS[codec], records)


def join_records(records: Sequence[KafkaRecord], partition: PartitionId = P0) -> KafkaRecords:
    """The records as the fetcher builds them from one batch."""
    builder = RecordsBuilder()
    if records:
        [batch] = parse_batches(build_batch(0, records)).batches
        builder.add(OpenBatch(batch, MAX_BYTES), records[0].offset, len(records))
    return builder.build(partition)


async def send_batch(producer: AIOKafkaProducer, topic: str, raw: bytes) -> int:
    """Send a batch unchanged; returns the offset of its first record."""
    batch: Any = producer.create_batch()
    batch.append(key=None, value=b"", timestamp=None)
    batch.close()
    batch._buffer = bytearray(raw)
    return int((await (await producer.send_batch(batch, topic, partition=0))).offset)
