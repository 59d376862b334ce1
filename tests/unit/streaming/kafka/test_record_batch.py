"""Our records of whole batches are those of aiokafka, or both report an error."""

import random
import struct
from typing import Any

import cramjam
import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from service.streaming.kafka.fetching.compression import XERIAL_HEADER_BYTES, XERIAL_MAGIC, DamagedBatch, decompress
from service.streaming.kafka.fetching.record_batch import HEAD, OpenBatch, RecordsBuilder, parse_batches
from service.streaming.records import KafkaRecord
from tests.batches import CODECS, add_checksum, build_batch, open_builder
from tests.partitions import P0

MAX_BYTES = 16 << 20
XERIAL_HEADER = XERIAL_MAGIC.ljust(XERIAL_HEADER_BYTES, b"\1")
CONTENT_TYPES = [
    None, b"", b"application/json", b"application/msgpack", b"application/msgpack; a=b", b"application/msgpackx",
    b"application/x-perceptron-f8", b"application/x-perceptron-f8;", b"application/x-perceptron-f4",
]  # fmt: skip


def format_name(record: KafkaRecord) -> str:
    """The name of the record's format: its last content type counts, without parameters."""
    content_types = [(value or b"").split(b";")[0] for name, value in record.headers if name == "content-type"]
    names = {b"application/msgpack": "msgpack", b"application/x-perceptron-f8": "f8"}
    return names.get(content_types[-1] if content_types else b"", "json")


def read_records(raw: bytes, start: int, step: int, aborted: list[tuple[int, int]]) -> list[KafkaRecord]:
    """All records from an offset on, read in parts of `step`; raises DamagedBatch."""
    response = parse_batches(raw, aborted)
    if response.damage:
        raise DamagedBatch(response.damage)
    records = list[KafkaRecord]()
    for batch in response.batches:
        if not batch.has_records:
            continue
        open_batch = OpenBatch(batch, MAX_BYTES)
        while open_batch.remaining > 0:
            builder = RecordsBuilder()
            builder.add(open_batch, start, step)
            part = builder.build(P0)
            assert part.offsets.tolist() == [record.offset for record in part]
            assert part.timestamps.tolist() == [record.timestamp for record in part]
            assert [*part.values] == [record.value for record in part]
            assert [part.values.format_at(i).name for i in range(len(part))] == [format_name(record) for record in part]
            for name in ("content-type", "h"):
                last = {i: dict(record.headers).get(name) for i, record in enumerate(part)}
                assert part.header_values(name) == {i: value for i, value in last.items() if value is not None}
            assert part.values.begins.flags.c_contiguous, "compiled loops are compiled for one layout"
            assert len(part) == 0 or part.values.ends.max() + 8 <= len(part.values.data)
            records += part
    return records


def aiokafka_records(raw: bytes, start: int, dropped: set[int]) -> list[KafkaRecord]:
    """The same records by aiokafka's classes, without the aborted batches that begin at `dropped` offsets.

    Unlike aiokafka this refuses offsets that do not rise within their batch.
    """
    records, batches = list[KafkaRecord](), MemoryRecords(raw)
    while (batch := batches.next_batch()) is not None:
        if not batch.validate_crc():
            raise CorruptRecordException
        if batch.is_control_batch or (batch.producer_id is not None and batch.base_offset in dropped):
            continue
        following = batch.base_offset
        for record in batch:
            if not following <= record.offset < batch.next_offset:
                raise CorruptRecordException
            following = record.offset + 1
            if record.offset >= start:
                time = -1 if record.timestamp is None else record.timestamp
                records.append(KafkaRecord(record.offset, time, record.key, record.value, tuple(record.headers)))
    return records


def content(rng: random.Random) -> bytes | None:
    return rng.choice((None, b"", b"1", b'{"features":[1],"label":1}', rng.randbytes(rng.randrange(300))))


