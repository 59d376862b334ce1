"""The tables of the settings file, models aside: what reaches Kafka and Redis, and the limits of HTTP."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from service.credentials.certificate import refused
from service.credentials.tls import Tls
from service.serving.tokens import Tokens
from service.settings.section import Section, TlsSection, as_value_error

if TYPE_CHECKING:
    from service.snapshots.endpoint import Endpoint
    from service.snapshots.store import RedisStore
    from service.streaming.cluster import Cluster
    from service.streaming.oauth import TokenSource

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s,:]+):\d{1,5}")


def loopback(host: str) -> bool:
    """Whether this names this machine alone."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_SASL_NEEDS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "OAUTHBEARER": ("oauth_token_url", "oauth_client_id", "oauth_client_secret"),
    "AWS_MSK_IAM": ("aws_region",),
}
"""What a mechanism needs; others need a user's name and password."""


class KafkaSettings(TlsSection):
    """`[kafka]`: where events come from."""

    bootstrap_servers: str = "localhost:9092"
    group_id: str = Field("perceptron", min_length=1)
    session_timeout: float = Field(
        10.0,
        ge=1.0,
        le=300.0,
        description="seconds until a silent member is replaced; brokers take no less than 6, unless set to",
    )
    watchdog: float = Field(60.0, ge=1.0, description="seconds without a record, though there are more, until we end")
    max_batch_bytes: int = Field(16 << 20, ge=1 << 16, description="a batch that is unpacked to more stops its topic")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    sasl_password_file: str | None = None
    oauth_token_url: str | None = Field(
        None, description="where a token is got for client_id and secret (RFC 6749, 4.4)"
    )
    oauth_client_id: str | None = None
    oauth_client_secret: SecretStr | None = None
    oauth_client_secret_file: str | None = None
    oauth_scope: str | None = None
    aws_region: str | None = Field(
        None, description="of an Amazon MSK, whose AWS credentials are found as AWS's own tools do"
    )

    @field_validator("bootstrap_servers", mode="after")
    @classmethod
    def _addresses(cls, servers: str) -> str:
        if not all(map(_ADDRESS.fullmatch, servers.split(","))):
            raise ValueError("expected HOST:PORT, or several with commas between them")
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
        from service.streaming.cluster import Cluster
        from service.streaming.security import Security

        tls = self.tls if self.security_protocol.endswith("SSL") else None
        known = self.sasl_username, self.secret("sasl_password"), self._tokens
        security = Security(self.security_protocol, tls, self.sasl_mechanism, *known)
        return Cluster(self.bootstrap_servers, self.max_batch_bytes, security)

    @property
    def _tokens(self) -> "TokenSource | None":
        """Where tokens come from, for the mechanisms that have some."""
        from service.streaming.oauth import ClientCredentials, MskIam

        if self.aws_region:
            return MskIam(self.aws_region)
        url, client, secret = self.oauth_token_url, self.oauth_client_id, self.secret("oauth_client_secret")
        if url is None or client is None or secret is None:
            return None
        return ClientCredentials(url, client, secret, self.oauth_scope, self.ssl_cafile)


