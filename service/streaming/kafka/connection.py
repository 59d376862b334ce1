"""Why a connection to Kafka cannot be made, found by making one: connect, TLS, SASL, or the first request.

aiokafka's clients make their connections themselves, and only log why one fails. `create_conn` raises it.
"""

import asyncio
import ssl

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from service.errors import led_to, os_cause
from service.streaming.kafka.security import Security

CONNECT_SECONDS = 4.0
"""For one broker to answer a new connection and its first request."""
TLS_SETTINGS = "look at kafka.ssl_cafile, kafka.ssl_certfile and kafka.ssl_check_hostname"
TLS_ALERT = 0x1503
"""How a TLS listener's refusal begins: the client reads it as the length of a response."""


async def connection_failure(bootstrap: str, security: Security) -> str:
    """Why the brokers that are asked first, or those that they name, cannot be reached; "" if all can."""
    addresses = [(host, port) for host, port, _ in collect_hosts(bootstrap, randomize=False)]
    failures, brokers = dict[str, str](), set[tuple[str, int]]()

    async def ask(address: tuple[str, int]) -> None:
        connected = False
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                milliseconds = int(CONNECT_SECONDS * 1000)
                connection = await create_conn(*address, request_timeout_ms=milliseconds, **security.options)
                connected = True
                try:
                    answer = await connection.send(MetadataRequest([]))
                finally:
                    connection.close()
            if not answer.brokers:  # so the client reads the answer to a token that is refused
                raise SaslAuthenticationFailed("the listener refuses the token")
            brokers.update((host, port) for _, host, port, *_ in answer.brokers)
        except Exception as error:  # whatever it is that listens there
            failures[_text(address)] = _reason(error, security, connected)

    await asyncio.gather(*map(ask, addresses))
    if len(failures) < len(addresses):  # one of them answers: it is the brokers that they name
        failures.clear()
        await asyncio.gather(*map(ask, brokers.difference(addresses)))
    if failures:
        security.forget_token()
    if len(failures) == len(addresses) == 1 and _text(addresses[0]) in failures:
        return next(iter(failures.values()))
    reasons = {why: address for address, why in failures.items()}
    return "; ".join(f"broker at {address}: {why}" for why, address in reasons.items())


def _text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: Exception, security: Security, connected: bool) -> str:
    """The step that failed, what was found, and the way out."""
    tls, sasl = "SSL" in security.protocol, "SASL" in security.protocol
    causes = list(led_to(error))
    if refused := next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None):
        return f"{os_cause(refused).rstrip('.')}: {TLS_SETTINGS}"
    if isinstance(error, UnsupportedSaslMechanismError):
        return f"SASL: the listener does not know {security.mechanism}: set kafka.sasl_mechanism"
    if isinstance(error, IllegalSaslStateError):
        plain = security.protocol.removeprefix("SASL_")
        return f"SASL: the listener asks for none: set kafka.security_protocol = {plain}"
    if isinstance(error, SaslAuthenticationFailed):
        return f"SASL: {error.args[0] if error.args else 'refused'}: see {security.see}"
    if any(isinstance(e, asyncio.IncompleteReadError) and (e.expected or 0) >> 16 == TLS_ALERT for e in causes):
        return f"TLS: the listener speaks TLS: set kafka.security_protocol = {'SASL_SSL' if sasl else 'SSL'}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and not isinstance(error, ConnectionResetError):
        return os_cause(error)
    if connected:
        protocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
        way = f"see {security.see}" if sasl else f"if it wants SASL, set kafka.security_protocol = {protocol}"
        return f"SASL: the listener ended the connection at the first request: {way}"
    if tls and isinstance(error, ConnectionError):
        plain = "SASL_PLAINTEXT" if sasl else "PLAINTEXT"
        return f"TLS: the listener ended the handshake: if it has no TLS, set kafka.security_protocol = {plain}"
    if security.mechanism == "OAUTHBEARER" and isinstance(error, KafkaConnectionError) and error.__cause__ is None:
        return f"SASL: {error.args[0]}"  # why there is no token
    return "something answers there, but not as a Kafka broker"
