"""How to reach the Redis that takes saves: its address or its sentinels, with credentials and TLS."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis, SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import ExponentialBackoff, NoBackoff

from service.credentials.tls import Tls
from service.snapshots.redis.redis_errors import NoPrimary, redis_failure

MAX_CONNECTIONS = 16
"""Connections of a process, for all its models. A command waits for a free one."""
SENTINEL_SECONDS = 1.0
"""Seconds for a sentinel to answer before the next one is asked."""
PROTOCOL = 2
"""Every server and proxy speaks RESP 2, and nothing here needs more."""


@dataclass(frozen=True)
class Endpoint:
    """How to reach Redis.

    With `sentinels`, each "host:port", this is the primary of their `service`, and `url` has only scheme and database.
    `tls` is used with `rediss://`, for the sentinels too. A login has `username` and `password`. It is empty if the url
    has the login, or if Redis needs none.
    """

    url: str
    login: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    tls: Tls = field(default_factory=Tls)
    sentinels: tuple[str, ...] = ()
    service: str = "perceptron"
    sentinel_login: Mapping[str, str | None] = field(default_factory=dict, repr=False)

    def pool(self, timeout: float) -> BlockingConnectionPool:
        """A pool of connections, on which each command fails after `timeout` seconds without an answer.

        Raises ConfigurationError if certificates cannot be read.
        """
        secured = self.url.startswith("rediss://")
        tls: dict[str, Any] = {"connection_class": _Secured, "context": self.tls.load()} if secured else {}
        options: dict[str, Any] = {
            **parse_url(self.url),
            **tls,
            **self.login,
            "max_connections": MAX_CONNECTIONS,
            "timeout": timeout,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            # The client may send a command twice, which does no harm with any command here.
            "retry": Retry(ExponentialBackoff(cap=0.2, base=0.02), 2),
            "protocol": PROTOCOL,
        }
        if not self.sentinels:
            return BlockingConnectionPool(**options)
        options["service_name"] = self.service
        options["sentinel_manager"] = Sentinels(self.sentinels, {**tls, **self.sentinel_login})
        options["connection_class"] = _SecuredPrimary if secured else SentinelManagedConnection
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
