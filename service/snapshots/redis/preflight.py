"""Checks of a Redis at the start: its version, eviction policy and AOF, and whether we may run scripts and write."""

import re
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, ResponseError

from service.errors import ConfigurationError

MIN_VERSION = 5, 0
PROBE_KEY = "perceptron:{!tried}"
"""No model can have this key."""
READ_SCRIPT = "redis.call('HMGET', KEYS[1], 'digest', 'head')"
DELETE = "redis.call('HDEL', KEYS[1], 'digest')"
WRITE_SCRIPTS = (DELETE, f"redis.call('HSET', KEYS[1], 'digest', 'x') {DELETE}")
"""The first shows that the HDEL of the second is allowed. The second begins with HSET: Redis checks only the
first write of a script for memory. No other client sees the key, since a script is atomic."""
_REFUSED = re.compile("permission|can't run this|unknown (redis )?command", re.IGNORECASE)


async def check_server(redis: Redis, where: str, learn: bool) -> list[str]:
    """Refuse a Redis that would lose snapshots or refuses our commands; return warnings, a line each.

    `where` names the Redis in each line. Raises ConfigurationError, and what the client raises.
    """
    warnings, info = list[str](), dict[str, Any]()
    try:
        info = await redis.info()
    except ResponseError as error:
        if not _REFUSED.search(str(error)):
            raise
        warnings.append(f"{where} does not show its settings (INFO): {error}")
    version, policy = str(info.get("redis_version", "")), info.get("maxmemory_policy", "noeviction")
    numbers = tuple(map(int, re.findall(r"\d+", version)))[:2]
    if info.get("cluster_enabled"):
        raise ConfigurationError(f"{where} is a node of a Redis Cluster: name one Redis that runs without cluster mode")
    if numbers and numbers < MIN_VERSION:
        raise ConfigurationError(f"{where} is version {version}: use at least {'.'.join(map(str, MIN_VERSION))}")
    if policy.startswith("allkeys"):
        raise ConfigurationError(f"{where} has maxmemory-policy {policy}, which would evict snapshots: set noeviction")
    if policy != "noeviction":
        warnings.append(f"{where} has maxmemory-policy {policy}: noeviction is safer for snapshots")
    if info.get("aof_enabled") == 0:
        warnings.append(f"{where} has no AOF: a restart loses snapshots (start it with --appendonly yes)")
    try:
        for script in WRITE_SCRIPTS if learn else (READ_SCRIPT,):
            await redis.register_script(script)(keys=[PROBE_KEY])
    except ResponseError as error:
        if isinstance(error, ReadOnlyError) or "READONLY" in str(error):
            raise
        if _REFUSED.search(str(error)):
            raise ConfigurationError(
                f"{where} refuses to {'write' if learn else 'read'} snapshots by a script: {error}: "
                "give the user this right (docs/security.md lists what is needed)"
            ) from None
        warnings.append(f"{where}: a write fails, so saves will: {error}")
    return warnings
