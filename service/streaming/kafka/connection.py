"""How this process logs in to Kafka, as one value that every client is made with, and why a connection fails.

Tokens for SASL OAUTHBEARER come from a token endpoint by client credentials (RFC 6749), or are signed for Amazon MSK.

The messages for errors name the missing right or setting. aiokafka's clients connect by themselves, and only log why a
connection fails. `create_conn` raises the error.
"""

import asyncio
import base64
import http.client
import socket
import ssl
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote_plus, urlencode

import msgspec
from aiokafka import errors
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.protocol.metadata import MetadataRequest

from service.credentials import Tls, failure_reason, opener
from service.errors import causes, os_cause
from service.text import host_and_port

TOKEN_SECONDS = 10.0
"""The limit for the whole answer of the endpoint."""
MAX_ANSWER_BYTES = 1 << 20
RENEW_AFTER = 0.8
"""The share of a token's lifetime after which a new token is fetched."""
CONNECT_SECONDS = 4.0
"""The limit for one broker to answer a new connection and its first request."""
TLS_SETTINGS = "look at kafka.ssl_cafile, kafka.ssl_certfile and kafka.ssl_check_hostname"
UNAUTHORISED = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
)

MALFORMED = ValueError, LookupError, TypeError, AttributeError, AssertionError, struct.error
"""What is raised where an answer has another form than it should have. A ValueError may also be a bad address."""


class NoTokenError(errors.KafkaConnectionError):
    """There is no token; the argument is one line for a person."""


class TokenSource(AbstractTokenProvider):
    """Keeps a token, and fetches a new one before it expires."""

    def __init__(self, fetch: Callable[[], tuple[str, float]], see: str) -> None:
        """`fetch` returns a new token and its lifetime in seconds; it may block, and raises NoTokenError.

        `see` names the settings to check if a broker refuses the token.
        """
        self._fetch, self.see = fetch, see
        self._token, self._lock = "", asyncio.Lock()
        self._renew_at = 0.0
        """In seconds of time.monotonic."""

    async def token(self) -> str:
        """A valid token; raises NoTokenError."""
        async with self._lock:
            if (start := time.monotonic()) >= self._renew_at:
                try:
                    async with asyncio.timeout(TOKEN_SECONDS):
                        self._token, seconds = await asyncio.to_thread(self._fetch)
                except TimeoutError:
                    raise NoTokenError(f"no token within {TOKEN_SECONDS:.0f} s: see {self.see}") from None
                self._renew_at = start + RENEW_AFTER * seconds
        return self._token

    def forget(self) -> None:
        """Fetch a new token next time, because a broker refused this one."""
        self._renew_at = 0.0


class _Answer(msgspec.Struct):
    access_token: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._~+/-]+=*\Z")]
    expires_in: float = 0.0


def client_credentials(url: str, client_id: str, secret: str, scope: str | None, cafile: str | None) -> TokenSource:
    """Tokens from a token endpoint, with a client id and secret."""
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    login = base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()).decode()
    headers = {"authorization": f"Basic {login}"}
    request = urllib.request.Request(url, urlencode(form).encode(), headers)  # noqa: S310 - from settings
    where = f"the token endpoint {url}"

    def fetch() -> tuple[str, float]:
        context = Tls().load()  # trusts the system's authorities, and `cafile` too
        if cafile:
            context.load_verify_locations(cafile)
        try:
            with opener(context).open(request, timeout=TOKEN_SECONDS) as response:
                answer = msgspec.json.decode(response.read(MAX_ANSWER_BYTES), type=_Answer, strict=False)
        except urllib.error.HTTPError as error:
            error.close()
            see = ": see kafka.oauth_client_id, oauth_client_secret and oauth_scope" if error.code < 500 else ""
            raise NoTokenError(f"{where} answers {error.code}{see}") from None
        except OSError as error:
            raise NoTokenError(f"{where}: {failure_reason(error)}") from None
        except (http.client.HTTPException, msgspec.MsgspecError, ValueError, RecursionError):
            expected = "expected JSON with access_token and expires_in"
            raise NoTokenError(f"{where} answers with no token: {expected}") from None
        return answer.access_token, answer.expires_in

    return TokenSource(fetch, "kafka.oauth_token_url, kafka.oauth_client_id and kafka.oauth_scope")


def msk_iam(region: str) -> TokenSource:
    """Tokens signed with AWS credentials, found as AWS's own tools find them; needs the extra `msk`."""

    def fetch() -> tuple[str, float]:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        try:
            token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        except AttributeError:
            raise NoTokenError("no token for Amazon MSK: no AWS credentials were found") from None
        except Exception as error:  # two libraries raise, without a common class
            raise NoTokenError(f"no token for Amazon MSK: {error}") from None
        return token, expires_ms / 1000 - time.time()

    return TokenSource(fetch, "kafka.aws_region and the AWS credentials")


def missing_right(right: str, what: str) -> str:
    """The message for a user who lacks a right on something."""
    return f"authorisation: this user lacks {right} on {what}: grant it (docs/security.md lists what is needed)"


