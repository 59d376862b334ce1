"""Saves on real servers: what is removed from Redis, and which Redis is refused."""

from typing import Any

import pytest

from service.errors import ConfigurationError
from service.snapshots.redis.store import RedisStore, key
from tests.conftest import both_stores
from tests.saving import FakeClock, keeper, learn, new_learner, save

pytestmark = both_stores


async def test_unreferenced_blobs_are_swept(store: RedisStore, raw_redis: Any, topic: str) -> None:
    """Blobs of this head, its parent and the kept versions stay; all others are removed, those of a killed save too."""
    clock = FakeClock()
    k, learner = keeper(store, topic, clock, keep_every=10.0, keep=2), new_learner()
    await save(k, learner)
    heads = {}
    for i in range(30):
        clock.seconds += 3
        learn(learner, f"n{i}")
        result = await save(k, learner)
        heads[result.head.version] = result.head
        await raw_redis.hset(key(topic), "b:of-a-killed-save", b"x")
    learn(learner, "last")
    final = (await save(k, learner)).head
    fields = {name.decode() for name in await raw_redis.hkeys(key(topic))}
    versions = [v.version for v in final.kept]
    assert len(versions) == 2
    live = {f"b:{ref}" for h in (final, heads[final.version - 1], *(heads[v] for v in versions)) for ref in h.refs}
    assert fields == {"head", "digest", *(f"v:{v}" for v in versions)} | live
    intervals = [b.saved_at - a.saved_at for a, b in zip(final.kept, final.kept[1:], strict=False)]
    assert min(intervals) >= 10.0


async def test_a_redis_that_may_lose_snapshots_is_refused_or_warned_of(store: RedisStore, raw_redis: Any) -> None:
    assert await store.check() == []
    await raw_redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigurationError, match="allkeys-lru, which would evict snapshots: set noeviction"):
            await store.check()
        await raw_redis.config_set("maxmemory-policy", "volatile-lru")
        (warning,) = await store.check()
        assert "has maxmemory-policy volatile-lru: noeviction is safer" in warning
    finally:
        await raw_redis.config_set("maxmemory-policy", "noeviction")
    await raw_redis.config_set("appendonly", "no")
    try:
        assert "has no AOF" in (await store.check())[0]
    finally:
        await raw_redis.config_set("appendonly", "yes")
