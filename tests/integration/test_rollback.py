"""Rollback to a kept version, with and without a hole, under a running learner."""

import asyncio
import re
import signal

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.snapshots.redis.store import RedisStore
from service.snapshots.rollback import current_head
from service.streaming.resume_check import fingerprint
from tests.conftest import HELD_SECONDS, TAKEOVER_SECONDS, Run, Running, event, read_all, send, trim, wait
from tests.integration.kept import KEEP_OFTEN, Tool, kept_versions, learn_and_keep, newest_within, random_events
from tests.oracle import Fold, assert_model_is_fold
from tests.partitions import P0


@pytest.mark.nightly
async def test_a_rewind_without_a_hole_learns_the_same_bits(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, topic: str
) -> None:
    """A learner that was suspended meanwhile wakes up, is refused, and continues from the restored version."""
    service = await asyncio.to_thread(run(KEEP_OFTEN, session_timeout=HELD_SECONDS).up)
    events = random_events(1000)
    versions = await learn_and_keep(service, producer, events[:600])
    version = newest_within(versions, 500)
    model_before = service.model()
    task = asyncio.create_task(send(producer, topic, events[600:900]))
    service.process.send_signal(signal.SIGSTOP)
    await task
    output = await tool.roll_back(version["version"])
    current = await current_head(store, topic)
    assert current is not None
    head = current[0]
    assert f"which is version {head.version} " in output
    assert (head.version > model_before["version"], head.counts.events) == (True, version["events"])
    assert {v["version"] for v in versions} < {v.version for v in head.kept}, "the versions after it are kept too"
    service.process.send_signal(signal.SIGCONT)
    await send(producer, topic, events[900:])
    model = await asyncio.to_thread(service.wait_for, 1000)
    assert_model_is_fold(Fold().fold(events), model, service.weights())
    assert model["covered"] == {"0": [[0, 1000]]}
    assert "state dropped" in service.log.read_text()
    assert (await tool.verify())["replayed_events"] == 1000


def wait_for_covered(service: Running, *ranges: list[int]) -> None:
    """Wait until exactly these records are learned and saved."""
    wait(lambda: (m := service.model())["covered"] == {"0": [*ranges]} and not m["ahead"], f"{ranges} are learned")


async def test_records_in_a_gap_are_never_learned(run: Run, tool: Tool, producer: AIOKafkaProducer, topic: str) -> None:
    """This holds with and without new events; another rollback makes the hole longer, or removes it."""
    service = await asyncio.to_thread(run(KEEP_OFTEN, session_timeout=TAKEOVER_SECONDS).up)
    events = random_events(900)
    versions = await learn_and_keep(service, producer, events[:600])
    version = newest_within(versions, 400)
    a = version["next"]["0"]
    task = asyncio.create_task(send(producer, topic, events[600:700]))
    await tool.roll_back(version["version"], "--resume-at", "0:450")
    await task
    await asyncio.to_thread(wait_for_covered, service, [0, a], [450, 700])
    assert_model_is_fold(Fold().fold([*events[:a], *events[450:700]]), service.model(), service.weights())
    report = await tool.verify()
    assert (report["covered"], report["replayed_records"]) == ({"0": [[0, a], [450, 700]]}, 700 - 450 + a)
    # No events come now. A longer hole after the restored version is one hole.
    restored = next(v for v in await asyncio.to_thread(kept_versions, service) if v["next"]["0"] == 450)
    assert restored["events"] == a
    await tool.roll_back(restored["version"], "--resume-at", "0:650")
    await asyncio.to_thread(wait_for_covered, service, [0, a], [650, 700])
    await send(producer, topic, events[700:])
    await asyncio.to_thread(service.wait_for, 900)
    assert_model_is_fold(Fold().fold([*events[:a], *events[650:]]), service.model(), service.weights())
    await tool.verify()
    # A restart continues after the hole, with kept versions of two histories.
    service.kill()
    restarted = await asyncio.to_thread(run(KEEP_OFTEN).up)
    assert (await asyncio.to_thread(restarted.wait_for, 900))["covered"] == {"0": [[0, a], [650, 900]]}
    # Without the hole, every record is learned once.
    await tool.roll_back(version["version"])
    await asyncio.to_thread(wait_for_covered, restarted, [0, 900])
    assert_model_is_fold(Fold().fold(events), restarted.model(), restarted.weights())
    result = await tool("verify")
    assert (result.returncode, "equal, bit for bit" in result.stdout) == (0, True)