def kafka_failure(error: Exception, right: str = "Read") -> str:
    """The message for a Kafka error. `right` is the one that the request needs."""
    if isinstance(error, TimeoutError | errors.RequestTimedOutError):
        return "no answer in time"
    if isinstance(error, errors.TopicAuthorizationFailedError):
        topics = error.args[0] if error.args else ""  # a name, or a set of names
        return missing_right(right, f"topic {topics if isinstance(topics, str) else ', '.join(sorted(topics))}".strip())
    if isinstance(error, errors.GroupAuthorizationFailedError):
        return missing_right("Read", "the group (kafka.group_id)")
    if isinstance(error, errors.InconsistentGroupProtocolError):
        return (
            "another member of this consumer group uses another protocol, as a console consumer does: stop it, or set "
            "another kafka.group_id"
        )
    if isinstance(error, errors.InvalidSessionTimeoutError):
        return "kafka.session_timeout is outside the broker's limits (group.min.session.timeout.ms, 6 s by default)"
    if isinstance(error, errors.GroupCoordinatorNotAvailableError):
        return (
            "no coordinator: its topic __consumer_offsets does not exist or has no leader: "
            "perhaps offsets.topic.replication.factor is larger than the number of brokers"
        )
    if isinstance(error, MALFORMED) and not isinstance(error, ValueError):
        return f"its answer is not one of Kafka to this request ({error!r})"
    return str(error) or type(error).__name__


@dataclass(eq=False, repr=False)
class Security:
    """How clients log in. `protocol` is Kafka's: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. SASL prefers `tokens`.

    The files of `tls` are read once, here. Raises ConfigurationError.
    """

    protocol: str = "PLAINTEXT"
    tls: Tls | None = None
    mechanism: str = "PLAIN"
    username: str | None = None
    password: str | None = None
    tokens: TokenSource | None = None

    def __post_init__(self) -> None:
        self.mechanism = "OAUTHBEARER" if self.tokens else self.mechanism
        self.see = self.tokens.see if self.tokens else "kafka.sasl_mechanism, kafka.sasl_username and its password"
        """The settings to look at if a listener refuses us."""
        self.options: dict[str, Any] = {
            "security_protocol": self.protocol,
            "ssl_context": self.tls.load() if self.tls else None,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username or "",
            "sasl_plain_password": self.password or "",
            "sasl_oauth_token_provider": self.tokens,
        }
        """The options of a client."""

    async def connection_failure(self, bootstrap: str) -> str:
        """Why no bootstrap broker answers, or why brokers that they name do not; "" if there is no such failure."""
        addresses = [(host, port) for host, port, _ in collect_hosts(bootstrap, randomize=False)]
        failures, brokers = dict[str, str](), set[tuple[str, int]]()

        async def ask(address: tuple[str, int]) -> None:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    connection = await create_conn(*address, **self.options)
                    try:
                        answer = await connection.send(MetadataRequest([]))
                    finally:
                        connection.close()
                if not answer.brokers:  # a broker that refuses a token answers so
                    raise errors.SaslAuthenticationFailed("the listener refuses the token")
                brokers.update((host, port) for _, host, port, *_ in answer.brokers)
            except Exception as error:  # anything may listen there
                cause = self._cause(error)
                if address in brokers and isinstance(error, socket.gaierror):
                    cause += ": this advertised listener cannot be resolved here: set advertised.listeners"
                failures[host_and_port(*address)] = cause

        await asyncio.gather(*map(ask, addresses))
        if len(failures) < len(addresses):  # one of them answers: check the brokers that it names
            failures.clear()
            await asyncio.gather(*map(ask, brokers.difference(addresses)))
        if failures and self.tokens:
            self.tokens.forget()
        if [*failures] == [bootstrap]:
            return failures[bootstrap]
        reasons = {why: address for address, why in sorted(failures.items())}
        return "; ".join(f"broker at {address}: {why}" for why, address in reasons.items())

    def _cause(self, error: Exception) -> str:
        """The step that failed, why, and what to do."""
        if tls := next((cause for cause in causes(error) if isinstance(cause, ssl.SSLError)), None):
            return f"{os_cause(tls).rstrip('.')}: {TLS_SETTINGS}"
        if isinstance(error, errors.UnsupportedSaslMechanismError):
            return f"SASL: the listener does not know {self.mechanism}: set kafka.sasl_mechanism"
        if isinstance(error, errors.SaslAuthenticationFailed):
            return f"SASL: {error.args[0] if error.args else 'refused'}: see {self.see}"
        if isinstance(error, NoTokenError):
            return f"SASL: {error.args[0]}"
        if isinstance(error, TimeoutError):
            return kafka_failure(error)
        if isinstance(error, OSError) and not isinstance(error, ConnectionResetError):
            return os_cause(error)
        return f"nothing speaks Kafka over {self.protocol} there: look at kafka.security_protocol and the port"
