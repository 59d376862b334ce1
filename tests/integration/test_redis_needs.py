"""The version, settings and rights that Redis must have are checked at the start."""

import os
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.asyncio import Redis

from service.embedded.servers import Server, free_port
from service.errors import ConfigurationError, DependencyError
from service.snapshots.redis import preflight
from service.snapshots.redis.store import RedisStore, key
from tests.conftest import both_stores
from tests.saving import keeper, learn, new_learner, save

pytestmark = pytest.mark.nightly


@contextmanager
def started(folder: Path, *flags: str) -> Iterator[Server]:
    """A Redis with these flags, on a port of its own."""
    binary = shutil.which("redis-server")
    if binary is None:
        assert not os.environ.get("CI"), "CI must run against redis-server too"
        pytest.skip("no redis-server on PATH")
    folder.mkdir()
    port = free_port()
    place = ["--tls-port" if "--tls-cert-file" in flags else "--port", str(port), "--dir", str(folder)]
    server = Server([binary, "--bind", "127.0.0.1", "--appendonly", "yes", *place, *flags], port, folder / "log")
    server.start()
    try:
        yield server
    finally:
        server.stop()


User = Callable[..., Awaitable[RedisStore]]


@pytest.fixture
async def user(redis: Server, raw: Any) -> AsyncIterator[User]:
    """Make a store whose user has these rights."""
    made: list[tuple[str, RedisStore]] = []

    async def make(*rights: str) -> RedisStore:
        name = f"u-{uuid.uuid4().hex[:8]}"
        await raw.execute_command("ACL", "SETUSER", name, "on", ">secret", *rights)
        made.append((name, RedisStore(f"redis://{name}:secret@{redis.address}/0")))
        return made[-1][1]

    yield make
    for name, store in made:
        await store.close()
        await raw.execute_command("ACL", "DELUSER", name)


@both_stores
@pytest.mark.parametrize("name", ["HSET", "EVALSHA"])
async def test_a_missing_right_to_write_or_to_run_scripts_is_said_at_the_start(user: User, raw: Any, name: str) -> None:
    store = await user("~perceptron:*", "+@all", f"-{name.lower()}")
    await raw.script_flush()
    with pytest.raises(ConfigurationError, match=r"refuses to write snapshots by a script: .*: give the user this"):
        await store.check()
    assert await raw.exists(preflight.PROBE_KEY) == 0


@both_stores
async def test_a_save_whose_sweeping_is_refused_is_accepted(user: User, raw: Any, topic: str) -> None:
    store = await user("~perceptron:*", "+@all", "-hdel")
    k, state = keeper(store, topic), new_learner()
    for name in "abc":
        learn(state, name)
        last = await save(k, state)
    assert await raw.hget(key(topic), "digest") == last.digest.encode()


@pytest.mark.parametrize(("renamed", "refused"), [("EVALSHA", True), ("HELLO", False)])
async def test_a_renamed_command_is_refused_and_hello_is_not_needed(
    tmp_path: Path, renamed: str, refused: bool
) -> None:
    """Without HELLO a server speaks only the older protocol, as before version 6 and behind some proxies."""
    with started(tmp_path / "redis", "--rename-command", renamed, "") as server:
        async with RedisStore(f"redis://{server.address}/0") as store:
            if refused:
                with pytest.raises(ConfigurationError, match=r"refuses to write snapshots by a script: .*nknown"):
                    await store.check()
            else:
                assert await store.check() == []
                await save(keeper(store, "t"), new_learner())


def client_of(server: Server) -> Any:
    return Redis(port=server.port)


async def test_what_may_pass_is_no_wrong_setting(tmp_path: Path) -> None:
    """A replica may become primary, so it is an error that passes; a primary that takes no writes now is a warning."""
    with started(tmp_path / "redis") as server:
        async with RedisStore(f"redis://{server.address}/0") as store, client_of(server) as raw:
            await raw.config_set("min-replicas-to-write", "1")
            assert ["fails, so saves will: NOREPLICAS" in warning for warning in await store.check()] == [True]
            await raw.config_set("min-replicas-to-write", "0")
            await raw.replicaof("127.0.0.1", "1")
            with pytest.raises(DependencyError, match="is a replica, which takes no saves: name its primary"):
                await store.check()


async def test_a_node_of_a_cluster_is_told(tmp_path: Path) -> None:
    flags = "--cluster-enabled", "yes", "--cluster-port", str(free_port())
    with started(tmp_path / "redis", *flags) as server:
        async with RedisStore(f"redis://{server.address}/0") as store, client_of(server) as raw:
            await raw.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            with pytest.raises(ConfigurationError, match=r"is a node of a Redis Cluster.*without cluster mode"):
                await store.check()


class Other(NamedTuple):
    """A server whose INFO says this."""

    redis_version: str
    aof_enabled: int = 1

    async def info(self) -> dict[str, Any]:
        return self._asdict()


async def test_the_least_version_is_said() -> None:
    minimum = ".".join(map(str, preflight.MIN_VERSION))
    with pytest.raises(ConfigurationError, match=rf"is version 3\.2\.6: the least is {minimum}"):
        await preflight._server_warnings(Other("3.2.6"), "here:1")
    assert await preflight._server_warnings(Other(f"{minimum}.1"), "here:1") == []
    assert f"Redis must be {minimum} or later" in (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
