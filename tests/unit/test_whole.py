"""Records of whole batches against the client's own, one by one: the same records, or an error at the same place."""

import gc
import itertools
import random
import struct
import weakref
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from service.streaming import internals
from service.streaming.records import Records, value_of
from service.streaming.whole import FEW, in_batches
from tests.batches import CODECS

TP = TopicPartition("t", 0)
FORMS = [
    None, b"", b"application/json", b"application/msgpack", b"application/msgpack; a=b", b"application/msgpackx",
    b"application/x-perceptron-f8", b"application/x-perceptron-f8;", b"application/x-perceptron-f4",
]  # fmt: skip
Seen = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture(autouse=True)
def _fenced() -> None:
    internals.fence(internals.MAX_BATCH_BYTES)
    internals._unpacked.clear()  # of another test in this process


async def read(
    raw: bytes, at: int, way: Any, most: Iterator[int], aborted: Sequence[tuple[int, int]] = ()
) -> tuple[list[Seen], bool, int]:
    """All records of a fetch, whether an error ended it, and the position then."""
    state = SimpleNamespace(position=at, paused=False)
    state.consumed_to = lambda to: setattr(state, "position", to)
    records = fetcher.PartitionRecords(
        TP, fetcher.MemoryRecords(raw), list(aborted), at, None, way, True, fetcher.READ_COMMITTED
    )
    assignment = SimpleNamespace(active=True, state_value=lambda _: state)
    result: Any = fetcher.FetchResult(TP, assignment=assignment, partition_records=records, backoff=0)
    found = list[Seen]()
    while result.has_more():
        internals._unpacked.clear()
        number = next(most)
        try:
            part = result.getall(number)
        except (CorruptRecordException, UnicodeDecodeError, SystemError):  # the last where a size is below 0
            return found, True, state.position
        assert len(part) <= number
        assert isinstance(part, Records) == (way is in_batches)
        if isinstance(part, Records):
            assert part.offsets == [record.offset for record in part]
            values: Any = part.values
            expected = [value_of(record) for record in part]
            assert [(one.__class__, one) for one in values] == [(one.__class__, one) for one in expected]
            assert values[:1].begins.flags.c_contiguous, "as they are for what is compiled"
            assert values.begins.flags.c_contiguous
            assert (values.data[values.ends] < 32).all(), "a compiled loop ends there"
            assert len(part) == 0 or values.ends.max() + 8 <= len(values.data)
        found += [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in part]
    return found, False, state.position


@pytest.mark.parametrize("way", [in_batches, None])
async def test_what_was_read_is_gone_without_a_collection(way: Any) -> None:
    """It is megabytes a fetch, and a collection comes seldom."""
    raw, _ = batch(random.Random(1), 0, old=False)
    state = SimpleNamespace(position=0, paused=False, consumed_to=lambda _: None)
    records = fetcher.PartitionRecords(TP, fetcher.MemoryRecords(raw), [], 0, None, way, True, fetcher.READ_COMMITTED)
    there = weakref.ref(records)
    assignment = SimpleNamespace(active=True, state_value=lambda _: state)
    result: Any = fetcher.FetchResult(TP, assignment=assignment, partition_records=records, backoff=0)
    del records
    gc.disable()
    try:
        assert len(result.getall(1000))
        assert there() is None
    finally:
        gc.enable()


def text(random: random.Random) -> bytes | None:
    return random.choice((None, b"", b"1", b'{"features":[1],"label":1}', random.randbytes(random.randrange(300))))


def batch(
    random: random.Random, offset: int, old: bool, producer: int = -1, transactional: bool = False
) -> tuple[bytes, int]:
    """A batch that begins there, in any codec, and where the next one does; `old` is the format before Kafka 0.11."""
    count = random.choice((1, 2, FEW, FEW + 1, 40, 300))
    codec = random.choice([0, 0, *CODECS.values()])
    if old:
        legacy = LegacyRecordBatchBuilder(1, codec if codec < 4 else 0, 1 << 30)
        for i in range(count if codec in (1, 2, 3) else 1):
            legacy.append(i, timestamp=random.randrange(1 << 40), key=text(random), value=text(random))
            last = i
        raw = bytes(legacy.build())
        # Packed ones count from the last, others have their own.
        return struct.pack(">q", offset + (last if codec in (1, 2, 3) else 0)) + raw[8:], offset + last + 1
    builder = DefaultRecordBatchBuilder(
        2, codec, is_transactional=transactional, producer_id=producer, producer_epoch=0, base_sequence=0,
        batch_size=1 << 30,
    )  # fmt: skip
    at = 0
    crowded = random.random() < 0.2
    for _ in range(count):
        at += random.choice((0, 0, 0, 1, 7))  # what compaction took
        headers = [
            random.choice(
                (
                    ("h" * random.randrange(3) + random.choice(("", "ü")), random.choice((None, b"", b"x" * 70))),
                    (random.choice(("content-type", "content-typ", "Content-Type")), random.choice(FORMS)),
                )
            )
            for _ in range(random.choice((1, 15, 16, 20, 24, 70)) if crowded else random.choice((0, 0, 0, 0, 2)))
        ]
        time = random.choice((-1, 0, 1_700_000_000_000, 9_000_000_000_000_000_000, random.randrange(1 << 62)))
        assert builder.append(at, time, key=text(random), value=text(random), headers=headers)
        at += 1
    built = bytearray(builder.build())
    if random.random() < 0.2:
        built[22] |= 8  # appended: one time for all
    built[:8] = struct.pack(">q", offset)
    return signed(built), offset + at


