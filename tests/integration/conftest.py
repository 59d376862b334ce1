"""Fixtures of integration tests: the store, a client of its Redis, and the commands on this test's topic."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from service.embedded.servers import Server
from service.snapshots.redis.store import RedisStore
from tests.integration.kept import Tool


@pytest.fixture
async def store(redis: Server) -> AsyncIterator[RedisStore]:
    redis_store = RedisStore(f"redis://{redis.address}/0")
    async with redis_store:
        yield redis_store


@pytest.fixture
async def raw_redis(redis: Server) -> AsyncIterator[Any]:
    async with Redis.from_url(f"redis://{redis.address}/0") as client:
        yield client


@pytest.fixture
def tool(topic: str, kafka: Server, redis: Server, tmp_path: Path) -> Tool:
    return Tool(topic, kafka, redis, tmp_path)
