"""Back to a kept version, with and without a hole, under a running learner; and `verify`, which finds what is wrong."""

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from service.embedded.servers import Server
from service.errors import DataError, SnapshotDamaged
from service.learning.identity import Identity
from service.learning.learner import DEFAULT, Learner
from service.snapshots.head import Fingerprint, Position, Source
from service.snapshots.keeper import Keeper, Refused, Saved
from service.snapshots.rollback import TRIES, current_head, kept_snapshot, roll_back
from service.snapshots.store import RedisStore, key
from service.streaming.learn import fingerprint
from tests.conftest import Run, Running, create_topic, delete_topic, event, perceptron, read_all, trim, wait
from tests.integration.test_snapshots import FakeClock, here
from tests.oracle import Fold, same

KEEPING = "[snapshots]\nkeep_every = 0.2\n"
RNG = random.Random(11)


def some_events(count: int) -> list[bytes]:
    return [
        event({f"n{RNG.randrange(40)}": round(RNG.gauss(0, 1), 3) for _ in range(3)}, RNG.choice([0, 1]))
        for _ in range(count)
    ]


class Tool:
    """The command on this test's topic."""

    def __init__(self, topic: str, kafka: Server, redis: Server, cwd: Path) -> None:
        self._where = ("-t", topic, "-b", kafka.address, "--redis", f"redis://{redis.address}/0")
        self._cwd = cwd

    async def __call__(self, command: str, *flags: str, settings: Path | None = None) -> Any:
        before = ("-c", str(settings)) if settings else ()
        return await asyncio.to_thread(perceptron, *before, command, *self._where, *flags, cwd=self._cwd)

    async def back(self, version: int, *flags: str) -> str:
        done = await self("rollback", "--to", str(version), "--yes", *flags)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    async def verify(self, code: int = 0, settings: Path | None = None) -> Any:
        """What it found; None where it says why it cannot."""
        done = await self("verify", "--json", settings=settings)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if code in {0, 4} else None

    async def refused(self, code: int, *command: str) -> str:
        done = await self(*command)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
        return str(done.stderr)


@pytest.fixture
def tool(topic: str, kafka: Server, redis: Server, tmp_path: Path) -> Tool:
    return Tool(topic, kafka, redis, tmp_path)


@pytest.fixture
async def store(redis: Server) -> AsyncIterator[RedisStore]:
    found = RedisStore(f"redis://{redis.address}/0")
    yield found
    await found.close()


async def send(producer: AIOKafkaProducer, topic: str, events: list[bytes]) -> None:
    for raw in events:
        await producer.send(topic, raw, partition=0)
    await producer.flush()


def kept(service: Running) -> list[Any]:
    answer = service.http.get(f"/v1/models/{service.topic}/versions").raise_for_status()
    return list(answer.json()["versions"])


async def learn_and_keep(service: Running, producer: AIOKafkaProducer, events: list[bytes], step: int = 100) -> Any:
    """Send the events in steps, each kept as a version; return those."""
    for i in range(0, len(events), step):
        await send(producer, service.topic, events[i : i + step])
        await asyncio.to_thread(service.wait_for, i + step)
    return await asyncio.to_thread(kept, service)


def middle(versions: list[Any], most: int) -> Any:
    """The newest kept version that has learned something, but no more than so many records."""
    return [v for v in versions if 0 < v["next"]["0"] <= most][-1]


def counters(service: Running) -> dict[str, float]:
    return {name: n for name, n in service.metrics().items() if name.startswith("perceptron_events_total")}


