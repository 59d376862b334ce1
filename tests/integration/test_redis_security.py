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
from service.settings.load import load
from service.settings.redis import RedisSettings
from tests.certificates import Certificates
from tests.conftest import DEADLINE, Run, perceptron, wait
from tests.integration.kept import KEEP_OFTEN, learn_and_keep, random_events
from tests.integration.test_redis_needs import started

DOCS = Path(__file__).parents[2] / "docs" / "security.md"


class User(NamedTuple):
    password: str
    rights: str


LISTED = re.findall(r"^ACL SETUSER (\S+) on >(\S+) (.+)$", DOCS.read_text(), re.MULTILINE)
USERS = {name: User(password, rights) for name, password, rights in LISTED}
"""The users that the page lists."""


class Secured(NamedTuple):
    """A server with a port for TLS and one without, and a client of it."""

    tls: str
    plain: str
    raw: Any


@pytest.fixture(scope="module")
def both_ports(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[tuple[str, str]]:
    plain, folder = str(free_port()), tmp_path_factory.mktemp("secured") / "redis"
    own = certificates.server
    flags = "--tls-cert-file", own, "--tls-key-file", own, "--tls-ca-cert-file", certificates.ca, "--port", plain
    with started(folder, *flags, "--tls-auth-clients", "no") as server:
        yield server.address, f"127.0.0.1:{plain}"


@pytest.fixture
async def secured(both_ports: tuple[str, str], certificates: Certificates) -> AsyncIterator[Secured]:
    """Each test may change the server; afterwards it is as before."""
    raw: Any = Redis.from_url(f"redis://{both_ports[1]}", max_connections=1)
    await raw.execute_command("ACL SETUSER", "alice", "on", ">old", "~perceptron:*", "+@all")
    yield Secured(*both_ports, raw)
    await raw.config_set("requirepass", "")
    await raw.config_set("tls-auth-clients", "no")
    await shows(raw, certificates.server)
    await raw.acl_deluser("alice")
    await raw.aclose()


async def shows(raw: Any, certificate: str) -> None:
    """Give the server this certificate."""
    await raw.execute_command("CONFIG SET", "tls-cert-file", certificate, "tls-key-file", certificate)


def redis_settings(**redis: Any) -> RedisSettings:
    return load(None, {"redis": redis}).redis


async def said(timeout: float = 3.0, /, **redis: Any) -> str:
    """The error with these settings in one line; "" if there is none."""
    async with redis_settings(**redis).store(timeout) as store:
        try:
            assert await store.check() == []
            return NOTHING
        except DependencyError as error:
            return str(error)


NOTHING = ""


async def test_tls_as_settings_say(secured: Secured, certificates: Certificates) -> None:
    """Right files are accepted; a missing or wrong one is named, with what to do."""
    url, ca = f"rediss://{secured.tls}/0", certificates.ca
    assert await said(url=url, ssl_cafile=ca) == NOTHING
    unknown = "TLS: certificate verify failed: self-signed certificate in certificate chain: look at redis.ssl_cafile"
    assert unknown in await said(url=url)
    assert unknown in await said(url=url, ssl_cafile=certificates.foreign_ca)
    await shows(secured.raw, certificates.expired)
    assert "certificate verify failed: certificate has expired" in await said(url=url, ssl_cafile=ca)
    await shows(secured.raw, certificates.elsewhere)
    assert "is not valid for '127.0.0.1': look at redis.ssl_cafile" in await said(url=url, ssl_cafile=ca)
    assert await said(url=url, ssl_cafile=ca, ssl_check_hostname=False) == NOTHING


@pytest.mark.nightly
async def test_a_client_certificate_is_shown(secured: Secured, certificates: Certificates) -> None:
    """It is in one file or in two; without it, or with a foreign one, the server refuses the client."""
    url, ca, refused = f"rediss://{secured.tls}/0", certificates.ca, "redis.ssl_certfile"
    await secured.raw.config_set("tls-auth-clients", "yes")
    chain, private = certificates.parts(certificates.client)
    assert await said(url=url, ssl_cafile=ca, ssl_certfile=certificates.client) == NOTHING
    assert await said(url=url, ssl_cafile=ca, ssl_certfile=chain, ssl_keyfile=private) == NOTHING
    for shown in dict[str, str](), {"ssl_certfile": certificates.foreign_client}:
        async with asyncio.timeout(DEADLINE):
            # In TLS 1.3 a client sends before it hears the refusal, and a reset may overtake that.
            while "Connection reset" in (why := await said(url=url, ssl_cafile=ca, **shown)):
                pass
        assert refused in why


@pytest.mark.nightly
async def test_plain_and_tls_are_told_apart(secured: Secured, certificates: Certificates) -> None:
    assert "Connection reset by peer: if it speaks TLS, redis.url is rediss://" in await said(
        url=f"redis://{secured.tls}/0"
    )
    silent = await said(0.2, url=f"rediss://{secured.plain}/0", ssl_cafile=certificates.ca)
    assert silent == f"Redis at {secured.plain}/0: no answer in time"


@pytest.mark.nightly
async def test_a_wrong_password_is_said_and_none(secured: Secured) -> None:
    url, look = f"redis://{secured.plain}/0", ": look at redis.username and redis.password"
    wrong = f"invalid username-password pair or user is disabled{look}"
    assert wrong in await said(url=url, username="alice", password="canary")
    assert wrong in await said(url=f"redis://alice:canary@{secured.plain}/0")
    assert "without any password configured" in await said(url=url, password="canary")
    assert await said(url=url, username="alice", password="old") == NOTHING
    await secured.raw.config_set("requirepass", "old")
    assert f"Authentication required{look}" in await said(url=url)
    assert await said(url=url, password="old") == NOTHING


@pytest.mark.nightly
async def test_files_are_read_when_a_process_starts(
    secured: Secured, certificates: Certificates, tmp_path: Path
) -> None:
    """A password and an authority: a running process keeps what it read, a new one has the new files."""
    password, ca = tmp_path / "password", tmp_path / "ca.pem"
    password.write_text("old\n")
    shutil.copy(certificates.ca, ca)
    files = {"username": "alice", "password_file": str(password), "ssl_cafile": str(ca)}
    async with redis_settings(url=f"rediss://{secured.tls}/0", **files).store() as store:
        assert await store.digest("m") == ""
        password.write_text("new\n")
        ca.unlink()
        await secured.raw.execute_command("CLIENT KILL USER alice")
        assert await store.digest("m") == ""
        await secured.raw.execute_command("ACL SETUSER", "alice", ">new", "<old")
        await secured.raw.execute_command("CLIENT KILL USER alice")
        with pytest.raises(DependencyError, match="invalid username-password pair"):
            await store.digest("m")
        shutil.copy(certificates.ca, ca)
        assert await said(url=f"rediss://{secured.tls}/0", **files) == NOTHING


@pytest.mark.nightly
async def test_each_command_says_it_in_one_line(secured: Secured, certificates: Certificates, tmp_path: Path) -> None:
    """The line has no secret."""
    file = tmp_path / "perceptron.toml"
    file.write_text(
        f'topics = ["m"]\nlearn = false\nfail_fast = true\nhttp.port = 0\nredis.url = "rediss://{secured.tls}/0"\n'
        f'redis.ssl_cafile = "{certificates.ca}"\nredis.username = "alice"\nredis.password = "canary"\n'
    )
    for command in ("run", "check", "inspect"):
        done = await asyncio.to_thread(perceptron, "-c", str(file), command, cwd=tmp_path)
        (line,) = [x for x in (done.stdout + done.stderr).splitlines() if "Redis at " in x]
        assert ("invalid username-password pair" in line, done.returncode) == (True, 3), done
        assert "canary" not in done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("redis", ["redis-server"], indirect=True)
async def test_the_rights_that_the_page_lists_are_enough_for_each_command(
    run: Run,
    redis: Server,
    raw: Any,
    producer: AIOKafkaProducer,
    kafka: Server,
    topic: str,
    tmp_path: Path,
) -> None:
    """A learner, a replica and each command work with the listed rights; those of a replica allow no learning."""
    for name, user in USERS.items():
        await raw.execute_command("ACL", "SETUSER", name, "on", f">{user.password}", *user.rights.split())

    def place(name: str) -> str:
        return f"{name}:{USERS[name].password}@{redis.address}"

    async def tool(name: str, *command: str) -> None:
        where = ["-t", topic, *([] if command[0] in {"reset", "export"} else ["-b", kafka.address])]
        where += ["--redis", f"redis://{place(name)}/0"]
        env = {"PERCEPTRON_LEARN": str(name != "replica")}
        done = await asyncio.to_thread(perceptron, *command, *where, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stdout + done.stderr

    learner = await asyncio.to_thread(run(KEEP_OFTEN, redis_address=place("learner")).up)
    replica = run("", "--no-learn", redis_address=place("replica"), create=False)
    versions = await learn_and_keep(learner, producer, random_events(300))
    await asyncio.to_thread(replica.up)
    await asyncio.to_thread(wait, lambda: replica.model()["next"]["0"] == 300, "the replica follows")
    for service in (learner, replica):
        assert await asyncio.to_thread(service.stop) == 0
        assert "permission" not in service.log.read_text()
    where = ["-t", topic, "-b", kafka.address, "--redis", f"redis://{place('replica')}/0"]
    done = await asyncio.to_thread(perceptron, "check", *where, cwd=tmp_path)
    assert (done.returncode, "refuses to write snapshots by a script" in done.stdout) == (2, True), done
    await tool("learner", "check")
    await tool("replica", "check")
    for name in ("inspect", "export", "verify"):
        await tool(name, name)
    await tool("rollback", "rollback", "--to", str(versions[-1]["version"]), "--yes")
    await tool("reset", "reset", "--yes")
    await raw.execute_command("ACL", "DELUSER", *USERS)


@pytest.fixture
def sentinel(tmp_path: Path, secured: Secured) -> Iterator[Server]:
    """A sentinel with a password, which calls the secured server `perceptron`."""
    folder, port = tmp_path / "sentinel", free_port()
    folder.mkdir()
    file = folder / "conf"
    host, _, watched = secured.plain.partition(":")
    file.write_text(
        f"bind 127.0.0.1\nport {port}\ndir {folder}\nrequirepass canary\n"
        f"sentinel monitor perceptron {host} {watched} 1\nsentinel down-after-milliseconds perceptron 60000\n"
    )
    server = Server([shutil.which("redis-server") or "", str(file), "--sentinel"], port, folder / "log")
    server.start()
    yield server
    server.stop()


@pytest.mark.nightly
async def test_who_sentinels_name_is_asked(secured: Secured, sentinel: Server) -> None:
    """Database and credentials are those of the settings. If no sentinel names a primary, one line has each answer."""
    right: dict[str, Any] = {"sentinels": [f"127.0.0.1:{free_port()}", sentinel.address], "sentinel_password": "canary"}
    assert await said(**right, username="alice", password="old") == NOTHING
    assert await said(**right, url="redis:///3") == NOTHING
    wrong = await said(**right, username="alice", password="x")
    assert wrong.startswith(f"Redis at {secured.plain} (by Sentinel): invalid username-password pair")
    no = "Redis at perceptron (by Sentinel): no sentinel names a primary (redis.sentinels, redis.sentinel_service): "
    look = ": look at redis.sentinel_username and redis.sentinel_password"
    settings: dict[str, Any] = {**right, "sentinels": [sentinel.address]}
    wrong = f"{no}{sentinel.address} invalid username-password pair or user is disabled{look}"
    assert await said(**settings | {"sentinel_password": "x"}) == wrong
    assert await said(sentinels=[sentinel.address]) == f"{no}{sentinel.address} Authentication required{look}"
    other = no.replace("perceptron", "other")
    assert await said(**settings, sentinel_service="other") == f"{other}{sentinel.address} knows no service other"
    assert "unknown command" in await said(sentinels=[secured.plain])
    nobody = f"127.0.0.1:{free_port()}"
    assert await said(sentinels=[nobody]) == f"{no}{nobody} Connection refused"
