"""Messages for Kafka errors: the missing right or setting, or the reason why a connection fails.

aiokafka's clients connect by themselves, and only log why a connection fails. `create_conn` raises the error.
"""

import asyncio
import ssl
import struct

from aiokafka import errors
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.protocol.metadata import MetadataRequest

from service.errors import causes, os_cause
from service.streaming.kafka.security import NoTokenError, Security

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


async def connection_failure(bootstrap: str, security: Security) -> str:
    """Why no bootstrap broker answers, or why brokers that they name do not; "" if there is no such failure."""
    addresses = [(host, port) for host, port, _ in collect_hosts(bootstrap, randomize=False)]
    failures, brokers = dict[str, str](), set[tuple[str, int]]()

    async def ask(address: tuple[str, int]) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await create_conn(*address, **security.options)
                try:
                    answer = await connection.send(MetadataRequest([]))
                finally:
                    connection.close()
            if not answer.brokers:  # a broker that refuses a token answers so
                raise errors.SaslAuthenticationFailed("the listener refuses the token")
            brokers.update((host, port) for _, host, port, *_ in answer.brokers)
        except Exception as error:  # anything may listen there
            failures["{}:{}".format(*address)] = _connection_cause(error, security)

    await asyncio.gather(*map(ask, addresses))
    if len(failures) < len(addresses):  # one of them answers: check the brokers that it names
        failures.clear()
        await asyncio.gather(*map(ask, brokers.difference(addresses)))
    if failures and security.tokens:
        security.tokens.forget()
    if [*failures] == [bootstrap]:
        return failures[bootstrap]
    reasons = {why: address for address, why in sorted(failures.items())}
    return "; ".join(f"broker at {address}: {why}" for why, address in reasons.items())


def _connection_cause(error: Exception, security: Security) -> str:
    """The step that failed, why, and what to do."""
    if tls := next((cause for cause in causes(error) if isinstance(cause, ssl.SSLError)), None):
        return f"{os_cause(tls).rstrip('.')}: {TLS_SETTINGS}"
    if isinstance(error, errors.UnsupportedSaslMechanismError):
        return f"SASL: the listener does not know {security.mechanism}: set kafka.sasl_mechanism"
    if isinstance(error, errors.SaslAuthenticationFailed):
        return f"SASL: {error.args[0] if error.args else 'refused'}: see {security.see}"
    if isinstance(error, NoTokenError):
        return f"SASL: {error.args[0]}"
    if isinstance(error, TimeoutError):
        return kafka_failure(error)
    if isinstance(error, OSError) and not isinstance(error, ConnectionResetError):
        return os_cause(error)
    return f"nothing speaks Kafka over {security.protocol} there: look at kafka.security_protocol and the port"