async def test_a_rewind_without_a_hole_learns_the_same_bits(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, topic: str
) -> None:
    """A learner that was stopped in the middle of it all wakes up as a zombie, is refused, and goes on from there."""
    service = await asyncio.to_thread(run(KEEPING).up)
    events = some_events(1000)
    versions = await learn_and_keep(service, producer, events[:600])
    version = middle(versions, 500)
    before, counted = service.model(), counters(service)
    sending = asyncio.create_task(send(producer, topic, events[600:900]))
    service.process.send_signal(signal.SIGSTOP)
    await sending
    said = await tool.back(version["version"])
    found = await current_head(store, topic)
    assert found is not None
    head = found[0]
    assert head.parent
    assert (head.version, head.counts.events) == (kept_at(said), version["events"])
    assert head.version > before["version"]
    assert head.kept[-1].version == head.version
    assert {v["version"] for v in versions} <= {v.version for v in head.kept}, "the way back is there too"
    service.process.send_signal(signal.SIGCONT)
    await send(producer, topic, events[900:])
    model = await asyncio.to_thread(service.wait_for, 1000)
    same(Fold().fold(events), model, service.weights())
    assert model["covered"] == {"0": [[0, 1000]]}
    assert "state dropped" in service.log.read_text()
    rewinds = sum(n for name, n in service.metrics().items() if name.startswith("perceptron_rewinds_total"))
    assert rewinds >= 1
    assert counters(service).keys() == counted.keys()
    assert all(n >= counted[name] for name, n in counters(service).items())
    assert (await tool.verify())["replayed_events"] == 1000


def kept_at(said: str) -> int:
    """The new version, of what the command says."""
    return int(said.rpartition("which is version ")[2].partition(" ")[0])


async def test_what_a_hole_leaves_out_is_never_learned(
    run: Run, tool: Tool, producer: AIOKafkaProducer, topic: str
) -> None:
    """While events come, and while none do; another rollback makes the hole longer, or takes it back."""
    service = await asyncio.to_thread(run(KEEPING).up)
    events = some_events(900)
    versions = await learn_and_keep(service, producer, events[:600])
    version = middle(versions, 400)
    a = version["next"]["0"]
    sending = asyncio.create_task(send(producer, topic, events[600:700]))
    await tool.back(version["version"], "--resume-at", "0:450")
    await sending
    await asyncio.to_thread(
        wait, lambda: service.model()["covered"] == {"0": [[0, a], [450, 700]]}, "the hole is there"
    )
    await asyncio.to_thread(service.wait_for, 700)
    same(Fold().fold([*events[:a], *events[450:700]]), service.model(), service.weights())
    found = await tool.verify()
    assert (found["covered"], found["replayed_records"]) == ({"0": [[0, a], [450, 700]]}, 700 - 450 + a)
    # Nothing comes now. From the restored version on, with a longer hole: one hole.
    restored = next(v for v in await asyncio.to_thread(kept, service) if v["next"]["0"] == 450)
    assert restored["events"] == a
    await tool.back(restored["version"], "--resume-at", "0:650")
    await asyncio.to_thread(
        wait, lambda: service.model()["covered"] == {"0": [[0, a], [650, 700]]}, "one hole, and no empty range"
    )
    await send(producer, topic, events[700:])
    await asyncio.to_thread(service.wait_for, 900)
    same(Fold().fold([*events[:a], *events[650:]]), service.model(), service.weights())
    await tool.verify()
    # A restart goes on behind the hole, from kept versions of two histories.
    service.kill()
    again = await asyncio.to_thread(run(KEEPING).up)
    assert (await asyncio.to_thread(again.wait_for, 900))["covered"] == {"0": [[0, a], [650, 900]]}
    # Back to the version without the hole: every record is learned once.
    await tool.back(version["version"])
    await asyncio.to_thread(wait, lambda: again.model()["covered"] == {"0": [[0, 900]]}, "the hole is gone")
    await asyncio.to_thread(again.wait_for, 900)
    same(Fold().fold(events), again.model(), again.weights())
    shown = await tool("verify")
    assert (shown.returncode, "equal, bit for bit" in shown.stdout) == (0, True)
    print(f"\n{shown.stdout}")


def keeper(store: Any, model: str, clock: FakeClock, **more: Any) -> Keeper:
    return Keeper(model, store, clock, here, keep_every=10.0, **more)


async def saved_thrice(store: RedisStore, topic: str) -> tuple[Keeper, Learner, FakeClock, list[bytes]]:
    """A model of three versions, of which the second is kept."""
    clock, events = FakeClock(), some_events(30)
    ours = keeper(store, topic, clock)
    learner = Learner(Identity())
    learner.begin({0: 0})
    for i in (0, 10, 20):
        learner.apply(0, i, events[i : i + 10])
        assert isinstance(await ours.save(learner, {0: Fingerprint(i + 9, 7, i)}, Source("c")), Saved)
        clock.seconds += 1
    return ours, learner, clock, events


