"""What leans on aiokafka's privates: a fence around what its consumers unpack, in every client of this process.

The client unpacks a batch whole, whatever comes out of it, and nothing bounds how many batches one poll unpacks: some
hundred kilobytes of the log can be gigabytes in memory. `fence` is called before a consumer is made, and from then on:
- unpacking stops at a limit, by the bytes that come out, not by the size that a codec's header declares;
- a record with very many headers is refused before it is parsed: an empty one is two bytes, and `HEADER` when parsed;
- a turn of the event loop unpacks `TURN` and what one batch has beyond it, whichever polls share that turn;
- what cannot be unpacked at all is a damaged batch, as one whose checksum is wrong;
- topics share fetches as `fetches` says;
- a consumer whose `value_deserializer` is `in_batches` polls Records of whole batches, and no object is made of each.
"""

import asyncio
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cramjam
from aiokafka import TopicPartition, __version__, codec
from aiokafka.consumer import consumer, fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record import default_records, legacy_records, memory_records

from service.streaming.fetches import Fetcher
from service.streaming.records import Records
from service.streaming.whole import Batches, Part, Taken, end_of, in_batches

MAX_BATCH_BYTES = 16 << 20
"""Measured: 2 to 25 ms to unpack, gzip up to 90."""
TURN = 4 << 20
HEADER = 72
"""Bytes that a parsed header takes at least: a tuple, and its place in a list."""
MOST_HEADERS = 1 << 19
"""Of one record: as many as a megabyte of the log can hold where nothing is packed."""


class BatchTooLarge(CorruptRecordException):
    """A batch that is more in memory than we allow; its offsets are from `start` to before `to`."""

    def __init__(self, tp: TopicPartition, start: int, to: int, why: str) -> None:
        super().__init__(
            f"topic {tp.topic}: the batch of offsets {start} to {to - 1} of partition {tp.partition} {why}"
        )
        self.to = to

    def __str__(self) -> str:
        return str(self.args[0])


class _TooLargeError(Exception):
    """The same, where the offsets are not known."""


class _Unpacked:
    """How much one batch may be, and how much was unpacked in this turn of the event loop, in bytes."""

    most, spent = MAX_BATCH_BYTES, 0

    def clear(self) -> None:
        self.spent = 0


_unpacked = _Unpacked()


