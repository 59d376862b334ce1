"""A Kafka that answers only some requests: no coordinator, a silent coordinator, a hanging client, a standby."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from structlog.testing import CapturingLogger

from service.embedded import servers
from service.embedded.servers import PROPERTIES, Server
from service.errors import DependencyError
from service.streaming.kafka.cluster import Cluster, connected_clients
from service.streaming.kafka.health import find_coordinator
from service.streaming.kafka.membership.assignor import whole_topics
from service.streaming.kafka.membership.group import GroupMember
from tests.conftest import DEADLINE, Run, Running, create_both_topics, event, perceptron, send, until, wait
from tests.faults.proxy import KafkaProxy

pytestmark = pytest.mark.nightly

SESSION_SECONDS = 6.0
FETCH, LIST_OFFSETS, FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP = 1, 2, 10, 11, 14


class Member:
    """A member of a group without the rest of a process, which keeps its reports."""

    def __init__(
        self, address: str, group: str, topics: list[str], watchdog: float = 60.0, session: float = SESSION_SECONDS
    ) -> None:
        self._address, self._stopping, self._logger = address, asyncio.Event(), CapturingLogger()
        self._new_member = partial(
            GroupMember, group=group, models={topic: [topic] for topic in topics}, logger=self._logger,
            stopping=self._stopping, session_timeout=session, watchdog=watchdog,
        )  # fmt: skip

    @property
    def reports(self) -> list[str]:
        """The warnings that were logged."""
        return [call.args[0] for call in self._logger.calls]

    def reports_with(self, words: str) -> list[str]:
        """The reports that contain these words."""
        return [text for text in self.reports if words in text]

    @property
    def holds(self) -> int:
        """The number of topics assigned to it."""
        return sum(bool(log.assigned) for log in self.kafka.logs.values())

    def is_well(self) -> bool:
        """Whether it holds a topic and Kafka answers."""
        return bool(self.holds) and not self.kafka.health.missing_since

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        clients = connected_clients(Cluster(self._address))
        async with clients as connected, self._new_member(connected).connected() as self.kafka:
            task = asyncio.create_task(self.kafka.run(lambda _: None))
            try:
                yield task
            finally:
                self._stopping.set()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def service_of_another_kafka(
    redis: Server, topic: str, folder: Path, old_property: str, new_property: str, session: float
) -> Iterator[Running]:
    """A service on a separate broker, with one changed property."""
    assert old_property in PROPERTIES
    with servers.start_kafka(folder, properties=PROPERTIES.replace(old_property, new_property)) as kafka:
        service = Running(topic, kafka.address, redis.address, folder, "", "--create-topics", session_timeout=session)
        with contextlib.closing(service):
            yield service


def run_check(service: Running) -> tuple[int, str]:
    """The exit code and output of `check` with the settings of a service."""
    result = perceptron("-c", str(service.config), "check", *service.command[service.command.index("-g") : -3])
    return result.returncode, result.stdout


def test_one_broker_that_cannot_make_the_groups_topic(redis: Server, topic: str, tmp_path: Path) -> None:
    """With Kafka's default on one broker no group has a coordinator. Log, metric and `check` name the setting."""
    factor = "offsets.topic.replication.factor="
    with service_of_another_kafka(redis, topic, tmp_path, f"{factor}1", f"{factor}3", SESSION_SECONDS) as service:
        message = (
            f"group g-{topic} cannot be joined: no coordinator: its topic __consumer_offsets does not exist or has no "
            "leader: perhaps offsets.topic.replication.factor is larger than the number of brokers"
        )
        wait(lambda: message in service.log.read_text(), "the log names the cause")
        missing = 'perceptron_missing_since_timestamp_seconds{dependency="kafka"}'
        wait(lambda: service.metrics()[missing], "the metric shows it")
        code, printed = run_check(service)
        assert (code, f"{message}\n" in printed) == (3, True), printed
        assert service.log.read_text().count("cannot be joined") == 1
        assert service.stop() == 0
        assert "Traceback" not in service.log.read_text()


def test_a_session_that_the_broker_does_not_allow(redis: Server, topic: str, tmp_path: Path) -> None:
    """The process cannot join, and `check` fails. Both name the setting."""
    minimum = "group.min.session.timeout.ms="
    with service_of_another_kafka(redis, topic, tmp_path, f"{minimum}1000", f"{minimum}6000", 1.5) as service:
        message = "kafka.session_timeout is outside the broker's limits (group.min.session.timeout.ms, 6 s by default)"
        wait(lambda: message in service.log.read_text(), "the log names the setting")
        code, printed = run_check(service)
        assert (code, f"group g-{topic} cannot be joined at broker 1: {message}\n" in printed) == (3, True), printed
        assert service.stop() == 0