def signed(raw: bytes | bytearray) -> bytes:
    """With the checksum that it should have."""
    return bytes(raw[:17]) + struct.pack(">I", calc_crc32c(bytes(raw[21:]))) + bytes(raw[21:])


def marker(offset: int, producer: int, committed: bool) -> bytes:
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=1, producer_id=producer, producer_epoch=0, base_sequence=-1, batch_size=1 << 20
    )
    builder.append(0, 1, key=struct.pack(">hh", 0, committed), value=b"\0" * 6, headers=[])
    raw = bytearray(builder.build())
    raw[22] |= 0x20
    raw[:8] = struct.pack(">q", offset)
    return signed(raw)


def fetch(random: random.Random) -> tuple[bytes, int, list[tuple[int, int]]]:
    """Batches of a log from somewhere on, a place to begin in it, and the transactions in it that were aborted.

    All are of one format: of a fetch with two of them the client takes all for the first one's.
    """
    old = random.random() < 0.15
    raw, at, aborted = b"", random.randrange(1000), list[tuple[int, int]]()
    start = at
    for _ in range(random.randrange(1, 6)):
        if not old and random.random() < 0.3:
            producer, committed = random.randrange(1, 9), random.random() < 0.5
            if not committed:
                aborted.append((producer, at))
            for _ in range(random.randrange(1, 3)):
                more, at = batch(random, at, False, producer, transactional=True)
                raw += more
            raw, at = raw + marker(at, producer, committed), at + 1
        else:
            more, at = batch(random, at, old)
            raw += more
    return raw, random.choice((start, start, random.randrange(start, at + 1))), aborted


async def same(raw: bytes, at: int, aborted: Sequence[tuple[int, int]], seed: int, *sizes: int) -> bool:
    """Read both ways, in polls of random sizes; whether an error ended it."""

    def most() -> Iterator[int]:
        polls = random.Random(seed)
        while True:
            yield polls.choice(sizes)

    ours, theirs = [await read(raw, at, way, most(), aborted) for way in (in_batches, None)]
    if theirs[1]:  # a poll that ends with an error gives nothing of what it had: how much that is may differ
        assert ours[1] == theirs[1]
        shorter = min(len(ours[0]), len(theirs[0]))
        assert ours[0][:shorter] == theirs[0][:shorter]
    else:
        assert ours == theirs
    return theirs[1]


@pytest.mark.parametrize("seed", range(60))
async def test_records_of_whole_batches_are_the_clients_own(seed: int) -> None:
    """Over codecs, formats, null keys and values, headers, times, compaction, transactions, aborted ones."""
    raw, at, aborted = fetch(random.Random(seed))
    assert await same(raw, at, aborted, seed, 1, 2, 7, 100, 2000) is False


async def test_what_is_damaged_is_refused_where_the_client_refuses_it() -> None:
    """Bytes within a batch are changed, and the checksum with them or not; record by record the same come before."""
    damaged = 0
    for seed in range(600):
        source = random.Random(seed)
        raw = b"".join(batch(source, at, False)[0] for at in (0, 10_000))
        changed = bytearray(raw)
        for _ in range(source.randrange(1, 4)):
            changed[source.randrange(57, len(raw)) if source.random() < 0.9 else 60] = source.choice(
                (0, 1, 2, 127, 128, 255, source.randrange(256))
            )
        size = 12 + int.from_bytes(changed[8:12])
        if changed[16] == 2 and source.random() < 0.9:
            changed[:size] = signed(changed[:size])
        damaged += await same(bytes(changed), 0, (), seed, 1)
    assert 50 < damaged < 550


async def test_a_header_whose_name_is_no_utf_8_is_refused_when_its_record_is_reached() -> None:
    for before in (0, FEW, 30):
        builder = DefaultRecordBatchBuilder(
            2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 20
        )
        for i in range(before + 1):
            builder.append(i, 0, key=None, value=b"1", headers=[("ü", b"x")] if i == before else [])
        raw = signed(bytes(builder.build()).replace("ü".encode(), b"\xc3\x28"))
        assert await same(raw, 0, (), 0, 1)
        assert [record[0] for record in (await read(raw, 0, in_batches, itertools.repeat(1)))[0]] == list(range(before))
        assert await read(raw, 0, in_batches, itertools.repeat(2000)) == ([], True, 0)
