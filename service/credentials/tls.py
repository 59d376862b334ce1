"""TLS contexts from files. A client reads them at start, the server again when they change."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.credentials.reread import Reread
from service.errors import ConfigurationError, os_cause

EXPIRED, OTHER_NAME, OTHER_ADDRESS = 10, 62, 64
"""A `verify_code`: OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""


@dataclass(frozen=True)
class Tls:
    """The files of one side of TLS, in PEM.

    `cafile` has the authorities to trust (None: the system's). `certfile` and `keyfile` are what this side shows; the
    key may stand in the certificate's file. Errors name settings as `ssl_cafile` and so on.
    """

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    server: bool = False

    def context(self, tell: Callable[[str], object] = lambda _: None) -> ssl.SSLContext:
        """A server's context, which reads the files again when they change.

        Raises ConfigurationError; `tell` hears of files that change to what cannot be used.
        """
        return _Rereading(self, tell)

    def load(self) -> ssl.SSLContext:
        """As the files are now; raises ConfigurationError that names the setting and its file."""
        if self.server:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        else:
            if self.cafile is not None:
                _named("ssl_cafile", self.cafile)
            try:
                context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.cafile)
            except ssl.SSLError:
                raise ConfigurationError(f"ssl_cafile: {self.cafile}: expected certificates in PEM") from None
            context.check_hostname = self.check_hostname
        if self.certfile is not None:
            self._load_own(context, self.certfile)
        elif self.keyfile is not None:
            raise ConfigurationError("ssl_keyfile: is of no use without ssl_certfile")
        return context

    def _load_own(self, context: ssl.SSLContext, certfile: str) -> None:
        asked = False

        def password() -> str:  # else OpenSSL asks at the terminal
            nonlocal asked
            asked = True
            return self.key_password or ""

        _named("ssl_certfile", certfile)
        if self.keyfile is not None:
            _named("ssl_keyfile", self.keyfile)
        key = f"ssl_keyfile: {self.keyfile or certfile}"
        try:
            context.load_cert_chain(certfile, self.keyfile, password)
        except ssl.SSLError as error:
            if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
                raise ConfigurationError(f"{key}: not the key of the certificate in ssl_certfile") from None
            if asked:
                if self.server:
                    raise ConfigurationError(f"{key}: expected a key without a password") from None
                said = "does not open" if self.key_password else "is needed to open"
                raise ConfigurationError(f"ssl_key_password: {said} {self.keyfile or certfile}") from None
            try:
                ssl.create_default_context(cafile=certfile)
            except ssl.SSLError:
                raise ConfigurationError(f"ssl_certfile: {certfile}: expected a certificate in PEM") from None
            raise ConfigurationError(f"{key}: expected a private key in PEM") from None
        except ValueError:
            raise ConfigurationError("ssl_key_password: longer than 1,024 bytes, which no key can have") from None


class _Rereading(ssl.SSLContext):
    """Each connection is wrapped by a context of the files as they are at that moment."""

    _current: Reread[ssl.SSLContext]

    def __new__(cls, *_: Any) -> "_Rereading":
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, tls: Tls, tell: Callable[[str], object]) -> None:
        self._current = Reread([file for file in (tls.certfile, tls.keyfile) if file], tls.load, tell)

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._current.now.wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self._current.now.wrap_socket(*args, **options)


def _named(setting: str, file: str) -> None:
    """Raise ConfigurationError where the file cannot be read: what OpenSSL says of it names neither."""
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{setting}: {file}: {os_cause(error)}") from None