async def test_a_zombie_cannot_undo_it(store: RedisStore, topic: str) -> None:
    """Whoever goes on from what was current before is refused: the parent's, and one at the restored version itself."""
    ours, learner, clock, events = await saved_thrice(store, topic)
    found = await current_head(store, topic)
    assert found
    version = await kept_snapshot(store, *found, 2, here, DEFAULT)
    at_the_kept_one = keeper(store, topic, clock)
    at_the_kept_one.head, at_the_kept_one.digest, at_the_kept_one._stored = version.head, version.digest, version.stored
    new = await roll_back(store, version, {}, clock.time())
    assert (new.version, new.parent, new.runs, new.counts.events) == (4, found[1], [], 20)
    assert (new.state_digest, new.next) == (version.head.state_digest, version.head.next)
    learner.apply(0, 30, events[:5])
    version.learner.apply(0, 20, events[:5])
    assert isinstance(await ours.save(learner, {}, Source("c")), Refused)
    assert isinstance(await at_the_kept_one.save(version.learner, {}, Source("c")), Refused)
    restored = await ours.restore()
    assert restored is not None
    assert (restored.next, ours.head) == ({0: 20}, new)
    fold = Fold().fold(events[:20])
    assert restored.weights.tolist() == fold.vector
    # The next save lets go of a kept version where there is one too many, and counts its runs from the restored one.
    restored.apply(0, 20, events[20:])
    fewer = keeper(store, topic, clock, keep=1)
    fewer.head, fewer.digest, fewer._stored = ours.head, ours.digest, ours._stored
    saved = await fewer.save(restored, {}, Source("c"))
    assert isinstance(saved, Saved)
    assert ([k.version for k in saved.head.kept], saved.head.runs) == ([4], [(0, 20, 30)])


async def test_a_partition_that_came_later_begins_where_it_began(store: RedisStore, topic: str) -> None:
    """Not where a new one would begin now; and with several, the order is that of arrival."""
    ours, learner, clock, events = await saved_thrice(store, topic)
    learner.begin({1: 5})
    learner.apply(1, 5, events[:3])
    assert isinstance(await ours.save(learner, {1: Fingerprint(7, 7, 7)}, Source("c")), Saved)
    found = await current_head(store, topic)
    assert found
    version = await kept_snapshot(store, *found, 2, here, DEFAULT)
    new = await roll_back(store, version, {}, clock.time())
    assert (new.covered, new.order) == ({"0": [(0, 20)], "1": [(5, 5)]}, "arrival")
    assert new.next["1"] == Position(5)
    assert await keeper(store, topic, clock).restore(), "its digest is of what it covers"


async def test_a_model_that_moves_on_meanwhile(store: RedisStore, topic: str) -> None:
    """Once: the rollback begins again on top of it. Always: it says so."""
    ours, learner, clock, events = await saved_thrice(store, topic)
    found = await current_head(store, topic)
    assert found
    version = await kept_snapshot(store, *found, 2, here, DEFAULT)

    class Moving:
        """Somebody saves between the look at the head and the commit."""

        left = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def head(self, model: str) -> Any:
            answer = await store.head(model)
            if self.left:
                self.left -= 1
                learner.apply(0, learner.next[0], events[:1])
                assert isinstance(await ours.save(learner, {}, Source("c")), Saved)
            return answer

    moving: Any = Moving()
    moving.left = TRIES
    with pytest.raises(DataError, match="moved on meanwhile, 20 times: try again"):
        await roll_back(moving, version, {}, clock.time())
    assert await store.digest(topic) == ours.digest
    moving.left = 1
    new = await roll_back(moving, version, {0: 40}, clock.time())
    assert (new.version, new.parent, new.covered) == (3 + TRIES + 2, ours.digest, {"0": [(0, 20), (40, 40)]})
    clock.seconds += 100
    await store.delete(topic)
    with pytest.raises(DataError, match="does not keep version 2 any more"):
        await roll_back(store, version, {}, clock.time())


