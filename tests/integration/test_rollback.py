"""Back to a kept version, with and without a hole, under a running learner."""

import asyncio
import json
import signal
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.errors import DataError, SnapshotDamaged
from service.learning.options import DEFAULT
from service.learning.records import Records
from service.snapshots.head import Fingerprint, Position, Source
from service.snapshots.keeper import Refused, Saved
from service.snapshots.rollback import TRIES, current_head, kept_snapshot, roll_back
from service.snapshots.store import RedisStore, key
from service.streaming.recognise import fingerprint
from tests.conftest import HELD_SECONDS, TAKEOVER_SECONDS, Run, Running, perceptron, read_all, trim, wait
from tests.integration.kept import (
    KEEPING,
    Tool,
    kept,
    learn_and_keep,
    middle,
    saved_thrice,
    send,
    some_events,
)
from tests.oracle import Fold, same
from tests.saving import here, keeper


def counters(service: Running) -> dict[str, float]:
    return {name: n for name, n in service.metrics().items() if name.startswith("perceptron_events_total")}


async def test_a_rewind_without_a_hole_learns_the_same_bits(
    run: Run, tool: Tool, store: RedisStore, producer: AIOKafkaProducer, topic: str
) -> None:
    """A learner that was stopped in the middle of it all wakes up as a zombie, is refused, and goes on from there."""
    service = await asyncio.to_thread(run(KEEPING, session_timeout=HELD_SECONDS).up)
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
    assert service.rewinds() >= 1
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
    service = await asyncio.to_thread(run(KEEPING, session_timeout=TAKEOVER_SECONDS).up)
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
    learner.apply(0, Records.of(30, events[:5]))
    version.learner.apply(0, Records.of(20, events[:5]))
    assert isinstance(await ours.save(learner, {}, Source("c")), Refused)
    assert isinstance(await at_the_kept_one.save(version.learner, {}, Source("c")), Refused)
    restored = await ours.restore()
    assert restored is not None
    assert (restored.next, ours.head) == ({0: 20}, new)
    fold = Fold().fold(events[:20])
    assert restored.weights.tolist() == fold.vector
    # The next save lets go of a kept version where there is one too many, and counts its runs from the restored one.
    restored.apply(0, Records.of(20, events[20:]))
    fewer = keeper(store, topic, clock, keep=1)
    fewer.head, fewer.digest, fewer._stored = ours.head, ours.digest, ours._stored
    saved = await fewer.save(restored, {}, Source("c"))
    assert isinstance(saved, Saved)
    assert ([k.version for k in saved.head.kept], saved.head.runs) == ([4], [(0, 20, 30)])


async def test_a_partition_that_came_later_begins_where_it_began(store: RedisStore, topic: str) -> None:
    """Not where a new one would begin now; and with several, the order is that of arrival."""
    ours, learner, clock, events = await saved_thrice(store, topic)
    learner.begin({1: 5})
    learner.apply(1, Records.of(5, events[:3]))
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
                learner.apply(0, Records.of(learner.next[0], events[:1]))
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


async def test_a_damaged_snapshot_is_left_behind(store: RedisStore, raw: Any, topic: str) -> None:
    """Of the current one only the head is read: that it cannot be served is a reason to go back."""
    ours, learner, clock, _ = await saved_thrice(store, topic)
    learner.apply(0, Records.of(30, some_events(20)))
    assert isinstance(await ours.save(learner, {}, Source("c")), Saved)
    found = await current_head(store, topic)
    assert found
    version = await kept_snapshot(store, *found, 2, here, DEFAULT)
    only_here = set(found[0].refs) - set(version.head.refs)
    assert only_here
    await raw.hdel(key(topic), *(f"b:{ref}" for ref in only_here))
    with pytest.raises(SnapshotDamaged):
        await ours.restore()
    await roll_back(store, version, {}, clock.time())
    restored = await ours.restore()
    assert restored is not None
    assert restored.next == {0: 20}


async def test_what_cannot_be_gone_back_to_is_said_in_one_line(
    run: Run,
    tool: Tool,
    store: RedisStore,
    producer: AIOKafkaProducer,
    kafka: Server,
    redis: Server,
    raw: Any,
    topic: str,
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