def batch(
    rng: random.Random, offset: int, producer: int = -1, transactional: bool = False, codec: int | None = None
) -> tuple[bytes, int]:
    """A batch that begins at this offset, in any codec, and the offset after it."""
    codec = rng.choice([0, 0, *CODECS.values()]) if codec is None else codec
    builder = open_builder(codec, producer, transactional)
    delta, crowded, before = 0, rng.random() < 0.2, list[tuple[str, bytes | None]]()
    for _ in range(rng.choice((1, 2, 8, 40, 300))):
        delta += rng.choice((0, 0, 0, 1, 7))  # removed by compaction
        headers = [
            rng.choice(
                (
                    ("h" * rng.randrange(3) + rng.choice(("", "ü")), rng.choice((None, b"", b"x" * 70))),
                    (rng.choice(("content-type", "content-typ", "Content-Type")), rng.choice(CONTENT_TYPES)),
                )
            )
            for _ in range(rng.choice((1, 15, 16, 70)) if crowded else rng.choice((0, 0, 0, 2)))
        ]
        before = headers = before if rng.random() < 0.3 else headers
        time = rng.choice((-1, 0, 1_700_000_000_000, 9_000_000_000_000_000_000, rng.randrange(1 << 62)))
        assert builder.append(delta, time, key=content(rng), value=content(rng), headers=headers)
        delta += 1
    raw = bytearray(builder.build())
    if rng.random() < 0.2:
        raw[22] |= 8  # all records have the time of the append
    raw[:8] = struct.pack(">q", offset)
    return add_checksum(raw), offset + delta


def marker(offset: int, producer: int, committed: bool) -> bytes:
    builder = open_builder(producer=producer, transactional=True)
    builder.append(0, 1, key=struct.pack(">hh", 0, committed), value=b"\0" * 6, headers=[])
    raw = bytearray(builder.build())
    raw[22] |= 0x20
    raw[:8] = struct.pack(">q", offset)
    return add_checksum(raw)


@pytest.mark.parametrize("seed", range(20))
def test_records_are_those_of_the_client(seed: int) -> None:
    """They are equal over codecs, null keys and values, headers, times, compaction and aborted transactions."""
    rng = random.Random(seed)
    raw, offset, aborted, dropped = b"", rng.randrange(1000), list[tuple[int, int]](), set[int]()
    begin = offset
    for _ in range(rng.randrange(1, 6)):
        if rng.random() < 0.3:
            producer, committed = rng.randrange(1, 9), rng.random() < 0.5
            if not committed:
                aborted.append((producer, offset))
            for _ in range(rng.randrange(1, 3)):
                dropped |= set() if committed else {offset}
                data, offset = batch(rng, offset, producer, transactional=True)
                raw += data
            raw, offset = raw + marker(offset, producer, committed), offset + 1
        else:
            data, offset = batch(rng, offset)
            raw += data
    start = rng.choice((begin, rng.randrange(begin, offset + 1)))
    for step in (1, 7, 2000):
        assert read_records(raw, start, step, aborted) == aiokafka_records(raw, start, dropped)


def test_damaged_batches_are_refused_as_the_client_refuses_them() -> None:
    """Random bytes of a batch are changed, and its checksum is made to match."""
    damaged = 0
    for seed in range(200):
        rng = random.Random(seed)
        altered = bytearray(batch(rng, 0)[0])
        for _ in range(rng.randrange(1, 4)):
            place = rng.choice((26, 60)) if rng.random() < 0.2 else rng.randrange(61, len(altered))
            altered[place] = rng.choice((0, 1, 2, 127, 128, 255))
        raw = add_checksum(altered)
        expected: Any = None
        try:
            expected = aiokafka_records(raw, 0, set())
        except Exception:  # whatever its codecs and parsers raise
            damaged += 1
        try:
            records = read_records(raw, 0, 2000, [])
        except DamagedBatch as error:
            records = expected if "a block is cut short" in str(error) else []  # aiokafka does not see that
        assert expected is None or records == expected
    assert 15 < damaged < 185


def varint(number: int) -> bytes:
    """Kafka's variable-length number."""
    rest, data = (number << 1) ^ (number >> 63), bytearray()
    while rest > 127:
        data.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*data, rest])