def something_learned(service: Running) -> None:
    wait(lambda: service.model()["events"] > 0, "something is learned")


async def test_verify_after_kills_and_with_bad_records_and_gaps(
    run: Run, tool: Tool, kafka: Server, topic: str
) -> None:
    await create_topic(kafka, topic)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=f"tx-{topic}")
    await client.start()
    events, rejected = some_events(600), 0
    service = await asyncio.to_thread(run(KEEPING).up)
    for i in range(0, 600, 50):
        async with client.transaction():
            for raw in events[i : i + 50]:
                await client.send(topic, raw)
            await client.send(topic, b"no event")
            rejected += 1
        if i % 150 == 100:
            await asyncio.to_thread(something_learned, service)
            service.kill()
            service = await asyncio.to_thread(run(KEEPING).up)
    await client.stop()
    model = await asyncio.to_thread(service.wait_for, 600 + 2 * rejected)
    same(Fold().fold(events), model, service.weights())
    found = await tool.verify()
    assert (found["equal"], found["state_digest"]) == (True, model["state_digest"])
    assert found["replayed_state_digest"] == model["state_digest"]
    assert (found["replayed_events"], found["offsets_without_record"]) == (600, rejected)
    assert found["replayed_records"] == 600 + rejected


async def test_verify_of_eight_partitions_begins_at_the_last_kept_version(
    run: Run, tool: Tool, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """By the recorded order, also across kills, a rollback with holes, and where nothing was ever kept."""
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

    service = await asyncio.to_thread(run("[snapshots]\nkeep = 0").up)
    await more(service, 400)
    assert ((found := await tool.verify())["from_version"], found["replayed_events"]) == (None, 400)
    service.kill()
    service = await asyncio.to_thread(run("[snapshots]\nkeep_every = 1\n").up)
    for _ in range(3):
        model = await more(service, 500)
        service.kill()
        service = await asyncio.to_thread(run("[snapshots]\nkeep_every = 1\n").up)
    found = await tool.verify()
    assert (found["order"], found["equal"], found["state_digest"]) == ("arrival", True, model["state_digest"])
    assert found["from_version"] == (await asyncio.to_thread(kept, service))[-1]["version"]
    versions = await asyncio.to_thread(kept, service)
    version = versions[len(versions) // 2]
    at = version["next"]
    await tool.back(version["version"], "--resume-at", f"3:{at['3'] + 2},5:{at['5'] + 1}")
    ends = {str(p): len(part) for p, part in sent.items()}
    holes = {p: [[0, at[p]], [at[p] + skipped, ends[p]]] for p, skipped in (("3", 2), ("5", 1))}

    def learned_again() -> bool:
        model = service.model()
        covered = {p: holes.get(p, [[0, end]]) for p, end in ends.items()}
        return bool(model["covered"] == covered and model["ahead"] == 0)

    await asyncio.to_thread(wait, learned_again, "all but the holes")
    await more(service, 100)
    assert service.model()["events"] == sum(map(len, sent.values())) - 3
    found = await tool.verify()
    assert found["from_version"] > version["version"]
    assert [len(found["covered"][p]) for p in "0123"] == [1, 1, 1, 2]


async def test_a_damaged_snapshot_is_left_behind(store: RedisStore, redis: Server, topic: str) -> None:
    """Of the current one only the head is read: that it cannot be served is a reason to go back."""
    ours, learner, clock, _ = await saved_thrice(store, topic)
    learner.apply(0, 30, some_events(20))
    assert isinstance(await ours.save(learner, {}, Source("c")), Saved)
    found = await current_head(store, topic)
    assert found
    version = await kept_snapshot(store, *found, 2, here, DEFAULT)
    raw: Any = Redis.from_url(f"redis://{redis.address}/0")
    only_here = set(found[0].refs) - set(version.head.refs)
    assert only_here
    await raw.hdel(key(topic), *(f"b:{ref}" for ref in only_here))
    await raw.aclose()
    with pytest.raises(SnapshotDamaged):
        await ours.restore()
    await roll_back(store, version, {}, clock.time())
    restored = await ours.restore()
    assert restored is not None
    assert restored.next == {0: 20}


async def test_what_another_fold_learned_is_not_compared(store: RedisStore, tool: Tool, topic: str) -> None:
    learner = Learner(Identity(fold=99))
    learner.begin({0: 0})
    assert isinstance(await keeper(store, topic, FakeClock()).save(learner, {}, Source("c")), Saved)
    assert "(fold 99, here 1): verify it with that release" in await tool.refused(1, "verify")


async def store_altered(store: RedisStore, topic: str, change: Any) -> None:
    """Save a state that is consistent in all its digests, and wrong."""
    altering = Keeper(topic, store, FakeClock(), here)
    learner = await altering.restore()
    assert learner
    change(learner)
    assert altering.head
    assert isinstance(await altering.save(learner, {}, altering.head.source), Saved)


async def test_verify_finds_what_digests_cannot(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, kafka: Server, topic: str
) -> None:
    service = await asyncio.to_thread(run(KEEPING).up)
    await learn_and_keep(service, producer, some_events(200))
    assert await asyncio.to_thread(service.stop) == 0
    await tool.verify()

    def a_weight(learner: Learner) -> None:
        learner._w[3] += 2.0**-40

    def a_count(learner: Learner) -> None:
        learner.counts.mistakes += 1

    await store_altered(store, topic, a_weight)
    found = await tool.verify(4)
    assert found["equal"] is False
    assert found["differences"][0].startswith("w: 1 of ")
    shown = await tool("verify")
    print(f"\n{shown.stdout}")
    assert (shown.returncode, "DIFFERENT" in shown.stdout, shown.stderr) == (4, True, "")
    await store_altered(store, topic, a_count)
    assert "mistakes: " in (await tool.verify(4))["differences"][0]
    # The kept versions are as they were: back to one of them, and all is well after the same records.
    found_head = await current_head(store, topic)
    assert found_head
    await tool.back(next(k.version for k in found_head[0].kept))
    await tool.verify()
    again = await asyncio.to_thread(run(KEEPING).up)
    await asyncio.to_thread(again.wait_for, 200)
    await tool.verify()
    assert await asyncio.to_thread(again.stop) == 0
    # Records that are gone, or were others.
    await trim(kafka, topic, 7)
    assert "partition 0 begins at 7, so the records from 0 to 7, which were learned, are gone" in await tool.refused(
        1, "verify"
    )
    await delete_topic(kafka, topic)
    await create_topic(kafka, topic)
    assert "partition 0 ends at 0, but the model has learned up to 200" in await tool.refused(1, "verify")
    await send(producer, topic, some_events(200))
    assert "is not the one that was learned, so the topic was recreated" in await tool.refused(1, "verify")
    await delete_topic(kafka, topic)
    assert f"has no topic {topic}" in await tool.refused(1, "verify")


async def test_verify_begins_with_the_given_weights(
    run: Run, tool: Tool, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """They are a setting: a snapshot has only what became of them."""
    for name, weight in (("start", 0.25), ("other", 0.5)):
        names = {"coef": [weight, -1.5], "intercept": 0.5, "names": ["n1", "n2"]}
        (tmp_path / f"{name}.json").write_text(json.dumps(names))
    settings = f'[model]\nstart = "{tmp_path}/start.json"\n'
    service = await asyncio.to_thread(run(settings).up)
    await send(producer, topic, some_events(100))
    await asyncio.to_thread(service.wait_for, 100)
    right, wrong = tmp_path / "right.toml", tmp_path / "wrong.toml"
    right.write_text(settings)
    wrong.write_text(settings.replace("start.json", "other.json"))
    assert (await tool.verify(settings=right))["replayed_events"] == 100
    done = await tool("verify", settings=wrong)
    assert (done.returncode, "the setting start has others: set it to their file" in done.stderr) == (2, True)
    assert "the setting start has none" in await tool.refused(2, "verify")


async def test_what_cannot_be_gone_back_to_is_said_in_one_line(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, kafka: Server, redis: Server, topic: str
) -> None:
    assert "has no snapshot in Redis" in await tool.refused(1, "rollback", "--to", "2", "--yes")
    assert "has no snapshot in Redis" in await tool.refused(1, "verify")
    service = await asyncio.to_thread(run(KEEPING).up)
    versions = await learn_and_keep(service, producer, some_events(400))
    assert await asyncio.to_thread(service.stop) == 0
    numbers = [v["version"] for v in versions]
    version = middle(versions, 300)
    number, at = version["version"], version["next"]["0"]
    digest = await store.digest(topic)

    async def refused(code: int, *flags: str) -> str:
        return await tool.refused(code, "rollback", *flags)

    assert f"has no kept version 99999: it has {', '.join(map(str, numbers))}" in await refused(
        1, "--to", "99999", "--yes"
    )
    assert "events back to version" in await refused(2, "--to", str(number))
    for text in ("latest", "5", "0:x", "0:5,"):
        assert "expected PARTITION:OFFSET,…" in await refused(2, "--to", str(number), "--resume-at", text, "--yes")
    for text, part in (
        (f"0:{at - 1}", f"has learned up to {at}, and nothing is learned twice"),
        ("7:5", f"version {number} has partitions 0"),
    ):
        assert part in await refused(2, "--to", str(number), "--resume-at", text, "--yes")
    assert "partition 0 ends at 400, so learning cannot go on at 401" in await refused(
        1, "--to", str(number), "--resume-at", "0:401", "--yes"
    )
    done = await asyncio.to_thread(
        perceptron, "rollback", "-t", topic, "-b", "127.0.0.1:1", "--redis", f"redis://{redis.address}/0",
        "--to", str(number), "--yes",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "perceptron: Kafka at 127.0.0.1:1: Connection refused\n")
    done = await asyncio.to_thread(perceptron, "verify", "-t", topic, "--redis", "redis://127.0.0.1:1/0")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert (await tool("rollback", "--yes")).returncode == 2
    assert (await tool("rollback", "--to", "x", "--yes")).returncode == 2
    # Damage: a blob that is its own, then its head.
    raw: Any = Redis.from_url(f"redis://{redis.address}/0")
    good = await raw.hget(key(topic), f"v:{number}")
    about = json.loads(good)
    others = ", ".join(str(n) for n in numbers if n != number)
    blob = f"b:{about['arrays']['w']['base'][0]}"
    bytes_of_blob = await raw.hget(key(topic), blob)
    await raw.hdel(key(topic), blob)
    said = await refused(1, "--to", str(number), "--yes")
    print(f"\n{said}")
    assert f"kept version {number} is damaged (blob {blob[2:14]} is missing): others are {others}" in said
    await raw.hset(key(topic), blob, b"x" + bytes_of_blob[1:])
    assert "does not match its digest" in await refused(1, "--to", str(number), "--yes")
    await raw.hset(key(topic), blob, bytes_of_blob)
    await raw.hset(key(topic), f"v:{number}", good.replace(b'"events"', b'"eventz"').replace(b"0", b"1"))
    assert "is damaged (the head's bytes do not match" in await refused(1, "--to", str(number), "--yes")
    await raw.hdel(key(topic), f"v:{number}")
    assert "is damaged (its head is missing)" in await refused(1, "--to", str(number), "--yes")
    await raw.hset(key(topic), f"v:{number}", good)
    await raw.aclose()
    assert await store.digest(topic) == digest, "nothing was written by any of these"
    # A trimmed log: what is left out has to be said.
    await trim(kafka, topic, 350)
    said = await refused(1, "--to", str(number), "--yes")
    assert (
        f"begins at 350, but version {number} would go on at {at}: leave out what is gone with --resume-at 0:350"
        in said
    )
    await tool.back(number, "--resume-at", "0:350")
    again = await asyncio.to_thread(run(KEEPING).up)
    assert (await asyncio.to_thread(again.wait_for, 400))["covered"] == {"0": [[0, at], [350, 400]]}
    last = (await read_all(kafka, topic))[-1]
    found = await current_head(store, topic)
    assert found
    assert found[0].next["0"].fingerprint == fingerprint(last)
