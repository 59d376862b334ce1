"""Redis over TLS, with few rights, and by its sentinels: what is documented works, and each error is one line."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from service.embedded.servers import Server, free_port
from service.errors import DependencyError
from service.settings.connections import RedisSettings
from service.settings.load import load
from tests.certificates import Certificates
from tests.conftest import DEADLINE, Run, perceptron, program, wait
from tests.integration.kept import KEEP_OFTEN, learn_and_keep, random_events
from tests.integration.test_redis_needs import redis_server

DOCS = Path(__file__).parents[2] / "docs" / "security.md"


class User(NamedTuple):
    password: str
    rights: str


USER_LINES = re.findall(r"^ACL SETUSER (\S+) on >(\S+) (.+)$", DOCS.read_text(), re.MULTILINE)
USERS = {name: User(password, rights) for name, password, rights in USER_LINES}
"""The users that the page lists."""


class TlsServer(NamedTuple):
    """A server with a port for TLS and one without, and a client of it."""

    tls: str
    plain: str
    admin: Any


@pytest.fixture(scope="module")
def both_ports(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[tuple[str, str]]:
    plain, folder = str(free_port()), tmp_path_factory.mktemp("secured") / "redis"
    cert = certificates.server
    flags = "--tls-cert-file", cert, "--tls-key-file", cert, "--tls-ca-cert-file", certificates.ca, "--port", plain
    with redis_server(folder, *flags, "--tls-auth-clients", "no") as server:
        yield server.address, f"127.0.0.1:{plain}"


@pytest.fixture
async def server(both_ports: tuple[str, str], certificates: Certificates) -> AsyncIterator[TlsServer]:
    """A server that each test may change; the fixture restores it."""
    admin: Any = Redis.from_url(f"redis://{both_ports[1]}", max_connections=1)
    await admin.execute_command("ACL SETUSER", "alice", "on", ">old", "~perceptron:*", "+@all")
    yield TlsServer(*both_ports, admin)
    await admin.config_set("requirepass", "")
    await admin.config_set("tls-auth-clients", "no")
    await use_certificate(admin, certificates.server)
    await admin.acl_deluser("alice")
    await admin.aclose()


async def use_certificate(admin: Any, certificate: str) -> None:
    """Give the server this certificate."""
    await admin.execute_command("CONFIG SET", "tls-cert-file", certificate, "tls-key-file", certificate)


def redis_settings(**redis: Any) -> RedisSettings:
    return load(None, {"redis": redis}).redis


async def fault(timeout: float = 3.0, /, **redis: Any) -> str:
    """The error with these settings in one line; "" if there is none."""
    async with redis_settings(**redis).store(timeout) as store:
        try:
            assert await store.check() == []
            return NO_ERROR
        except DependencyError as error:
            return str(error)


NO_ERROR = ""


async def test_tls_as_settings_say(server: TlsServer, certificates: Certificates) -> None:
    """Right files are accepted; a missing or wrong one is named, with what to do."""
    url, ca = f"rediss://{server.tls}/0", certificates.ca
    assert await fault(url=url, ssl_cafile=ca) == NO_ERROR
    unknown = "TLS: certificate verify failed: self-signed certificate in certificate chain: look at redis.ssl_cafile"
    assert unknown in await fault(url=url)
    assert unknown in await fault(url=url, ssl_cafile=certificates.foreign_ca)
    await use_certificate(server.admin, certificates.expired)
    assert "certificate verify failed: certificate has expired" in await fault(url=url, ssl_cafile=ca)
    await use_certificate(server.admin, certificates.elsewhere)
    assert "is not valid for '127.0.0.1': look at redis.ssl_cafile" in await fault(url=url, ssl_cafile=ca)
    assert await fault(url=url, ssl_cafile=ca, ssl_check_hostname=False) == NO_ERROR


@pytest.mark.nightly
async def test_a_client_certificate_is_sent(server: TlsServer, certificates: Certificates) -> None:
    """The certificate is in one file or in two; without it, or with a foreign one, the server refuses the client."""
    url, ca, setting = f"rediss://{server.tls}/0", certificates.ca, "redis.ssl_certfile"
    await server.admin.config_set("tls-auth-clients", "yes")
    chain, private = certificates.parts(certificates.client)
    assert await fault(url=url, ssl_cafile=ca, ssl_certfile=certificates.client) == NO_ERROR
    assert await fault(url=url, ssl_cafile=ca, ssl_certfile=chain, ssl_keyfile=private) == NO_ERROR
    for options in dict[str, str](), {"ssl_certfile": certificates.foreign_client}:
        async with asyncio.timeout(DEADLINE):
            # In TLS 1.3 a client sends before it hears the refusal, and a reset may overtake that.
            while "Connection reset" in (error := await fault(url=url, ssl_cafile=ca, **options)):
                pass
        assert setting in error


@pytest.mark.nightly
async def test_plain_and_tls_are_told_apart(server: TlsServer, certificates: Certificates, kafka: Server) -> None:
    assert ": if it speaks TLS, use rediss://" in await fault(url=f"redis://{server.tls}/0")
    silent = await fault(0.2, url=f"rediss://{server.plain}/0", ssl_cafile=certificates.ca)
    assert silent.startswith(
        f"Redis at {server.plain}/0: no answer in time to the TLS handshake: if it does not speak TLS"
    )
    for scheme in ("redis", "rediss"):
        assert "not Redis, correct redis.url" in await fault(url=f"{scheme}://{kafka.address}/0")


@pytest.mark.nightly
async def test_a_wrong_or_missing_password_is_reported(server: TlsServer) -> None:
    url, look = f"redis://{server.plain}/0", ": look at redis.username and redis.password"
    wrong = f"invalid username-password pair or user is disabled{look}"
    assert wrong in await fault(url=url, username="alice", password="canary")
    assert wrong in await fault(url=f"redis://alice:canary@{server.plain}/0")
    assert "without any password configured" in await fault(url=url, password="canary")
    assert await fault(url=url, username="alice", password="old") == NO_ERROR
    await server.admin.config_set("requirepass", "old")
    assert f"Authentication required{look}" in await fault(url=url)
    assert await fault(url=url, password="old") == NO_ERROR


@pytest.mark.nightly
async def test_a_password_is_read_again(server: TlsServer, certificates: Certificates, tmp_path: Path) -> None:
    """A new connection uses the newest password that could be read. An authority is read at the start."""
    password, ca = tmp_path / "password", tmp_path / "ca.pem"
    password.write_text("old\n")
    shutil.copy(certificates.ca, ca)
    files = {"username": "alice", "password_file": str(password), "ssl_cafile": str(ca)}
    async with redis_settings(url=f"rediss://{server.tls}/0", **files).store() as store:
        assert await store.digest("m") == ""
        password.unlink()
        ca.unlink()
        await server.admin.execute_command("CLIENT KILL USER alice")
        assert await store.digest("m") == ""
        await server.admin.execute_command("ACL SETUSER", "alice", ">new", "<old")
        await server.admin.execute_command("CLIENT KILL USER alice")
        with pytest.raises(DependencyError, match="invalid username-password pair"):
            await store.digest("m")
        password.write_text("new\n")
        assert await store.digest("m") == ""


@pytest.mark.nightly
async def test_a_command_prints_a_one_line_error(server: TlsServer, certificates: Certificates, tmp_path: Path) -> None:
    """The line has no secret."""
    file = tmp_path / "perceptron.toml"
    file.write_text(
        f'topics = ["m"]\nlearn = false\nfail_fast = true\nhttp.port = 0\nredis.url = "rediss://{server.tls}/0"\n'
        f'redis.ssl_cafile = "{certificates.ca}"\nredis.username = "alice"\nredis.password = "canary"\n'
    )
    for command in ("run", "check", "inspect"):
        result = await asyncio.to_thread(perceptron, "-c", str(file), command, cwd=tmp_path)
        (line,) = [x for x in (result.stdout + result.stderr).splitlines() if "Redis at " in x]
        assert ("invalid username-password pair" in line, result.returncode) == (True, 3), result
        assert "canary" not in result.stdout + result.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("redis", ["redis-server"], indirect=True)
async def test_the_rights_that_the_page_lists_are_enough_for_each_command(
    run: Run,
    redis: Server,
    raw_redis: Any,
    producer: AIOKafkaProducer,
    kafka: Server,
    topic: str,
    tmp_path: Path,
) -> None:
    """A learner, a replica and each command work with the listed rights; those of a replica allow no learning."""
    for name, user in USERS.items():
        await raw_redis.execute_command("ACL", "SETUSER", name, "on", f">{user.password}", *user.rights.split())

    def login(name: str) -> str:
        return f"{name}:{USERS[name].password}@{redis.address}"

    async def run_command(name: str, *command: str) -> None:
        options = [] if command[0] in {"reset", "export", "promote"} else ["-b", kafka.address]
        options += [] if command[0] == "promote" else ["-t", topic]
        options += ["--redis", f"redis://{login(name)}/0"]
        env = {"PERCEPTRON_LEARN": str(name != "replica")}
        result = await asyncio.to_thread(perceptron, *command, *options, cwd=tmp_path, env=env)
        assert result.returncode == 0, result.stdout + result.stderr

    learner = await asyncio.to_thread(run(KEEP_OFTEN, redis_address=login("learner")).up)
    replica = run("", "--no-learn", redis_address=login("replica"), create=False)
    versions = await learn_and_keep(learner, producer, random_events(300))
    await asyncio.to_thread(replica.up)
    await asyncio.to_thread(wait, lambda: replica.model()["next"]["0"] == 300, "the replica follows")
    for service in (learner, replica):
        assert await asyncio.to_thread(service.stop) == 0
        assert "permission" not in service.log.read_text()
    options = ["-t", topic, "-b", kafka.address, "--redis", f"redis://{login('replica')}/0"]
    result = await asyncio.to_thread(perceptron, "check", *options, cwd=tmp_path)
    assert (result.returncode, "refuses to write snapshots by a script" in result.stdout) == (2, True), result
    await run_command("learner", "check")
    await run_command("replica", "check")
    for name in ("inspect", "export", "verify"):
        await run_command(name, name)
    await run_command("promote", "promote", topic, "--as", f"{topic}-alias")
    await run_command("rollback", "rollback", "--to", str(versions[-1]["version"]), "--yes")
    await run_command("reset", "reset", "--yes")
    await raw_redis.execute_command("ACL", "DELUSER", *USERS)


@pytest.fixture
def sentinel(tmp_path: Path, server: TlsServer) -> Iterator[Server]:
    """A sentinel with a password, which calls the secured server `perceptron`."""
    folder, port = tmp_path / "sentinel", free_port()
    folder.mkdir()
    file = folder / "conf"
    host, _, watched = server.plain.partition(":")
    file.write_text(
        f"bind 127.0.0.1\nport {port}\ndir {folder}\nrequirepass canary\n"
        f"sentinel monitor perceptron {host} {watched} 1\nsentinel down-after-milliseconds perceptron 60000\n"
    )
    with Server([program("redis-server"), str(file), "--sentinel"], port, folder / "log").running() as process:
        yield process


@pytest.mark.nightly
async def test_the_primary_that_sentinels_name_is_used(server: TlsServer, sentinel: Server) -> None:
    """Database and credentials are those of the settings. If no sentinel names a primary, one line has each answer."""
    right: dict[str, Any] = {"sentinels": [f"127.0.0.1:{free_port()}", sentinel.address], "sentinel_password": "canary"}
    assert await fault(**right, username="alice", password="old") == NO_ERROR
    assert await fault(**right, url="redis:///3") == NO_ERROR
    wrong = await fault(**right, username="alice", password="x")
    assert wrong.startswith(f"Redis at {server.plain} (by Sentinel): invalid username-password pair")
    head = "Redis at perceptron (by Sentinel): no sentinel names a primary (redis.sentinels, redis.sentinel_service): "
    look = ": look at redis.sentinel_username and redis.sentinel_password"
    settings: dict[str, Any] = {**right, "sentinels": [sentinel.address]}
    wrong = f"{head}{sentinel.address} invalid username-password pair or user is disabled{look}"
    assert await fault(**settings | {"sentinel_password": "x"}) == wrong
    assert await fault(sentinels=[sentinel.address]) == f"{head}{sentinel.address} Authentication required{look}"
    other_head = head.replace("perceptron", "other")
    assert await fault(**settings, sentinel_service="other") == f"{other_head}{sentinel.address} knows no service other"
    assert "unknown command" in await fault(sentinels=[server.plain])
    unused = f"127.0.0.1:{free_port()}"
    assert await fault(sentinels=[unused]) == f"{head}{unused} Connection refused"
