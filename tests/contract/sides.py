"""The two sides of the log's contract: the simulator's log and Kafka's, each with a hand on what stands behind it."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from service.embedded.servers import Server
from service.streaming.dead_letters import topic_of
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.group import Kafka
from service.streaming.ports import Log
from tests.conftest import DEADLINE, create_topic, read_all, trim
from tests.faults.test_log_faults import batches
from tests.simulation.log import SimulatedLog
from tests.simulation.world import Partition, Record, SimulatedStore, Topic, World

HERE = Path(__file__).parents[2]
PARTITIONS = 2
SESSION_SECONDS = 30.0
"""A rebalance waits half as long until the topic is let go."""
RECREATE = """
import asyncio, sys
from types import SimpleNamespace
from aiokafka import AIOKafkaProducer, TopicPartition
from tests.conftest import create_topic, delete_topic
async def main(address, topic, partitions, records):
    server = SimpleNamespace(address=address)
    await delete_topic(server, topic)
    await create_topic(server, topic, int(partitions))
    client = AIOKafkaProducer(bootstrap_servers=address)
    await client.start()
    for i in range(int(records)):
        await client.send_and_wait(topic, b"new %d" % i, partition=0, timestamp_ms=i)
    await client.stop()
asyncio.run(main(*sys.argv[1:]))
"""


class Seen(NamedTuple):
    """A record as it was produced, and as it must come back."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def plain(number: int, name: str = "old") -> list[Content]:
    return [(None, b"%s %d" % (name.encode(), i), ()) for i in range(number)]


class Side(Protocol):
    """A log of a topic of two partitions, and whoever else is there: producers, the group, an operator."""

    log: Log

    async def produce(self, partition: int, contents: Sequence[Content]) -> list[Seen]: ...

    async def gap(self) -> int:
        """Offsets of partition 0 that hold no record, at its end; says how many."""

    async def flip(self, offset: int) -> None:
        """A bit of partition 0's batch that begins there: it says that it begins 256 later."""

    async def trim(self, offset: int) -> None:
        """Partition 0."""

    async def grow(self) -> None:
        """A third partition; the topic is taken and given again."""

    async def recreate(self, records: int) -> None:
        """Deleted and created again, with so many in partition 0, while the process is held up."""

    async def take(self) -> None:
        """The group takes the topic away."""

    async def give(self) -> None:
        """It gives it back."""

    async def silence(self, silent: bool) -> None:
        """Whether the broker answers."""

    async def refuse(self) -> None:
        """From now on there is a dead-letter topic; it takes nothing."""

    async def accept(self) -> None:
        """It takes what comes."""

    async def letters(self) -> set[tuple[bytes, bytes | None]]: ...

    async def committed(self) -> dict[int, int]: ...

    def stop(self) -> None: ...


class Driven:
    """A simulated log or store, each of whose calls goes through; one that cannot go on waits."""

    def __init__(self, simulated: SimulatedLog | SimulatedStore) -> None:
        self._simulated = simulated

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._simulated, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def through(*arguments: Any) -> Any:
            coroutine: Coroutine[Any, Any, Any] = found(*arguments)
            while True:
                try:
                    step = coroutine.send(None)
                except StopIteration as end:
                    return end.value
                while not step.ready():  # noqa: ASYNC110 - a part of the scheduler
                    await asyncio.sleep(0)

        return through


