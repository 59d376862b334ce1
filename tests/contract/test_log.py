"""The contract of `ports.Log`: Kafka's log and the simulator's both keep it, so the simulator is a valid model."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from service.errors import DependencyError, LogGap
from service.learning.records import PartitionId
from service.streaming.ports import Log
from service.streaming.records import KafkaRecord, Message
from tests.conftest import until
from tests.contract.sides import SESSION_SECONDS, Content, Side, SimulatedSide, kafka_side, plain_contents
from tests.partitions import P0, P1, P2

# If a silent broker does not accept a connection in time, the client drops the connection without closing it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Unclosed AIOKafkaConnection:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning"),
]


@pytest.fixture(params=["simulator", "kafka"])
async def side(request: pytest.FixtureRequest, topic: str) -> AsyncIterator[Side]:
    if request.param == "simulator":
        yield SimulatedSide()
        return
    stops = request.function is test_a_silent_broker_is_an_error_and_then_forgotten
    async with kafka_side(request.getfixturevalue("own_kafka" if stops else "kafka"), topic) as real:
        yield real
    gc.collect()  # otherwise another test gets the warnings about dropped connections


async def first_answer(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Return the first answer without an error: a rebalance or an outage may have just ended."""

    async def answer_or_none() -> Any:
        with contextlib.suppress(DependencyError):
            return [await ask()]

    return (await until(answer_or_none, "an answer"))[0]


async def poll_records(log: Log, **numbers: int) -> dict[PartitionId, list[KafkaRecord]]:
    """Poll these numbers of records, by partition (`p0=3`), and check that no more follow."""
    expected = {PartitionId(int(name[1:])): number for name, number in numbers.items() if number}
    polled: dict[PartitionId, list[KafkaRecord]] = {}

    async def all_polled() -> bool:
        for partition, records in (await log.poll()).items():
            assert len(records), "a poll must leave out a partition without records"
            polled.setdefault(partition, []).extend(records)
        return {p: len(records) for p, records in polled.items()} == expected

    await until(all_polled, f"{expected} records; polled {[(p, len(r)) for p, r in polled.items()]}")
    for _ in range(2):
        assert not await log.poll()
    return polled


async def start(log: Log, **numbers: int) -> dict[PartitionId, list[KafkaRecord]]:
    """Acquire the topic and poll these numbers of records from offset 0 on."""
    assert await log.acquire()
    log.seek({P0: 0, P1: 0})
    return await poll_records(log, **numbers)


async def assert_raises(ask: Callable[[], Awaitable[Any]]) -> None:
    """Check that the call raises DependencyError, now or soon, and returns nothing truthy before that."""
    with pytest.raises(DependencyError) as caught:
        await until(ask, "an error")
    assert caught.value.dependency == "kafka"


async def test_records_are_polled_unchanged_and_in_order(side: Side) -> None:
    """Many polls, with keys, headers, tombstones and empty values; partitions are independent."""
    contents: list[Content] = [
        (b"key", b"value", ()), (b"key", None, ()), (None, b"", ()), (b"", "ü".encode(), (("h", b"1"), ("h", b""))),
        *plain_contents(1200),
    ]  # fmt: skip
    first = await side.produce(0, contents)
    second = await side.produce(1, plain_contents(5))
    assert [record.offset for record in first] == list(range(1204))
    assert await side.log.acquire()
    side.log.seek({P0: 0, P1: 2})
    assert await poll_records(side.log, p0=1204, p1=3) == {P0: first, P1: second[2:]}
    assert side.log.positions() == {P0: 1204, P1: 5}
    later = await side.produce(1, plain_contents(2))
    assert await poll_records(side.log, p1=2) == {P1: later}


async def test_a_seek_moves_only_its_partitions_in_either_direction(side: Side) -> None:
    records = await side.produce(0, plain_contents(20))
    await side.produce(1, plain_contents(4))
    await start(side.log, p0=20, p1=4)
    side.log.seek({P0: 3})
    assert await poll_records(side.log, p0=17) == {P0: records[3:]}
    # In the middle of the fetched records.
    side.log.seek({P0: 0})
    await until(side.log.poll, "some")
    side.log.seek({P0: 18})
    assert side.log.positions() == {P0: 18, P1: 4}
    assert await poll_records(side.log, p0=2) == {P0: records[18:]}


async def test_bounds_are_first_and_next_offset(side: Side) -> None:
    """For an empty topic, for a growing one, and after its first records and then all records were deleted."""
    assert await side.log.acquire()
    assert await side.log.bounds() == {P0: (0, 0), P1: (0, 0)}
    side.log.seek({P0: 0, P1: 0})
    assert await side.log.poll() == {}
    assert side.log.positions() == {P0: 0, P1: 0}
    records = await side.produce(0, plain_contents(7))
    assert await side.log.bounds() == {P0: (0, 7), P1: (0, 0)}
    await side.trim(4)
    assert await side.log.bounds() == {P0: (4, 7), P1: (0, 0)}
    starts = {1: 4, records[5].timestamp: 5, records[6].timestamp + 1: 7}
    assert [await side.log.bounds(time) for time in starts] == [{P0: (n, 7), P1: (0, 0)} for n in starts.values()]
    gap = await side.gap()
    assert await side.log.bounds() == {P0: (4, 7 + gap), P1: (0, 0)}
    await side.trim(7 + gap)
    assert await side.log.bounds() == {P0: (7 + gap, 7 + gap), P1: (0, 0)}
    side.log.seek({P0: 7 + gap})
    assert await side.log.poll() == {}
    assert side.log.positions()[P0] == 7 + gap


