"""What the first bytes of a batch say, which no checksum covers: its offsets and its length.

The client library believes them: of a batch whose offsets lie before what was read, or after what follows it, it drops
records and says nothing; at a length that does not fit the broker stops, and so does everybody. Here they are looked at.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from aiokafka.protocol.fetch import FetchRequest

FETCH_MILLISECONDS = 500
HEAD_BYTES = 12
"""Of a batch, before what its length counts."""


class Hole(CorruptRecordException):
    """A batch that does not follow on the one before. `compactable`: unless records between them were compacted."""

    def __init__(self, first: int, following: int, end: int, *, compactable: bool) -> None:
        super().__init__(f"there the log, which ends at {end}, goes on with a batch of {first} to {following - 1}")
        self.compactable = compactable

    def __str__(self) -> str:
        return str(self.args[0])


def check_offsets(consumer: Any, compacted: Collection[str]) -> None:
    """Let what this started consumer fetches raise Hole where batches do not follow on each other.

    Batches of control records and of aborted transactions have their offsets, so that no others are missing; of
    topics in `compacted`, which may change, offsets may be missing between batches.
    """
    consumer._fetcher._records = _Fetched(consumer, compacted)


class _Fetched(OrderedDict[TopicPartition, Any]):
    """What was fetched of each partition, in the place where the client library keeps it."""

    def __init__(self, consumer: Any, compacted: Collection[str]) -> None:
        super().__init__()
        self._consumer, self._compacted = consumer, compacted

    def __setitem__(self, tp: TopicPartition, result: Any) -> None:
        records = getattr(result, "_partition_records", None)  # an error has none
        if records is not None:
            end = self._consumer.highwater(tp)
            records._records = _Batches(records._records, records.next_fetch_offset, end, tp.topic in self._compacted)
        super().__setitem__(tp, result)


class _Batches:
    """The batches of one fetch from the offset `at` of a partition that ends at `end`."""

    def __init__(self, batches: Any, at: int, end: int, compacted: bool) -> None:
        self._batches, self._at, self._end, self._compacted = batches, at, end, compacted
        self._first = True
        self.has_next = batches.has_next

    def next_batch(self) -> Any:
        """The next batch; raises Hole, and CorruptRecordException."""
        batch = self._batches.next_batch()
        if batch.producer_id is None:  # of a format before the one of Kafka 0.11: it may have one offset for several
            return batch
        first, following, at = batch.base_offset, batch.next_offset, self._at
        # What is fetched may begin within a batch.
        forward = at < following <= self._end and (self._first or at <= first)
        if not forward or (first > at and not self._compacted):
            raise Hole(first, following, self._end, compactable=forward)
        self._at, self._first = following, False
        return batch


async def nothing_there(consumer: Any, producer: Any, tp: TopicPartition, offset: int) -> str:
    """Why the broker has no batch to give from this offset on, though its log goes on; "" where it may have one.

    It is asked over the producer's connections, and for this partition alone: so it is not our client that hangs.
    """
    node = consumer._client.cluster.leader_for_partition(tp)
    wanted = [(tp.topic, [(tp.partition, offset, HEAD_BYTES)])]  # it gives a whole batch all the same
    answer = await producer.client.send(node, FetchRequest(FETCH_MILLISECONDS, 1, HEAD_BYTES, 1, wanted))
    [(_, [(_, code, _, end, *_, data)])] = answer.topics
    if code == CorruptRecordException.errno:
        return "the broker says that its log is corrupt there"
    if code or answer.throttle_time_ms or end <= offset:
        return ""
    if not data:
        return f"the broker gives nothing from there on, though its log goes on to {end}"
    if len(data) < HEAD_BYTES + int.from_bytes(data[8:HEAD_BYTES], signed=True):
        return "the broker gives a batch that is cut short"
    return ""
