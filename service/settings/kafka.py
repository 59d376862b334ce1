"""`[kafka]`: where events come from, and with which credentials."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from service.settings.section import TlsSection, check_addresses, loopback

if TYPE_CHECKING:
    from service.streaming.kafka.cluster import Cluster

_SASL_SETTINGS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "OAUTHBEARER": ("oauth_token_url", "oauth_client_id", "oauth_client_secret"),
    "AWS_MSK_IAM": ("aws_region",),
}
"""The settings that a mechanism needs. Mechanisms that are not listed need a user and a password."""


class KafkaSettings(TlsSection):
    """`[kafka]`: where events come from."""

    bootstrap_servers: str = "localhost:9092"
    """HOST:PORT of a broker, or of several with commas between them."""
    group_id: str = Field("perceptron", min_length=1)
    """The consumer group: its members share the topics."""
    session_timeout: float = Field(10.0, ge=1.0, le=300.0)
    """Seconds until a silent member is replaced. Brokers refuse less than 6 by default."""
    watchdog: float = Field(60.0, ge=1.0)
    """Seconds without a record, though the log has more, until the process ends."""
    max_batch_bytes: int = Field(16 << 20, ge=1 << 16)
    """A record batch that decompresses to more bytes stops its topic."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Whether the listener uses TLS, and whether it asks for a login."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] = "PLAIN"
    """How the client logs in."""
    sasl_username: str | None = None
    """The user, for PLAIN and SCRAM."""
    sasl_password: SecretStr | None = None
    """The password, for PLAIN and SCRAM."""
    sasl_password_file: str | None = None
    oauth_token_url: str | None = None
    """The endpoint that issues tokens for client credentials (RFC 6749, 4.4)."""
    oauth_client_id: str | None = None
    """The client that asks for a token."""
    oauth_client_secret: SecretStr | None = None
    """The secret of this client."""
    oauth_client_secret_file: str | None = None
    oauth_scope: str | None = None
    """The scope of the token, if its server wants one."""
    aws_region: str | None = None
    """The region of an Amazon MSK cluster. AWS credentials are found as AWS's own tools find them."""

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """Check addresses, TLS settings without use, and that exactly the mechanism's settings are set."""
        expected = "bootstrap_servers: expected HOST:PORT, or several with commas between them"
        check_addresses(self.bootstrap_servers.split(","), expected)
        token_url = urlsplit(self.oauth_token_url or "https://none")
        local = token_url.scheme == "http" and loopback(token_url.hostname or "")
        if not (token_url.scheme == "https" or local) or "@" in token_url.netloc:
            raise ValueError("oauth_token_url: expected https://HOST/PATH without a login: a secret is sent there")
        used = self.security_protocol.endswith("SSL") or self.oauth_token_url is not None
        self.check_tls(used, "is of no use without TLS: set security_protocol to SSL or SASL_SSL")
        mechanism = self.sasl_mechanism if self.security_protocol.startswith("SASL") else None
        use = mechanism or f"security_protocol = {self.security_protocol}"
        needed = _SASL_SETTINGS.get(mechanism, ("sasl_username", "sasl_password"))
        present = {name.removesuffix("_file") for name, value in self if value is not None}
        if missing := [name for name in needed if name not in present]:
            raise ValueError(f"{missing[0]}: is needed for {use}")
        if mechanism == "AWS_MSK_IAM" and find_spec("aws_msk_iam_sasl_signer") is None:
            raise ValueError("sasl_mechanism: AWS_MSK_IAM needs the extra: pip install 'perceptron-service[msk]'")
        allowed = {*needed, *(("sasl_mechanism", "oauth_scope") if mechanism else ())}
        for name in sorted({name.removesuffix("_file") for name in self.model_fields_set} - allowed):
            if name.startswith(("sasl_", "oauth_", "aws_")):
                raise ValueError(f"{name}: is of no use with {use}")
        return self

    @property
    def warnings(self) -> list[str]:
        """A line if a password goes over a network in the clear."""
        clear = self.security_protocol == "SASL_PLAINTEXT" and self.sasl_mechanism in {"PLAIN", "OAUTHBEARER"}
        if not clear or all(loopback(address.rpartition(":")[0]) for address in self.bootstrap_servers.split(",")):
            return []
        return [f"kafka.security_protocol: {self.sasl_mechanism} sends its secret unencrypted: use SASL_SSL"]

    @property
    def cluster(self) -> "Cluster":
        """The cluster that these settings name."""
        # Half of the commands need no Kafka client, and do not import one.
        from service.streaming.kafka.cluster import Cluster
        from service.streaming.kafka.connection import Security, client_credentials, msk_iam

        tls = self.tls if self.security_protocol.endswith("SSL") else None
        tokens = msk_iam(self.aws_region) if self.aws_region else None
        url, client, secret = self.oauth_token_url, self.oauth_client_id, self.secret("oauth_client_secret")
        if url is not None and client is not None and secret is not None:
            tokens = client_credentials(url, client, secret, self.oauth_scope, self.ssl_cafile)
        password = self.secret("sasl_password")
        security = Security(self.security_protocol, tls, self.sasl_mechanism, self.sasl_username, password, tokens)
        return Cluster(self.bootstrap_servers, self.max_batch_bytes, security)
