"""Saving and restoring against real servers: who is refused, what is found out, what is swept."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from service.errors import ConfigurationError, SnapshotDamaged
from service.learning.options import DEFAULT
from service.learning.records import Records
from service.serving.models import Model
from service.snapshots import head as heads
from service.snapshots.head import Fingerprint
from service.snapshots.keeper import Refused, fetch
from service.snapshots.store import RedisStore, key
from tests.conftest import both_stores, event
from tests.saving import FakeClock, fresh, here, keeper, learn, save

pytestmark = both_stores


async def test_what_is_saved_is_restored(store: RedisStore, topic: str) -> None:
    first, learner = keeper(store, topic), fresh()
    await save(first, learner)
    learn(learner, "a", "b", *(f"n{i}" for i in range(10_000)))
    saved = await save(first, learner)
    assert saved.head.version == 2
    second = keeper(store, topic)
    restored = await second.restore()
    assert restored is not None
    assert heads.content(restored).state_digest == saved.head.state_digest
    assert restored.columns.names == learner.columns.names
    assert second.head == saved.head
    assert second.head.next["0"].fingerprint == Fingerprint(10_001, 7, 9)
    assert not second.ahead(restored)
    assert topic in await store.models()


async def test_a_bound_begins_with_the_first_weights(store: RedisStore, topic: str) -> None:
    """Though the version that was kept before them had none; it is restored with its reference."""
    k, learner = keeper(store, topic), fresh()
    learner.apply(0, Records.of(0, [b"no event"]))
    assert [kept.version for kept in (await save(k, learner)).head.kept] == []
    learner.apply(0, Records.of(1, [b"no event"]))
    assert [kept.version for kept in (await save(k, learner)).head.kept] == [2]
    assert learner.watch.bound[1] == "no reference is known yet"
    learn(learner, "a")
    await save(k, learner)
    learn(learner, "b")
    last = await save(k, learner)
    assert [kept.version for kept in last.head.kept] == [2]
    restored = await keeper(store, topic).restore()
    assert restored is not None
    assert restored.watch.bound == learner.watch.bound == (2, None)


async def test_a_zombie_is_refused_and_drops_nothing_of_ours(store: RedisStore, topic: str) -> None:
    """A save names the head it was built on; another process's save in between makes it void."""
    ours, learner = keeper(store, topic), fresh()
    await save(ours, learner)
    zombie = keeper(store, topic)
    old = await zombie.restore()
    assert old is not None
    learn(learner, "a")
    accepted = await save(ours, learner)
    learn(old, "z", "z")
    assert isinstance(await zombie.save(old, {}, heads.Source("cluster")), Refused)
    assert not await zombie.current()
    assert await store.digest(topic) == accepted.digest
    snapshot = await fetch(store, topic, here, DEFAULT)
    assert snapshot is not None
    assert snapshot.learner.columns.names == ["a"]


async def test_what_nothing_refers_to_is_swept_and_kept_versions_stay(store: RedisStore, raw: Any, topic: str) -> None:
    """Blobs of this head, its parent and the kept versions stay; the rest goes, a killed save's too."""
    clock = FakeClock()
    k, learner = keeper(store, topic, clock, keep_every=10.0, keep=2), fresh()
    await save(k, learner)
    saved = {}
    for i in range(30):
        clock.seconds += 3
        learn(learner, f"n{i}")
        one = await save(k, learner)
        saved[one.head.version] = one.head
        await raw.hset(key(topic), "b:of-a-killed-save", b"x")
    learn(learner, "last")
    last = (await save(k, learner)).head
    fields = {name.decode() for name in await raw.hkeys(key(topic))}
    kept = [v.version for v in last.kept]
    assert len(kept) == 2
    live = {f"b:{ref}" for head in (last, saved[last.version - 1], *(saved[v] for v in kept)) for ref in head.refs}
    assert fields == {"head", "digest", *(f"v:{v}" for v in kept)} | live
    intervals = [b.saved_at - a.saved_at for a, b in zip(last.kept, last.kept[1:], strict=False)]
    assert min(intervals) >= 10.0


async def test_keeping_none_keeps_none_and_keeping_fewer_lets_go(store: RedisStore, raw: Any, topic: str) -> None:
    clock = FakeClock()
    learner = fresh()
    for keep, left in ((3, 3), (1, 1), (0, 0)):
        k = keeper(store, topic, clock, keep_every=1.0, keep=keep)
        learner = await k.restore() or learner
        for i in range(6):
            clock.seconds += 2
            learn(learner, f"n{i}")
            last = await save(k, learner)
        kept = [name for name in await raw.hkeys(key(topic)) if name.startswith(b"v:")]
        assert len(kept) == len(last.head.kept) == left


