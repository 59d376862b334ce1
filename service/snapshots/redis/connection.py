"""How to reach the Redis that takes saves: its address, its cluster or its sentinels, with credentials and TLS.

It also says why Redis or a sentinel does not answer, and checks a Redis at the start.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, ReadOnlyError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service.credentials import Reloaded, Tls
from service.errors import ConfigurationError, causes, os_cause

MAX_CONNECTIONS = 16
"""Connections of a process, for all its models. A command waits for a free one."""
SENTINEL_SECONDS = 1.0
"""Seconds for a sentinel to answer before the next one is asked."""
PROTOCOL = 2
"""Every server and proxy speaks RESP 2, and nothing here needs more."""
REPLICA = "ReadOnly|MasterDown|READONLY"
"""How a server says that it is a replica."""
WAYS_OUT = {
    "SSL": "look at redis.ssl_cafile, redis.ssl_certfile and redis.ssl_check_hostname; redis:// is without TLS",
    "Authentication": "look at redis.{login}username and redis.{login}password",
    "NoPermission": "give the user this right (docs/security.md lists what is needed)",
    "Ask|Moved|CrossSlot": "it is a node of a Redis Cluster: set redis.cluster = true",
    "cluster support disabled": "it is not a node of a Redis Cluster: remove redis.cluster",
    "WRONGTYPE": "perceptron:models is not a set: rename or delete it, so that new models can begin",
    REPLICA: "it is a replica, which takes no saves: name its primary, or its sentinels (redis.sentinels)",
    "ConnectionReset|InvalidResponse|closed by|handshake": "if it {tls}; if it is not Redis, correct redis.url",
}
"""Advice by a pattern over an error's class and text; see `redis_failure`."""
MIN_VERSION = 5, 0
PROBE_KEY = "perceptron:{!tried}"
"""No model can have this key."""
READ_SCRIPT = "redis.call('HMGET', KEYS[1], 'digest', 'head')"
DELETE = "redis.call('HDEL', KEYS[1], 'digest')"
WRITE_SCRIPTS = (DELETE, f"redis.call('HSET', KEYS[1], 'digest', 'x') {DELETE}")
"""The first shows that the HDEL of the second is allowed. The second begins with HSET: Redis checks only the
first write of a script for memory. No other client sees the key, since a script is atomic."""
_REFUSED = re.compile("permission|can't run this|unknown (redis )?command", re.IGNORECASE)


class Login(CredentialProvider):
    """A user, if there is one, and a password, whose file is read again for each new connection if it has changed."""

    def __init__(self, username: str | None, password: Reloaded[str]) -> None:
        self._user, self._password = (username,) if username else (), password

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """What redis-py sends with AUTH."""
        return *self._user, self._password.now


@dataclass(frozen=True)
class RedisServer:
    """How to reach Redis.

    With `sentinels`, each "host:port", this is the primary of their `service`, and `url` has only scheme and database.
    With `cluster` the url names a node of a Redis Cluster. `tls` is used with `rediss://`, for the sentinels too. A
    login is None if the url has the login, or if Redis needs none.
    """

    url: str
    login: Login | None = None
    tls: Tls = field(default_factory=Tls)
    sentinels: tuple[str, ...] = ()
    service: str = "perceptron"
    sentinel_login: Login | None = None
    cluster: bool = False

    def client(self, timeout: float) -> Redis | RedisCluster:
        """A client, each command of which fails after `timeout` seconds without an answer.

        Raises ConfigurationError if certificates cannot be read.
        """
        common: dict[str, Any] = {
            "credential_provider": self.login,
            "max_connections": MAX_CONNECTIONS,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            # The client may send a command twice, which does no harm with any command here.
            "retry": Retry(ExponentialBackoff(cap=0.2, base=0.02), 2),
            "protocol": PROTOCOL,
        }
        if not self.cluster:
            return Redis.from_pool(self._pool(common | {"timeout": timeout}))
        files = {"ssl_ca_certs": self.tls.cafile, "ssl_certfile": self.tls.certfile, "ssl_keyfile": self.tls.keyfile}
        return RedisCluster.from_url(self.url, **common, **files, ssl_check_hostname=self.tls.check_hostname)

    @property
    def secured(self) -> bool:
        """Whether TLS is used."""
        return self.url.startswith("rediss://")

    def _pool(self, common: Mapping[str, Any]) -> BlockingConnectionPool:
        tls: dict[str, Any] = {"connection_class": _Secured, "context": self.tls.load()} if self.secured else {}
        options: dict[str, Any] = {**parse_url(self.url), **tls, **common}
        if not self.sentinels:
            return BlockingConnectionPool(**options)
        options["service_name"] = self.service
        options["sentinel_manager"] = Sentinels(self.sentinels, {**tls, "credential_provider": self.sentinel_login})
        options["connection_class"] = _SecuredPrimary if self.secured else SentinelManagedConnection
        return _Primaries(**options)


