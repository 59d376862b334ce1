"""How this process proves to Kafka who it is, as one value that every connection asks when it is made.

So that a password, a token or a certificate is replaced without a restart. And why connections fail, which the client
library logs and does not raise.
"""

import re
import time
from collections.abc import Callable
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from service.credentials.secret import Secret
from service.credentials.tls import Tls
from service.streaming.oauth import TokenSource

LATELY = 30.0
"""Seconds: of brokers that nobody asks any more nothing is said."""


class Security(AbstractTokenProvider):
    """`protocol` is Kafka's: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. SASL is by `tokens` where there are some."""

    def __init__(
        self,
        protocol: str = "PLAINTEXT",
        tls: Tls | None = None,
        mechanism: str = "PLAIN",
        username: str | None = None,
        password: Secret | None = None,
        tokens: TokenSource | None = None,
    ) -> None:
        self.protocol, self.username, self.password = protocol, username, password
        self.mechanism = "OAUTHBEARER" if tokens else mechanism
        self._tls, self._tokens = tls, tokens
        self._context: Any = None
        self.tell: Callable[[str], object] = lambda _: None
        """Hears of files that changed to what cannot be used."""
        self._failures: dict[str, tuple[float, str]] = {}
        """When and why the last connection to each HOST:PORT failed."""

    async def token(self) -> str:
        """A token that holds; raises KafkaConnectionError."""
        assert self._tokens is not None  # noqa: S101 - asked for OAUTHBEARER alone
        return await self._tokens.token()

    def connected(self, address: str) -> None:
        """The last connection to HOST:PORT was made."""
        self._failures.pop(address, None)

    def failed(self, address: str, why: str) -> None:
        """The last connection to HOST:PORT failed."""
        self._failures[address] = time.monotonic(), why

    def why(self, bootstrap: str) -> str:
        """Why the last connections failed, to one of these addresses or to another broker; '' where none did lately."""
        since, known = time.monotonic() - LATELY, re.sub(r"[\[\]]", "", bootstrap).split(",")
        where = {why: address for address, (at, why) in reversed(self._failures.items()) if at > since}
        alone = known if len(known) == 1 else []
        return "; ".join(why if at in alone else f"broker at {at}: {why}" for why, at in where.items())

    @property
    def see(self) -> str:
        """The settings to look at where a listener refuses us."""
        return self._tokens.see if self._tokens else "kafka.sasl_mechanism, kafka.sasl_username and its password"

    def refused(self) -> None:
        """A listener refuses our token."""
        assert self._tokens is not None  # noqa: S101 - it was asked for
        self._tokens.forget()

    @property
    def options(self) -> dict[str, Any]:
        """What a client is made with; the connection, which is ours, asks this value itself."""
        if self.protocol == "PLAINTEXT":
            return {"sasl_oauth_token_provider": self}
        if self._tls is not None and self._context is None:
            self._context = self._tls.context(lambda said: self.tell(f"kafka.{said}"))
        return {
            "security_protocol": self.protocol,
            "ssl_context": self._context,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username or "",
            "sasl_plain_password": "",
            "sasl_oauth_token_provider": self,
        }
