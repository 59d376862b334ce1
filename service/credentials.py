"""Credentials of connections: TLS contexts, bearer tokens, and files that are read again when they change.

A client reads its certificates at its start. Our server reads certificate and tokens again when they change, so that it
needs no restart.
"""

import hashlib
import hmac
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from service.errors import ConfigurationError, os_cause

T = TypeVar("T")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Reloaded(Generic[T]):
    """The result of `read`, which reads these files. It is called again when a file has changed."""

    def __init__(self, files: Sequence[str], read: Callable[[], T], logger: Any) -> None:
        """Raises ConfigurationError if `read` does. Later `logger` gets that error, if it is not None."""
        self._files, self._read, self._logger = files, read, logger
        self._stamps, self._value = [*map(_stamp, files)], read()

    @property
    def now(self) -> T:
        """The result for the files as they are now, or the last one if they cannot be used."""
        if (stamps := [*map(_stamp, self._files)]) != self._stamps:
            self._stamps = stamps
            try:
                self._value = self._read()
            except ConfigurationError as error:
                if self._logger is not None:
                    self._logger.warning(f"{error}; the previous content stays in use")
        return self._value


def _stamp(file: str) -> tuple[int, int, int] | None:
    """A value that changes with the file and with its rights; None if the file cannot be looked at."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_ctime_ns, status.st_size, status.st_ino


def read_text(file: str) -> str:
    """The text of a file; raises ConfigurationError that names the file and shows nothing of its text."""
    try:
        return Path(file).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file}: {os_cause(error)}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: expected text in UTF-8") from None


class BearerTokens:
    """The tokens of a file, one a line, so that an old and a new one can be valid at the same time.

    The file is read again when it changes. Raises ConfigurationError if it has no token.
    """

    def __init__(self, file: str, logger: Any = None) -> None:
        self._file = file
        self._digests = Reloaded([file], lambda: [_digest(token) for token in self._read()], logger)

    @property
    def first(self) -> str:
        """The first token, which our own commands send."""
        return self._read()[0]

    def accept(self, token: str) -> bool:
        """Whether this token is valid. The time that this takes does not depend on the tokens."""
        digest = _digest(token)
        matches = [hmac.compare_digest(digest, valid) for valid in self._digests.now]
        return any(matches)

    def _read(self) -> Sequence[str]:
        lines = [line.strip() for line in read_text(self._file).splitlines()]
        for number, line in enumerate(lines, 1):
            if line and not _TOKEN.fullmatch(line):
                where = f"{self._file}, line {number}"
                raise ConfigurationError(f"{where}: expected a token of 16 to 512 letters, digits and -._~+/")
        if not any(lines):
            raise ConfigurationError(f"{self._file}: expected a token a line, found none")
        return [line for line in lines if line]


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of a request; empty if it has no token, or more than one."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _digest(token: str) -> bytes:
    # Digests have the same length; comparing tokens would reveal their length.
    return hashlib.sha256(token.encode()).digest()


@dataclass(frozen=True)
class Tls:
    """The files of one side of TLS, in PEM.

    `cafile` has the authorities to trust (None: the system's). `certfile` and `keyfile` have this side's certificate
    and key; the key may be in the certificate's file. Errors name settings, such as `ssl_cafile`.
    """

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    server: bool = False

    def context(self, logger: Any = None) -> ssl.SSLContext:
        """A server's context, which reads the files again when they change.

        Raises ConfigurationError. `logger` gets a warning if files change and cannot be used.
        """
        current = Reloaded([file for file in (self.certfile, self.keyfile) if file], self.load, logger)
        context = self.load()

        def show_newest(connection: ssl.SSLObject, *_: object) -> None:
            connection.context = current.now

        context.sni_callback = show_newest  # OpenSSL calls it in each handshake, before it shows the certificate
        return context

    def load(self) -> ssl.SSLContext:
        """A context of the files as they are now; raises ConfigurationError that names the setting and its file."""
        files = {"ssl_cafile": self.cafile, "ssl_certfile": self.certfile, "ssl_keyfile": self.keyfile}
        for setting, file in files.items():
            try:
                if file is not None:
                    Path(file).read_bytes()  # OpenSSL's error for a missing file does not name it
            except OSError as error:
                raise ConfigurationError(f"{setting}: {file}: {os_cause(error)}") from None
        purpose = ssl.Purpose.CLIENT_AUTH if self.server else ssl.Purpose.SERVER_AUTH
        try:
            context = ssl.create_default_context(purpose, cafile=self.cafile)
        except ssl.SSLError:
            raise ConfigurationError(f"ssl_cafile: {self.cafile}: expected certificates in PEM") from None
        context.check_hostname = self.check_hostname and not self.server
        if self.certfile is not None:
            try:
                # If there is no password OpenSSL asks for one at the terminal.
                context.load_cert_chain(self.certfile, self.keyfile, self.key_password or "")
            except ssl.SSLError as error:
                opened = "without a password" if self.server else "which ssl_key_password opens if it has a password"
                raise ConfigurationError(
                    f"ssl_certfile: {self.certfile}: expected a certificate in PEM, and in {self.keyfile or 'it'} "
                    f"(ssl_keyfile) its key, {opened}: {os_cause(error)}"
                ) from None
        elif self.keyfile is not None:
            raise ConfigurationError("ssl_keyfile: is of no use without ssl_certfile")
        return context


def trust_only(certfile: str) -> ssl.SSLContext:
    """A client's context that trusts this very certificate, under any name, and no other; raises ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # else only an authority's certificate is trusted
    if own := _CERTIFICATE.search(read_text(certfile)):  # the others in the file are the authorities'
        context.load_verify_locations(cadata=own[0])
    return context


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        pass


def opener(trust: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """An opener that trusts certificates as `trust` says (None: as the system does), and follows no redirects."""
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust), _NoRedirect)


def failure_reason(error: OSError) -> str:
    """The reason why there was no answer, in the system's words, without those that urllib adds."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return os_cause(cause) if isinstance(cause, OSError) else str(cause)
