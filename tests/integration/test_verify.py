"""`perceptron verify` learns the records again from Kafka and compares: it finds errors that digests do not show."""

import asyncio
import json
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from msgspec import UNSET

from service.embedded.servers import Server
from service.learning.identity import FOLD, Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots.head import TopicIdentity
from service.snapshots.keeper import AcceptedSave, Keeper
from service.snapshots.redis.store import RedisStore
from service.snapshots.rollback import current_head
from tests.conftest import TAKEOVER_SECONDS, Run, Running, create_topic, delete_topic, send, trim, wait
from tests.integration.kept import KEEP_OFTEN, RNG, Tool, kept_versions, learn_and_keep, random_events
from tests.oracle import Fold, assert_model_is_fold
from tests.partitions import P0
from tests.saving import FakeClock, keeper, run_here

FULL = """[model]
scale = "standard"
average = "recent"
half_life = 50
margin = [0.5, 3]
[model.event]
where = { "/type" = "click" }
"""
WIDE = "[snapshots]\nkeep_every = 1\n[model.candidates.wide]\nmargin = 2\n"
CALM = '[model.candidates.calm]\naverage = "recent"\nserve = "average"\n'


def raw_events(count: int) -> list[bytes]:
    """Clicks with strings and booleans; one in ten has another type."""
    events = []
    for i, raw in enumerate(random_events(count)):
        record = json.loads(raw)
        record["features"] |= {"page": f"/p{i % 7}", "new": i % 3 == 0}
        events.append(json.dumps(record | {"type": "view" if i % 10 == 3 else "click"}).encode())
    return events


@pytest.mark.nightly
async def test_verify_after_kills_with_bad_records_and_gaps(run: Run, tool: Tool, kafka: Server, topic: str) -> None:
    """A model with categories, scale, margins and a recent average, which skips some records."""
    settings = KEEP_OFTEN + FULL
    await create_topic(kafka, topic)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=f"tx-{topic}")
    await client.start()
    events, rejected = raw_events(600), 0
    service = await asyncio.to_thread(run(settings, session_timeout=TAKEOVER_SECONDS).up)
    for i in range(0, 600, 50):
        async with client.transaction():
            for raw in events[i : i + 50]:
                await client.send(topic, raw)
            await client.send(topic, b"no event")
            rejected += 1
        if i % 150 == 100:
            await asyncio.to_thread(wait, lambda: service.model()["events"] > 0, "some are learned")  # noqa: B023 - at once
            service.kill()
            service = await asyncio.to_thread(run(settings, session_timeout=TAKEOVER_SECONDS).up)
    await client.stop()
    model = await asyncio.to_thread(service.wait_for, 600 + 2 * rejected)
    clicks = [raw for raw in events if b"view" not in raw]
    fold = Fold(half_life=50, scaled=True, margins=(0.5, 3.0))
    assert_model_is_fold(fold.fold(clicks), model, service.weights())
    assert fold.updates > fold.mistakes
    assert model["skipped"] == len(events) - len(clicks)
    report = await tool.verify()
    assert (report["equal"], report["replayed_state_digest"]) == (True, model["state_digest"])
    assert (report["replayed_events"], report["replayed_records"]) == (len(clicks), 600 + rejected)
    last = 52 * rejected - 1
    assert report["gaps"] == {"0": {"count": rejected, "first": [51, 52], "last": [last, last + 1]}}
    assert json.loads((await tool("inspect", "--json")).stdout)["offsets_without_record"] == rejected


