"""The two sides of the log's contract: the simulator's log and Kafka's.

Each has a log of a topic with two partitions, and methods by which a test acts as producer, group or operator.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from service.embedded.servers import Server
from service.errors import DependencyError
from service.streaming.dead_letters import topic_of
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.membership.group import Kafka
from service.streaming.ports import Log
from service.streaming.records import KafkaRecord
from tests.conftest import DEADLINE, admin, create_topic, delete_topic, read_all, trim
from tests.faults.test_log_faults import batches
from tests.saving import Driven
from tests.simulation.log import SimulatedLog
from tests.simulation.world import Partition, Record, Topic, World

PARTITIONS = 2
SESSION_SECONDS = 30.0
"""A rebalance waits for half of it until the topic is released."""


Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def plain(number: int, name: str = "old") -> list[Content]:
    return [(None, b"%s %d" % (name.encode(), i), ()) for i in range(number)]


class OfSimulation:
    """The simulator's log."""

    def __init__(self) -> None:
        self._world = World(0)
        self._world.faulty, self._world.refusing = False, True
        self._create()
        self._simulated = SimulatedLog(self._world, "one")
        self._simulated.assign()
        self.log: Log = Driven(self._simulated)

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
        """Change a bit of partition 0's batch that starts there: it says that it starts 256 later."""
        self._partition(0).flipped = offset, offset + 1, offset ^ 256

    async def trim(self, offset: int) -> None:
        """Delete the records of partition 0 before this offset."""
        self._partition(0).begin = offset

    async def grow(self) -> None:
        """Add a third partition; the group takes the topic away and gives it back."""
        self._world.topic.grow()
        await self.take()
        await self.give()

    async def recreate(self, records: int) -> None:
        """Delete the topic and create it again with some records in partition 0, while the process is held up."""
        self._create()
        await self.produce(0, plain(records, "new"))

    async def take(self) -> None:
        """The group takes the topic away."""
        self._simulated.revoke()

    async def give(self) -> None:
        """The group gives the topic back."""
        self.log.release()
        self._simulated.assign()

    async def silence(self, silent: bool) -> None:
        """Let the broker not answer, or answer again."""
        self._world.chance = lambda probability: silent  # type: ignore[method-assign]  # noqa: ARG005

    async def refuse(self) -> None:
        """Make the dead-letter topic refuse every record."""
        self._world.refusing = True

    async def accept(self) -> None:
        """Let the dead-letter topic accept records."""
        self._world.refusing = False

    async def letters(self) -> set[tuple[bytes, bytes | None]]:
        return {(key, value) for key, values in self._world.letters.items() for value in values}

    async def committed(self) -> dict[int, int]:
        return dict(self._world.committed)

    def stop(self) -> None:
        self._simulated.stopping = True