async def test_a_damaged_blob_is_named_and_never_answers(store: RedisStore, raw: Any, topic: str) -> None:
    k, learner = keeper(store, topic), fresh()
    learn(learner, "a")
    saved = await save(k, learner)
    ref = saved.head.arrays["w"].base[0]
    blob = bytearray(await raw.hget(key(topic), f"b:{ref}"))
    blob[3] ^= 1
    await raw.hset(key(topic), f"b:{ref}", bytes(blob))
    with pytest.raises(SnapshotDamaged, match=f"{ref[:12]} of version 1 does not match"):
        await keeper(store, topic).restore()
    await raw.hdel(key(topic), f"b:{ref}")
    with pytest.raises(SnapshotDamaged, match=f"{ref[:12]} of version 1 is missing"):
        await keeper(store, topic).restore()


async def test_a_redis_that_may_lose_snapshots_is_refused_or_warned_of(store: RedisStore, raw: Any) -> None:
    assert await store.check() == []
    await raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigurationError, match="allkeys-lru, which would evict snapshots: set it to noeviction"):
            await store.check()
        await raw.config_set("maxmemory-policy", "volatile-lru")
        (warning,) = await store.check()
        assert "has maxmemory-policy volatile-lru: noeviction is safer" in warning
    finally:
        await raw.config_set("maxmemory-policy", "noeviction")
    await raw.config_set("appendonly", "no")
    try:
        assert "has no AOF" in (await store.check())[0]
    finally:
        await raw.config_set("appendonly", "yes")


async def test_saves_are_paced_by_their_cost(store: RedisStore, topic: str) -> None:
    clock = FakeClock()
    k, learner = keeper(store, topic, clock), fresh()
    await save(k, learner)
    assert not k.due(learner)
    learn(learner, "a")
    assert not k.due(learner)
    clock.seconds += 0.1
    assert k.due(learner)
    k.postpone()
    clock.seconds += 0.15
    assert not k.due(learner)
    clock.seconds += 10
    assert k.due(learner)
    await save(k, learner)
    clock.seconds += 100
    assert not k.due(learner), "nothing was learned since"


async def test_what_was_followed_is_learned_on_where_it_is_the_newest(store: RedisStore, topic: str) -> None:
    """It is read once, and by one alone; one that is being read is waited for, and an older one is not gone on with."""
    first, learner, clock = keeper(store, topic), fresh(), FakeClock()
    learn(learner, "a")
    await save(first, learner)
    model, tell = Model(topic), SimpleNamespace(followed=lambda _: None)
    taking = keeper(store, topic, followed=lambda: model.hand_over(store, clock))
    assert await model.hand_over(store, clock) is None, "nothing was followed yet"
    reading = asyncio.create_task(model.catch_up(store, clock, here, tell))
    await asyncio.sleep(0)
    restored = await taking.restore()
    assert reading.done()
    assert model.answering
    assert restored is model.answering.learner
    assert taking.digest == first.digest
    learn(restored, "b")
    await save(taking, restored)
    again = await taking.restore()
    assert again is not restored, "it was given away"
    await model.catch_up(store, clock, here, tell)
    assert model.answering.learner not in (restored, again)
    assert again
    learn(again, "c")
    await save(taking, again)
    assert await model.hand_over(store, clock) is None, "it is not the newest"


async def test_a_reader_follows_for_the_price_of_what_changed(store: RedisStore, topic: str) -> None:
    """Only blobs that it lacks are read; where history goes another way, as in a rollback, it takes up all of it."""
    first, learner = keeper(store, topic), fresh()
    learn(learner, *(f"n{i}" for i in range(9000)))
    await save(first, learner)
    early = await fetch(store, topic, here, DEFAULT)
    followed = await fetch(store, topic, here, DEFAULT)
    assert early
    assert followed
    read: list[str] = []

    class Counting:
        head, digest = store.head, store.digest

        async def blobs(self, model: str, digests: Any) -> Any:
            read.extend(digests)
            return await store.blobs(model, digests)

    for step in range(3):
        # Ever fewer columns, so that each save is a delta of its own.
        features = {f"n{i}": 9.0 for i in range(100 - 20 * step)}
        learner.apply(0, Records.of(learner.next[0], [event(features, -1 if learner.score(features)[0] > 0 else 1)]))
        await save(first, learner)
        del read[:]
        before, names = followed.learner, followed.learner.columns.names
        followed = await fetch(Counting(), topic, here, DEFAULT, followed)  # type: ignore[arg-type]
        assert followed
        assert (len(read), followed.learner is before, followed.learner.columns.names is names) == (1, True, True)
        assert followed.learner.weights.tolist() == learner.weights.tolist()
        assert followed.learner.next == learner.next
    learn(learner, "new")
    await save(first, learner)
    followed = await fetch(Counting(), topic, here, DEFAULT, followed)  # type: ignore[arg-type]
    assert followed
    assert followed.learner.columns.names[-1] == "new"
    # What a rollback writes: a child of the current head, with arrays of before.
    back = keeper(store, topic)
    await back.restore()
    back._stored = early.stored
    await save(back, early.learner)
    del read[:]
    followed = await fetch(Counting(), topic, here, DEFAULT, followed)  # type: ignore[arg-type]
    assert followed
    assert followed.learner.weights.tolist() == early.learner.weights.tolist()
    assert followed.learner.columns.names == early.learner.columns.names
