"""The base of all tables of the settings file: known names only, secrets in files too, the files of TLS."""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr, model_validator
from pydantic_settings import NoDecode

from service.credentials import Tls, read_text
from service.errors import ConfigurationError

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s,:]+):\d{1,5}")


def check_addresses(addresses: Iterable[str], expected: str) -> None:
    """Raise ValueError if an address is not HOST:PORT. The error does not show it, since it may hold a password."""
    for address in addresses:
        if not _ADDRESS.fullmatch(address) or not 0 < int(address.rpartition(":")[2]) < 65536:
            raise ValueError(expected)


def comma_separated(value: Any) -> Any:
    """The list that a text with commas stands for; any other value as it is."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Texts = Annotated[list[str], NoDecode, BeforeValidator(comma_separated)]
"""A list of strings; in the environment, a text with commas."""


def masked(url: str) -> str:
    """A URL without its user and password.

    >>> masked("redis://user:secret@host:6379/0")
    'redis://***@host:6379/0'
    """
    return re.sub("//[^/]*@", "//***@", url)


def loopback(host: str) -> bool:
    """Whether this host is this machine's loopback."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _a_secret_or_its_file(self) -> Self:
        values = dict(self)
        for name, file in values.items():
            secret = name.removesuffix("_file")
            if secret != name and file is not None and values.get(secret) is not None:
                raise ValueError(f"{secret}: set it or {name}, not both")
        return self

    def secret(self, name: str) -> str | None:
        """The value of the setting `name`, or the line in the file of `NAME_file`."""
        value, file = getattr(self, name), getattr(self, f"{name}_file")
        return value.get_secret_value() if value is not None else file and _read_secret(file)


def _read_secret(file: str) -> str:
    """The only line of a file; raises ConfigurationError that names the file."""
    lines = read_text(file).splitlines()
    if len(lines) != 1 or not lines[0]:
        raise ConfigurationError(f"{file}: expected one line, which is the secret")
    return lines[0]


SecretFile = Annotated[str, AfterValidator(lambda file: _read_secret(file) and file)]
"""A file that has a secret, which can be read."""


class TlsSection(Section):
    """A table of a dependency that may be reached over TLS."""

    ssl_cafile: str | None = None
    """Certificates to trust, in PEM; default: the system's."""
    ssl_certfile: str | None = None
    """A client certificate, in PEM."""
    ssl_keyfile: str | None = None
    """The key of the certificate; default: it is in `ssl_certfile`."""
    ssl_key_password: SecretStr | None = None
    """The password of the key, if it has one."""
    ssl_key_password_file: SecretFile | None = None
    ssl_check_hostname: bool = True
    """Whether the server's certificate must name the host that we connect to."""

    @property
    def tls(self) -> Tls:
        """The files of a client's side of TLS."""
        password = self.secret("ssl_key_password")
        return Tls(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, password, self.ssl_check_hostname)

    def check_tls(self, used: bool, otherwise: str) -> None:
        """Raise ValueError if the files are not certificates, or if a setting of TLS is not `used`."""
        names = [name for name in TlsSection.model_fields if getattr(self, name) not in {None, True}]
        if used:
            self.tls.load()
        elif names:
            raise ValueError(f"{names[0]}: {otherwise}")
