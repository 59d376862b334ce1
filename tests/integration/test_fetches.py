"""How topics share the fetches of one consumer, asked of the client as it reads from a real broker."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.consumer import fetcher

from service.embedded.servers import Server
from service.streaming import fetches, internals
from service.streaming.fetches import Fetcher
from service.streaming.internals import MAX_BATCH_BYTES, TURN, fence
from tests.conftest import DEADLINE, create_topic

PARTITIONS, FETCH_BYTES = 16, 4 << 20


@pytest.fixture
async def polled(kafka: Server, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    fence(MAX_BATCH_BYTES)
    await create_topic(kafka, topic, PARTITIONS)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.address, auto_offset_reset="earliest", fetch_max_bytes=FETCH_BYTES
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, i) for i in range(PARTITIONS)])
    for partition in consumer.assignment():
        assert await consumer.position(partition) == 0
    yield consumer
    await consumer.stop()


def rewind(consumer: AIOKafkaConsumer) -> None:
    for partition in consumer.assignment():
        consumer.seek(partition, 0)


async def test_a_fetch_wakes_none_that_it_has_no_records_for(
    polled: AIOKafkaConsumer, producer: AIOKafkaProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: dict[asyncio.Task[None] | None, int] = {}
    wait = Fetcher._create_fetch_waiter

    def count(self: Fetcher) -> asyncio.Future[None]:
        waits[asyncio.current_task()] = waits.get(asyncio.current_task(), 0) + 1
        return wait(self)

    monkeypatch.setattr(Fetcher, "_create_fetch_waiter", count)
    busy, quiet = [TopicPartition(topic, i) for i in range(2)]
    waiting = asyncio.create_task(polled.getmany(quiet, timeout_ms=60_000))
    for i in range(50):
        await producer.send_and_wait(topic, b"%d" % i, partition=busy.partition)
        read = await polled.getmany(busy, timeout_ms=60_000)
        assert [record.value for record in read[busy]] == [b"%d" % i]
    assert waits[waiting] == 1
    await producer.send_and_wait(topic, b"at last", partition=quiet.partition)
    assert [record.value for record in (await waiting)[quiet]] == [b"at last"]
    assert waits[waiting] == 1


async def test_polls_are_woken_some_turns_of_the_loop_apart(
    polled: AIOKafkaConsumer, producer: AIOKafkaProducer, topic: str
) -> None:
    """All have records in the first fetch."""
    for i in range(PARTITIONS):
        await producer.send_and_wait(topic, b"%d" % i, partition=i)
    rewind(polled)
    turn, ended = 0, False

    async def count() -> None:
        nonlocal turn
        while not ended:
            turn += 1
            await asyncio.sleep(0)

    async def poll(partition: TopicPartition) -> int:
        read = await polled.getmany(partition, timeout_ms=60_000)
        assert [record.value for record in read[partition]] == [b"%d" % partition.partition]
        return turn

    counting = asyncio.create_task(count())
    woken = await asyncio.gather(*(poll(partition) for partition in polled.assignment()))
    ended = True
    await counting
    woken.sort()
    assert all(after - before >= fetches.TURNS for before, after in pairwise(woken))


async def test_who_finds_its_turn_spent_has_the_next(
    polled: AIOKafkaConsumer, producer: AIOKafkaProducer, topic: str
) -> None:
    """What came for it is there already, and nothing comes after it."""
    of = TopicPartition(topic, 0)
    for asked in ([of], []):
        reading = asyncio.create_task(polled.getmany(*asked, timeout_ms=60_000))
        await asyncio.sleep(0)
        internals._unpacked.spent = TURN + 1
        await producer.send_and_wait(topic, b"here", partition=of.partition)
        internals._unpacked.spent = TURN + 1
        assert [record.value for record in (await reading)[of]] == [b"here"]


async def test_a_turn_of_the_loop_takes_few_topics_down(
    polled: AIOKafkaConsumer, kafka: Server, producer: AIOKafkaProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fetch that brings something of all."""
    few, turns, taken = 2, list[set[TopicPartition]](), asyncio.Event()
    monkeypatch.setattr(fetches, "AT_ONCE", few)
    take = fetcher.Fetcher._proc_fetch_request

    async def count(self: Fetcher, assignment: Any, node: int, request: Any) -> bool:
        before = {*self._records}
        brought: bool = await take(self, assignment, node, request)
        turns.append({*self._records} - before)
        taken.set()
        return brought

    monkeypatch.setattr(fetcher.Fetcher, "_proc_fetch_request", count)
    topics = [TopicPartition(f"{topic}-{i}", 0) for i in range(8 * few)]
    for of in topics:
        await create_topic(kafka, of.topic)
        await producer.send_and_wait(of.topic, of.topic.encode())
    polled.assign(topics)
    read = dict[TopicPartition, Any]()
    while len(read) < len(topics):
        read |= await polled.getmany(timeout_ms=60_000)
    assert {of: [record.value for record in records] for of, records in read.items()} == {
        of: [of.topic.encode()] for of in topics
    }
    assert max(map(len, turns)) == few
    rewind(polled)
    taken.clear()
    async with asyncio.timeout(DEADLINE):
        await taken.wait()
    await polled._fetcher.close()  # in the midst of it: what is left is not taken down
    assert sum(map(len, turns)) < 2 * len(topics)


async def test_each_partition_is_asked_for_its_share(
    polled: AIOKafkaConsumer, producer: AIOKafkaProducer, topic: str
) -> None:
    """Each has a megabyte, and the first fetch something of all: a fourth of them would fill it."""
    for _ in range(16):
        await asyncio.gather(*[await producer.send(topic, bytes(64 << 10), partition=i) for i in range(PARTITIONS)])
    rewind(polled)
    seen, read = set[TopicPartition](), 0
    while len(seen) < PARTITIONS:
        for partition, records in (await polled.getmany(timeout_ms=60_000)).items():
            seen.add(partition)
            read += sum(len(record.value) for record in records)
    assert read <= FETCH_BYTES
