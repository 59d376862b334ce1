"""`[kafka]`: where events come from, and how we are let in there."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from service.settings.section import TlsSection, check_addresses, loopback

if TYPE_CHECKING:
    from service.streaming.kafka.cluster import Cluster
    from service.streaming.kafka.oauth import TokenSource

_SASL_NEEDS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "OAUTHBEARER": ("oauth_token_url", "oauth_client_id", "oauth_client_secret"),
    "AWS_MSK_IAM": ("aws_region",),
}
"""What a mechanism needs; others need a user's name and password."""


class KafkaSettings(TlsSection):
    """`[kafka]`: where events come from."""

    bootstrap_servers: str = Field("localhost:9092", description="HOST:PORT, or several with commas between them")
    group_id: str = Field("perceptron", min_length=1, description="the consumer group: its members share the topics")
    session_timeout: float = Field(
        10.0,
        ge=1.0,
        le=300.0,
        description="seconds until a silent member is replaced; brokers take no less than 6, unless set to",
    )
    watchdog: float = Field(60.0, ge=1.0, description="seconds without a record, though there are more, until we end")
    max_batch_bytes: int = Field(16 << 20, ge=1 << 16, description="a batch that is unpacked to more stops its topic")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="whether the listener wants TLS, and a login"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] = Field(
        "PLAIN", description="how the login is made"
    )
    sasl_username: str | None = Field(None, description="of PLAIN and SCRAM")
    sasl_password: SecretStr | None = Field(None, description="of PLAIN and SCRAM")
    sasl_password_file: str | None = None
    oauth_token_url: str | None = Field(
        None, description="where a token is got for client_id and secret (RFC 6749, 4.4)"
    )
    oauth_client_id: str | None = Field(None, description="who asks for a token")
    oauth_client_secret: SecretStr | None = Field(None, description="what it proves itself with")
    oauth_client_secret_file: str | None = None
    oauth_scope: str | None = Field(None, description="of the token, where its server wants one")
    aws_region: str | None = Field(
        None, description="of an Amazon MSK, whose AWS credentials are found as AWS's own tools do"
    )

    @field_validator("bootstrap_servers", mode="after")
    @classmethod
    def _addresses(cls, servers: str) -> str:
        check_addresses(servers.split(","), "expected HOST:PORT, or several with commas between them")
        return servers

    @model_validator(mode="after")
    def _tls(self) -> Self:
        used = self.security_protocol.endswith("SSL") or self.oauth_token_url is not None
        self.check_tls(used, "is of no use where security_protocol is without TLS")
        return self

    @model_validator(mode="after")
    def _sasl(self) -> Self:
        """What a mechanism needs is there, and nothing that it does not know."""
        mechanism = self.sasl_mechanism if self.security_protocol.startswith("SASL") else None
        use = mechanism or f"security_protocol = {self.security_protocol}"
        needed = _SASL_NEEDS.get(mechanism, ("sasl_username", "sasl_password"))
        for name in needed:
            if getattr(self, name) is None and getattr(self, f"{name}_file", None) is None:
                raise ValueError(f"{name}: is needed for {use}")
        if mechanism == "AWS_MSK_IAM" and find_spec("aws_msk_iam_sasl_signer") is None:
            raise ValueError("sasl_mechanism: AWS_MSK_IAM needs the extra: pip install 'perceptron-service[msk]'")
        known = {*needed, *(f"{name}_file" for name in needed), "oauth_scope" if mechanism == "OAUTHBEARER" else ""}
        known |= {"sasl_mechanism"} if mechanism else set()
        for name in type(self).model_fields:
            if name.startswith(("sasl_", "oauth_", "aws_")) and name in self.model_fields_set - known:
                raise ValueError(f"{name}: is of no use with {use}")
        return self

    @field_validator("oauth_token_url", mode="after")
    @classmethod
    def _keeps_a_secret(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "https://none")
        kept = parts.scheme == "https" or (parts.scheme == "http" and loopback(parts.hostname or ""))
        if not kept or "@" in parts.netloc:
            raise ValueError("expected https://HOST/PATH, without a name or a password: a secret is sent there")
        return url

    @property
    def warnings(self) -> list[str]:
        """A line where a password goes over a network in the clear."""
        clear = self.security_protocol == "SASL_PLAINTEXT" and self.sasl_mechanism in {"PLAIN", "OAUTHBEARER"}
        if not clear or all(loopback(address.rpartition(":")[0]) for address in self.bootstrap_servers.split(",")):
            return []
        return [
            f"kafka.security_protocol = SASL_PLAINTEXT: {self.sasl_mechanism} sends its secret over the network for "
            "all to read; SASL_SSL hides it"
        ]

    @property
    def cluster(self) -> "Cluster":
        """What reaches it."""
        # Half of the commands need no client of Kafka, and load none.
        from service.streaming.kafka.cluster import Cluster
        from service.streaming.kafka.security import Security

        tls = self.tls if self.security_protocol.endswith("SSL") else None
        known = self.sasl_username, self.secret("sasl_password"), self._tokens
        security = Security(self.security_protocol, tls, self.sasl_mechanism, *known)
        return Cluster(self.bootstrap_servers, self.max_batch_bytes, security)

    @property
    def _tokens(self) -> "TokenSource | None":
        """Where tokens come from, for the mechanisms that have some."""
        from service.streaming.kafka.oauth import ClientCredentials, MskIam

        if self.aws_region:
            return MskIam(self.aws_region)
        url, client, secret = self.oauth_token_url, self.oauth_client_id, self.secret("oauth_client_secret")
        if url is None or client is None or secret is None:
            return None
        return ClientCredentials(url, client, secret, self.oauth_scope, self.ssl_cafile)