class RedisSettings(TlsSection):
    """`[redis]`: where snapshots are kept."""

    url: str = "redis://localhost:6379/0"
    username: str | None = None
    password: SecretStr | None = None
    password_file: str | None = None
    sentinels: Annotated[list[str], NoDecode] = Field(
        [], description="host:port of each; then url has only its scheme and database, as redis:///0"
    )
    sentinel_service: str = Field("perceptron", min_length=1, description="what they call the primary")
    sentinel_username: str | None = None
    sentinel_password: SecretStr | None = Field(None, description="theirs, where they have one")
    sentinel_password_file: str | None = None

    @field_validator("url", mode="after")
    @classmethod
    def _reads(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            good = parts.scheme == "unix" or (parts.scheme in {"redis", "rediss"} and parts.port != 0)
            good = good and (parts.scheme == "unix" or re.fullmatch(r"/?\d*", parts.path) is not None)
        except ValueError:
            good = False
        if not good:
            raise ValueError("expected redis://[user:password@]host:port/number, rediss:// or unix://path")
        return url

    @field_validator("sentinels", mode="before")
    @classmethod
    def _comma_separated(cls, sentinels: Any) -> Any:
        return [s.strip() for s in sentinels.split(",") if s.strip()] if isinstance(sentinels, str) else sentinels

    @model_validator(mode="after")
    def _tls(self) -> Self:
        self.check_tls(self.url.startswith("rediss://"), "is of no use without TLS: url begins with rediss://")
        if "ssl_" in urlsplit(self.url).query and any(name.startswith("ssl_") for name in self.model_fields_set):
            raise ValueError("url: has ssl options, as other settings have: say them in one place")
        return self

    @model_validator(mode="after")
    def _credentials(self) -> Self:
        for of in ("", "sentinel_"):
            if getattr(self, f"{of}username") is not None and self.secret(f"{of}password") is None:
                raise ValueError(f"{of}username: needs {of}password, or {of}password_file")
        if self._in_url and self.secret("password"):
            raise ValueError("password: url has credentials too: say them in one place")
        return self

    @model_validator(mode="after")
    def _sentinels(self) -> Self:
        """Who names the primary, and nothing beside that does."""
        if not self.sentinels:
            for name in self.model_fields_set:
                if name.startswith("sentinel_"):
                    raise ValueError(f"{name}: is of no use without sentinels")
            return self
        if not all(map(_ADDRESS.fullmatch, self.sentinels)):
            raise ValueError("sentinels: expected HOST:PORT of each")
        if "url" not in self.model_fields_set:
            self.url = "redis:///0"
        parts = urlsplit(self.url)
        if parts.scheme == "unix" or parts.hostname or parts.port:
            raise ValueError("url: sentinels name the host: leave it out, as redis:///0 or rediss:///0")
        return self

    @property
    def warnings(self) -> list[str]:
        """A line where a password goes over a network in the clear."""
        parts = urlsplit(self.url)
        hosts = [sentinel.rpartition(":")[0] for sentinel in self.sentinels] or [parts.hostname or "localhost"]
        if parts.scheme != "redis" or not (self._in_url or self.secret("password")) or all(map(loopback, hosts)):
            return []
        return [
            "redis.url begins with redis://: the password goes over the network for all to read; rediss:// hides it"
        ]

    @property
    def _in_url(self) -> bool:
        parts = urlsplit(self.url)
        return "@" in parts.netloc or re.search("(^|&)(username|password)=", parts.query) is not None

    @property
    def endpoint(self) -> "Endpoint":
        """How it is reached."""
        from service.snapshots.endpoint import Endpoint  # as above

        own, theirs = self.secret("password"), self.secret("sentinel_password")
        sentinels = tuple(self.sentinels), self.sentinel_service, self.sentinel_username, theirs
        return Endpoint(self.url, self.username, own, self.tls, *sentinels)

    def store(self, tell: Callable[[str], object] = lambda _: None) -> "RedisStore":
        """What reaches it, and is to be closed; `tell` hears of certificates that changed and cannot be read."""
        from service.snapshots.store import RedisStore  # as above

        return RedisStore(self.endpoint, tell=tell)


class HttpSettings(Section):
    """`[http]`: where predictions are asked for."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    token_file: str | None = Field(None, description="bearer tokens, one a line; who asks needs one, but for probes")
    metrics_token_file: str | None = Field(None, description="others for /metrics; none: those of token_file")
    ssl_certfile: str | None = Field(None, description="the service's certificate and its chain, in PEM; none: no TLS")
    ssl_keyfile: str | None = Field(None, description="its key; none: it is in ssl_certfile")
    max_body_bytes: int = Field(16 << 20, ge=1)
    max_instances: int = Field(10_000, ge=1)
    max_in_flight: int = Field(100, ge=1)
    max_connections: int = Field(1000, ge=1, description="fewer where the limit of descriptors is too low for them")
    header_timeout: float = Field(10.0, gt=0, description="seconds for a request's headers to arrive")
    body_timeout: float = Field(10.0, gt=0, description="seconds for a request's body to arrive")
    answer_timeout: float = Field(30.0, gt=0, description="seconds for an answer to be read")

    @field_validator("token_file", "metrics_token_file", mode="after")
    @classmethod
    def _has_tokens(cls, file: str | None) -> str | None:
        if file is not None:
            with as_value_error():
                Tokens(file)
        return file

    @model_validator(mode="after")
    def _tls(self) -> Self:
        if self.tls is not None:
            with as_value_error():
                self.tls.load()
        return self

    @property
    def tls(self) -> Tls | None:
        """The service's side of it, where it is set."""
        set_here = self.ssl_certfile or self.ssl_keyfile
        return Tls(certfile=self.ssl_certfile, keyfile=self.ssl_keyfile, server=True) if set_here else None

    @property
    def scheme(self) -> str:
        """Of the service's address."""
        return "https" if self.tls else "http"

    @property
    def token(self) -> str | None:
        """What a command sends to a service of these settings."""
        return Tokens(self.token_file).first if self.token_file else None

    @property
    def warnings(self) -> list[str]:
        """An open door, tokens that others can read, an old certificate: a line each.

        What only this machine's own programs reach is no door.
        """
        said = []
        alone = loopback(self.host)
        if not alone and self.token_file is None:
            said.append("whoever reaches it may ask for predictions and weights; set http.token_file")
        if not alone and self.tls is None and (self.token_file or self.metrics_token_file):
            said.append("tokens come over the network as they are; set http.ssl_certfile, or have TLS before it")
        found = [f"http.host = {self.host}: {line}" for line in said]
        if self.tls and (why := refused(self.tls)):
            found.append(f"http.ssl_certfile: {self.ssl_certfile}: clients refuse it: {why}")
        return found


class SnapshotSettings(Section):
    """`[snapshots]`: which versions are kept for rollback."""

    keep_every: float = Field(300.0, gt=0)
    keep: int = Field(12, ge=0)
