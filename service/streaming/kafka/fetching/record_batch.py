"""Record batches as the broker stores them. Their records are read without an object for each.

Source of the layout: Kafka's documentation, "Record Batch". `RecordsBuilder` joins batches, or parts of batches, into
`KafkaRecords`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from service.learning.records import PartitionId
from service.streaming.kafka.fetching.compression import DamagedBatch, decompress
from service.streaming.kafka.fetching.record_framing import KEY, MIN_RECORD_BYTES, OFFSET, TABLE_ROWS, frame_records
from service.streaming.records import KafkaRecords, find_formats

HEAD = Struct(">qiibIhiqqqhii")
"""Base offset, length of the rest, leader epoch, magic, checksum, attributes, last offset relative to the first, first
and largest timestamp, producer's id and epoch, sequence number, number of records."""
LENGTH = Struct(">qi")
"""Base offset and length: the first fields of a batch, in every format."""
MAGIC_BYTE, CHECKED_FROM = 16, 21
"""The positions of the format's number and of the first byte that the checksum covers."""
CODEC, APPEND_TIME, TRANSACTIONAL, CONTROL = 7, 8, 16, 32
"""Bits of the attributes."""
ABORT = 0
"""The type of a control record that ends an aborted transaction; 1 is a commit."""
SPARE_BYTES = 8
"""Zero bytes after the last value: a compiled reader loads eight bytes at a time."""


@dataclass(slots=True)
class RecordBatch:
    """One batch of format 2. Kafka before 0.11 wrote other formats, which are not read."""

    start: int
    """The first offset."""
    end: int
    """The offset after the last one."""
    data: memoryview
    count: int
    attributes: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    aborted: bool = False
    """Whether the transaction was aborted."""

    @property
    def has_records(self) -> bool:
        """Whether the batch has records to learn. A control batch marks the end of a transaction."""
        return not self.attributes & CONTROL and not self.aborted and self.count > 0

    @property
    def ends_aborted(self) -> bool:
        """Whether this control batch ends an aborted transaction. The key of its record is version and type."""
        record_table = np.empty((TABLE_ROWS, 1), np.int64)
        body = np.frombuffer(self.data, np.uint8, offset=HEAD.size)
        _, count, _ = frame_records(body.ctypes.data, len(body), 0, 0, 0, (0, 0, False), (0, 1), record_table)
        key = record_table[KEY, 0] if count else -1
        return key >= 0 and int.from_bytes(bytes(body[key + 2 : key + 4])) == ABORT


@dataclass(slots=True)
class FetchedBatches:
    """The batches of one partition in a response."""

    batches: list[RecordBatch]
    """The complete batches with the right checksum, up to the first damaged one."""
    damage: str = ""
    """The fault of the next batch; "" if it has none."""
    cut_start: int | None = None
    """The first offset of the next batch, if the response has only the beginning of it."""
    cut_size: int = 0
    """The size in bytes of that batch; HEAD.size if not even its length is in the response."""


def parse_batches(data: bytes | memoryview, aborted: Sequence[tuple[int, int]] = ()) -> FetchedBatches:
    """Split a response into batches and check their checksums; records stay compressed.

    A response lists aborted transactions by producer id and first offset: their batches are marked.
    """
    rest, fetched = memoryview(data), FetchedBatches([])
    while rest:
        if len(rest) < LENGTH.size:
            fetched.cut_size = HEAD.size
            break
        start, length = LENGTH.unpack_from(rest)
        size = LENGTH.size + length
        if size > len(rest):
            fetched.cut_start, fetched.cut_size = start, size
            break
        try:
            fetched.batches.append(_parse(rest[: max(size, 0)]))
        except DamagedBatch as error:
            fetched.damage = str(error)
            break
        rest = rest[size:]
    _mark_aborted(fetched.batches, aborted)
    return fetched


