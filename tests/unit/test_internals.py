"""The fence around what the Kafka client unpacks: in its place, and as high as it says."""

import asyncio
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import aiokafka.codec
import cramjam
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import encode_varint

from service.settings.kafka import KafkaSettings
from service.settings.load import Settings
from service.streaming import internals
from service.streaming.framing import most_headers
from service.streaming.internals import DECODERS, MAX_BATCH_BYTES, MOST_HEADERS, TURN, BatchTooLarge
from service.streaming.whole import FEW, in_batches
from tests.batches import CODECS, Headers, packed

MIB = 1 << 20
codecs = pytest.mark.parametrize("codec", list(CODECS))


@pytest.fixture(autouse=True, params=["whole batches", "one by one"])
def _turn_over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins a turn of the loop, of a consumer of each way to poll."""
    monkeypatch.setattr(Partition, "way", staticmethod(in_batches) if request.param == "whole batches" else None)
    internals.fence(MAX_BATCH_BYTES)
    internals._unpacked.clear()
    yield
    internals.fence(MAX_BATCH_BYTES)


class Partition:
    """What a consumer holds of one partition's fetch."""

    way: Any = None

    def __init__(self, raw: bytes, at: int = 0) -> None:
        self.position = at
        tp = TopicPartition("t", 0)
        records = fetcher.MemoryRecords(raw)
        part = fetcher.PartitionRecords(tp, records, [], at, None, self.way, True, fetcher.READ_COMMITTED)
        assignment = SimpleNamespace(active=True, state_value=lambda _: self)
        self.result: Any = fetcher.FetchResult(tp, assignment=assignment, partition_records=part, backoff=0)

    paused = False

    def consumed_to(self, position: int) -> None:
        self.position = position

    def poll(self, most: int = 500) -> list[Any]:
        return list(self.result.getall(most))


def at_offset(raw: bytes, offset: int) -> bytes:
    """The batch as the log has it there."""
    return struct.pack(">q", offset) + raw[8:]


def test_the_fence_says_so_where_the_client_is_not_as_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in internals.PLACES:
        ours = "service.streaming.fetches" if name == "Fetcher" else "service.streaming.internals"
        assert getattr(module, name).__module__ == ours, f"{module.__name__}.{name}"
        with monkeypatch.context() as broken:
            broken.delattr(module, name)
            with pytest.raises(ImportError, match=f"{module.__name__}.{name} is not what streaming/internals knows"):
                internals.fence(MAX_BATCH_BYTES)


async def test_the_limit_is_a_setting_of_every_consumer() -> None:
    settings = Settings(kafka=KafkaSettings(max_batch_bytes=70_000))
    await settings.kafka.cluster.consumer().stop()
    with pytest.raises(internals._TooLargeError):
        DECODERS["zstd"](bytes(cramjam.zstd.compress(bytes(70_001))))
    assert len(DECODERS["zstd"](bytes(cramjam.zstd.compress(bytes(70_000))))) == 70_000


@codecs
def test_unpacking_stops_at_the_limit(codec: str) -> None:
    """To the byte, in the client's compiled parser and in its plain one, however little the batch is in the log."""
    internals.fence(3 * MIB)
    framing = 13  # of this record: lengths, attributes, deltas
    fits, over = (packed(codec, [(bytes(3 * MIB - framing + more), [])]) for more in (0, 1))
    assert len(over) < 200_000
    for batch in (MemoryRecords(fits).next_batch(), _DefaultRecordBatchPy(fits)):
        assert [len(record.value) for record in batch] == [3 * MIB - framing]
    for batch in (MemoryRecords(over).next_batch(), _DefaultRecordBatchPy(over)):
        with pytest.raises(internals._TooLargeError, match=r"unpacks to more than 3,145,728 bytes \(kafka"):
            list(batch)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
async def test_a_batch_of_the_old_format_is_held_to_it_too(codec: str) -> None:
    builder = LegacyRecordBatchBuilder(1, CODECS[codec], 1 << 30)
    for i in range(3):
        builder.append(i, timestamp=1, key=None, value=bytes(MIB))
    raw = at_offset(bytes(builder.build()), 42)
    assert [record.offset for record in Partition(raw, 40).poll()] == [40, 41, 42]
    internals.fence(2 * MIB)
    with pytest.raises(BatchTooLarge, match="the batch of offsets 40 to 42 of partition 0 unpacks to more than 2,097"):
        Partition(raw, 40).poll()


