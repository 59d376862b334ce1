"""A reader of one topic for commands, without a consumer group."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient

from service.streaming.kafka.fetching.fetcher import Fetcher
from service.streaming.kafka.fetching.record_batch import RecordsBuilder
from service.streaming.kafka.log_queries import log_bounds
from service.streaming.records import KafkaRecords

POLL_RECORDS = 4000
SILENCE_SECONDS = 30.0
"""The limit of a wait for records that the log must still have."""


class LogReader:
    """Reads committed records of one topic. Its methods raise KafkaError and TimeoutError, see `Cluster.errors`."""

    def __init__(self, client: AIOKafkaClient, topic: str, partitions: Sequence[int], fetcher: Fetcher) -> None:
        self.partitions = partitions
        self._client, self._topic, self._fetcher = client, topic, fetcher
        self._rest: dict[int, KafkaRecords] = {}
        """Records that were polled but not returned yet, by partition."""

    async def bounds(self) -> dict[int, tuple[int, int]]:
        """The first offset and the last stable offset of each partition."""
        return await log_bounds(self._client, [TopicPartition(self._topic, p) for p in self.partitions])

    async def read(self, partition: int, start: int, end: int) -> AsyncIterator[KafkaRecords]:
        """The records from offset `start` to before `end`; raises DataError if the log is damaged.

        A read that starts where the previous one ended fetches nothing twice.
        """
        tp, rest = TopicPartition(self._topic, partition), self._rest.get(partition)
        if rest is not None:
            rest = rest[rest.find(start) :]
        if rest is None or (not len(rest) and self._fetcher.partitions[tp].position != start):
            rest = RecordsBuilder().build()
            self._fetcher.seek(tp, start)
        while True:
            count = rest.find(end)
            self._rest[partition] = rest[count:]
            if count:
                yield rest[:count]
            if len(self._rest[partition]) or self._fetcher.partitions[tp].position >= end:
                return
            async with asyncio.timeout(SILENCE_SECONDS):
                polled = await self._fetcher.poll([tp], POLL_RECORDS)
            rest = polled.get(partition, self._rest[partition])
