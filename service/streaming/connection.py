"""A connection to a Kafka listener, which says at which step it failed: connect, TLS, SASL, or the first request.

The client library makes its connections itself and only logs why one fails; `install` puts ours in the place of its.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import Any, cast

from aiokafka import __version__, client, conn
from aiokafka.conn import (
    AIOKafkaConnection,
    CloseReason,
    OAuthAuthenticator,
    SaslPlainAuthenticator,
    ScramAuthenticator,
)
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from service.credentials.tls import EXPIRED, OTHER_ADDRESS, OTHER_NAME
from service.errors import ConfigurationError, led_to, os_cause
from service.streaming.answers import Answers, Body
from service.streaming.fetched import fetched
from service.streaming.security import Security

TLS_ALERT = 0x1503
"""How an answer in TLS begins that refuses us: the client reads it as the length of an answer."""
CONNECT_SECONDS = 15.0
"""For a connection, with all that proves who we are: what is no broker can be silent for ever."""
CLOSE_SECONDS = 1.0


class Connection(AIOKafkaConnection):
    """Asks `Security`, which the library hands on as its provider of tokens, for secrets, and tells it of failures."""

    _step = "connect"
    _known: Sequence[str] = ()

    @property
    def _security(self) -> Security:
        return cast(Security, self._sasl_oauth_token_provider)

    async def connect(self) -> Any:
        """As the library's; raises OSError, TimeoutError or KafkaError, which it knows, alone."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                made = await super().connect()
        except Exception as error:
            self._failed(error)
            if self._protocol is not None:  # the library leaves what it closes to itself
                await asyncio.wait([self._closed_fut], timeout=CLOSE_SECONDS)
            if isinstance(error, OSError | TimeoutError | KafkaError):
                raise
            raise KafkaConnectionError(str(error)) from error  # what is no answer can be taken for anything
        self._step = "first request"
        self._security.connected(f"{self._host}:{self._port}")
        if self._writer is not None:  # nobody waits for an answer now
            Answers(self, self._writer.transport)
        return made

    def _handle_frame(self, resp: bytes | memoryview) -> None:
        """As the library's, which copies what a fetch brings."""
        correlation_id, request, waiting = self._requests[0]
        body = Body(memoryview(resp))
        if (
            request is None
            or request.API_KEY != FetchRequest.API_KEY
            or request.parse_response_header(body).correlation_id != correlation_id
        ):
            super()._handle_frame(bytes(resp))
            return
        if not waiting.done():
            waiting.set_result(fetched(request.RESPONSE_TYPE, body))
        self._last_action = time.monotonic()
        self._requests.popleft()

    def close(self, reason: Any = None, exc: Any = None) -> Any:
        """As the library's. Who is closed at its first request was taken for somebody else."""
        if reason == CloseReason.CONNECTION_BROKEN and self._step == "first request" and self._correlation_id == 2:
            self._failed(exc)
        return super().close(reason, exc)

    def send(self, request: Any, expect_response: bool = True) -> Any:
        """As the library's, which does not know how uvloop says that a socket has just closed."""
        try:
            sent = super().send(request, expect_response)
        except KafkaError:  # the library's own, which are RuntimeErrors too
            raise
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN, exc=error)
            raise KafkaConnectionError(f"the connection to {self._host}:{self._port} broke") from error
        if request.API_KEY == MetadataRequest.API_KEY:
            return self._asked(sent)
        return self._heard(sent) if self._step == "SASL" else sent

    async def _asked(self, sent: Any) -> Any:
        try:
            return await sent
        except asyncio.CancelledError:
            self.close()  # it may be the library's bootstrap that is ended, which leaves it open
            raise

    async def _heard(self, sent: Any) -> Any:
        # The library does not tell which mechanisms a listener knows that does not know ours.
        answer = await sent
        self._known = getattr(answer, "enabled_mechanisms", self._known)
        return answer

    async def _do_version_lookup(self) -> None:
        self._step = "greeting"
        await super()._do_version_lookup()

    async def _do_sasl_handshake(self) -> None:
        self._step = "SASL"
        await super()._do_sasl_handshake()

    def authenticator_plain(self) -> Any:
        """With the password as it is now."""
        return SaslPlainAuthenticator(
            loop=self._loop, sasl_plain_username=self._security.username, sasl_plain_password=self._password()
        )

    def authenticator_scram(self) -> Any:
        """With the password as it is now."""
        return ScramAuthenticator(
            loop=self._loop,
            sasl_plain_username=self._security.username,
            sasl_plain_password=self._password(),
            sasl_mechanism=self._sasl_mechanism,
        )

    def authenticator_oauth(self) -> Any:
        """With a token as it is now."""
        return _ByToken(sasl_oauth_token_provider=self._security)

    def _password(self) -> str:
        assert self._security.password is not None  # noqa: S101 - settings say so
        try:
            return self._security.password.now()
        except ConfigurationError as error:
            raise KafkaConnectionError(f"kafka.sasl_password_file: {error}") from None

    def _failed(self, error: Any) -> None:
        self._security.failed(f"{self._host}:{self._port}", self._why(error))

    def _why(self, error: BaseException) -> str:
        """The step, what was found, and the way out."""
        tls, sasl = "SSL" in self._security.protocol, "SASL" in self._security.protocol
        chain = list(led_to(error))
        if refused := next((e for e in chain if isinstance(e, ssl.SSLError)), None):
            return f"{os_cause(refused)}: {_tls_way_out(refused)}"
        if self._step == "SASL":
            return f"SASL: {self._sasl_reason(error)}"
        if any(isinstance(e, asyncio.IncompleteReadError) and (e.expected or 0) >> 16 == TLS_ALERT for e in chain):
            return f"TLS: the listener speaks TLS: set kafka.security_protocol = {'SASL_SSL' if sasl else 'SSL'}"
        if isinstance(error, TimeoutError):
            silent = ": if it is Redis, kafka.bootstrap_servers is another" if self._step == "greeting" else ""
            return f"no answer in time{silent}"
        if self._step == "connect" and isinstance(error, OSError):
            if tls and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
                meant = "SASL_PLAINTEXT" if sasl else "PLAINTEXT"
                return f"TLS: the listener ended the handshake: if it has no TLS, set kafka.security_protocol = {meant}"
            return os_cause(error)
        if self._step == "first request":
            meant = f"set kafka.security_protocol = {'SASL_SSL' if tls else 'SASL_PLAINTEXT'}"
            return f"SASL: the listener ended the connection at the first request: if it wants SASL, {meant}"
        return "something answers there, but not as a Kafka broker"

    def _sasl_reason(self, error: BaseException) -> str:
        said = str(error.args[0]) if error.args else type(error).__name__
        if isinstance(error, UnsupportedSaslMechanismError):
            known = ", ".join(self._known)
            return f"the listener does not know {self._sasl_mechanism}, but {known}: set kafka.sasl_mechanism"
        if isinstance(error, IllegalSaslStateError):
            meant = self._security.protocol.removeprefix("SASL_")
            return f"the listener asks for none: set kafka.security_protocol = {meant}"
        if isinstance(error, SaslAuthenticationFailed):
            return f"{said}: see {self._security.see}"
        return "no answer in time" if isinstance(error, TimeoutError) else said


