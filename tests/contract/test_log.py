"""The contract of `ports.Log`, tested on Kafka's log and on the simulator's, so that the simulator proves something."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from service.errors import DependencyError, LogGap
from service.streaming.dead_letters import DeadLetter
from service.streaming.ports import Log
from service.streaming.records import KafkaRecord
from tests.contract.sides import SESSION_SECONDS, Content, OfSimulation, Side, of_kafka, plain, until

# If a silent broker does not accept a connection in time, the client drops it without closing it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Unclosed AIOKafkaConnection:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning"),
]


@pytest.fixture(params=["simulator", "kafka"])
async def side(request: pytest.FixtureRequest, topic: str) -> AsyncIterator[Side]:
    if request.param == "simulator":
        yield OfSimulation()
        return
    stops = request.function is test_a_silent_broker_is_an_error_and_then_forgotten
    async with of_kafka(request.getfixturevalue("own_kafka" if stops else "kafka"), topic) as real:
        yield real
    gc.collect()  # or another test gets the warnings of dropped connections


async def answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The first answer without an error: a rebalance or an outage may have just ended."""

    async def ok() -> Any:
        with contextlib.suppress(DependencyError):
            return [await ask()]

    return (await until(ok, "an answer"))[0]


async def polled(log: Log, **numbers: int) -> dict[int, list[KafkaRecord]]:
    """Poll these numbers of records, by partition (`p0=3`), and check that no more follow."""
    wanted = {int(name[1:]): number for name, number in numbers.items() if number}
    found: dict[int, list[KafkaRecord]] = {}

    async def there() -> bool:
        for partition, records in (await log.poll()).items():
            assert len(records), "a partition without records is not mentioned"
            found.setdefault(partition, []).extend(records)
        return {p: len(records) for p, records in found.items()} == wanted

    await until(there, f"{wanted} records, of which came {[(p, len(r)) for p, r in found.items()]}")
    for _ in range(2):
        assert not await log.poll()
    return found


async def started(log: Log, **numbers: int) -> dict[int, list[KafkaRecord]]:
    """Acquire the topic and poll these numbers of records from offset 0 on."""
    assert await log.acquire()
    log.seek({0: 0, 1: 0})
    return await polled(log, **numbers)


async def raises(ask: Callable[[], Awaitable[Any]]) -> None:
    """Check that the call raises DependencyError, now or soon, and returns nothing true before."""
    with pytest.raises(DependencyError) as caught:
        await until(ask, "an error")
    assert caught.value.dependency == "kafka"


async def test_what_was_produced_comes_as_it_was_in_order(side: Side) -> None:
    """Many polls, with keys, headers, tombstones and empty values; partitions are independent."""
    contents: list[Content] = [
        (b"key", b"value", ()), (b"key", None, ()), (None, b"", ()), (b"", "ü".encode(), (("h", b"1"), ("h", b""))),
        *plain(1200),
    ]  # fmt: skip
    first = await side.produce(0, contents)
    second = await side.produce(1, plain(5))
    assert [record.offset for record in first] == list(range(1204))
    assert await side.log.acquire()
    side.log.seek({0: 0, 1: 2})
    assert await polled(side.log, p0=1204, p1=3) == {0: first, 1: second[2:]}
    assert side.log.positions() == {0: 1204, 1: 5}
    later = await side.produce(1, plain(2))
    assert await polled(side.log, p1=2) == {1: later}


async def test_a_seek_goes_back_and_forth_and_only_where_it_says(side: Side) -> None:
    records = await side.produce(0, plain(20))
    await side.produce(1, plain(4))
    await started(side.log, p0=20, p1=4)
    side.log.seek({0: 3})
    assert await polled(side.log, p0=17) == {0: records[3:]}
    # In the middle of what was fetched.
    side.log.seek({0: 0})
    await until(side.log.poll, "some")
    side.log.seek({0: 18})
    assert side.log.positions() == {0: 18, 1: 4}
    assert await polled(side.log, p0=2) == {0: records[18:]}


async def test_bounds_are_first_and_next_offset(side: Side) -> None:
    """For an empty topic, a topic that grows, and after its first records, and then all, were deleted."""
    assert await side.log.acquire()
    assert await side.log.bounds() == {0: (0, 0), 1: (0, 0)}
    side.log.seek({0: 0, 1: 0})
    assert await side.log.poll() == {}
    assert side.log.positions() == {0: 0, 1: 0}
    await side.produce(0, plain(7))
    assert await side.log.bounds() == {0: (0, 7), 1: (0, 0)}
    await side.trim(4)
    assert await side.log.bounds() == {0: (4, 7), 1: (0, 0)}
    gap = await side.gap()
    assert await side.log.bounds() == {0: (4, 7 + gap), 1: (0, 0)}
    await side.trim(7 + gap)
    assert await side.log.bounds() == {0: (7 + gap, 7 + gap), 1: (0, 0)}
    side.log.seek({0: 7 + gap})
    assert await side.log.poll() == {}
    assert side.log.positions()[0] == 7 + gap


