"""How this process logs in to Kafka, as one value that every client is made with."""

from typing import Any

from service.credentials.tls import Tls
from service.streaming.kafka.oauth import TokenSource


class Security:
    """`protocol` is Kafka's: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. SASL uses `tokens` if they are given.

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
        self.protocol, self.tokens = protocol, tokens
        self.mechanism = "OAUTHBEARER" if tokens else mechanism
        self.see = tokens.see if tokens else "kafka.sasl_mechanism, kafka.sasl_username and its password"
        """The settings to look at if a listener refuses us."""
        self.options: dict[str, Any] = {
            "security_protocol": protocol,
            "ssl_context": tls.load() if tls else None,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": username or "",
            "sasl_plain_password": password or "",
            "sasl_oauth_token_provider": tokens,
        }
        """The options of a client."""
