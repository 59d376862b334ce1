"""Reads single records of many partitions, with one request to each broker."""

import asyncio
from collections.abc import Mapping

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import LeaderNotAvailableError, NoError, OffsetOutOfRangeError, for_code

from service.learning.records import PartitionId
from service.streaming.kafka import log_queries
from service.streaming.kafka.fetching.compression import DamagedBatch
from service.streaming.kafka.fetching.fetcher import ModelPartition, unreadable
from service.streaming.kafka.fetching.record_batch import OpenBatch, RecordBatch, RecordsBuilder, parse_batches
from service.streaming.records import KafkaRecord

SHARE_BYTES = 64 << 10
"""Bytes that the first request asks for of each partition: a batch of a usual producer has 16 KiB."""


async def find_records(
    client: AIOKafkaClient, offsets: Mapping[ModelPartition, int], max_batch_bytes: int
) -> dict[PartitionId, KafkaRecord]:
    """The committed records at these offsets. An offset without a record is left out.

    A broker sends the first batch of a request whole, and others as far as they fit: partitions whose batch is cut are
    asked for again. Raises KafkaError, and DataError for a batch that is damaged twice.
    """
    remaining, share = dict(offsets), SHARE_BYTES
    records, damaged = dict[PartitionId, KafkaRecord](), set[ModelPartition]()
    while remaining:
        own = {each.tp: each for each in remaining}
        for node, tps in (await log_queries.find_leaders(client, own)).items():
            if node is None:
                raise LeaderNotAvailableError(tps[0].topic)
            asked = {tp: remaining[own[tp]] for tp in tps}
            parts, throttle = await log_queries.fetch(client, node, asked, share)
            answers = {part.tp: part for part in parts}
            for tp, offset in asked.items():
                each, answer = own[tp], answers[tp]
                if (error := for_code(answer.error)) not in (NoError, OffsetOutOfRangeError):
                    await log_queries.refresh_metadata(client)
                    raise error(tp.topic)
                fetched = parse_batches(answer.data, answer.aborted)
                batch = next((batch for batch in fetched.batches if batch.end > offset), None)
                try:
                    if batch is not None:
                        if record := _record(batch, offset, max_batch_bytes):
                            records[each.partition] = record
                    elif fetched.damage:
                        raise DamagedBatch(fetched.damage)
                    elif (fetched.cut_size or answer.last_stable_offset > offset) and (len(asked) > 1 or throttle):
                        continue
                except DamagedBatch as damage:
                    if each in damaged:
                        raise unreadable(each, offset, str(damage)) from None
                    damaged.add(each)
                    continue
                del remaining[each]
            await asyncio.sleep(throttle)
        share = min(4 * share, log_queries.FETCH_BYTES)
    return records


def _record(batch: RecordBatch, offset: int, max_batch_bytes: int) -> KafkaRecord | None:
    """The record of a batch at this offset, if it has one; raises DamagedBatch."""
    if not (batch.has_records and batch.start <= offset):
        return None
    builder = RecordsBuilder()
    builder.add(OpenBatch(batch, max_batch_bytes), offset, batch.count)
    found = builder.build()
    return found.record(0) if len(found) and found.offsets[0] == offset else None
