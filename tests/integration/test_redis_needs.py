"""The version, settings and rights that Redis must have are checked at the start."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from service.embedded.servers import Server, free_port
from service.errors import ConfigurationError, DependencyError
from service.snapshots.redis import connection
from service.snapshots.redis.connection import RedisServer
from service.snapshots.redis.store import RedisStore, key
from tests.conftest import Run, both_stores, event, program, wait
from tests.saving import keeper, learn, new_learner, save

pytestmark = pytest.mark.nightly


@contextmanager
def redis_server(folder: Path, *flags: str) -> Iterator[Server]:
    """A Redis with these flags, on a port of its own."""
    folder.mkdir()
    port = free_port()
    command = [program("redis-server"), "--bind", "127.0.0.1", "--appendonly", "yes", "--dir", str(folder)]
    command += ["--tls-port" if "--tls-cert-file" in flags else "--port", str(port), *flags]
    with Server(command, port, folder / "log").running() as server:
        yield server


User = Callable[..., Awaitable[RedisStore]]


@pytest.fixture
async def user(redis: Server, raw_redis: Any) -> AsyncIterator[User]:
    """Make a store whose user has these rights."""
    stores: list[tuple[str, RedisStore]] = []

    async def make(*rights: str) -> RedisStore:
        name = f"u-{uuid.uuid4().hex[:8]}"
        await raw_redis.execute_command("ACL", "SETUSER", name, "on", ">secret", *rights)
        stores.append((name, RedisStore(f"redis://{name}:secret@{redis.address}/0")))
        return stores[-1][1]

    yield make
    for name, store in stores:
        async with store:
            pass
        await raw_redis.execute_command("ACL", "DELUSER", name)


@both_stores
@pytest.mark.parametrize("name", ["HSET", "EVALSHA"])
async def test_a_missing_right_to_save_is_reported_at_the_start(user: User, raw_redis: Any, name: str) -> None:
    store = await user("~perceptron:*", "+@all", f"-{name.lower()}")
    await raw_redis.script_flush()
    with pytest.raises(ConfigurationError, match=r"refuses to write snapshots by a script: .*: give the user this"):
        await store.check()
    assert await raw_redis.exists(connection.PROBE_KEY) == 0


@both_stores
async def test_a_save_whose_sweeping_is_refused_is_accepted(user: User, raw_redis: Any, topic: str) -> None:
    store = await user("~perceptron:*", "+@all", "-hdel")
    k, state = keeper(store, topic), new_learner()
    for name in "abc":
        learn(state, name)
        accepted = await save(k, state)
    assert await raw_redis.hget(key(topic), "digest") == accepted.digest.encode()


@pytest.mark.parametrize(("command", "is_refused"), [("EVALSHA", True), ("HELLO", False)])
async def test_a_renamed_command_is_refused_unless_it_is_hello(tmp_path: Path, command: str, is_refused: bool) -> None:
    """Without HELLO a server speaks only the older protocol, as before version 6 and behind some proxies."""
    with redis_server(tmp_path / "redis", "--rename-command", command, "") as server:
        async with RedisStore(f"redis://{server.address}/0") as store:
            if is_refused:
                with pytest.raises(ConfigurationError, match=r"refuses to write snapshots by a script: .*nknown"):
                    await store.check()
            else:
                assert await store.check() == []
                await save(keeper(store, "t"), new_learner())


def client(server: Server) -> Any:
    return Redis(port=server.port)


async def test_a_temporary_state_is_not_a_wrong_setting(tmp_path: Path) -> None:
    """A replica may become primary, so it is an error that passes; a primary that takes no writes now is a warning."""
    with redis_server(tmp_path / "redis") as server:
        async with RedisStore(f"redis://{server.address}/0") as store, client(server) as admin:
            await admin.config_set("min-replicas-to-write", "1")
            assert ["fails, so saves will: NOREPLICAS" in warning for warning in await store.check()] == [True]
            await admin.config_set("min-replicas-to-write", "0")
            await admin.config_set("maxmemory", "1")
            assert ["fails, so saves will: command not allowed" in warning for warning in await store.check()] == [True]
            await admin.config_set("maxmemory", "0")
            await admin.replicaof("127.0.0.1", "1")
            with pytest.raises(DependencyError, match="is a replica, which takes no saves: name its primary"):
                await store.check()


async def test_a_learner_at_a_replica_follows_what_it_can_read(
    run: Run, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """It learns once the replica is a primary."""
    with redis_server(tmp_path / "redis") as server:
        service = await asyncio.to_thread(run(redis_address=server.address).up)
        await producer.send_and_wait(topic, event({"a": 1}, 1))
        await asyncio.to_thread(service.wait_for, 1)
        assert await asyncio.to_thread(service.stop) == 0
        async with client(server) as admin:
            await admin.replicaof("127.0.0.1", "1")
            await asyncio.to_thread(service.start(service.command).up)
            await producer.send_and_wait(topic, event({"a": 1}, 0))
            assert service.predict({"features": {"a": 1}}).json()["score"] == 2.0
            assert not service.model()["learning_here"]
            await asyncio.to_thread(wait, lambda: "is a replica" in service.log.read_text(), "it says so")
            await admin.execute_command("REPLICAOF", "NO", "ONE")
            await asyncio.to_thread(service.wait_for, 2)


@pytest.mark.parametrize("enabled", ["yes", "no"])
async def test_a_cluster_and_one_server_are_told_apart(tmp_path: Path, enabled: str) -> None:
    expected = {"yes": "is a node of .*: set redis.cluster = true", "no": "is not a node of .*: remove redis.cluster"}
    flags = "--cluster-enabled", enabled, "--cluster-port", str(free_port())
    with redis_server(tmp_path / "redis", *flags) as server:
        async with RedisStore(RedisServer(f"redis://{server.address}/0", cluster=enabled == "no")) as store:
            with pytest.raises((ConfigurationError, DependencyError), match=expected[enabled]):
                await store.check()


class OldServer:
    """A server with a version that is too old to start here."""

    async def info(self) -> dict[str, Any]:
        return {"redis_version": "3.2.6", "aof_enabled": 1}


async def test_the_minimum_version_is_named() -> None:
    minimum = ".".join(map(str, connection.MIN_VERSION))
    with pytest.raises(ConfigurationError, match=rf"is version 3\.2\.6: use at least {minimum}"):
        await connection.check_server(cast(Any, OldServer()), "here:1", learn=True)
    assert f"Redis must be {minimum} or later" in (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