async def test_a_coordinator_that_does_not_answer(kafka: Server, proxy: KafkaProxy, topic: str) -> None:
    """FindCoordinator or JoinGroup gets no answer: the member and `check` say so, with the broker's number."""
    await create_both_topics(kafka, topic)
    requests = {FIND_COORDINATOR: "FindCoordinator", JOIN_GROUP: "JoinGroup"}
    members = {name: Member(proxy.address, f"{name}-{topic}", [topic]) for name in requests.values()}
    proxy.hold({key: f"{name}-{topic}".encode() for key, name in requests.items()})
    async with contextlib.AsyncExitStack() as stack:
        for member in members.values():
            await stack.enter_async_context(member.running())
        for name, member in members.items():
            await until(partial(member.reports_with, "no answer in time"), f"{name} is missed")
            (text,) = member.reports_with("no answer in time")
            place = " at broker 1" if name == "JoinGroup" else ""
            assert f"group {name}-{topic} cannot be joined{place}: no answer in time" in text
            assert member.kafka.health.missing_since
        # `check` calls the same function.
        checks = [find_coordinator(Cluster(proxy.address), f"{name}-{topic}", SESSION_SECONDS) for name in members]
        for error in await asyncio.gather(*checks, return_exceptions=True):
            assert isinstance(error, DependencyError)
            assert "no answer in time" in str(error)
        proxy.heal()
        for name, member in members.items():
            await until(member.is_well, f"{name}: it is in its group")
            assert member.reports[-1] == "Kafka answers again"


