"""`[kafka]`, `[redis]` and `[http]`: where each is, who may connect, and limits."""

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from service.credentials import BearerTokens, Reloaded, Tls
from service.settings.section import SecretFile, Section, Texts, TlsSection, check_addresses, loopback
from service.snapshots.ports import Store

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
    sasl_password_file: SecretFile | None = None
    oauth_token_url: str | None = None
    """The endpoint that issues tokens for client credentials (RFC 6749, 4.4)."""
    oauth_client_id: str | None = None
    """The client that asks for a token."""
    oauth_client_secret: SecretStr | None = None
    """The secret of this client."""
    oauth_client_secret_file: SecretFile | None = None
    oauth_scope: str | None = None
    """The scope of the token, if its server wants one."""
    aws_region: str | None = None
    """The region of an Amazon MSK cluster. AWS credentials are found as AWS's own tools find them."""

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """Check addresses, TLS settings without use, and that exactly the mechanism's settings are set."""
        expected = "bootstrap_servers: expected HOST:PORT, or several with commas between them"
        scheme = f"{self.security_protocol}://"  # brokers' own settings begin with it
        addresses = [part.strip().removeprefix(scheme) for part in self.bootstrap_servers.split(",")]
        check_addresses(addresses, expected)
        self.bootstrap_servers = ",".join(addresses)
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


class RedisSettings(TlsSection):
    """`[redis]`: where snapshots are kept."""

    url: str = "redis://localhost:6379/0"
    """Host, port and database; `rediss://` is TLS."""
    username: str | None = None
    """An ACL user; needs a password."""
    password: SecretStr | None = None
    """The password, if the URL has none."""
    password_file: SecretFile | None = None
    sentinels: Texts = Field([])
    """HOST:PORT of each sentinel. `url` then has only its scheme and database, as `redis:///0`."""
    sentinel_service: str = Field("perceptron", min_length=1)
    """The name of the primary in the sentinels' configuration."""
    sentinel_username: str | None = None
    """The user at the sentinels, if they have one."""
    sentinel_password: SecretStr | None = None
    """The password of the sentinels, if they have one."""
    sentinel_password_file: SecretFile | None = None
    cluster: bool = False
    """Whether `url` names a node of a Redis Cluster, or a managed Redis that is one."""

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
            expected = "url: expected redis://[user:password@]host:port/number, rediss:// or unix://path"
            quoted = "; in a password write %23 for #, %2F for /, %3F for ? and %40 for @, or set redis.password"
            raise ValueError(expected + (quoted if "@" in self.url else ""))
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
        if self.cluster and (not re.fullmatch("rediss?://[^/]+(/0?)?", self.url) or self.secret("ssl_key_password")):
            raise ValueError("cluster: expected a url with the host of a node and database 0, and no ssl_key_password")
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
        from service.snapshots.redis.connection import Login, RedisServer
        from service.snapshots.redis.store import RedisStore

        def login(prefix: str) -> Login | None:
            name, file = f"{prefix}password", getattr(self, f"{prefix}password_file")
            if not self.secret(name):
                return None
            password = Reloaded([file] if file else [], lambda: self.secret(name) or "", None)
            return Login(getattr(self, f"{prefix}username"), password)

        sentinels = tuple(self.sentinels), self.sentinel_service, login("sentinel_")
        return RedisStore(RedisServer(self.url, login(""), self.tls, *sentinels, self.cluster), timeout)


TokenFile = Annotated[str, AfterValidator(lambda file: BearerTokens(file) and file)]
"""A file that has bearer tokens, which can be read."""


class HttpSettings(Section):
    """`[http]`: the address, access and limits of the HTTP server."""

    host: Annotated[str, AfterValidator(lambda host: host.strip("[]"))] = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    reuse_port: bool = False
    """Whether other processes with this setting may listen on the same port and share the requests."""
    token_file: TokenFile | None = None
    """Bearer tokens, one a line. If set, every request but a probe needs one."""
    metrics_token_file: TokenFile | None = None
    """Bearer tokens for `/metrics`; default: those of `token_file`."""
    ingest_token_file: TokenFile | None = None
    """Bearer tokens for posts of events and labels, which open nothing else. Beyond loopback posts need one."""
    ssl_certfile: str | None = None
    """The service's certificate and its chain, in PEM; default: no TLS."""
    ssl_keyfile: str | None = None
    """The key of the certificate; default: it is in `ssl_certfile`."""
    max_body_bytes: int = Field(16 << 20, ge=1)
    """Bytes of one request's body; a larger one is answered with 413."""
    max_instances: int = Field(10_000, ge=1)
    """Predictions that one request may ask for."""
    max_in_flight: int = Field(100, ge=1)
    """Requests that are answered at a time; a further one gets 503."""
    max_connections: int = Field(1000, ge=1)
    """Connections that are open at a time, at most half of the file descriptors that the process may have."""
    header_timeout: float = Field(10.0, gt=0)
    """Seconds for a request's headers to arrive."""
    body_timeout: float = Field(10.0, gt=0)
    """Seconds for a request's body to arrive."""
    answer_timeout: float = Field(30.0, gt=0)
    """Seconds for a client to read an answer."""
    idle_timeout: float = Field(75.0, gt=0)
    """Seconds that an idle connection stays open. A load balancer should wait less."""
    root_path: str = Field("", pattern="^(/[A-Za-z0-9._~-]+)*$")
    """The prefix under which a proxy serves it, such as `/perceptron`."""
    allowed_origins: list[str] = Field([])
    """Sites whose pages may send requests, such as `https://example.com`; `*` allows all."""
    cors_headers: list[str] = Field([])
    """More headers that pages of `allowed_origins` may send, such as `traceparent`."""

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """Check that certificates load, and that each origin is scheme://host."""
        for origin in self.allowed_origins:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s?#@]+", origin):
                raise ValueError(f"allowed_origins: expected origins such as https://example.com or *, got {origin!r}")
        if self.tls is not None:
            self.tls.load()
        return self

    @property
    def tls(self) -> Tls | None:
        """The files of the service's side of TLS, if they are set."""
        set_here = self.ssl_certfile or self.ssl_keyfile
        return Tls(certfile=self.ssl_certfile, keyfile=self.ssl_keyfile, server=True) if set_here else None

    @property
    def scheme(self) -> str:
        """The scheme of the service's URL."""
        return "https" if self.tls else "http"

    @property
    def token(self) -> str | None:
        """The token that a command sends to a service with these settings."""
        return BearerTokens(self.token_file).first if self.token_file else None

    @property
    def warnings(self) -> list[str]:
        """A line each for a port that is open to all, and for tokens that others can read.

        A port of the loopback is not open: only this machine's own programs reach it.
        """
        lines = []
        if not (local := loopback(self.host)) and self.token_file is None:
            lines.append("everyone who reaches it can ask for predictions and weights; set http.token_file")
        if not local and self.tls is None and (self.token_file or self.metrics_token_file or self.ingest_token_file):
            lines.append("tokens cross the network unencrypted; set http.ssl_certfile, or use a proxy with TLS")
        return [f"http.host = {self.host}: {line}" for line in lines]
