"""Why Redis, or a sentinel, cannot be asked: in one line, with the way out where it is a setting."""

import re
import ssl

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service.credentials.tls import EXPIRED, OTHER_ADDRESS, OTHER_NAME
from service.errors import led_to, os_cause

NO_TLS = ": if it speaks no TLS, redis.url is redis://"
UNTRUSTED = {18, 19, 20, 21}
"""What OpenSSL calls certificates that nobody signed whom we trust."""
OF_OURS = re.compile("ALERT.*(REQUIRED|HANDSHAKE_FAILURE|UNKNOWN_CA|CERTIFICATE|DENIED)")
"""What a server says of our certificate, or of none."""


class Unknown(RedisConnectionError):
    """No sentinel names a primary."""


class Unreached(RedisConnectionError):
    """A connection could not be made; its cause is what the system said."""


class Silent(RedisConnectionError):
    """A connection that came about ended before anything was said."""


def reason(error: Exception, secured: bool, of: str = "") -> str:
    """Why the client failed: it wraps what the system says in words of its own.

    `secured`: over TLS. `of` stands before the names of the settings of its credentials.
    """
    chain = list(led_to(error))
    kinds = Unknown, AuthenticationError, ssl.SSLError, OSError | RedisTimeoutError
    cause = next((e for kind in kinds for e in chain if isinstance(e, kind)), error)
    if isinstance(cause, AuthenticationError):
        return f"{str(cause).rstrip('.')}: {_credentials(str(cause), of)}"
    if isinstance(cause, ssl.SSLError):
        return os_cause(cause).rstrip(".") + _tls(cause)
    if isinstance(cause, TimeoutError | RedisTimeoutError):
        plain = secured and "connecting" in str(cause)
        return "no answer in time" + (NO_TLS if plain else "")
    if any(isinstance(e, Silent) for e in chain):
        wanted = (
            "wants a client certificate, set redis.ssl_certfile"
            if secured
            else "speaks TLS, redis.url is rediss://; if it is Kafka, another"
        )
        return f"the connection ended before anything was said: if it {wanted}"
    if isinstance(error, InvalidResponse):
        return "it answers, but not as Redis: if it speaks TLS, redis.url is rediss://"
    if isinstance(cause, RuntimeError):
        return "the connection broke"
    if _is_replica(error):
        return "it is a replica, which takes no saves: name its primary, or its sentinels (redis.sentinels)"
    if isinstance(cause, AskError | ClusterCrossSlotError | ClusterDownError):
        return f"it is a node of a Redis Cluster ({error}): name one Redis that runs without cluster mode"
    if isinstance(error, NoPermissionError):
        return f"{error}: give the user this right (docs/security.md lists what is needed)"
    return (os_cause(cause) if isinstance(cause, OSError) else str(error)) or type(error).__name__


def _is_replica(error: Exception) -> bool:
    return isinstance(error, ReadOnlyError | MasterDownError) or "READONLY" in str(error)


def elsewhere(error: Exception) -> bool:
    """Whether so says who is not the primary, or not for long."""
    return _is_replica(error) or "NOREPLICAS" in str(error)


def _credentials(said: str, of: str) -> str:
    if "called without any password" in said or "no password is set" in said:
        return f"leave redis.{of}password out, or name a user of it in redis.{of}username"
    return f"look at redis.{of}username and redis.{of}password"


def _tls(error: ssl.SSLError) -> str:
    """The way out."""
    code, why = getattr(error, "verify_code", 0), error.reason or ""
    if code in UNTRUSTED:
        return ": redis.ssl_cafile names the certificates to trust"
    if code == EXPIRED:
        return ": Redis needs a new one"
    if code in {OTHER_NAME, OTHER_ADDRESS}:
        return ": use a name of its certificate, or set redis.ssl_check_hostname = false"
    if OF_OURS.search(why):
        return ": it wants a client certificate that it trusts (redis.ssl_certfile)"
    if "WRONG_VERSION" in why or "RECORD_LAYER" in why:
        return NO_TLS
    return ""