async def test_a_partition_that_is_added_comes_with_the_next_assignment(side: Side) -> None:
    before = await side.produce(0, plain(3))
    assert await side.log.acquire()
    topic = await side.log.source()
    await side.grow()
    assert not side.log.held
    assert await side.log.acquire()
    assert await side.log.bounds() == {0: (0, 3), 1: (0, 0), 2: (0, 0)}
    assert await side.log.source() == topic
    added = await side.produce(2, plain(2))
    side.log.seek({0: 0, 1: 0, 2: 0})
    assert await polled(side.log, p0=3, p2=2) == {0: before, 2: added}


async def test_positions_are_behind_offsets_that_hold_no_record(side: Side) -> None:
    """An aborted transaction and its marker, between records and after the last one."""
    before = await side.produce(0, plain(3))
    gap = await side.gap()
    after = await side.produce(0, plain(2))
    assert after[0].offset == 3 + gap
    assert await started(side.log, p0=5) == {0: before + after}
    last = 5 + gap + await side.gap()

    async def behind() -> bool:
        assert not await side.log.poll()
        return side.log.positions() == {0: last, 1: 0}

    await until(behind, "the position behind what holds no record")
    # A seek to an offset without a record returns the records after it.
    side.log.seek({0: 4})
    assert await polled(side.log, p0=2) == {0: after}


async def test_a_record_is_read_where_it_stands_and_none_where_none_is(side: Side) -> None:
    records = await side.produce(0, [*plain(3), (b"key", None, (("h", b"1"),))])
    gap = await side.gap()
    records += await side.produce(0, plain(1))
    last = await side.gap()
    end = 5 + gap + last
    log = side.log
    await started(log, p0=5)
    for record in reversed(records):
        assert await log.read(0, record.offset) == record
    assert [await log.read(0, offset) for offset in (4, 3 + gap, end - last, end - 1, end, end + 100)] == [None] * 6
    assert await log.read(1, 0) is None
    await side.trim(2)
    assert await log.read(0, 1) is None
    assert await log.read(0, 2) == records[2]
    # Reading has moved the position; a seek sets it.
    log.seek({0: 3, 1: 0})
    assert await polled(log, p0=2) == {0: records[3:]}


async def test_a_poll_where_the_log_has_no_such_offset_raises(side: Side) -> None:
    """Before the beginning and after the end; after a seek to an offset of the log, its records come."""
    records = await side.produce(0, plain(6))
    assert await side.log.acquire()
    side.log.seek({0: 2, 1: 0})
    await polled(side.log, p0=4)
    side.log.seek({0: 2})
    await side.trim(4)
    side.log.seek({0: 3})
    await raises(side.log.poll)
    side.log.seek({0: 7})
    await raises(side.log.poll)
    assert await side.log.bounds() == {0: (4, 6), 1: (0, 0)}
    side.log.seek({0: 4})
    assert await polled(side.log, p0=2) == {0: records[4:]}


async def test_a_batch_that_is_not_in_its_place_is_an_error_after_what_is_before_it(side: Side) -> None:
    """Also if its offsets overlap others, and from a start among the records before it."""
    before = await side.produce(0, plain(20))
    await side.produce(0, plain(10))
    await side.flip(20)
    await side.produce(0, plain(400))
    assert await side.log.acquire()
    for start in (0, 7, 20):
        found: list[int] = []
        side.log.seek({0: start, 1: 0})
        with pytest.raises(LogGap):  # noqa: PT012 - whatever came before it
            while True:
                found += [record.offset for record in (await side.log.poll()).get(0, ())]
        assert found == [record.offset for record in before[start:]]


async def test_what_was_taken_away_is_not_held_until_it_is_acquired_again(side: Side) -> None:
    log = side.log
    assert not log.held
    records = await side.produce(0, plain(4))
    assert await log.acquire()
    assert log.held
    log.seek({0: 2, 1: 0})
    await polled(log, p0=2)
    await side.take()
    assert not log.held
    assert (await log.poll(), await log.bounds(), log.positions(), await log.read(0, 1)) == ({}, {}, {}, None)
    log.seek({0: 0})
    assert await log.source(), "the last save asks for it"
    waiting = asyncio.create_task(log.acquire())
    await asyncio.sleep(0)
    await side.give()
    assert await waiting
    assert log.held
    # Positions and seeks before the assignment do not count: until a seek there is no position.
    assert await log.poll() == {}
    assert log.positions() == {}
    log.seek({0: 1, 1: 0})
    assert await polled(log, p0=3) == {0: records[1:]}
    await side.take()
    await side.give()
    assert not log.held, "it is ours, but not the one that was acquired"
    log.seek({0: 0, 1: 0})
    assert [await log.poll() for _ in range(10)] == [{}] * 10
    assert await log.read(0, 1) is None
    assert await log.acquire()
    assert log.held