def test_a_batch_is_read_if_its_offsets_rise_and_its_counts_are_right_and_is_damage_otherwise() -> None:
    """The attributes of a record are one byte, whatever it is. This writer and its rules are the test's own."""
    refused = 0
    for seed in range(2000):
        rng = random.Random(seed)
        deltas = sorted(rng.sample(range(12), rng.randint(1, 6)))
        last, count, top = rng.choice((deltas[-1], 11)), len(deltas), deltas[-1]
        for _ in range(rng.choice((0, 1, 1, 2))):
            i, what = rng.randrange(len(deltas)), rng.randrange(4)
            if what < 2:
                deltas[i] += rng.choice((-1, 1, -1000, 1000, -(1 << 31), 1 << 31, 1 << 40))
            elif what == 2:
                last += rng.choice((-1, 1, -top, 1000, -1000))
            else:
                count += rng.choice((-1, 1, -count, 1000, -1000))
        body, expected = b"", list[tuple[int, bytes]]()
        for delta in deltas:
            value, attributes = rng.randbytes(rng.randrange(5)), bytes([rng.choice((0, 1, 127, 128, 255))])
            record = attributes + varint(0) + varint(delta) + varint(-1) + varint(len(value)) + value + varint(0)
            body, expected = body + varint(len(record)) + record, [*expected, (70 + delta, value)]
        head = HEAD.pack(70, HEAD.size - 12 + len(body), 0, 2, 0, 0, last, 1, 1, -1, -1, -1, count)
        rising = all(a < b for a, b in zip([-1, *deltas], deltas, strict=False)) and deltas[-1] <= last
        try:
            records = read_records(add_checksum(head + body), 0, rng.choice((1, 3, 2000)), [])
            assert [(record.offset, record.value) for record in records] == expected, seed
            assert (rising, count) == (True, len(deltas)), seed
        except DamagedBatch:
            assert not (rising and count == len(deltas)), seed
            refused += 1
    assert 700 < refused < 1700


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy"])
def test_bytes_after_compressed_data_are_read_as_the_java_client_reads_them(codec: str) -> None:
    """After gzip and lz4 they are ignored; another stream of snappy goes on with the data."""
    [plain] = parse_batches(build_batch(0, [KafkaRecord(i, 1, None, b"%d" % i * 50, ()) for i in range(3)])).batches
    records = bytes(plain.data[HEAD.size :])
    packed = bytes(getattr(cramjam, codec).compress(records)) + b"\0\0junk"
    if codec == "snappy":
        blocks = [bytes(cramjam.snappy.compress_raw(half)) for half in (records[:40], records[40:])]
        packed = b"".join(XERIAL_HEADER + len(block).to_bytes(4, "big") + block for block in blocks)
    assert bytes(decompress(CODECS[codec], memoryview(packed), MAX_BYTES)) == records


def test_an_incomplete_batch_says_where_it_begins() -> None:
    first, middle = batch(random.Random(1), 5)
    second, end = batch(random.Random(2), middle)
    for cut in (12, 30, len(second) - 1):
        response = parse_batches(first + second[:cut])
        assert [(b.start, b.end) for b in response.batches] == [(5, middle)]
        assert (response.cut_start, response.cut_size, response.damage) == (middle, len(second), "")
    assert [(b.start, b.end) for b in parse_batches(first + second).batches] == [(5, middle), (middle, end)]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
def test_a_batch_is_unpacked_up_to_a_limit(codec: int) -> None:
    builder = open_builder(codec)
    builder.append(0, 0, key=None, value=bytes(1 << 20), headers=[])
    [small] = parse_batches(bytes(builder.build())).batches
    assert len(OpenBatch(small, 2 << 20).records) > 1 << 20
    with pytest.raises(DamagedBatch, match=r"unpacks to more than 1,000,000 bytes \(kafka.max_batch_bytes"):
        OpenBatch(small, 1_000_000)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_batch_of_an_old_format_is_refused_by_name(magic: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    builder.append(0, timestamp=1, key=None, value=b"1" * 100)
    assert "is not of format 2" in parse_batches(bytes(builder.build())).damage


def test_random_bytes_are_damage_or_cut_short() -> None:
    for seed in range(2000):
        rng = random.Random(seed)
        parse_batches(rng.randbytes(rng.randrange(200)))
