"""What the first bytes of a batch say, which no checksum covers: its offsets and its length.

The client library believes them: where the offsets of a batch lie before what was read, or after what follows it, it
drops records and says nothing; at a length that does not fit the broker stops, and so does everybody.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException, OffsetOutOfRangeError, for_code
from aiokafka.protocol.fetch import FetchRequest

from service.streaming.offsets import Offsets, Wrong

FETCH_MILLISECONDS = 500
HEAD_BYTES = 12
"""Of a batch, before what its length counts."""
MAGIC_BYTE, FORMAT = 16, b"\2"
OFFSETS_BYTES = 27
"""Of a batch, to behind what says how many offsets it has."""


class Hole(CorruptRecordException):
    """A batch that does not follow on what was before `at`; `wrong` says how, see Offsets."""

    def __init__(self, tp: TopicPartition, wrong: Wrong, at: int, first: int, following: int, end: int) -> None:
        super().__init__(f"at {at} the log, which ends at {end}, goes on with a batch of {first} to {following - 1}")
        self.tp, self.wrong, self.at, self.first, self.following = tp, wrong, at, first, following

    def __str__(self) -> str:
        return str(self.args[0])


class Seen:
    """What is known of the logs that a consumer fetches; it may change."""

    def __init__(self, *compacted: str, strict: bool = True) -> None:
        """Where it is not strict, a batch that a fetch begins within is taken to be in its place."""
        self.compacted = set(compacted)
        """Topics in which offsets may be missing between batches."""
        self.placed: dict[TopicPartition, tuple[int, int]] = {}
        """First and next offset of a batch that is in its place, by partition."""
        self.strict = strict


def check_offsets(consumer: Any, seen: Seen) -> None:
    """Let what this started consumer fetches raise Hole where batches do not follow on each other."""
    consumer._fetcher._records = _Fetched(consumer, seen)


class _Fetched(OrderedDict[TopicPartition, Any]):
    """What was fetched of each partition, in the place where the client library keeps it."""

    def __init__(self, consumer: Any, seen: Seen) -> None:
        super().__init__()
        self._consumer, self._seen = consumer, seen

    def __setitem__(self, tp: TopicPartition, result: Any) -> None:
        records = getattr(result, "_partition_records", None)  # an error has none
        if records is not None:
            records._records = _Batches(
                tp, records._records, records.next_fetch_offset, self._consumer.highwater(tp), self._seen
            )
        super().__setitem__(tp, result)


class _Batches:
    """The batches of one fetch from the offset `at` of a partition that ends at `end`."""

    def __init__(self, tp: TopicPartition, batches: Any, at: int, end: int, seen: Seen) -> None:
        self._tp, self._batches, self._end, self._seen = tp, batches, end, seen
        self._offsets = Offsets(
            at,
            end,
            compacted=tp.topic in seen.compacted,
            sure=lambda *batch: not seen.strict or seen.placed.get(tp) == batch,
        )
        self.last: Any = None
        """The batch that was taken last."""
        self._ahead = self._another()

    def _another(self) -> Any:
        try:
            return self._batches.next_batch() if self._batches.has_next() else None
        except CorruptRecordException as error:  # raised when it is its turn
            return error

    def has_next(self) -> bool:
        """Whether there is another batch."""
        return self._ahead is not None

    def next_batch(self) -> Any:
        """The next batch; raises Hole, and CorruptRecordException."""
        batch = self.last = self._ahead
        self._ahead = self._another()
        if isinstance(batch, CorruptRecordException):
            raise batch
        if batch.producer_id is None:  # of a format before the one of Kafka 0.11: it may have one offset for several
            return batch
        first, following, then = batch.base_offset, batch.next_offset, getattr(self._ahead, "base_offset", None)
        if wrong := self._offsets.wrong(first, following, then):
            raise Hole(self._tp, wrong, self._offsets.at, first, following, self._end)
        self._seen.placed[self._tp] = first, following
        return batch


class Clients(NamedTuple):
    """Who knows the cluster, and whose connections are asked: an answer on the consumer's waits behind a fetch."""

    consumer: Any
    producer: Any

    async def _batch(self, tp: TopicPartition, offset: int) -> tuple[int, bool, int, bytes]:
        """What the broker gives for an offset: an error's code, whether it is throttled, where it ends, the batch."""
        node = self.consumer._client.cluster.leader_for_partition(tp)
        wanted = [(tp.topic, [(tp.partition, offset, HEAD_BYTES)])]  # it gives a whole batch all the same
        answer = await self.producer.client.send(node, FetchRequest(FETCH_MILLISECONDS, 1, HEAD_BYTES, 1, wanted))
        [(_, [(_, code, _, end, *_, data)])] = answer.topics
        return code, bool(answer.throttle_time_ms), end, bytes(data or b"")

    async def _offsets(self, tp: TopicPartition, offset: int) -> tuple[int, int] | None:
        """First and next offset of the batch that the broker gives for one; None where it cannot tell.

        That is where the log begins behind it, or has a format before the one of Kafka 0.11.
        """
        code, throttled, _, data = await self._batch(tp, offset)
        if code == OffsetOutOfRangeError.errno or b"" < data[MAGIC_BYTE : MAGIC_BYTE + 1] < FORMAT:
            return None
        if throttled or code not in (0, CorruptRecordException.errno):
            raise for_code(code)(f"topic {tp.topic}: what it has at offset {offset} cannot be asked")
        first = int.from_bytes(data[:8], signed=True)
        return first, first + int.from_bytes(data[OFFSETS_BYTES - 4 : OFFSETS_BYTES], signed=True) + 1

    async def misplaced(self, hole: Hole) -> Wrong:
        """What is wrong with a batch that is unsure, over or beyond, if anything: see Offsets. Raises KafkaError.

        It must be the one that the log has for the first of its offsets, and follow on the one before. A broker looks
        where its log ends before it reads there, so what is written meanwhile is beyond: now the log must end later.
        """
        if hole.wrong == "beyond" and (await self._batch(hole.tp, hole.at))[2] < hole.following:
            return "impossible"
        there = await self._offsets(hole.tp, hole.first)
        if there is not None and there != (hole.first, hole.following):
            return "impossible"
        before = await self._offsets(hole.tp, hole.first - 1) if there else None
        if before is None or before[1] == hole.first:
            return ""
        return "missing" if before == there and hole.wrong in ("unsure", "beyond") else "impossible"

    async def nothing_there(self, tp: TopicPartition, offset: int) -> str:
        """Why the broker has no batch to give from this offset on, though its log goes on; "" where it may have one."""
        code, throttled, end, data = await self._batch(tp, offset)
        if code == CorruptRecordException.errno:
            return "the broker says that its log is corrupt there"
        if code or throttled or end <= offset:
            return ""
        if not data:
            return f"the broker gives nothing from there on, though its log goes on to {end}"
        if len(data) < HEAD_BYTES + int.from_bytes(data[8:HEAD_BYTES], signed=True):
            return "the broker gives a batch that is cut short"
        return ""
