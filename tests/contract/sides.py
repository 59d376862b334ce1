"""The two sides of the log's contract: the simulator's log and Kafka's.

Each has a log of a topic with two partitions, and methods by which a test acts as producer, group or operator.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
from aiokafka import AIOKafkaProducer, TopicPartition
from structlog.testing import CapturingLogger

from service.embedded.servers import Server
from service.errors import DependencyError
from service.streaming.dead_letters import dead_letter_topic
from service.streaming.kafka.cluster import Cluster, connected_clients
from service.streaming.kafka.membership.group import GroupMember
from service.streaming.ports import Log
from service.streaming.records import KafkaRecord
from tests.conftest import (
    DEADLINE,
    add_partitions,
    admin,
    configure,
    create_topic,
    delete_topic,
    read_all,
    trim,
    until,
)
from tests.faults.test_log_faults import batches, flip, segment
from tests.saving import SteppedCalls
from tests.simulation.log import SimulatedLog
from tests.simulation.world import Partition, Record, Topic, World

PARTITIONS = 2
SESSION_SECONDS = 30.0
"""A rebalance waits at most half of it for a member to release its topics."""


Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def plain_contents(number: int, name: str = "old") -> list[Content]:
    return [(None, b"%s %d" % (name.encode(), i), ()) for i in range(number)]


class SimulatedSide:
    """The simulator's log."""

    def __init__(self) -> None:
        self._world = World(0)
        self._world.faulty, self._world.refusing = False, True
        self._create()
        self._simulated = SimulatedLog(self._world, "one")
        self._simulated.assign()
        self.log: Log = SteppedCalls(self._simulated)

    def _create(self) -> None:
        self._world.topic = Topic(self._world.rng, PARTITIONS)
        self._world.topics.append(self._world.topic)

    def _partition(self, number: int) -> Partition:
        return self._world.topic.partitions[number]

    async def produce(self, partition: int, contents: Sequence[Content]) -> list[KafkaRecord]:
        part, produced = self._partition(partition), list[KafkaRecord]()
        for content in contents:
            produced.append(KafkaRecord(part.end, 1000 + part.end, *content))
            part.records[part.end] = Record(*produced[-1], good=True)
            part.end += 1
        return produced

    async def gap(self) -> int:
        """Append offsets without records to partition 0; returns their number."""
        self._partition(0).end += 3
        return 3

    async def flip(self, offset: int) -> None:
        """Change a bit in the header of partition 0's batch at this offset: it then states an offset 256 higher."""
        self._partition(0).flipped = offset, offset + 1, offset ^ 256

    async def trim(self, offset: int) -> None:
        """Delete the records of partition 0 before this offset."""
        self._partition(0).begin = offset

    async def grow(self) -> None:
        """Add a third partition; the group revokes the topic and assigns it again."""
        self._world.topic.grow()
        await self.revoke()
        await self.assign()

    async def recreate(self, records: int) -> None:
        """Delete the topic and create it again with some records in partition 0, while this process is blocked."""
        self._create()
        await self.produce(0, plain_contents(records, "new"))

    async def revoke(self) -> None:
        """Let the group revoke the topic."""
        self._simulated.revoke()

    async def assign(self) -> None:
        """Let the group assign the topic again."""
        self.log.release()
        self._simulated.assign()

    async def silence(self, silent: bool) -> None:
        """Stop the broker from answering, or let it answer again."""
        self._world.chance = lambda probability: silent  # type: ignore[method-assign]  # noqa: ARG005

    async def refuse_letters(self) -> None:
        """Make the dead-letter topic refuse every record."""
        self._world.refusing = True

    async def accept_letters(self) -> None:
        """Let the dead-letter topic accept records."""
        self._world.refusing = False

    async def letters(self) -> set[tuple[bytes, bytes | None]]:
        return {(key, value) for key, values in self._world.letters.items() for value in values}

    async def committed(self) -> dict[int, int]:
        return dict(self._world.committed)

    def stop(self) -> None:
        self._simulated.stopping = True


