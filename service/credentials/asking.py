"""How somebody is asked over HTTP with a secret: it goes where it was sent, and nowhere else."""

import ssl
import urllib.error
import urllib.request
from typing import Any

from service.errors import os_cause


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        pass


def opener(trust: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """What asks, over TLS as `trust` says (None: as the system does), and follows nobody elsewhere."""
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=trust), _NoRedirect)


def why_not(error: OSError) -> str:
    """Why there was no answer: urllib wraps what the system says."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return os_cause(cause) if isinstance(cause, OSError) else str(cause)