async def test_a_partition_that_is_added_comes_with_the_next_assignment(side: Side) -> None:
    before = await side.produce(0, plain_contents(3))
    assert await side.log.acquire()
    topic = await side.log.source()
    await side.grow()
    assert not side.log.held
    assert await side.log.acquire()
    assert await side.log.bounds() == {P0: (0, 3), P1: (0, 0), P2: (0, 0)}
    assert await side.log.source() == topic
    added = await side.produce(2, plain_contents(2))
    side.log.seek({P0: 0, P1: 0, P2: 0})
    assert await poll_records(side.log, p0=3, p2=2) == {P0: before, P2: added}


async def test_positions_pass_offsets_without_a_record(side: Side) -> None:
    """An aborted transaction and its marker, between records and after the last one."""
    before = await side.produce(0, plain_contents(3))
    gap = await side.gap()
    after = await side.produce(0, plain_contents(2))
    assert after[0].offset == 3 + gap
    assert await start(side.log, p0=5) == {P0: before + after}
    last = 5 + gap + await side.gap()

    async def position_has_passed() -> bool:
        assert not await side.log.poll()
        return side.log.positions() == {P0: last, P1: 0}

    await until(position_has_passed, "the position after the offsets without a record")
    # A seek to an offset without a record returns the records after it.
    side.log.seek({P0: 4})
    assert await poll_records(side.log, p0=2) == {P0: after}


async def test_records_at_offsets_are_found_unless_the_log_lacks_them(side: Side) -> None:
    records = await side.produce(0, [*plain_contents(3), (b"key", None, (("h", b"1"),))])
    gap = await side.gap()
    records += await side.produce(0, plain_contents(1))
    last = await side.gap()
    end = 5 + gap + last
    log = side.log
    await start(log, p0=5)
    [other] = await side.produce(1, plain_contents(1))
    for record in reversed(records):
        assert await log.records_at({P0: record.offset, P1: 0}) == {P0: record, P1: other}
    for offset in (4, 3 + gap, end - last, end - 1, end, end + 100):
        assert await log.records_at({P0: offset, P1: 0}) == {P1: other}
    await side.trim(2)
    assert await log.records_at({P0: 1}) == {}
    assert await log.records_at({P0: 2}) == {P0: records[2]}
    log.seek({P0: 3, P1: 1})
    assert await poll_records(log, p0=2) == {P0: records[3:]}


async def test_a_poll_from_an_offset_outside_the_log_raises(side: Side) -> None:
    """Before the beginning and after the end; after a seek to an offset of the log, its records come."""
    records = await side.produce(0, plain_contents(6))
    assert await side.log.acquire()
    side.log.seek({P0: 2, P1: 0})
    await poll_records(side.log, p0=4)
    side.log.seek({P0: 2})
    await side.trim(4)
    side.log.seek({P0: 3})
    await assert_raises(side.log.poll)
    side.log.seek({P0: 7})
    await assert_raises(side.log.poll)
    assert await side.log.bounds() == {P0: (4, 6), P1: (0, 0)}
    side.log.seek({P0: 4})
    assert await poll_records(side.log, p0=2) == {P0: records[4:]}


async def test_a_misplaced_batch_is_an_error_after_the_records_before_it(side: Side) -> None:
    """Even if its offsets overlap others, and from a start among the records before it."""
    before = await side.produce(0, plain_contents(20))
    await side.produce(0, plain_contents(10))
    await side.flip(20)
    await side.produce(0, plain_contents(400))
    assert await side.log.acquire()
    for start in (0, 7, 20):
        offsets: list[int] = []
        side.log.seek({P0: start, P1: 0})
        with pytest.raises(LogGap):  # noqa: PT012 - any number of polls may succeed before it
            while True:
                offsets += [record.offset for record in (await side.log.poll()).get(P0, ())]
        assert offsets == [record.offset for record in before[start:]]


async def test_a_revoked_topic_is_not_held_until_it_is_acquired_again(side: Side) -> None:
    log = side.log
    assert not log.held
    records = await side.produce(0, plain_contents(4))
    assert await log.acquire()
    assert log.held
    log.seek({P0: 2, P1: 0})
    await poll_records(log, p0=2)
    await side.revoke()
    assert not log.held
    assert (await log.poll(), await log.bounds(), log.positions(), await log.records_at({P0: 1})) == ({}, {}, {}, {})
    log.seek({P0: 0})
    assert await log.source(), "the last save needs the source"
    waiting = asyncio.create_task(log.acquire())
    await asyncio.sleep(0)
    await side.assign()
    assert await waiting
    assert log.held
    # Positions and seeks from before the assignment are void: until the next seek there is no position.
    assert await log.poll() == {}
    assert log.positions() == {}
    log.seek({P0: 1, P1: 0})
    assert await poll_records(log, p0=3) == {P0: records[1:]}
    await side.revoke()
    await side.assign()
    assert not log.held, "the topic is assigned, but not under the assignment that was acquired"
    log.seek({P0: 0, P1: 0})
    assert [await log.poll() for _ in range(10)] == [{}] * 10
    assert await log.records_at({P0: 1}) == {}
    assert await log.acquire()
    assert log.held


