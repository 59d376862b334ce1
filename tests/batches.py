"""Batches as a producer packs them, of any size: the client's own producer sends no more than it would unpack."""

from collections.abc import Iterable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import DefaultRecordBatchBuilder

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
Headers = Sequence[tuple[str, bytes | None]]


def packed(codec: str, records: Iterable[tuple[bytes | None, Headers]]) -> bytes:
    """A batch of these values and headers."""
    builder = DefaultRecordBatchBuilder(
        2, CODECS[codec], is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 30
    )
    for i, (value, headers) in enumerate(records):
        assert builder.append(i, 1_700_000_000_000, key=None, value=value, headers=list(headers))
    return bytes(builder.build())


async def send_packed(producer: AIOKafkaProducer, topic: str, raw: bytes) -> int:
    """Send a batch as it is; the offset of its first record."""
    batch: Any = producer.create_batch()
    batch.append(key=None, value=b"", timestamp=None)
    batch.close()
    batch._buffer = bytearray(raw)
    return int((await (await producer.send_batch(batch, topic, partition=0))).offset)
