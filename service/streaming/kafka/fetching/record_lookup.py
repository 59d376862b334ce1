"""Reads single records of many partitions, with one request to each broker."""

import asyncio
from collections.abc import Mapping

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import LeaderNotAvailableError, NoError, OffsetOutOfRangeError, for_code

from service.learning.records import PartitionId
from service.streaming.kafka import log_queries
from service.streaming.kafka.fetching.compression import DamagedBatch
from service.streaming.kafka.fetching.fetcher import ModelPartition, unreadable
from service.streaming.kafka.fetching.record_batch import OpenBatch, RecordsBuilder, parse_batches
from service.streaming.records import KafkaRecord

SHARE_BYTES = 64 << 10
"""Bytes that the first request asks for of each partition: a batch of a usual producer has 16 KiB."""


async def find_records(
    client: AIOKafkaClient, offsets: Mapping[ModelPartition, int], max_batch_bytes: int
) -> dict[PartitionId, KafkaRecord]:
    """The committed records at these offsets. An offset without a record is left out.

    A broker sends the first batch of a request whole, and others as far as they fit: partitions whose batch is cut or
    missing are asked for again, unless they were the first. Raises KafkaError, and DataError for a batch that is
    damaged twice.
    """
    remaining, share = dict(offsets), SHARE_BYTES
    records, damaged = dict[PartitionId, KafkaRecord](), set[ModelPartition]()
    while remaining:
        own = {each.tp: each for each in remaining}
        for node, tps in (await log_queries.find_leaders(client, own)).items():
            if node is None:
                raise LeaderNotAvailableError(tps[0].topic)
            requested = {tp: remaining[own[tp]] for tp in tps}
            parts, throttle = await log_queries.fetch(client, node, requested, share)
            responses = {part.tp: part for part in parts}
            for tp, offset in requested.items():
                each, response = own[tp], responses[tp]
                if (error := for_code(response.error)) not in (NoError, OffsetOutOfRangeError):
                    await log_queries.refresh_metadata(client)
                    raise error(tp.topic)
                try:
                    record, is_complete = _find(response, each.partition, offset, max_batch_bytes)
                except DamagedBatch as damage:
                    if each in damaged:
                        raise unreadable(each, offset, str(damage)) from None
                    damaged.add(each)
                    continue
                if record is not None:
                    records[each.partition] = record
                if is_complete or (tp == tps[0] and not throttle):
                    del remaining[each]
            await asyncio.sleep(throttle)
        share = min(4 * share, log_queries.FETCH_BYTES)
    return records


def _find(
    response: log_queries.PartitionResponse, partition: PartitionId, offset: int, max_batch_bytes: int
) -> tuple[KafkaRecord | None, bool]:
    """The record at an offset, and whether the response has all that the log has there; raises DamagedBatch."""
    fetched = parse_batches(response.data, response.aborted)
    batch = next((batch for batch in fetched.batches if batch.end > offset), None)
    if batch is None:
        if fetched.damage:
            raise DamagedBatch(fetched.damage)
        return None, not fetched.cut_size and response.last_stable_offset <= offset
    if not batch.has_records or batch.start > offset:
        return None, True
    builder = RecordsBuilder()
    builder.add(OpenBatch(batch, max_batch_bytes), offset, batch.count)
    records = builder.build(partition)
    return (records.record(0) if len(records) and records.offsets[0] == offset else None), True
