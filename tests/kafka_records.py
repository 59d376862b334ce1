"""Records as they would come from a broker, made of what they hold."""

from collections.abc import Sequence

from aiokafka.record.util import encode_varint

from service.streaming.kafka.record_batch import HEAD, OpenBatch, RecordBatch, RecordsBuilder
from service.streaming.records import KafkaRecord, KafkaRecords


def join_records(records: Sequence[KafkaRecord]) -> KafkaRecords:
    """These records in one batch."""
    builder = RecordsBuilder()
    if records:
        start, timestamp = records[0].offset, records[0].timestamp
        data = bytes(HEAD.size) + b"".join(encode_record(record, start, timestamp) for record in records)
        end = records[-1].offset + 1
        batch = RecordBatch(start, end, memoryview(data), len(records), first_timestamp=timestamp)
        builder.add(OpenBatch(batch, len(data)), start, len(records))
    return builder.build()


def encode_record(record: KafkaRecord, base_offset: int, base_timestamp: int) -> bytes:
    """The record as a batch of format 2 with this first offset and timestamp holds it."""
    body = bytearray(1)  # attributes
    write = body.append
    encode_varint(record.timestamp - base_timestamp, write)
    encode_varint(record.offset - base_offset, write)
    for part in (record.key, record.value):
        _encode_bytes(part, body)
    encode_varint(len(record.headers), write)
    for name, value in record.headers:
        _encode_bytes(name.encode(errors="surrogateescape"), body)
        _encode_bytes(value, body)
    length = bytearray()
    encode_varint(len(body), length.append)
    return bytes(length + body)


def _encode_bytes(part: bytes | None, body: bytearray) -> None:
    encode_varint(-1 if part is None else len(part), body.append)
    body += part or b""
