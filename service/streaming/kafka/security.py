"""How this process proves to Kafka who it is, as one value that every client is made with."""

from collections.abc import Callable
from typing import Any

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from service.credentials.secret import Secret
from service.credentials.tls import Tls
from service.errors import ConfigurationError
from service.streaming.kafka.oauth import TokenSource


class Security(AbstractTokenProvider):
    """`protocol` is Kafka's: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. SASL is by `tokens` if there are some."""

    def __init__(
        self,
        protocol: str = "PLAINTEXT",
        tls: Tls | None = None,
        mechanism: str = "PLAIN",
        username: str | None = None,
        password: Secret | None = None,
        tokens: TokenSource | None = None,
    ) -> None:
        self.protocol = protocol
        self.mechanism = "OAUTHBEARER" if tokens else mechanism
        self._tls, self._tokens, self._username, self._password = tls, tokens, username, password
        self._context: Any = None
        self.tell: Callable[[str], object] = lambda _: None
        """Hears of files that changed to what cannot be used."""

    async def token(self) -> str:
        """A token that holds; raises KafkaConnectionError."""
        assert self._tokens is not None  # noqa: S101 - asked for OAUTHBEARER alone
        return await self._tokens.token()

    @property
    def see(self) -> str:
        """The settings to look at if a listener refuses us."""
        return self._tokens.see if self._tokens else "kafka.sasl_mechanism, kafka.sasl_username and its password"

    def forget_token(self) -> None:
        """A connection failed, perhaps because the listener refuses the token: the next one asks for another."""
        if self._tokens is not None:
            self._tokens.forget()

    @property
    def options(self) -> dict[str, Any]:
        """What a client is made with, secrets as they are now; raises KafkaConnectionError."""
        if self.protocol == "PLAINTEXT":
            return {}
        if self._tls is not None and self._context is None:
            self._context = self._tls.context(lambda said: self.tell(f"kafka.{said}"))
        return {
            "security_protocol": self.protocol,
            "ssl_context": self._context,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self._username or "",
            "sasl_plain_password": self._password_now(),
            "sasl_oauth_token_provider": self,
        }

    def _password_now(self) -> str:
        try:
            return self._password.now() if self._password else ""
        except ConfigurationError as error:
            raise KafkaConnectionError(f"SASL: kafka.sasl_password_file: {error}") from None