@pytest.mark.nightly
async def test_verify_of_eight_partitions_begins_at_the_last_kept_version(
    run: Run, tool: Tool, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """`verify` follows the recorded order across kills and a rollback with holes; candidates begin in between."""
    await create_topic(kafka, topic, 8)
    produced: dict[int, list[bytes]] = {p: [] for p in range(8)}

    async def send_more(service: Running, count: int) -> Any:
        for i, raw in enumerate(random_events(count)):
            partition = RNG.randrange(8)
            future = await producer.send(topic, raw, partition=partition)
            if i % 20 == 0:
                await future
            produced[partition].append(raw)
        await producer.flush()
        ends = {str(p): len(values) for p, values in produced.items()}
        return await asyncio.to_thread(
            wait, lambda: (m := service.model())["next"] == ends and m["ahead"] == 0 and m, "all eight are learned"
        )

    service = await asyncio.to_thread(run("[snapshots]\nkeep = 0", session_timeout=TAKEOVER_SECONDS).up)
    await send_more(service, 400)
    assert ((report := await tool.verify())["from_version"], report["replayed_events"]) == (None, 400)
    service.kill()
    service = await asyncio.to_thread(run(WIDE, session_timeout=TAKEOVER_SECONDS).up)
    for i in range(3):
        model = await send_more(service, 500)
        service.kill()
        service = await asyncio.to_thread(run(WIDE + CALM * (i == 2), session_timeout=TAKEOVER_SECONDS).up)
    report = await tool.verify()
    assert (report["order"], report["equal"], report["state_digest"]) == ("arrival", True, model["state_digest"])
    assert report["from_version"] == (await asyncio.to_thread(kept_versions, service))[-1]["version"]
    versions = await asyncio.to_thread(kept_versions, service)
    version = versions[len(versions) // 2]
    offsets = version["next"]
    await tool.roll_back(version["version"], "--resume-at", f"3:{offsets['3'] + 2},5:{offsets['5'] + 1}")
    ends = {str(p): len(values) for p, values in produced.items()}
    holes = {p: [[0, offsets[p]], [offsets[p] + skipped, ends[p]]] for p, skipped in (("3", 2), ("5", 1))}

    def learned_again() -> bool:
        model = service.model()
        covered = {p: holes.get(p, [[0, end]]) for p, end in ends.items()}
        return bool(model["covered"] == covered and model["ahead"] == 0)

    await asyncio.to_thread(wait, learned_again, "all but the holes")
    await send_more(service, 100)
    assert service.model()["events"] == sum(map(len, produced.values())) - 3
    report = await tool.verify()
    assert report["from_version"] > version["version"]
    assert 100 <= report["candidates"]["calm"] <= report["candidates"]["wide"] < service.model()["events"]


async def test_verify_reads_each_record_by_the_rule_of_its_release(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, kafka: Server, topic: str
) -> None:
    """Lists of objects and byte order marks were rejected until the upgrade; a rollback reads them by the new rule."""
    plain = random_events(40)
    odd = [raw.replace(b'{"n', b'{"cart": [{"x": 1}, {"x": 2}], "n') for raw in random_events(5)]
    odd += [BOM_UTF8 + raw for raw in random_events(5)]
    await create_topic(kafka, topic)
    await send(producer, topic, [*plain[:20], *odd, *plain[20:]])
    older, clock = Learner(Identity()), FakeClock()
    saver = keeper(store, topic, clock, keep_every=0.1)
    older.begin({P0: 0})
    for records in (plain[:10], plain[10:20], odd + plain[20:]):
        older.lists_since = {P0: older.next[P0] + len(records)}  # an older release read these
        older.apply(Records.from_values(older.next[P0], records))
        assert isinstance(save := await saver.save(older, {}, TopicIdentity()), AcceptedSave)
        assert save.head.lists_since is UNSET
        clock.seconds += 1
    assert older.main.counts.rejected == {"wrong-type": 5, "not-json": 5}
    assert ((report := await tool.verify())["equal"], report["amendments"]) == (True, [])
    service = await asyncio.to_thread(run(KEEP_OFTEN).up)
    await send(producer, topic, odd)
    model = await asyncio.to_thread(service.wait_for, 60)
    assert (model["rejected"], model["events"]) == ({"wrong-type": 5, "not-json": 5}, 50)
    assert ((report := await tool.verify())["equal"], report["events"]) == (True, 50)
    assert report["amendments"] == ["lists of objects and byte order marks are read, from 0:50 on"]
    await tool.roll_back(2)
    await asyncio.to_thread(wait, lambda: (m := service.model())["events"] == 60 and not m["ahead"], "all are learned")
    assert service.model()["rejected"] == {}
    assert ((report := await tool.verify())["equal"], report["events"]) == (True, 60)


async def test_a_model_of_another_fold_is_not_compared(store: RedisStore, tool: Tool, topic: str) -> None:
    for fold, reason in ((0, f"it has fold 0, this one {FOLD}"), (99, f"it has fold 99, this release knows {FOLD}")):
        learner = Learner(Identity(fold=fold))
        learner.begin({P0: 0})
        assert isinstance(await keeper(store, topic, FakeClock()).save(learner, {}, TopicIdentity("c")), AcceptedSave)
        assert reason in await tool.expect_error(1, "verify")
        await store.reset(topic, b"", keep=False)


async def save_altered_state(store: RedisStore, topic: str, change: Callable[[Learner], None]) -> None:
    """Save a wrong state whose digests are all consistent."""
    saver = Keeper(topic, store, FakeClock(), run_here)
    learner = await saver.restore()
    assert learner
    change(learner)
    assert saver.head
    assert isinstance(await saver.save(learner, {}, saver.head.source), AcceptedSave)


async def test_verify_finds_errors_that_digests_do_not_show(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, kafka: Server, topic: str
) -> None:
    service = await asyncio.to_thread(run(KEEP_OFTEN, session_timeout=TAKEOVER_SECONDS).up)
    await learn_and_keep(service, producer, random_events(200))
    assert await asyncio.to_thread(service.stop) == 0
    await tool.verify()

    def change_weight(learner: Learner) -> None:
        learner.main._state[:, 0][3] += 2.0**-40

    await save_altered_state(store, topic, change_weight)
    report = await tool.verify(4)
    assert (report["equal"], report["differences"][0][:8]) == (False, "w: 1 of ")
    result = await tool("verify")
    assert (result.returncode, "DIFFERENT" in result.stdout, result.stderr) == (4, True, "")
    # The kept versions are right: after a rollback to one and the same records, verify succeeds.
    current = await current_head(store, topic)
    assert current
    await tool.roll_back(next(k.version for k in current[0].kept))
    restarted = await asyncio.to_thread(run(KEEP_OFTEN, session_timeout=TAKEOVER_SECONDS).up)
    await asyncio.to_thread(restarted.wait_for, 200)
    await tool.verify()
    assert await asyncio.to_thread(restarted.stop) == 0
    # The records are gone, or were replaced, or the log ends early.
    await trim(kafka, topic, 7)
    assert "has the offsets 7 to 200, and 0 to 200 were learned" in await tool.expect_error(1, "verify")
    await delete_topic(kafka, topic)
    await create_topic(kafka, topic)
    await send(producer, topic, random_events(200))
    assert "is not the one that was learned, so the topic was recreated" in await tool.expect_error(1, "verify")
    await save_altered_state(store, topic, lambda learner: learner.cover(P0, 300))
    assert "partition 0 has the offsets 0 to 200, and 0 to" in await tool.expect_error(1, "verify")
    await delete_topic(kafka, topic)
    assert f"has no topic {topic}" in await tool.expect_error(1, "verify")
