"""A service's own certificate as a client sees it: how to trust it alone, and whether clients refuse it today."""

import re
import ssl

from service.credentials.reread import text
from service.credentials.tls import Tls

_FIRST = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def trusting(certfile: str) -> ssl.SSLContext:
    """A client's, which trusts the one that shows this very certificate and nobody else, under whatever name.

    Raises ConfigurationError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # else an authority's is needed
    if own := _FIRST.search(text(certfile)):  # others are of those who signed it
        context.load_verify_locations(cadata=own[0])
    return context


def refused(tls: Tls) -> str | None:
    """Why clients refuse the certificate of this server, whomever they trust: most often it has expired."""
    assert tls.certfile is not None  # noqa: S101 - a server has one
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(tls.certfile).wrap_bio(to_client, to_server)
    server = tls.load().wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    return None