def _parse(data: memoryview) -> RecordBatch:
    """A batch of format 2; raises DamagedBatch."""
    if len(data) < HEAD.size or data[MAGIC_BYTE] != 2:
        raise DamagedBatch(f"a batch of {len(data)} bytes is not of format 2, which Kafka has had since 0.11")
    start, _, _, _, checksum, attributes, last, first_time, max_time, producer, _, _, count = HEAD.unpack_from(data)
    if checksum != google_crc32c.value(np.frombuffer(data, np.uint8, offset=CHECKED_FROM)):
        raise DamagedBatch("a batch's checksum is wrong")
    if last < 0 or not 0 <= count <= last + 1 or (count == 0 and len(data) > HEAD.size):
        raise DamagedBatch(f"a batch has {count} records and offsets up to {start + last} from {start} on")
    return RecordBatch(start, start + last + 1, data, count, attributes, first_time, max_time, producer)


def _mark_aborted(batches: Iterable[RecordBatch], aborted: Sequence[tuple[int, int]]) -> None:
    waiting, producers = sorted(aborted, key=lambda transaction: transaction[1]), set[int]()
    for batch in batches:
        while waiting and waiting[0][1] < batch.end:
            producers.add(waiting.pop(0)[0])
        if batch.attributes & CONTROL:
            if batch.producer_id in producers and batch.ends_aborted:
                producers.discard(batch.producer_id)
        elif batch.attributes & TRANSACTIONAL:
            batch.aborted = batch.producer_id in producers


class OpenBatch:
    """A decompressed batch whose records are taken in parts."""

    def __init__(self, batch: RecordBatch, max_bytes: int) -> None:
        """Raises DamagedBatch, also if the records have more than `max_bytes`."""
        self.batch = batch
        unpacked = decompress(batch.attributes & CODEC, batch.data[HEAD.size :], max_bytes)
        self.records = np.frombuffer(unpacked, np.uint8)
        self.remaining = batch.count
        self._address, self._at, self._following = self.records.ctypes.data, 0, batch.start
        appended = bool(batch.attributes & APPEND_TIME)
        self._base = batch.start, batch.max_timestamp if appended else batch.first_timestamp, appended

    def frame(self, start: int, count: int, shift: int) -> tuple[memoryview, NDArray[np.int64]]:
        """At most the next `count` records, from the offset `start` on: their bytes, and their record table.

        The position of the first byte is `shift`. Raises DamagedBatch.
        """
        count = min(count, self.remaining, (len(self.records) - self._at) // MIN_RECORD_BYTES + 1)
        record_table, begin = np.empty((TABLE_ROWS, count), np.int64), self._at
        bounds, offsets = (begin, shift - begin, start), (self._following, self.batch.end)
        end, framed, self._following = frame_records(
            self._address, len(self.records), *bounds, self._base, offsets, record_table
        )
        if end < 0:
            raise DamagedBatch(f"has a damaged record, or offsets that do not rise, after offset {self._following - 1}")
        self._at, self.remaining = end, self.remaining - count
        if self.remaining <= 0 and end != len(self.records):
            raise DamagedBatch(f"{len(self.records) - end} bytes follow its last record")
        return self.records.data[begin:end], record_table[:, :framed]


class RecordsBuilder:
    """Joins parts of batches into `KafkaRecords`."""

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0
        self._parts, self._tables = list[memoryview](), [np.empty((TABLE_ROWS, 0), np.int64)]

    def add(self, batch: OpenBatch, start: int, count: int) -> int:
        """Add at most the next `count` records of the batch, from the offset `start` on.

        Returns the offset after them, which is the batch's end if it has no more. Raises DamagedBatch.
        """
        data, record_table = batch.frame(start, count, self.bytes)
        self._parts.append(data)
        self._tables.append(record_table)
        self.bytes, self.count = self.bytes + len(data), self.count + record_table.shape[1]
        if batch.remaining <= 0:
            return batch.batch.end
        return int(record_table[OFFSET, -1]) + 1 if record_table.shape[1] else start

    def build(self, partition: PartitionId) -> KafkaRecords:
        """All records that were added, of this partition. Do not use the builder afterwards."""
        data = np.frombuffer(b"".join((*self._parts, bytes(SPARE_BYTES))), np.uint8)
        record_table = np.ascontiguousarray(np.concatenate(self._tables, 1))  # loops are compiled for this layout
        return KafkaRecords(data, record_table, find_formats(data, record_table), [partition])
