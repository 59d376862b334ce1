"""What every table of the settings file is: of known names, each secret in a file too, TLS by its files."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from service.credentials.reread import text
from service.credentials.tls import Tls
from service.errors import ConfigurationError

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s,:]+):\d{1,5}")


def check_addresses(addresses: Iterable[str], expected: str) -> None:
    """Raise ValueError where one of them is not HOST:PORT."""
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f'{expected}, got "{masked(address)}"')
        if not 0 < int(address.rpartition(":")[2]) < 65536:
            raise ValueError(f"{expected}: a port is from 1 to 65535, got {address}")


def masked(url: str) -> str:
    """It without what may be a password, also where it is not written as it should be."""
    scheme, slashes, rest = url.rpartition("://")
    given, at, rest = rest.rpartition("@")
    user, colon, _ = given.partition(":")
    address, *more = re.split("(?<=[?#])", rest, maxsplit=1)  # options may be passwords too
    host, between, port = address.partition(":")
    if not (port.partition("/")[0].rstrip("?#").isdigit() or address.startswith("[")):
        address = host + between + ("***" if port else "")
    return f"{scheme}{slashes}{user if colon else ''}{colon}{'***@' if at else ''}{address}{'***' if more else ''}"


def loopback(host: str) -> bool:
    """Whether this names this machine alone."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _a_secret_or_its_file(self) -> Self:
        for name in type(self).model_fields:
            of = name.removesuffix("_file")
            if of != name and of in type(self).model_fields and getattr(self, name) is not None:
                if not getattr(self, name):
                    raise ValueError(f"{name}: expected the name of a file")
                if getattr(self, of) is not None:
                    raise ValueError(f"{of}: set it or {name}, not both")
                with as_value_error(f"{name}: "):
                    _read_secret(getattr(self, name))
        return self

    def secret(self, name: str) -> str | None:
        """The value of the setting `name`, or the line in the file of `NAME_file`."""
        value, file = getattr(self, name), getattr(self, f"{name}_file")
        return value.get_secret_value() if value is not None else file and _read_secret(file)


def _read_secret(file: str) -> str:
    """The only line of a file; raises ConfigurationError that names the file."""
    lines = text(file).splitlines()
    if len(lines) != 1 or not lines[0]:
        raise ConfigurationError(f"{file}: expected one line, the secret; found {len(lines) if any(lines) else 'none'}")
    return lines[0]


@contextmanager
def as_value_error(before: str = "") -> Iterator[None]:
    """What is wrong with a file is wrong with the setting that names it."""
    try:
        yield
    except ConfigurationError as error:
        raise ValueError(f"{before}{error}") from None


class TlsSection(Section):
    """A table of what is reached over TLS, or not."""

    ssl_cafile: str | None = Field(None, description="certificates to trust, in PEM; none: the system's")
    ssl_certfile: str | None = Field(None, description="a client certificate, in PEM")
    ssl_keyfile: str | None = Field(None, description="its key; none: it is in ssl_certfile")
    ssl_key_password: SecretStr | None = Field(None, description="of the key, where it has one")
    ssl_key_password_file: str | None = None
    ssl_check_hostname: bool = Field(True, description="whether the server's certificate must be of the name we use")

    @property
    def tls(self) -> Tls:
        """The client's side of it."""
        password = self.secret("ssl_key_password")
        return Tls(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, password, self.ssl_check_hostname)

    def check_tls(self, used: bool, otherwise: str) -> None:
        """Raise ValueError where files are no certificates, or where they are set and nothing uses them."""
        given = [name for name in TlsSection.model_fields if getattr(self, name) not in {None, True}]
        if used:
            with as_value_error():
                self.tls.load()
        elif given:
            raise ValueError(f"{given[0]}: {otherwise}")
