"""How this process proves to Kafka who it is, as one value that every client is made with."""

from typing import Any

from aiokafka.abc import AbstractTokenProvider

from service.credentials.tls import Tls
from service.streaming.kafka.oauth import TokenSource


class Security(AbstractTokenProvider):
    """`protocol` is Kafka's: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. SASL uses `tokens` if there are some.

    The files of `tls` are read once, here. Raises ConfigurationError.
    """

    def __init__(
        self,
        protocol: str = "PLAINTEXT",
        tls: Tls | None = None,
        mechanism: str = "PLAIN",
        username: str | None = None,
        password: str | None = None,
        tokens: TokenSource | None = None,
    ) -> None:
        self.protocol = protocol
        self.mechanism = "OAUTHBEARER" if tokens else mechanism
        self._tokens = tokens
        self.options: dict[str, Any] = {
            "security_protocol": protocol,
            "ssl_context": tls.load() if tls else None,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": username or "",
            "sasl_plain_password": password or "",
            "sasl_oauth_token_provider": self,
        }
        """The options of a client."""

    async def token(self) -> str:
        """A valid token; raises KafkaConnectionError."""
        assert self._tokens is not None  # noqa: S101 - only OAUTHBEARER calls this
        return await self._tokens.token()

    @property
    def see(self) -> str:
        """The settings to look at if a listener refuses us."""
        return self._tokens.see if self._tokens else "kafka.sasl_mechanism, kafka.sasl_username and its password"

    def forget_token(self) -> None:
        """A connection failed, perhaps because the listener refuses the token: the next one asks for another."""
        if self._tokens is not None:
            self._tokens.forget()