async def test_a_stop_ends_the_wait_and_the_holding(side: Side) -> None:
    assert await side.log.acquire()
    await side.take()
    waiting = asyncio.create_task(side.log.acquire())
    await asyncio.sleep(0)
    assert not waiting.done()
    side.stop()
    assert not await waiting
    await side.give()
    assert not await side.log.acquire()
    assert not side.log.held
    assert await side.log.poll() == {}


async def test_a_silent_broker_is_an_error_and_then_forgotten(side: Side) -> None:
    records = await side.produce(0, plain(3))
    await started(side.log, p0=3)
    topic = await side.log.source()
    await side.silence(True)
    try:
        await asyncio.gather(*map(raises, (side.log.source, side.log.bounds, lambda: side.log.read(0, 0))))
    finally:
        await side.silence(False)
    assert await answered(side.log.source) == topic

    async def there() -> bool:
        if not side.log.held:  # an outage may cost the assignment
            side.log.release()
            assert await side.log.acquire()
        side.log.seek({0: 0, 1: 0})
        with contextlib.suppress(DependencyError):
            return [*(await side.log.poll()).get(0, ())][:1] == records[:1]
        return False

    await until(there, "the records again", 3 * SESSION_SECONDS)  # the group waits for the member that it was before
    assert await answered(side.log.bounds) == {0: (0, 3), 1: (0, 0)}


async def test_a_dead_letter_is_there_once_it_is_flushed(side: Side) -> None:
    await side.refuse()
    await side.accept()
    assert await side.log.acquire()
    await side.log.flush()
    letters = [DeadLetter(b"t-0-%d" % i, (b"bad", b"", None)[i % 3], [("reason", b"empty")]) for i in range(6)]
    for letter in letters:
        await side.log.publish(letter)
    await side.log.flush()
    assert await side.letters() == {(letter.key, letter.value) for letter in letters}
    await side.take()
    await side.log.publish(DeadLetter(b"t-0-9", b"late", []))
    await side.log.flush()
    assert (b"t-0-9", b"late") in await side.letters(), "the last save of what was taken away waits for its letters"


async def test_what_is_not_acknowledged_is_not_forgotten(side: Side) -> None:
    """Without a dead-letter topic, and with one that refuses."""
    assert await side.log.acquire()
    await side.log.publish(DeadLetter(b"t-0-0", b"bad", []))
    await raises(side.log.flush)
    await side.refuse()
    await side.log.publish(DeadLetter(b"t-0-1", b"bad", []))
    for _ in range(3):
        await raises(side.log.flush)
    await side.accept()
    await answered(side.log.flush)
    assert await side.letters() == {(b"t-0-0", b"bad"), (b"t-0-1", b"bad")}


async def test_what_is_committed_is_said_and_a_seek_stands_above_it(side: Side) -> None:
    records = await side.produce(0, plain(5))
    assert await side.committed() == {}
    await started(side.log, p0=5)
    assert await side.committed() == {}, "nothing is committed by itself"
    side.log.commit({0: 4, 1: 0})
    await until(side.committed, "the commit")
    assert await side.committed() == {0: 4, 1: 0}
    assert side.log.positions() == {0: 5, 1: 0}
    await side.take()
    await side.give()
    assert await side.log.acquire()
    side.log.seek({0: 2, 1: 0})
    assert await polled(side.log, p0=3) == {0: records[2:]}


@pytest.mark.parametrize("records", [8, 3])
async def test_a_topic_created_again_is_read_on_and_told_by_its_id(side: Side, records: int) -> None:
    """Only the id differs: if the new topic has the offset, its records come as if they followed the old ones."""
    await side.produce(0, plain(5))
    await started(side.log, p0=5)
    before = await side.log.source()
    await side.trim(3)
    assert await side.log.source() == before
    await side.recreate(records)
    if records < 5:
        await raises(side.log.poll)
    assert await answered(side.log.source) != before
    assert side.log.held
    if records > 5:
        found = (await polled(side.log, p0=3))[0]
        assert [(r.offset, r.value) for r in found] == [(5, b"new 5"), (6, b"new 6"), (7, b"new 7")]
    assert await side.log.bounds() == {0: (0, records), 1: (0, 0)}