async def test_a_model_outlives_records_that_retention_deleted_while_it_was_down(
    run: Run, tool: Tool, producer: AIOKafkaProducer, kafka: Server, redis: Server, topic: str
) -> None:
    """The same sentence in `check` and in a running process names the rollback first, which works as it stands."""
    service = await asyncio.to_thread(run().up)
    events = random_events(300)
    await send(producer, topic, events[:100])
    await asyncio.to_thread(service.wait_for, 100)
    assert await asyncio.to_thread(service.stop) == 0
    await send(producer, topic, events[100:])
    await trim(kafka, topic, 150)
    checked = await tool("check")
    service = await asyncio.to_thread(run().up)
    reason = await asyncio.to_thread(wait, lambda: service.model()["stopped"], "it stops learning")
    assert (checked.returncode, f"\nfail  {reason}\n" in checked.stdout) == (1, True), checked.stdout
    rollback, reset = re.findall("`perceptron (.+?)`", reason)
    assert (reset, "--resume-at 0:150 " in rollback) == (f"reset -m {topic} --yes", True)
    result = await tool(*rollback.replace(f"-m {topic} ", "").split())  # the tool names the model
    assert result.returncode == 0, result.stderr
    await asyncio.to_thread(wait_for_covered, service, [0, 100], [150, 300])
    assert_model_is_fold(Fold().fold([*events[:100], *events[150:]]), service.model(), service.weights())
    empty = "--redis", f"redis://{redis.address}/1"
    checked = await tool("check", *empty)
    assert (checked.returncode, "begin at offset 0 of partition 0, which holds 150" in checked.stdout) == (1, True)
    assert (await tool("check", *empty, "--start-at", "earliest")).returncode == 0


async def test_a_record_that_ruins_a_scale_is_named_and_can_be_left_out(
    run: Run, tool: Tool, producer: AIOKafkaProducer
) -> None:
    service = await asyncio.to_thread(run(f'{KEEP_OFTEN}[model]\nscale = "standard"\n').up)
    events = [event({"x": i % 7 if i != 250 else 1e9}, int(i % 7 > 3)) for i in range(400)]
    versions = await learn_and_keep(service, producer, events)
    assert "x at offset 250 of partition 0" in service.model()["advice"][0]
    await asyncio.to_thread(wait, lambda: service.log.read_text().count("x at offset 250") == 1, "the log says it")
    version = newest_within(versions, 250)
    await tool.roll_back(version["version"], "--resume-at", "0:251")
    await asyncio.to_thread(wait_for_covered, service, [0, version["next"]["0"]], [251, 400])
    assert service.model()["advice"] == []


@pytest.mark.nightly
async def test_an_impossible_rollback_says_so_in_one_line(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, kafka: Server, topic: str
) -> None:
    assert "has no snapshot in Redis" in await tool.expect_error(1, "rollback", "--to", "2", "--yes")
    assert "has no snapshot in Redis" in await tool.expect_error(1, "verify")
    service = await asyncio.to_thread(run(KEEP_OFTEN).up)
    versions = await learn_and_keep(service, producer, random_events(400))
    assert await asyncio.to_thread(service.stop) == 0
    numbers = [v["version"] for v in versions]
    version = newest_within(versions, 300)
    number, offset = version["version"], version["next"]["0"]
    digest = await store.digest(topic)

    async def rollback_error(code: int, to: int, *flags: str) -> str:
        return await tool.expect_error(code, "rollback", "--to", str(to), "--yes", *flags)

    assert f"has no kept version 99999: it has {', '.join(map(str, numbers))}" in await rollback_error(1, 99999)
    error = await rollback_error(2, number, "--resume-at", f"0:{offset - 1}")
    assert f"has learned up to 0:{offset}, and nothing is learned twice" in error
    error = await rollback_error(1, number, "--resume-at", "0:401")
    assert "partition 0 has the offsets 0 to 400: learning cannot go on at 401" in error
    assert await store.digest(topic) == digest, "none of these wrote anything"
    # The log is trimmed: the user must name what is left out.
    await trim(kafka, topic, 350)
    error = await rollback_error(1, number)
    assert f"has the offsets 350 to 400: learning cannot go on at {offset}" in error
    await tool.roll_back(number, "--resume-at", "0:350")
    restarted = await asyncio.to_thread(run(KEEP_OFTEN).up)
    assert (await asyncio.to_thread(restarted.wait_for, 400))["covered"] == {"0": [[0, offset], [350, 400]]}
    record = (await read_all(kafka, topic))[-1]
    current = await current_head(store, topic)
    assert current
    assert current[0].next[P0].fingerprint == fingerprint(record)
