"""`perceptron verify` learns the records again from Kafka and compares; it finds what digests cannot show."""

import asyncio
import json
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.identity import FOLD, Identity
from service.learning.learner import Learner
from service.snapshots.head import Source
from service.snapshots.keeper import AcceptedSave, Keeper
from service.snapshots.redis.store import RedisStore
from service.snapshots.rollback import current_head
from tests.conftest import TAKEOVER_SECONDS, Run, Running, create_topic, delete_topic, trim, wait
from tests.integration.kept import KEEPING, RNG, Tool, kept, learn_and_keep, send, some_events
from tests.oracle import Fold, assert_model_is_fold
from tests.saving import FakeClock, keeper, run_here

FULL = """[model]
scale = "standard"
average = "recent"
half_life = 50
margin = [0.5, 3]
[model.event]
where = { "/type" = "click" }
"""
BESIDE = "[snapshots]\nkeep_every = 1\n[model.candidates.wide]\nmargin = 2\n"
MORE = '[model.candidates.calm]\naverage = "recent"\nserve = "average"\n'


def raw_events(count: int) -> list[bytes]:
    """Clicks with strings and booleans; one in ten has another type."""
    events = []
    for i, raw in enumerate(some_events(count)):
        record = json.loads(raw)
        record["features"] |= {"page": f"/p{i % 7}", "new": i % 3 == 0}
        events.append(json.dumps(record | {"type": "view" if i % 10 == 3 else "click"}).encode())
    return events


@pytest.mark.nightly
async def test_verify_after_kills_and_with_bad_records_and_gaps(
    run: Run, tool: Tool, kafka: Server, topic: str
) -> None:
    """A model with categories, scale, margins and a recent average, which skips some records."""
    keeping = KEEPING + FULL
    await create_topic(kafka, topic)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=f"tx-{topic}")
    await client.start()
    events, rejected = raw_events(600), 0
    service = await asyncio.to_thread(run(keeping, session_timeout=TAKEOVER_SECONDS).up)
    for i in range(0, 600, 50):
        async with client.transaction():
            for raw in events[i : i + 50]:
                await client.send(topic, raw)
            await client.send(topic, b"no event")
            rejected += 1
        if i % 150 == 100:
            await asyncio.to_thread(wait, lambda: service.model()["events"] > 0, "some are learned")  # noqa: B023 - at once
            service.kill()
            service = await asyncio.to_thread(run(keeping, session_timeout=TAKEOVER_SECONDS).up)
    await client.stop()
    model = await asyncio.to_thread(service.wait_for, 600 + 2 * rejected)
    learned = [raw for raw in events if b"view" not in raw]
    fold = Fold(half_life=50, scaled=True, margins=(0.5, 3.0))
    assert_model_is_fold(fold.fold(learned), model, service.weights())
    assert fold.updates > fold.mistakes
    assert model["skipped"] == len(events) - len(learned)
    verified = await tool.verify()
    assert (verified["equal"], verified["replayed_state_digest"]) == (True, model["state_digest"])
    assert (verified["replayed_events"], verified["replayed_records"]) == (len(learned), 600 + rejected)
    last = 52 * rejected - 1
    assert verified["gaps"] == {"0": {"count": rejected, "first": [51, 52], "last": [last, last + 1]}}
    assert json.loads((await tool("inspect", "--json")).stdout)["offsets_without_record"] == rejected