@codecs
async def test_a_batch_that_is_too_large_is_named_and_what_is_before_it_is_read(codec: str) -> None:
    small, large = packed(codec, [(b"a" * 999, [])] * 3), packed(codec, [(bytes(20 * MIB), []), (b"b", [])])
    raw = at_offset(small, 20) + at_offset(large, 23)
    assert [record.offset for record in Partition(raw, 20).poll(3)] == [20, 21, 22]
    with pytest.raises(BatchTooLarge) as caught:
        Partition(raw, 20).poll()
    assert str(caught.value).startswith(
        "topic t: the batch of offsets 23 to 24 of partition 0 unpacks to more than 16,"
    )
    assert caught.value.to == 25


@codecs
async def test_a_record_of_very_many_headers_is_refused_before_it_is_parsed(codec: str) -> None:
    few: Headers = [("ü", b"1"), ("", None)]
    many: Headers = [("", b"")] * (MOST_HEADERS + 1)
    ordinary: list[tuple[bytes | None, Headers]] = [(b"v" * 300, few), (None, [])] * 4000
    assert len(Partition(packed(codec, [*ordinary, (None, many[1:])])).poll(10_000)) == 8001
    internals._unpacked.clear()
    with pytest.raises(BatchTooLarge, match="of partition 0 has a record of more than 524,288 headers"):
        Partition(packed(codec, [*ordinary, (None, many)])).poll(10_000)


def test_headers_are_counted_without_parsing() -> None:
    many: Headers = [("a", b"b")] * 700_000
    raw = aiokafka.codec.zstd_decode(packed("zstd", [(b"v" * 70_000, []), (b"", many), (None, [])])[61:])
    assert most_headers(raw, MIB) == 700_000
    assert most_headers(raw, 10 * MIB) == 0
    for damaged in (b"", b"\xff" * 30, b"\x80" * 9, raw[:100], raw[70_030:70_060], b"\x01" * 50):
        assert most_headers(damaged, 0) >= 0


@pytest.mark.parametrize("size", [(1 << 63) - 1, 1 << 62, 1 << 40])
def test_a_size_that_leads_out_of_memory_is_followed_nowhere(size: int) -> None:
    key = bytearray()
    encode_varint(size, key.append)
    record = bytes(3) + key + bytes(3000)
    raw = bytearray()
    encode_varint(len(record), raw.append)
    assert most_headers(raw + record, 10) == 0


@codecs
def test_what_cannot_be_unpacked_is_a_damaged_batch(codec: str) -> None:
    raw = packed(codec, [(b"value " * 100, [])] * 10)
    for damaged in (raw[61:-5], raw[61:70] + b"\xff" * 20 + raw[90:]):
        with pytest.raises(CorruptRecordException, match=f"its {codec} data is damaged"):
            DECODERS[codec](damaged)


def test_a_snappy_stream_whose_length_goes_back_ends() -> None:
    """The client's own decoder goes round such a one for ever."""
    stream = aiokafka.codec.snappy_encode(b"value " * 20_000)
    assert DECODERS["snappy"](stream) == b"value " * 20_000
    with pytest.raises(CorruptRecordException, match="its snappy data is damaged: it ends too soon"):
        DECODERS["snappy"](stream[:16] + struct.pack(">i", -4) + stream[20:])
    assert DECODERS["snappy"](bytes(cramjam.snappy.compress_raw(b"plain"))) == b"plain"


async def test_a_turn_of_the_loop_unpacks_so_much_and_no_more() -> None:
    """Twenty batches of 2 MiB each, of two partitions: every poll ends early, and none of their records is lost."""
    raw = packed("zstd", [(bytes(MIB), []), (b"b", [])])
    log = b"".join(at_offset(raw, 2 * i) for i in range(20))
    partitions, polls, seen = [Partition(log), Partition(log)], 0, [list[int](), list[int]()]
    while any(p.result.has_more() for p in partitions):
        polls += 1
        for p, offsets in zip(partitions, seen, strict=True):
            offsets.extend(record.offset for record in (p.poll() if p.result.has_more() else ()))
        assert internals._unpacked.spent <= TURN + MIB + 100
        await asyncio.sleep(0)
    assert seen == [list(range(40))] * 2
    assert 40 * MIB / (TURN + MIB) <= polls <= 40
    crowded = packed("zstd", [(b"v", [("", b"")] * 30_000)] * FEW)
    few = Partition(crowded)
    for _ in range(3):
        assert len(few.poll()) == 2
        await asyncio.sleep(0)


@codecs
def test_what_a_producer_packs_is_unpacked_as_the_client_does(codec: str) -> None:
    for size in (10, 100_000, 3 * MIB):
        raw = packed(codec, [(b"v%d" % i * 10, [("h", b"1")]) for i in range(size // 40)] + [(bytes(size), [])])[61:]
        assert DECODERS[codec](raw) == getattr(aiokafka.codec, f"{codec}_decode")(raw)
