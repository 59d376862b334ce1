"""Tokens for SASL OAUTHBEARER: from a token endpoint by client credentials (RFC 6749), or signed for Amazon MSK."""

import asyncio
import base64
import http.client
import json
import math
import re
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from urllib.parse import quote_plus, urlencode

from aiokafka.errors import KafkaConnectionError

from service.credentials.asking import opener, why_not
from service.credentials.tls import Tls

TOKEN_SECONDS = 10.0
"""For the endpoint to answer, whole."""
MOST_BYTES = 1 << 20
"""Of its answer."""
RENEW = 0.8
"""Of the time that a token holds it is used for new connections."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class TokenSource(ABC):
    """The newest token, got anew before it ends."""

    see: str
    """The settings that it is made of, where a broker refuses it."""

    def __init__(self) -> None:
        self._token, self._lock = "", asyncio.Lock()
        self._renew_at = 0.0
        """Seconds on the clock of time.monotonic."""

    async def token(self) -> str:
        """One that holds; raises KafkaConnectionError with a line for a person."""
        async with self._lock:
            if time.monotonic() >= self._renew_at:
                start = time.monotonic()
                try:
                    async with asyncio.timeout(TOKEN_SECONDS):
                        self._token, seconds = await asyncio.to_thread(self.get)
                except TimeoutError:
                    raise KafkaConnectionError(f"no token within {TOKEN_SECONDS:.0f} s: see {self.see}") from None
                self._renew_at = start + RENEW * seconds
        return self._token

    def forget(self) -> None:
        """A broker refuses it."""
        self._renew_at = 0.0

    @abstractmethod
    def get(self) -> tuple[str, float]:
        """A new token, and the seconds that it holds; may block. Raises KafkaConnectionError."""


class ClientCredentials(TokenSource):
    """From a token endpoint, which knows us by id and secret."""

    see = "kafka.oauth_token_url, kafka.oauth_client_id and kafka.oauth_scope"

    def __init__(self, url: str, client_id: str, secret: str, scope: str | None, cafile: str | None) -> None:
        super().__init__()
        self._url, self._id, self._secret, self._scope, self._cafile = url, client_id, secret, scope, cafile

    def get(self) -> tuple[str, float]:
        """As `TokenSource` says."""
        where = f"the token endpoint {self._url}"
        try:
            raw = self._answer()
        except urllib.error.HTTPError as error:
            error.close()
            see = ": see kafka.oauth_client_id, oauth_client_secret and oauth_scope" if error.code < 500 else ""
            raise KafkaConnectionError(f"{where} answers {error.code}{see}") from None
        except OSError as error:
            raise KafkaConnectionError(f"{where}: {why_not(error)}") from None
        except (http.client.HTTPException, ValueError):
            raise KafkaConnectionError(f"{where} does not speak HTTP as it should") from None
        try:
            found = json.loads(raw)
            text, seconds = found["access_token"], float(found.get("expires_in", 0))
            if _TOKEN.fullmatch(text) and math.isfinite(seconds):
                return text, seconds
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        raise KafkaConnectionError(f"{where} answers with no token: expected JSON with access_token and expires_in")

    def _answer(self) -> bytes:
        """What it answers, as far as is read of it."""
        asked = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        known = f"{quote_plus(self._id)}:{quote_plus(self._secret)}"
        headers = {"authorization": f"Basic {base64.b64encode(known.encode()).decode()}"}
        request = urllib.request.Request(self._url, urlencode(asked).encode(), headers)  # noqa: S310 - the setting
        # The system's authorities, and ours beside them.
        context = Tls().load()
        if self._cafile:
            context.load_verify_locations(self._cafile)
        deadline, raw = time.monotonic() + TOKEN_SECONDS, b""
        with opener(context).open(request, timeout=TOKEN_SECONDS) as answer:
            while len(raw) < MOST_BYTES and time.monotonic() < deadline and (part := answer.read1(1 << 16)):
                raw += part
        return raw


class MskIam(TokenSource):
    """Signed with AWS credentials, found as AWS's own tools find them; needs the extra `msk`."""

    see = "kafka.aws_region and the AWS credentials"

    def __init__(self, region: str) -> None:
        super().__init__()
        self._region = region

    def get(self) -> tuple[str, float]:
        """As `TokenSource` says."""
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        try:
            text, ends = MSKAuthTokenProvider.generate_auth_token(self._region)
        except AttributeError:
            raise KafkaConnectionError("no token for Amazon MSK: no AWS credentials were found") from None
        except Exception as error:  # those of two libraries, of no common class
            raise KafkaConnectionError(f"no token for Amazon MSK: {error}") from None
        return text, ends / 1000 - time.time()
