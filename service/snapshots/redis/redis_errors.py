"""Why Redis or a sentinel does not answer: one line, with the settings to look at."""

import re
import ssl

from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service.errors import causes, os_cause

REPLICA = "ReadOnly|MasterDown|READONLY"
"""How a server says that it is a replica."""
WAYS_OUT = {
    "SSL": "look at redis.ssl_cafile, redis.ssl_certfile and redis.ssl_check_hostname; redis:// is without TLS",
    "Authentication": "look at redis.{login}username and redis.{login}password",
    "NoPermission": "give the user this right (docs/security.md lists what is needed)",
    "Ask|Moved|CrossSlot|ClusterDown": "it is a node of a Redis Cluster: name one Redis that runs without cluster mode",
    "WRONGTYPE": "perceptron:models is not a set: rename or delete it, so that new models can begin",
    REPLICA: "it is a replica, which takes no saves: name its primary, or its sentinels (redis.sentinels)",
    "ConnectionReset|InvalidResponse|closed by": "if it speaks TLS, use rediss://; if it is not Redis, name another",
}
"""Advice by a pattern over an error's class and text. `{login}` is the prefix of the settings of a login."""


class NoPrimary(RedisConnectionError):
    """No sentinel names a primary."""


def redis_failure(error: Exception, login: str = "") -> str:
    """Why the client failed, without the words that the client wraps the cause in, and what to do.

    `login` is the prefix of the settings of its login.
    """
    chain = list(causes(error))
    kinds = NoPrimary, AuthenticationError, ssl.SSLError, OSError | RedisTimeoutError
    cause = next((e for kind in kinds for e in chain if isinstance(e, kind)), error)
    name = type(cause).__name__
    if isinstance(cause, NoPrimary):  # its text says what to do about each sentinel's error
        return str(cause)
    if isinstance(cause, TimeoutError | RedisTimeoutError):
        text = "no answer in time"
    elif isinstance(cause, RuntimeError):
        text = "the connection broke"
    elif not isinstance(cause, RedisError | OSError):
        text = "its reply is not one of Redis to this command"
    else:
        text = (os_cause(cause) if isinstance(cause, OSError) else str(cause)).rstrip(".") or name
    ways = (way.format(login=login) for pattern, way in WAYS_OUT.items() if re.search(pattern, f"{name}: {text}"))
    return ": ".join([text, *ways])


def is_not_primary(error: Exception) -> bool:
    """Whether the server says that it is not the primary, or not any more."""
    return re.search(f"{REPLICA}|NOREPLICAS", f"{type(error).__name__}: {error}") is not None