async def until(condition: Callable[[], Awaitable[Any]], what: str, seconds: float = DEADLINE) -> Any:
    """Wait until the condition holds, and return what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := await condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.01)
    return found


class OfKafka:
    """The log of a real Kafka. `kafka` is the only member of its group; a rebalance takes the topic away from it."""

    def __init__(self, server: Server, kafka: Kafka, producer: AIOKafkaProducer, topic: str) -> None:
        self._server, self._kafka, self._producer, self._topic = server, kafka, producer, topic
        self.log: Log = kafka.logs[topic]
        self._written = 0

    async def produce(self, partition: int, contents: Sequence[Content]) -> list[KafkaRecord]:
        sent = []
        for key, value, headers in contents:
            self._written += 1
            sent.append(
                await self._producer.send(
                    self._topic, value, key, partition=partition, timestamp_ms=1000 + self._written, headers=[*headers]
                )
            )
        first = 1001 + self._written - len(contents)
        return [
            KafkaRecord((await acknowledged).offset, first + i, *content)
            for i, (acknowledged, content) in enumerate(zip(sent, contents, strict=True))
        ]

    async def gap(self) -> int:
        consumer: Any = self._kafka.clients.consumer
        tp = TopicPartition(self._topic, 0)
        end = (await consumer.end_offsets([tp]))[tp] + 3
        address, name = self._server.address, f"tx-{self._topic}"
        async with AIOKafkaProducer(bootstrap_servers=address, transactional_id=name) as client:
            await client.begin_transaction()
            for _ in range(2):
                await client.send_and_wait(self._topic, b"aborted", partition=0)
            await client.abort_transaction()

        async def marked() -> bool:  # the broker writes the marker some time later
            return bool((await consumer.end_offsets([tp]))[tp] == end)

        await until(marked, "the marker")
        return 3

    async def flip(self, offset: int) -> None:
        [path] = Path(self._server.log).parent.glob(f"kafka/{self._topic}-0/*.log")
        [at] = [begins for first, _, begins, _ in batches(path.read_bytes()) if first == offset]
        with path.open("r+b") as file:
            file.seek(at)
            file.write((offset ^ 256).to_bytes(8))

    async def trim(self, offset: int) -> None:
        await trim(self._server, self._topic, offset)

    async def grow(self) -> None:
        async with admin(self._server) as client:
            await client.create_partitions({self._topic: NewPartitions(PARTITIONS + 1)})
        consumer: Any = self._kafka.clients.consumer

        async def noticed() -> bool:
            await consumer._client.force_metadata_update()
            return not self.log.held

        await until(noticed, "the new partition is noticed")
        await self.give()
        await self._producer.client.force_metadata_update()

    async def recreate(self, records: int) -> None:
        async def recreated() -> None:
            await delete_topic(self._server, self._topic)
            await create_topic(self._server, self._topic, PARTITIONS)
            async with AIOKafkaProducer(bootstrap_servers=self._server.address) as client:
                for i in range(records):
                    await client.send_and_wait(self._topic, b"new %d" % i, partition=0, timestamp_ms=i)

        with ThreadPoolExecutor(1) as thread:  # the event loop stands meanwhile
            thread.submit(asyncio.run, recreated()).result(DEADLINE)

    async def take(self) -> None:
        consumer: Any = self._kafka.clients.consumer
        consumer._coordinator.request_rejoin()

        async def taken() -> bool:
            return not await self.log.bounds()

        await until(taken, "the topic is taken")

    async def give(self) -> None:
        self.log.release()

        async def given() -> bool:
            return bool(await self.log.bounds())

        await until(given, "the topic is given")

    async def silence(self, silent: bool) -> None:
        assert self._server.process is not None
        process = psutil.Process(self._server.process.pid)
        process.send_signal(signal.SIGSTOP if silent else signal.SIGCONT)

        async def stopped() -> bool:  # a thread that is running may still answer
            return all(psutil.Process(t.id).status() == psutil.STATUS_STOPPED for t in process.threads())

        if silent:
            await until(stopped, "all of its threads stand still")

    async def refuse(self) -> None:
        await create_topic(self._server, topic_of(self._topic), max_message_bytes="1")

    async def accept(self) -> None:
        topic = ConfigResource(ConfigResourceType.TOPIC, topic_of(self._topic), {"max.message.bytes": "1000000"})
        async with admin(self._server) as client:
            await client.alter_configs([topic])

    async def letters(self) -> set[tuple[bytes, bytes | None]]:
        return {(letter.key, letter.value) for letter in await read_all(self._server, topic_of(self._topic))}

    async def committed(self) -> dict[int, int]:
        async with admin(self._server) as client:
            found = await client.list_consumer_group_offsets(f"g-{self._topic}")
        return {tp.partition: said.offset for tp, said in found.items() if said.offset >= 0}

    def stop(self) -> None:
        self._kafka.stop()


Side = OfSimulation | OfKafka


@contextlib.asynccontextmanager
async def of_kafka(server: Server, topic: str) -> AsyncIterator[OfKafka]:
    """A new topic on this broker, held by the only member of a new group."""
    await create_topic(server, topic, PARTITIONS)
    kafka = Kafka(
        Cluster(server.address), f"g-{topic}", [topic], lambda *_, **__: None, session_timeout=SESSION_SECONDS
    )
    async with AIOKafkaProducer(bootstrap_servers=server.address, acks="all", linger_ms=2) as producer:
        await kafka.connect()
        running = asyncio.create_task(kafka.run(lambda _: None))

        async def led() -> bool:
            with contextlib.suppress(DependencyError):  # a broker lists a new topic before it leads it
                return bool(await kafka.logs[topic].bounds())
            return False

        try:
            await until(led, "the topic is assigned and has leaders")
            yield OfKafka(server, kafka, producer, topic)
            if running.done():
                running.result()  # which raises
        finally:
            kafka.stop()
            kafka.logs[topic].release()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await kafka.close()
