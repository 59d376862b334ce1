"""The service's own certificate as clients see it: how to trust only this one, and whether clients refuse it."""

import re
import ssl

from service.credentials.reloading import read_text
from service.credentials.tls import Tls

_FIRST = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def trust_only(certfile: str) -> ssl.SSLContext:
    """A client's context that trusts this very certificate, under any name, and no other; raises ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # else only an authority's certificate is trusted
    if own := _FIRST.search(read_text(certfile)):  # the others in the file are the authorities'
        context.load_verify_locations(cadata=own[0])
    return context


def client_refusal(tls: Tls) -> str | None:
    """Why clients refuse a server's certificate even if they trust it, such as that it has expired; or None."""
    assert tls.certfile is not None  # noqa: S101 - a server has a certificate
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust_only(tls.certfile).wrap_bio(to_client, to_server)
    server = tls.load().wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    return None