class KafkaSide:
    """The log of a real Kafka. `member` is the only one of its group; a rebalance revokes its topic."""

    def __init__(
        self, server: Server, member: GroupMember, stopping: asyncio.Event, producer: AIOKafkaProducer, topic: str
    ) -> None:
        self._server, self._member, self._producer, self._topic = server, member, producer, topic
        self.log: Log = member.logs[topic]
        self.stop = stopping.set
        self._written = 0

    async def produce(self, partition: int, contents: Sequence[Content]) -> list[KafkaRecord]:
        futures = []
        for key, value, headers in contents:
            self._written += 1
            futures.append(
                await self._producer.send(
                    self._topic, value, key, partition=partition, timestamp_ms=1000 + self._written, headers=[*headers]
                )
            )
        first = 1001 + self._written - len(contents)
        return [
            KafkaRecord((await future).offset, first + i, *content)
            for i, (future, content) in enumerate(zip(futures, contents, strict=True))
        ]

    async def gap(self) -> int:
        consumer: Any = self._member._consumer
        tp = TopicPartition(self._topic, 0)
        end = (await consumer.end_offsets([tp]))[tp] + 3
        address, name = self._server.address, f"tx-{self._topic}"
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id=name) as client:
            await client.begin_transaction()
            for _ in range(2):
                await client.send_and_wait(self._topic, b"aborted", partition=0)
            await client.abort_transaction()

        async def has_marker() -> bool:  # the broker writes the marker some time later
            return bool((await consumer.end_offsets([tp]))[tp] == end)

        await until(has_marker, "the marker")
        return 3

    async def flip(self, offset: int) -> None:
        path = segment(self._server, self._topic)
        [position] = [start for first, _, start, _ in batches(path.read_bytes()) if first == offset]
        flip(path, position + 6)

    async def trim(self, offset: int) -> None:
        await trim(self._server, self._topic, offset)

    async def grow(self) -> None:
        await add_partitions(self._server, self._topic, PARTITIONS + 1)
        consumer: Any = self._member._consumer

        async def is_revoked() -> bool:
            await consumer._client.force_metadata_update()
            return not self.log.held

        await until(is_revoked, "the new partition is noticed")
        await self.assign()
        await self._producer.client.force_metadata_update()

    async def recreate(self, records: int) -> None:
        async def recreate_topic() -> None:
            await delete_topic(self._server, self._topic)
            await create_topic(self._server, self._topic, PARTITIONS)
            async with AIOKafkaProducer(bootstrap_servers=self._server.address) as client:
                for i in range(records):
                    await client.send_and_wait(self._topic, b"new %d" % i, partition=0, timestamp_ms=i)

        with ThreadPoolExecutor(1) as thread:  # the event loop is blocked meanwhile
            thread.submit(asyncio.run, recreate_topic()).result(DEADLINE)

    async def revoke(self) -> None:
        consumer: Any = self._member._consumer
        consumer._coordinator.request_rejoin()

        async def is_revoked() -> bool:
            return not await self.log.bounds()

        await until(is_revoked, "the topic is revoked")

    async def assign(self) -> None:
        self.log.release()
        await until(self.log.bounds, "the topic is assigned")

    async def silence(self, silent: bool) -> None:
        assert self._server.process is not None
        process = psutil.Process(self._server.process.pid)
        process.send_signal(signal.SIGSTOP if silent else signal.SIGCONT)

        def all_stopped() -> bool:  # a thread that is running may still answer
            return all(psutil.Process(t.id).status() == psutil.STATUS_STOPPED for t in process.threads())

        if silent:
            await until(all_stopped, "all threads of the broker are stopped")

    async def refuse_letters(self) -> None:
        await create_topic(self._server, dead_letter_topic(self._topic), max_message_bytes="1")

    async def accept_letters(self) -> None:
        await configure(self._server, dead_letter_topic(self._topic), max_message_bytes=1_000_000)

    async def letters(self) -> set[tuple[bytes, bytes | None]]:
        return {(letter.key, letter.value) for letter in await read_all(self._server, dead_letter_topic(self._topic))}

    async def committed(self) -> dict[int, int]:
        async with admin(self._server) as client:
            offsets = await client.list_consumer_group_offsets(f"g-{self._topic}")
        return {tp.partition: position.offset for tp, position in offsets.items() if position.offset >= 0}


Side = SimulatedSide | KafkaSide


async def no_models() -> list[str]:
    return []


@contextlib.asynccontextmanager
async def kafka_side(server: Server, topic: str) -> AsyncIterator[KafkaSide]:
    """A new topic on this broker, assigned to the only member of a new group."""
    await create_topic(server, topic, PARTITIONS)
    stopping = asyncio.Event()
    async with (
        AIOKafkaProducer(bootstrap_servers=server.address, acks="all", linger_ms=2) as producer,
        connected_clients(Cluster(server.address)) as clients,
        GroupMember(
            clients,
            f"g-{topic}",
            {topic: [topic]},
            CapturingLogger(),
            stopping,
            no_models,
            session_timeout=SESSION_SECONDS,
        ).connected() as member,
    ):
        running = asyncio.create_task(member.run(lambda _: None))

        async def has_leaders() -> bool:
            with contextlib.suppress(DependencyError):  # a broker lists a new topic before it is its leader
                return bool(await member.logs[topic].bounds())
            return False

        try:
            await until(has_leaders, "the topic is assigned and has leaders")
            yield KafkaSide(server, member, stopping, producer, topic)
            if running.done():
                running.result()  # raises its exception
        finally:
            stopping.set()
            member.logs[topic].release()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
