"""TLS contexts from files. A client reads the files at its start; the server reads them again when they change."""

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.credentials.reloading import Reloaded, read_text
from service.errors import ConfigurationError, os_cause

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


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