def _gzip(packed: bytes, most: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        unpacked = file.read(most + 1)
    if len(unpacked) > most:
        raise _TooLargeError
    return unpacked


def _snappy(packed: bytes, most: int) -> bytes:
    # The decoder holds a block to the length that it declares.
    blocks = list(_snappy_blocks(memoryview(packed)))
    if sum(map(cramjam.snappy.decompress_raw_len, blocks)) > most:
        raise _TooLargeError
    return b"".join(map(cramjam.snappy.decompress_raw, blocks))


def _snappy_blocks(packed: memoryview) -> Iterator[memoryview]:
    """The one block, or those of Java's stream, each behind its length."""
    if not codec._detect_xerial_stream(packed):
        yield packed
        return
    at = 16
    while at < len(packed):
        to = at + 4 + int.from_bytes(packed[at : at + 4], "big")
        if to > len(packed):
            raise ValueError("it ends too soon")
        yield packed[at + 4 : to]
        at = to


def _into(unpack: Callable[[bytes, bytearray], int]) -> Callable[[bytes, int], bytearray]:
    """A decoder that raises where its output is too small, given larger ones until the limit."""

    def bounded(packed: bytes, most: int) -> bytearray:
        size = min(most, max(1 << 16, 8 * len(packed)))
        while True:
            out = bytearray(size)
            try:
                del out[unpack(packed, out) :]
                return out
            except cramjam.DecompressionError as error:
                if "write whole buffer" not in str(error):
                    raise
            if size == most:
                raise _TooLargeError
            size = min(most, 4 * size)

    return bounded


def _fenced(name: str, unpack: Callable[[bytes, int], bytes | bytearray]) -> Callable[[bytes], bytes | bytearray]:
    """The codec's decoder as the client calls it."""

    def decode(packed: bytes) -> bytes | bytearray:
        most = _unpacked.most
        try:
            unpacked = unpack(packed, most)
        except _TooLargeError:
            raise _TooLargeError(f"unpacks to more than {most:,} bytes (kafka.max_batch_bytes can be raised)") from None
        except (cramjam.DecompressionError, zlib.error, EOFError, OSError, ValueError) as error:
            raise CorruptRecordException(f"its {name} data is damaged: {error}") from error
        _unpacked.spent += len(unpacked)
        if len(unpacked) > 2 * MOST_HEADERS:
            from service.streaming.framing import most_headers

            if most_headers(unpacked, 2 * MOST_HEADERS) > MOST_HEADERS:
                raise _TooLargeError(f"has a record of more than {MOST_HEADERS:,} headers")
        return unpacked

    return decode


class _MemoryRecords(memory_records.MemoryRecords):
    """The bytes of batches, which who reads them cuts."""

    def __init__(self, data: bytes | memoryview) -> None:  # theirs wants bytes
        self.data = data

    def size_in_bytes(self) -> int:
        """As theirs."""
        return len(self.data)

    def has_next(self) -> bool:
        """As theirs before the first is taken."""
        return end_of(self.data, 0) <= len(self.data)


class _Batches:
    """A fetch's batches; the one that was taken last is known."""

    def __init__(self, records: Any) -> None:
        self.has_next, self._records = records.has_next, records
        self.last: Any = None

    def next_batch(self) -> Any:
        self.last = self._records.next_batch()
        return self.last


class _PartitionRecords(fetcher.PartitionRecords):
    """Names the batch that is too large."""

    _tp: TopicPartition
    _records: Any
    _records_iterator: Iterator[Any] | None
    next_fetch_offset: int
    taken: Taken
    """What a poll takes, where it is to be whole batches."""

    def __init__(
        self, tp: TopicPartition, records: Any, aborted: Any, at: int, keys: Any, values: Any, *rest: Any
    ) -> None:
        self.whole = values is in_batches
        batches = Batches(records.data, self) if self.whole else memory_records.MemoryRecords(bytes(records.data))
        super().__init__(tp, _Batches(batches), aborted, at, keys, None if self.whole else values, *rest)

    def _consumer_record(self, tp: TopicPartition, record: Any) -> Any:
        if isinstance(record, Part):
            return record
        if record.headers:
            _unpacked.spent += HEADER * len(record.headers)
        if not self.whole:
            return super()._consumer_record(tp, record)
        self.taken.take_one(record)
        return record

    def __next__(self) -> Any:
        try:
            return next(self._records_iterator or iter(()))
        except StopIteration:
            self._records_iterator = None
            self._records = None  # a cycle, which would keep the fetch until a collection
            raise
        except _TooLargeError as error:
            batch = self._records.last
            # The first offset of an old format's batch is in its records.
            start = getattr(batch, "base_offset", self.next_fetch_offset)
            raise BatchTooLarge(self._tp, start, batch.next_offset, str(error)) from None


class _FetchResult(fetcher.FetchResult):
    """Gives the loop its turn when much was unpacked."""

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> Sequence[Any] | Records:
        found: list[Any] = []
        asyncio.get_running_loop().call_soon(_unpacked.clear)
        if _unpacked.spent > TURN or not self.check_assignment(self._topic_partition) or not self.has_more():
            return found
        records = self._partition_records
        taken = records.taken = Taken(max_records or sys.maxsize) if records.whole else None
        for record in records:
            found.append(record)
            full = len(found) == max_records if taken is None else not taken.left
            if full or _unpacked.spent > TURN:
                self._update_position()
                break
        else:
            self._update_position()
            self._partition_records = None
        return found if taken is None else taken.records()


DECODERS: dict[str, Callable[[bytes], bytes | bytearray]] = {
    "gzip": _fenced("gzip", _gzip),
    "snappy": _fenced("snappy", _snappy),
    "lz4": _fenced("lz4", _into(cramjam.lz4.decompress_into)),
    "zstd": _fenced("zstd", _into(cramjam.zstd.decompress_into)),
}


_PARSERS = (default_records, legacy_records)
_COMPILED = (sys.modules[c.__module__] for c in (default_records.DefaultRecordBatch, legacy_records.LegacyRecordBatch))
PLACES: list[tuple[Any, str]] = [
    (consumer, "Fetcher"),
    *((fetcher, name) for name in ("MemoryRecords", "PartitionRecords", "FetchResult")),
    *(
        (module, f"{name}_decode")
        for module in dict.fromkeys([*_PARSERS, *_COMPILED])
        for name in DECODERS
        if name != "zstd" or "legacy" not in module.__name__
    ),
]
"""Where the client looks for what the fence replaces."""


def fence(max_batch_bytes: int) -> None:
    """Put our own there: from now on no batch may have more bytes than this when it is unpacked.

    Raises ImportError where the client has others than we know.
    """
    _unpacked.most = max_batch_bytes
    own: dict[str, Any] = {
        "MemoryRecords": _MemoryRecords, "PartitionRecords": _PartitionRecords, "FetchResult": _FetchResult,
        "Fetcher": Fetcher,
    }  # fmt: skip
    own |= {f"{name}_decode": decode for name, decode in DECODERS.items()}
    for module, name in PLACES:
        ours = own[name]
        theirs = getattr(codec, name, None) or ours.__base__
        if getattr(module, name, None) not in (theirs, ours):
            raise ImportError(f"aiokafka {__version__}: {module.__name__}.{name} is not what streaming/internals knows")
        setattr(module, name, ours)
