"""HTTP requests that carry a secret, which goes to the requested address and nowhere else."""

import ssl
import urllib.error
import urllib.request
from typing import Any

from service.errors import os_cause


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