class Sentinels:
    """The sentinels of a primary. The last one that answered is asked first.

    redis-py's `Sentinel` asks for all primaries, which needs another right. It gives up at the first sentinel that
    answers with an error, and does not report what each of them said.
    """

    def __init__(self, addresses: tuple[str, ...], options: dict[str, Any]) -> None:
        self._addresses = [*addresses]
        self._options = options | {
            "socket_timeout": SENTINEL_SECONDS,
            "socket_connect_timeout": SENTINEL_SECONDS,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": True,
            "protocol": PROTOCOL,
        }

    async def discover_master(self, service: str) -> tuple[str, int]:
        """Host and port of the primary of a service; raises NoPrimary with the answer of each sentinel."""
        answers = []
        for address in tuple(self._addresses):
            host, _, port = address.rpartition(":")
            client: Any = Redis.from_pool(ConnectionPool(host=host.strip("[]"), port=int(port), **self._options))
            try:
                async with client:
                    primary: tuple[str, int] | None = await client.sentinel_get_master_addr_by_name(service)
                if primary:
                    self._addresses.sort(key=lambda other: other != address)
                    return primary
                answers.append(f"{address} knows no service {service}")
            except Exception as error:  # whatever it says, the next one is asked
                answers.append(f"{address} {redis_failure(error, 'sentinel_')}")
        raise NoPrimary(f"no sentinel names a primary (redis.sentinels, redis.sentinel_service): {'; '.join(answers)}")


class _Primaries(BlockingConnectionPool, SentinelConnectionPool):
    """Connections to the primary that sentinels name. At its limit this pool waits; redis-py's own fails."""


class _Secured(SSLConnection):
    """TLS with the endpoint's context."""

    def __init__(self, *, context: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = context


class _SecuredPrimary(SentinelManagedConnection, _Secured): ...


class NoPrimary(RedisConnectionError):
    """No sentinel names a primary."""


def redis_failure(error: Exception, login: str = "", secured: bool = False) -> str:
    """Why the client failed, without the words that the client wraps the cause in, and what to do.

    `login` is the prefix of the settings of its login, `secured` whether it uses TLS.
    """
    places = {"login": login, "tls": "does not speak TLS, use redis://" if secured else "speaks TLS, use rediss://"}
    chain = list(causes(error))
    kinds = NoPrimary, AuthenticationError, ssl.SSLError, OSError | RedisTimeoutError, ResponseError
    cause = next((e for kind in kinds for e in chain if isinstance(e, kind)), error)
    name = type(cause).__name__
    if isinstance(cause, NoPrimary):  # its text says what to do about each sentinel's error
        return str(cause)
    if isinstance(cause, TimeoutError | RedisTimeoutError):
        text = "no answer in time" + (" to the TLS handshake" if secured and "connecting" in str(cause) else "")
    elif isinstance(cause, RuntimeError):
        text = "the connection broke"
    elif not isinstance(cause, RedisError | RedisClusterException | OSError):
        text = "its reply is not one of Redis to this command"
    else:
        text = (os_cause(cause) if isinstance(cause, OSError) else str(cause)).rstrip(".") or name
    ways = (way.format(**places) for pattern, way in WAYS_OUT.items() if re.search(pattern, f"{name}: {text}"))
    return ": ".join([text, *ways])


def is_not_primary(error: Exception) -> bool:
    """Whether the server says that it is not the primary, or not any more."""
    return re.search(f"{REPLICA}|NOREPLICAS", f"{type(error).__name__}: {error}") is not None


async def check_server(redis: Redis | RedisCluster, where: str, learn: bool) -> list[str]:
    """Refuse a Redis that would lose snapshots or refuses our commands; return warnings, a line each.

    `where` names the Redis in each line. Raises ConfigurationError, and what the client raises.
    """
    warnings, info = list[str](), dict[str, Any]()
    try:
        info = await redis.info()
    except ResponseError as error:
        if not _REFUSED.search(str(error)):
            raise
        warnings.append(f"{where} does not show its settings (INFO): {error}")
    version, policy = str(info.get("redis_version", "")), info.get("maxmemory_policy", "noeviction")
    numbers = tuple(map(int, re.findall(r"\d+", version)))[:2]
    if info.get("cluster_enabled") and not isinstance(redis, RedisCluster):
        raise ConfigurationError(f"{where} is a node of a Redis Cluster: set redis.cluster = true")
    if numbers and numbers < MIN_VERSION:
        raise ConfigurationError(f"{where} is version {version}: use at least {'.'.join(map(str, MIN_VERSION))}")
    if policy.startswith("allkeys"):
        raise ConfigurationError(f"{where} has maxmemory-policy {policy}, which would evict snapshots: set noeviction")
    if policy != "noeviction":
        warnings.append(f"{where} has maxmemory-policy {policy}: noeviction is safer for snapshots")
    if info.get("aof_enabled") == 0:
        warnings.append(f"{where} has no AOF: a restart loses snapshots (start it with --appendonly yes)")
    try:
        for script in WRITE_SCRIPTS if learn else (READ_SCRIPT,):
            await redis.register_script(script)(keys=[PROBE_KEY])
    except ResponseError as error:
        if isinstance(error, ReadOnlyError) or "READONLY" in str(error):
            raise
        if _REFUSED.search(str(error)):
            raise ConfigurationError(
                f"{where} refuses to {'write' if learn else 'read'} snapshots by a script: {error}: "
                "give the user this right (docs/security.md lists what is needed)"
            ) from None
        warnings.append(f"{where}: a write fails, so saves will: {error}")
    return warnings
