"""Tokens for SASL OAUTHBEARER: from a token endpoint by client credentials (RFC 6749), or signed for Amazon MSK."""

import asyncio
import base64
import json
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from typing import NamedTuple
from urllib.parse import quote_plus, urlencode

from aiokafka.errors import KafkaConnectionError

from service.credentials.secret import Secret
from service.credentials.tls import Tls
from service.errors import ConfigurationError, os_cause

TOKEN_SECONDS = 10.0
"""For the endpoint to answer."""
RENEW = 0.8
"""Of the time that a token holds it is used for new connections."""


class Token(NamedTuple):
    """A token, and when it is to be renewed (of time.monotonic)."""

    text: str
    until: float


class TokenSource(ABC):
    """The newest token, got anew before it ends."""

    def __init__(self) -> None:
        self._newest, self._getting = Token("", 0.0), asyncio.Lock()

    async def token(self) -> str:
        """One that holds; raises KafkaConnectionError with a line for a person."""
        async with self._getting:
            if time.monotonic() >= self._newest.until:
                asked = time.monotonic()
                text, seconds = await asyncio.to_thread(self.get)
                self._newest = Token(text, asked + RENEW * seconds)
        return self._newest.text

    @abstractmethod
    def get(self) -> tuple[str, float]:
        """A new token, and the seconds that it holds; may block. Raises KafkaConnectionError."""


class ClientCredentials(TokenSource):
    """From a token endpoint, which knows us by id and secret."""

    def __init__(self, url: str, client_id: str, secret: Secret, scope: str | None, cafile: str | None) -> None:
        super().__init__()
        self._url, self._id, self._secret, self._scope, self._cafile = url, client_id, secret, scope, cafile

    def get(self) -> tuple[str, float]:
        """As `TokenSource` says."""
        where = f"the token endpoint {self._url}"
        asked = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        try:
            known = f"{quote_plus(self._id)}:{quote_plus(self._secret.now())}"
            headers = {"authorization": f"Basic {base64.b64encode(known.encode()).decode()}"}
            request = urllib.request.Request(self._url, urlencode(asked).encode(), headers)  # noqa: S310 - the setting
            # The system's authorities, and ours beside them.
            context = Tls().load()
            if self._cafile:
                context.load_verify_locations(self._cafile)
            with urllib.request.urlopen(request, timeout=TOKEN_SECONDS, context=context) as answer:  # noqa: S310
                found = json.load(answer)
            return str(found["access_token"]), float(found.get("expires_in", 0))
        except ConfigurationError as error:
            raise KafkaConnectionError(f"kafka.oauth_client_secret_file: {error}") from None
        except urllib.error.HTTPError as error:
            raise KafkaConnectionError(
                f"{where} answers {error.code} {error.reason}{_said(error)}: see kafka.oauth_client_id and "
                "oauth_client_secret"
            ) from None
        except OSError as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            reason = os_cause(cause) if isinstance(cause, OSError) else str(cause)
            raise KafkaConnectionError(f"{where}: {reason}") from None
        except (ValueError, TypeError, KeyError):
            raise KafkaConnectionError(f"{where} answers with no token: expected JSON with access_token") from None


def _said(error: urllib.error.HTTPError) -> str:
    """The error's code as RFC 6749, 5.2 has it: a word of the endpoint's, never what we sent."""
    try:
        code = json.load(error)["error"]
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    return f" ({code})" if isinstance(code, str) and code.replace("_", "").isalpha() else ""


class MskIam(TokenSource):
    """Signed with AWS credentials, found as AWS's own tools find them; needs the extra `msk`."""

    def __init__(self, region: str) -> None:
        super().__init__()
        self._region = region

    def get(self) -> tuple[str, float]:
        """As `TokenSource` says."""
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        try:
            text, ends = MSKAuthTokenProvider.generate_auth_token(self._region)
        except Exception as error:  # those of two libraries, of no common class
            raise KafkaConnectionError(f"no token for Amazon MSK: {error}") from None
        return text, ends / 1000 - time.time()