async def test_a_stop_ends_the_wait_and_releases_the_topic(side: Side) -> None:
    assert await side.log.acquire()
    await side.revoke()
    waiting = asyncio.create_task(side.log.acquire())
    await asyncio.sleep(0)
    assert not waiting.done()
    side.stop()
    assert not await waiting
    await side.assign()
    assert not await side.log.acquire()
    assert not side.log.held
    assert await side.log.poll() == {}


async def test_a_silent_broker_is_an_error_and_then_forgotten(side: Side) -> None:
    records = await side.produce(0, plain_contents(3))
    await start(side.log, p0=3)
    topic = await side.log.source()
    await side.silence(True)
    try:
        read = assert_raises(lambda: side.log.records_at({P0: 0}))
        await asyncio.gather(assert_raises(side.log.source), assert_raises(side.log.bounds), read)
    finally:
        await side.silence(False)
    assert await first_answer(side.log.source) == topic

    async def first_record_polled() -> bool:
        if not side.log.held:  # an outage may end the assignment
            side.log.release()
            assert await side.log.acquire()
        side.log.seek({P0: 0, P1: 0})
        with contextlib.suppress(DependencyError):
            return [*(await side.log.poll()).get(P0, ())][:1] == records[:1]
        return False

    # The group waits for its earlier member until the session ends.
    await until(first_record_polled, "the records again", 3 * SESSION_SECONDS)
    assert await first_answer(side.log.bounds) == {P0: (0, 3), P1: (0, 0)}


async def test_a_dead_letter_is_in_its_topic_once_it_is_flushed(side: Side) -> None:
    await side.refuse_letters()
    await side.accept_letters()
    assert await side.log.acquire()
    await side.log.flush()
    letters = [Message(b"t-0-%d" % i, (b"bad", b"", None)[i % 3], [("reason", b"empty")]) for i in range(6)]
    for letter in letters:
        await side.log.publish(letter)
    await side.log.flush()
    assert await side.letters() == {(letter.key, letter.value) for letter in letters}
    await side.revoke()
    await side.log.publish(Message(b"t-0-9", b"late", []))
    await side.log.flush()
    assert (b"t-0-9", b"late") in await side.letters(), "the last save of a revoked topic waits for its letters"


async def test_a_dead_letter_that_is_not_acknowledged_is_sent_again(side: Side) -> None:
    """Without a dead-letter topic, and with one that refuses records."""
    assert await side.log.acquire()
    await side.log.publish(Message(b"t-0-0", b"bad", []))
    await assert_raises(side.log.flush)
    await side.refuse_letters()
    await side.log.publish(Message(b"t-0-1", b"bad", []))
    for _ in range(3):
        await assert_raises(side.log.flush)
    await side.accept_letters()
    await first_answer(side.log.flush)
    assert await side.letters() == {(b"t-0-0", b"bad"), (b"t-0-1", b"bad")}


async def test_commits_are_stored_in_the_group_and_a_seek_overrides_them(side: Side) -> None:
    records = await side.produce(0, plain_contents(5))
    assert await side.committed() == {}
    await start(side.log, p0=5)
    assert await side.committed() == {}, "the log commits nothing on its own"
    side.log.commit({P0: 4, P1: 0})
    await until(side.committed, "the commit")
    assert await side.committed() == {0: 4, 1: 0}
    assert side.log.positions() == {P0: 5, P1: 0}
    await side.revoke()
    await side.assign()
    assert await side.log.acquire()
    side.log.seek({P0: 2, P1: 0})
    assert await poll_records(side.log, p0=3) == {P0: records[2:]}


@pytest.mark.parametrize("records", [8, 3])
async def test_a_recreated_topic_is_read_on_and_has_another_id(side: Side, records: int) -> None:
    """Only the id shows it: if the new topic has the offset, its records come as if they followed the old ones."""
    await side.produce(0, plain_contents(5))
    await start(side.log, p0=5)
    before = await side.log.source()
    await side.trim(3)
    assert await side.log.source() == before
    await side.recreate(records)
    if records < 5:
        await assert_raises(side.log.poll)
    assert await first_answer(side.log.source) != before
    assert side.log.held
    if records > 5:
        polled = (await poll_records(side.log, p0=3))[P0]
        assert [(r.offset, r.value) for r in polled] == [(5, b"new 5"), (6, b"new 6"), (7, b"new 7")]
    assert await side.log.bounds() == {P0: (0, records), P1: (0, 0)}
