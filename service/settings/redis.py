"""`[redis]`: where snapshots are kept, and with which credentials."""

import re
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from service.settings.section import Texts, TlsSection, check_addresses, loopback
from service.snapshots.ports import Store


class RedisSettings(TlsSection):
    """`[redis]`: where snapshots are kept."""

    url: str = "redis://localhost:6379/0"
    """Host, port and database; `rediss://` is TLS."""
    username: str | None = None
    """An ACL user; needs a password."""
    password: SecretStr | None = None
    """The password, if the URL has none."""
    password_file: str | None = None
    sentinels: Texts = Field([])
    """HOST:PORT of each sentinel. `url` then has only its scheme and database, as `redis:///0`."""
    sentinel_service: str = Field("perceptron", min_length=1)
    """The name of the primary in the sentinels' configuration."""
    sentinel_username: str | None = None
    """The user at the sentinels, if they have one."""
    sentinel_password: SecretStr | None = None
    """The password of the sentinels, if they have one."""
    sentinel_password_file: str | None = None

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """Check the URL; refuse settings that contradict each other or have no effect."""
        try:
            parts = urlsplit(self.url)
            # A missing host means unquoted credentials.
            server = parts.port != 0 and (parts.hostname or not parts.netloc)
            database = re.fullmatch(r"/?\d*", parts.path)
            good = parts.scheme == "unix" or (parts.scheme in {"redis", "rediss"} and server and database)
        except ValueError:
            good = False
        if not good or parts.query or parts.fragment:  # the url is not shown: any part of it may be the password
            raise ValueError("url: expected redis://[user:password@]host:port/number, rediss:// or unix://path")
        self.check_tls(parts.scheme == "rediss", "is of no use without TLS: set a url that begins with rediss://")
        for login in ("", "sentinel_"):
            if getattr(self, f"{login}username") is not None and self.secret(f"{login}password") is None:
                raise ValueError(f"{login}username: needs {login}password, or {login}password_file")
        if "@" in parts.netloc and self.secret("password"):
            raise ValueError("password: url has credentials too: set them in one place")
        if self.sentinels:
            check_addresses(self.sentinels, "sentinels: expected HOST:PORT of each")
            if "url" not in self.model_fields_set:
                self.url = "redis:///0"
            elif parts.scheme == "unix" or parts.hostname or parts.port:
                raise ValueError("url: sentinels name the host: leave it out, as in redis:///0 or rediss:///0")
        elif unused := [name for name in self.model_fields_set if name.startswith("sentinel_")]:
            raise ValueError(f"{unused[0]}: is of no use without sentinels")
        return self

    @property
    def warnings(self) -> list[str]:
        """A line if a password goes over a network in the clear."""
        parts = urlsplit(self.url)
        hosts = [sentinel.rpartition(":")[0] for sentinel in self.sentinels] or [parts.hostname or "localhost"]
        login = "@" in parts.netloc or self.secret("password")
        if parts.scheme != "redis" or not login or all(map(loopback, hosts)):
            return []
        return ["redis.url begins with redis://: the password crosses the network unencrypted; use rediss://"]

    def store(self, timeout: float = 3.0) -> Store:
        """The store, which answers within `timeout` seconds; the caller closes it."""
        # Half of the commands need no Redis client, and do not import one.
        from service.snapshots.redis.connection import Endpoint
        from service.snapshots.redis.store import RedisStore

        login, sentinel_login = self._login(), self._login("sentinel_")
        endpoint = Endpoint(self.url, login, self.tls, tuple(self.sentinels), self.sentinel_service, sentinel_login)
        return RedisStore(endpoint, timeout)

    def _login(self, prefix: str = "") -> dict[str, str | None]:
        password = self.secret(f"{prefix}password")
        return {"username": getattr(self, f"{prefix}username"), "password": password} if password else {}
