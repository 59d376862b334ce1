"""How to reach the Redis that takes saves: its address or who names it, credentials, TLS; as one value."""

import ssl
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from redis.asyncio import (
    BlockingConnectionPool,
    Connection,
    ConnectionPool,
    Redis,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from service.credentials.tls import Tls
from service.errors import ConfigurationError, os_cause
from service.snapshots.refusals import Silent, Unknown, Unreached, reason

CONNECTIONS = 16
"""Of a process, however many models it has: who finds none free waits for one."""
SENTINEL_SECONDS = 1.0
"""For a sentinel to answer, before the next one is asked."""


def redacted(url: str) -> str:
    """A Redis address without its credentials."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"


@dataclass(frozen=True)
class Endpoint:
    """How to reach Redis.

    With `sentinels`, each "host:port", the primary of their `service` is meant, and `url` has only its scheme and
    database. `tls` is for urls of `rediss://`, unless they have ssl options of their own; sentinels are then asked
    over TLS too.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls = field(default_factory=Tls)
    sentinels: tuple[str, ...] = ()
    service: str = "perceptron"
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)

    @property
    def secured(self) -> bool:
        """Whether it is TLS."""
        return self.url.startswith("rediss://")

    def pool(self, timeout: float) -> BlockingConnectionPool:
        """A pool of connections, each answered within `timeout` seconds.

        Raises ConfigurationError if certificates cannot be read, or if the url has options that the client does not
        know.
        """
        try:
            options: dict[str, Any] = {
                **parse_url(self.url),
                "connection_class": _Local if self.url.startswith("unix") else _Secured if self.secured else _Plain,
                "max_connections": CONNECTIONS,
                "timeout": timeout,
                "socket_timeout": timeout,
                "socket_connect_timeout": timeout,
                # A command may run twice; every command here may.
                "retry": Retry(ExponentialBackoff(cap=0.2, base=0.02), 2),
                **_login(self.username, self.password),
            }
            tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
            if self.secured and not tls:
                tls = {"context": self.tls.load()}
            if self.sentinels:
                login = _login(self.sentinel_username, self.sentinel_password)
                options["sentinels"] = Sentinels(self.sentinels, self.service, self.secured, {**tls, **login})
                options["connection_class"] = _FoundSecured if self.secured else _FoundPlain
            pool = BlockingConnectionPool(**options | tls | COMMON)
            pool.connection_class(**pool.connection_kwargs)  # which is where an option is found that there is none of
        except TypeError as error:
            raise ConfigurationError(f"redis.url: there is no option {str(error).rpartition(' ')[2]}") from None
        except (ValueError, RedisError) as error:
            raise ConfigurationError(f"redis.url: {error}") from None
        return pool


class Sentinels:
    """Asked for the primary of their service: whoever answered last is asked first."""

    def __init__(self, addresses: tuple[str, ...], service: str, secured: bool, options: dict[str, Any]) -> None:
        self._addresses, self._service, self._secured, self._options = [*addresses], service, secured, options
        self.found: tuple[str, int] | None = None
        """The primary, as was said last."""

    def __str__(self) -> str:
        return f"{':'.join(map(str, self.found)) if self.found else self._service} (by Sentinel)"

    async def find(self) -> tuple[str, int]:
        """Host and port of the primary; raises Unknown, with what each sentinel said."""
        said = []
        for address in tuple(self._addresses):
            try:
                found = await self._ask(address)
            except (RedisError, OSError, RuntimeError) as error:
                other = "unknown command" in str(error)
                said.append(f"{address} {'is no sentinel' if other else reason(error, self._secured, 'sentinel_')}")
                continue
            if found:
                self._addresses.sort(key=lambda other: other != address)
                self.found = found
                return found
            said.append(f"{address} knows no service {self._service}")
        raise Unknown(f"no sentinel names a primary (redis.sentinels, redis.sentinel_service): {'; '.join(said)}")

    async def _ask(self, address: str) -> tuple[str, int] | None:
        host, _, port = address.rpartition(":")
        pool = ConnectionPool(
            connection_class=_Secured if self._secured else _Plain,
            host=host.strip("[]"),
            port=int(port),
            socket_timeout=SENTINEL_SECONDS,
            socket_connect_timeout=SENTINEL_SECONDS,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            **self._options | COMMON,
        )
        client: Any = Redis.from_pool(pool)
        async with client:
            return cast(tuple[str, int] | None, await client.sentinel_get_master_addr_by_name(self._service))


class _Named(AbstractConnection):
    """What the system says when it cannot be made stays the error's cause, wherever the client raises it again."""

    async def _connect(self) -> None:
        try:
            await super()._connect()  # type: ignore[no-untyped-call,safe-super]
        except TimeoutError:
            raise
        except OSError as error:
            raise Unreached(os_cause(error)) from error


class _Plain(_Named, Connection): ...


class _Local(_Named, UnixDomainSocketConnection): ...


class _Secured(_Named, SSLConnection):
    """TLS by the endpoint's context, or by the options of the url."""

    def __init__(self, *, context: ssl.SSLContext | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = context


class _Found(Connection):
    """To whoever is the primary when it is made. What leads to who was it before is not used any more."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels

    async def connect(self) -> None:
        if self.is_connected and (self.host, self.port) != self._sentinels.found:
            await self.disconnect()
        await super().connect()  # type: ignore[no-untyped-call]

    async def _connect(self) -> None:
        self.host, self.port = await self._sentinels.find()
        await super()._connect()  # type: ignore[no-untyped-call]


class _FoundPlain(_Found, _Plain): ...


class _FoundSecured(_Found, _Secured): ...


async def _greet(connection: Any) -> None:
    """Credentials and database; raises Silent where the connection ends before anything is said."""
    try:
        await connection.on_connect()
    except AuthenticationError:
        raise
    except (RedisConnectionError, OSError) as error:
        raise Silent from error


def _login(username: str | None, password: str | None) -> dict[str, Any]:
    """The options of a login, none without a password: the url may have one."""
    return {"username": username, "password": password} if password else {}


COMMON: dict[str, Any] = {"protocol": 2, "redis_connect_func": _greet}
"""Of all connections: a protocol that every server and proxy speaks, and nothing here needs more."""
