"""Saves on real servers: what is removed from Redis, and which Redis is refused."""

from typing import Any

import pytest

from service.errors import ConfigurationError
from service.snapshots.redis.store import RedisStore, key
from tests.conftest import both_stores
from tests.saving import FakeClock, keeper, learn, new_learner, save

pytestmark = both_stores


async def test_what_nothing_refers_to_is_swept_and_kept_versions_stay(store: RedisStore, raw: Any, topic: str) -> None:
    """Blobs of this head, its parent and the kept versions stay; all others are removed, those of a killed save too."""
    clock = FakeClock()
    k, learner = keeper(store, topic, clock, keep_every=10.0, keep=2), new_learner()
    await save(k, learner)
    saved = {}
    for i in range(30):
        clock.seconds += 3
        learn(learner, f"n{i}")
        accepted = await save(k, learner)
        saved[accepted.head.version] = accepted.head
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


async def test_a_redis_that_may_lose_snapshots_is_refused_or_warned_of(store: RedisStore, raw: Any) -> None:
    assert await store.check() == []
    await raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigurationError, match="allkeys-lru, which would evict snapshots: set noeviction"):
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