class OfSimulation:
    """See Side."""

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

    async def produce(self, partition: int, contents: Sequence[Content]) -> list[Seen]:
        part, produced = self._partition(partition), list[Seen]()
        for content in contents:
            produced.append(Seen(part.end, 1000 + part.end, *content))
            part.records[part.end] = Record(*produced[-1], good=True)
            part.end += 1
        return produced

    async def gap(self) -> int:
        self._partition(0).end += 3
        return 3

    async def flip(self, offset: int) -> None:
        self._partition(0).flipped = offset, offset + 1, offset ^ 256

    async def trim(self, offset: int) -> None:
        self._partition(0).begin = offset

    async def grow(self) -> None:
        self._world.topic.grow()
        await self.take()
        await self.give()

    async def recreate(self, records: int) -> None:
        self._create()
        await self.produce(0, plain(records, "new"))

    async def take(self) -> None:
        self._simulated.revoke()

    async def give(self) -> None:
        self.log.release()
        self._simulated.assign()

    async def silence(self, silent: bool) -> None:
        self._world.chance = lambda probability: silent  # type: ignore[method-assign]  # noqa: ARG005

    async def refuse(self) -> None:
        self._world.refusing = True

    async def accept(self) -> None:
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
    """See Side. The group's one member is `kafka`; the topic is taken by a rebalance that it is held up in."""

    def __init__(self, server: Server, kafka: Kafka, producer: AIOKafkaProducer, topic: str, group: str) -> None:
        self._server, self._kafka, self._producer, self._topic, self._group = server, kafka, producer, topic, group
        self.log: Log = kafka.logs[topic]
        self._written = 0

    async def produce(self, partition: int, contents: Sequence[Content]) -> list[Seen]:
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
            Seen((await acknowledged).offset, first + i, *content)
            for i, (acknowledged, content) in enumerate(zip(sent, contents, strict=True))
        ]

    async def gap(self) -> int:
        consumer: Any = self._kafka.clients.consumer
        tp = TopicPartition(self._topic, 0)
        end = (await consumer.end_offsets([tp]))[tp] + 3
        client = AIOKafkaProducer(bootstrap_servers=self._server.address, transactional_id=f"tx-{self._topic}")
        await client.start()
        try:
            await client.begin_transaction()
            for _ in range(2):
                await client.send_and_wait(self._topic, b"aborted", partition=0)
            await client.abort_transaction()
        finally:
            await client.stop()

        async def marked() -> bool:  # the marker comes when the broker likes
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
        async with self._admin() as client:
            await client.create_partitions({self._topic: NewPartitions(PARTITIONS + 1)})
        consumer: Any = self._kafka.clients.consumer

        async def noticed() -> bool:
            await consumer._client.force_metadata_update()
            return not self.log.held

        await until(noticed, "the new partition is noticed")
        await self.give()
        await self._producer.client.force_metadata_update()

    async def recreate(self, records: int) -> None:
        self._held_up(RECREATE, self._server.address, self._topic, str(PARTITIONS), str(records))

    def _held_up(self, program: str, *arguments: str) -> None:
        """The event loop stands meanwhile."""
        subprocess.run([sys.executable, "-c", program, *arguments], check=True, cwd=HERE, timeout=DEADLINE)

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

        async def stopped() -> bool:  # a thread that runs just then still answers
            return all(psutil.Process(t.id).status() == psutil.STATUS_STOPPED for t in process.threads())

        if silent:
            await until(stopped, "all of its threads stand still")

    async def refuse(self) -> None:
        await create_topic(self._server, topic_of(self._topic), max_message_bytes="1")

    async def accept(self) -> None:
        topic = ConfigResource(ConfigResourceType.TOPIC, topic_of(self._topic), {"max.message.bytes": "1000000"})
        async with self._admin() as client:
            await client.alter_configs([topic])

    async def letters(self) -> set[tuple[bytes, bytes | None]]:
        return {(letter.key, letter.value) for letter in await read_all(self._server, topic_of(self._topic))}

    async def committed(self) -> dict[int, int]:
        async with self._admin() as client:
            found = await client.list_consumer_group_offsets(self._group)
        return {tp.partition: said.offset for tp, said in found.items() if said.offset >= 0}

    def stop(self) -> None:
        self._kafka.stop()

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        client = AIOKafkaAdminClient(bootstrap_servers=self._server.address)
        await client.start()
        try:
            yield client
        finally:
            await client.close()


@contextlib.asynccontextmanager
async def of_kafka(
    server: Server, topic: str, say: Callable[..., None] = lambda *_, **__: None
) -> AsyncIterator[OfKafka]:
    """A topic on this broker, and a member of a group of its own that holds it."""
    await create_topic(server, topic, PARTITIONS)
    kafka = Kafka(Cluster(server.address), f"g-{topic}", [topic], say, session_timeout=SESSION_SECONDS)
    producer = AIOKafkaProducer(bootstrap_servers=server.address, acks="all", linger_ms=2)
    await producer.start()
    await kafka.connect()
    running = asyncio.create_task(kafka.run(lambda _: None))
    try:
        yield OfKafka(server, kafka, producer, topic, f"g-{topic}")
        if running.done():
            running.result()  # which raises
    finally:
        kafka.stop()
        kafka.logs[topic].release()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await kafka.close()
        await producer.stop()
