"""`[http]`: the address that answers requests, who may ask, and limits on requests."""

import re
from typing import Self

from pydantic import Field, model_validator

from service.credentials.bearer_tokens import BearerTokens
from service.credentials.tls import Tls
from service.settings.section import Section, as_value_error, loopback


class HttpSettings(Section):
    """`[http]`: the address, access and limits of the HTTP server."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    reuse_port: bool = False
    """Whether other processes with this setting may listen on the same port and share the requests."""
    token_file: str | None = None
    """Bearer tokens, one a line. If set, every request but a probe needs one."""
    metrics_token_file: str | None = None
    """Bearer tokens for `/metrics`; default: those of `token_file`."""
    ingest_token_file: str | None = None
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

    @model_validator(mode="after")
    def _validate(self) -> Self:
        """Check that token files and certificates load, and that each origin is scheme://host."""
        for name in ("token_file", "metrics_token_file", "ingest_token_file"):
            if (file := getattr(self, name)) is not None:
                with as_value_error(f"{name}: "):
                    BearerTokens(file)
        for origin in self.allowed_origins:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s?#@]+", origin):
                raise ValueError(f"allowed_origins: expected origins such as https://example.com or *, got {origin!r}")
        if self.tls is not None:
            with as_value_error():
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