class _ByToken(OAuthAuthenticator):
    """A listener answers a token that it refuses with more to read, which the library takes for welcome."""

    async def step(self, payload: Any) -> Any:
        if self._token_sent and payload:
            self._sasl_oauth_token_provider.refused()
            raise SaslAuthenticationFailed("the listener refuses the token")
        return await super().step(payload)


def _tls_way_out(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        ways = {
            EXPIRED: "the listener's certificate is to be renewed",
            OTHER_NAME: "ask the name that is in it, or set kafka.ssl_check_hostname = false",
            OTHER_ADDRESS: "ask the address that is in it, or set kafka.ssl_check_hostname = false",
        }
        return ways.get(error.verify_code, "kafka.ssl_cafile names the certificates to trust")
    if "ALERT" in (error.reason or ""):
        return "the listener refuses us: see kafka.ssl_certfile, our certificate"
    return "see kafka.security_protocol, and kafka.ssl_certfile, our certificate"


async def _create(host: str, port: int, **options: Any) -> AIOKafkaConnection:
    """As the library's `create_conn`; ours for who has our `Security`."""
    ours = isinstance(options.get("sasl_oauth_token_provider"), Security)
    made = (Connection if ours else AIOKafkaConnection)(host, port, **options)
    await made.connect()
    return made


def install() -> None:
    """Have the library's clients make ours; raises ImportError where they make others than we know."""
    if client.create_conn not in {conn.create_conn, _create}:
        raise ImportError(f"aiokafka {__version__}: client.create_conn is not what streaming/connection knows")
    client.create_conn = _create
