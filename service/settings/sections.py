"""The tables of the settings file, models aside: what reaches Kafka and Redis, and the limits of HTTP."""

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from service.errors import ConfigurationError
from service.serving.tokens import Tokens

if TYPE_CHECKING:
    from service.snapshots.store import RedisStore
    from service.streaming.cluster import Cluster

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s,:]+):\d{1,5}")


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_boolean_is_a_number(cls, values: Any) -> Any:
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field and field.annotation in {int, float, int | None, float | None}:
                raise ValueError(f"{name} is a number, not {str(value).lower()}")
        return values


class KafkaSettings(Section):
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

    @field_validator("bootstrap_servers", mode="after")
    @classmethod
    def _addresses(cls, servers: str) -> str:
        if not all(map(_ADDRESS.fullmatch, servers.split(","))):
            raise ValueError("expected HOST:PORT, or several with commas between them")
        return servers

    @property
    def cluster(self) -> "Cluster":
        """What reaches it."""
        from service.streaming.cluster import Cluster  # half of the commands need no client of Kafka, and load none

        return Cluster(self.bootstrap_servers, self.max_batch_bytes)


class RedisSettings(Section):
    """`[redis]`: where snapshots are kept."""

    url: str = "redis://localhost:6379/0"

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

    @property
    def store(self) -> "RedisStore":
        """What reaches it, and is to be closed."""
        from service.snapshots.store import RedisStore  # as above

        return RedisStore(self.url)


class HttpSettings(Section):
    """`[http]`: where predictions are asked for."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    token_file: str | None = Field(None, description="bearer tokens, one a line; who asks needs one, but for probes")
    metrics_token_file: str | None = Field(None, description="others for /metrics; none: those of token_file")
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
            try:
                Tokens(file)
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        return file

    @property
    def token(self) -> str | None:
        """What a command sends to a service of these settings."""
        return Tokens(self.token_file).first if self.token_file else None

    @property
    def open(self) -> list[str]:
        """A line where others than this machine's own programs may ask, and nobody needs a token."""
        if self.token_file is not None or self.host == "localhost":
            return []
        try:
            alone = ip_address(self.host).is_loopback
        except ValueError:
            alone = False
        said = f"http.host = {self.host}: whoever reaches it may ask for predictions and weights; set http.token_file"
        return [] if alone else [said]


class SnapshotSettings(Section):
    """`[snapshots]`: which versions are kept for rollback."""

    keep_every: float = Field(300.0, gt=0)
    keep: int = Field(12, ge=0)