@pytest.mark.nightly
async def test_verify_of_eight_partitions_begins_at_the_last_kept_version(
    run: Run, tool: Tool, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """It follows the recorded order across kills and a rollback with holes; candidates begin in between."""
    await create_topic(kafka, topic, 8)
    sent: dict[int, list[bytes]] = {p: [] for p in range(8)}

    async def more(service: Running, count: int) -> Any:
        for i, raw in enumerate(some_events(count)):
            partition = RNG.randrange(8)
            sending = await producer.send(topic, raw, partition=partition)
            if i % 20 == 0:
                await sending
            sent[partition].append(raw)
        await producer.flush()
        ends = {str(p): len(part) for p, part in sent.items()}
        return await asyncio.to_thread(
            wait, lambda: (m := service.model())["next"] == ends and m["ahead"] == 0 and m, "all eight are learned"
        )

    service = await asyncio.to_thread(run("[snapshots]\nkeep = 0", session_timeout=TAKEOVER_SECONDS).up)
    await more(service, 400)
    assert ((verified := await tool.verify())["from_version"], verified["replayed_events"]) == (None, 400)
    service.kill()
    service = await asyncio.to_thread(run(BESIDE, session_timeout=TAKEOVER_SECONDS).up)
    for i in range(3):
        model = await more(service, 500)
        service.kill()
        service = await asyncio.to_thread(run(BESIDE + MORE * (i == 2), session_timeout=TAKEOVER_SECONDS).up)
    verified = await tool.verify()
    assert (verified["order"], verified["equal"], verified["state_digest"]) == ("arrival", True, model["state_digest"])
    assert verified["from_version"] == (await asyncio.to_thread(kept, service))[-1]["version"]
    versions = await asyncio.to_thread(kept, service)
    version = versions[len(versions) // 2]
    offsets = version["next"]
    await tool.back(version["version"], "--resume-at", f"3:{offsets['3'] + 2},5:{offsets['5'] + 1}")
    ends = {str(p): len(part) for p, part in sent.items()}
    holes = {p: [[0, offsets[p]], [offsets[p] + skipped, ends[p]]] for p, skipped in (("3", 2), ("5", 1))}

    def learned_again() -> bool:
        model = service.model()
        covered = {p: holes.get(p, [[0, end]]) for p, end in ends.items()}
        return bool(model["covered"] == covered and model["ahead"] == 0)

    await asyncio.to_thread(wait, learned_again, "all but the holes")
    await more(service, 100)
    assert service.model()["events"] == sum(map(len, sent.values())) - 3
    verified = await tool.verify()
    assert verified["from_version"] > version["version"]
    assert 100 <= verified["candidates"]["calm"] <= verified["candidates"]["wide"] < service.model()["events"]


async def test_what_another_fold_learned_is_not_compared(store: RedisStore, tool: Tool, topic: str) -> None:
    for fold, reason in ((0, f"it has fold 0, this one {FOLD}"), (99, f"it has fold 99, this one knows {FOLD}")):
        learner = Learner(Identity(fold=fold))
        learner.begin({0: 0})
        assert isinstance(await keeper(store, topic, FakeClock()).save(learner, {}, Source("c")), AcceptedSave)
        assert reason in await tool.refused(1, "verify")
        await store.delete(topic)


async def store_altered(store: RedisStore, topic: str, change: Any) -> None:
    """Save a wrong state whose digests are all consistent."""
    altering = Keeper(topic, store, FakeClock(), run_here)
    learner = await altering.restore()
    assert learner
    change(learner)
    assert altering.head
    assert isinstance(await altering.save(learner, {}, altering.head.source), AcceptedSave)


async def test_verify_finds_what_digests_cannot(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, kafka: Server, topic: str
) -> None:
    service = await asyncio.to_thread(run(KEEPING, session_timeout=TAKEOVER_SECONDS).up)
    await learn_and_keep(service, producer, some_events(200))
    assert await asyncio.to_thread(service.stop) == 0
    await tool.verify()

    def a_weight(learner: Learner) -> None:
        learner._w[3] += 2.0**-40

    await store_altered(store, topic, a_weight)
    verified = await tool.verify(4)
    assert (verified["equal"], verified["differences"][0][:8]) == (False, "w: 1 of ")
    shown = await tool("verify")
    assert (shown.returncode, "DIFFERENT" in shown.stdout, shown.stderr) == (4, True, "")
    # The kept versions are right: after a rollback to one and the same records, verify succeeds.
    current = await current_head(store, topic)
    assert current
    await tool.back(next(k.version for k in current[0].kept))
    again = await asyncio.to_thread(run(KEEPING, session_timeout=TAKEOVER_SECONDS).up)
    await asyncio.to_thread(again.wait_for, 200)
    await tool.verify()
    assert await asyncio.to_thread(again.stop) == 0
    # The records are gone, or are other ones.
    await trim(kafka, topic, 7)
    assert "the records from 0 to 7, which were learned, are gone" in await tool.refused(1, "verify")
    await delete_topic(kafka, topic)
    await create_topic(kafka, topic)
    await send(producer, topic, some_events(200))
    assert "is not the one that was learned, so the topic was recreated" in await tool.refused(1, "verify")
    await delete_topic(kafka, topic)
    assert f"has no topic {topic}" in await tool.refused(1, "verify")