async def test_a_member_without_a_topic_reports_an_outage(kafka: Server, proxy: KafkaProxy, topic: str) -> None:
    """Three members, two topics: each reports an outage once, and its end; otherwise a standby reports nothing."""
    topics = [topic, f"{topic}-b"]
    for name in topics:
        await create_both_topics(kafka, name)
    members = [Member(proxy.address, f"g-{topic}", topics) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        for member in members:
            await stack.enter_async_context(member.running())
        async with asyncio.timeout(DEADLINE):  # two members may hold a topic each before the third joins
            state = ""
            while state != "Stable":
                _, state = await find_coordinator(Cluster(kafka.address), f"g-{topic}", SESSION_SECONDS)
            await until(lambda: sorted(m.holds for m in members) == [0, 1, 1], "two hold a topic each")
        await asyncio.sleep(SESSION_SECONDS)  # longer than a member may be out of its group
        assert [m.reports for m in members] == [[], [], []]
        proxy.refuse()
        await until(lambda: all(m.kafka.health.missing_since for m in members), "each notices")
        assert [len(m.reports_with(f"Kafka at {proxy.address}: ")) for m in members] == [1, 1, 1]
        proxy.heal()
        await until(lambda: not any(m.kafka.health.missing_since for m in members), "each notices that it is back")
        assert all(m.reports_with("Kafka answers again") for m in members)


async def test_a_group_that_waits_for_a_slow_member(kafka: Server, topic: str) -> None:
    """Another member does not rejoin for a long time: that is reported, and Kafka is not missing."""
    await create_both_topics(kafka, topic)
    go_on = asyncio.Event()

    class Slow(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: object) -> None:
            if revoked:
                await go_on.wait()

        async def on_partitions_assigned(self, assigned: object) -> None:
            """Nothing."""

    slow = AIOKafkaConsumer(
        bootstrap_servers=kafka.address, group_id=f"g-{topic}", partition_assignment_strategy=(whole_topics({}),),
        rebalance_timeout_ms=60_000, heartbeat_interval_ms=500,
    )  # fmt: skip
    slow.subscribe([topic], listener=Slow())
    await slow.start()
    try:
        member = Member(kafka.address, f"g-{topic}", [topic])
        async with member.running():
            slow_report = "it is PreparingRebalance, in Kafka's words, so another member is slow"
            started = time.monotonic()
            await until(partial(member.reports_with, slow_report), "it reports its reason")
            assert time.monotonic() - started > SESSION_SECONDS, "waiting this long for a killed member is normal"
            assert "waiting for the group" in member.reports[0]
            assert member.kafka.health.missing_since == 0
            go_on.set()
            await until(lambda: member.holds or not member.kafka.awaits_assignment(topic), "it is in its group")
            assert len(member.reports_with(slow_report)) == 1
    finally:
        go_on.set()
        await slow.stop()


async def test_a_coordinator_slower_than_the_session(kafka: Server, proxy: KafkaProxy, topic: str) -> None:
    """No member stays in the group. The log names the setting, and a member that has it longer joins."""
    await create_both_topics(kafka, topic)
    proxy.reply_seconds = dict.fromkeys((JOIN_GROUP, SYNC_GROUP), SESSION_SECONDS + 2)
    cure = "takes longer than kafka.session_timeout (6 s), raise that"
    member = Member(proxy.address, f"g-{topic}", [topic])
    async with member.running():
        await until(partial(member.reports_with, cure), "the log names the setting")
        patient = Member(proxy.address, f"h-{topic}", [topic], session=3 * SESSION_SECONDS)
        async with patient.running():
            await until(patient.is_well, "it is in its group")
            await asyncio.sleep(SESSION_SECONDS)
            assert (patient.is_well(), member.holds) == (True, 0)
            proxy.heal()
            await until(member.is_well, "the other one is in its group too")


async def heartbeat(kafka: Server, group: str, topic: str, epoch: int) -> None:
    """ConsumerGroupHeartbeat of a member in the newer protocol (KIP-848): join with epoch 0, leave with -1."""

    def compact(text: str) -> bytes:
        return bytes([len(text) + 1]) + text.encode()

    member = compact(group) + compact("new") + epoch.to_bytes(4, signed=True) + bytes(2) + (60_000).to_bytes(4)
    request = b"\x00\x44" + bytes(6) + b"\xff\xff\x00" + member + b"\x02" + compact(topic) + b"\x00\x01\x00"
    reader, writer = await asyncio.open_connection("127.0.0.1", kafka.port)
    writer.write(len(request).to_bytes(4) + request)
    reply = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    writer.close()
    assert reply[9:11] == bytes(2), reply


@contextlib.asynccontextmanager
async def member_of_another_protocol(kafka: Server, group: str, topic: str, newer: bool) -> AsyncIterator[None]:
    if newer:
        await heartbeat(kafka, group, topic, 0)
        yield
        await heartbeat(kafka, group, topic, -1)
    else:
        async with AIOKafkaConsumer(topic, bootstrap_servers=kafka.address, group_id=group):
            yield


@pytest.mark.parametrize("newer", [False, True], ids=["classic", "kip-848"])
async def test_another_member_of_the_group_has_another_protocol(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, newer: bool
) -> None:
    """One line says so and names the cure. Predictions go on, and learning starts when that member is gone."""
    service = await asyncio.to_thread(run().up)
    await send(producer, topic, [event({"a": 1}, 1)] * 10)
    await asyncio.to_thread(service.wait_for, 10)
    assert await asyncio.to_thread(service.stop) == 0
    async with member_of_another_protocol(kafka, f"g-{topic}", topic, newer):
        await send(producer, topic, [event({"a": 1}, 1)] * 10)
        service = await asyncio.to_thread(run().up)
        cure = "uses another protocol, as a console consumer does: stop it, or set another kafka.group_id"
        await asyncio.to_thread(wait, lambda: cure in service.log.read_text(), "the log names the cause")
        await asyncio.sleep(2 * SESSION_SECONDS)  # longer than it would wait for a member that is slow
        assert service.predict({"features": {"a": 1}}).status_code == 200
        assert service.model()["events"] == 10
        warnings = [line for line in service.log.read_text().splitlines() if "[warning" in line or "[error" in line]
        assert len(warnings) == 1, warnings
        assert newer or run_check(service)[0] == 3
    await asyncio.to_thread(service.wait_for, 20)
    assert "Kafka answers again" not in service.log.read_text()


async def test_connections_that_are_silent_are_replaced(kafka: Server, proxy: KafkaProxy, topic: str) -> None:
    """Fetch and ListOffsets get no answer on the client's connections, but on new ones: the process continues."""
    await create_both_topics(kafka, topic)
    member = Member(proxy.address, f"g-{topic}", [topic])
    async with member.running() as task:
        await until(lambda: member.holds, "it holds the topic")
        proxy.hold({FETCH: b"", LIST_OFFSETS: b""}, old=True)
        async with AIOKafkaProducer(bootstrap_servers=kafka.address) as client:
            await client.send_and_wait(topic, b"new")
        await until(lambda: member.kafka.logs[topic].ends == {TopicPartition(topic, 0): 1}, "its requests succeed")
        assert not task.done()


async def test_a_broker_that_answers_no_fetch_is_waited_for(kafka: Server, proxy: KafkaProxy, topic: str) -> None:
    """Fetch and ListOffsets get no answer on new connections either: a new process would not help."""
    await create_both_topics(kafka, topic)
    member = Member(proxy.address, f"g-{topic}", [topic], watchdog=3.0)
    async with member.running() as task:
        await until(lambda: member.holds, "it holds the topic")
        proxy.hold({FETCH: b"", LIST_OFFSETS: b""})
        await until(lambda: member.kafka.health.missing_since, "it is reported")
        await asyncio.sleep(20.0)  # the fault itself: more than three times the watchdog's limit
        assert not task.done()
        assert member.reports == [f"Kafka at {proxy.address}: no answer in time"]
        proxy.heal()
        await until(lambda: not member.kafka.health.missing_since, "its requests succeed")
