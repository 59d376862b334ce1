"""Checks of a Redis at the start: version, eviction policy, AOF, and whether we may run scripts and write."""

import re
from typing import Any

from redis.exceptions import ReadOnlyError, ResponseError

from service.errors import ConfigurationError

MIN_VERSION = 5, 0
PROBE_KEY = "perceptron:{!tried}"
"""A key that no model can have."""
READ = "redis.call('HMGET', KEYS[1], 'digest', 'head')"
WRITE = """
redis.call('HDEL', KEYS[1], 'digest')
redis.call('HSET', KEYS[1], 'digest', 'x')
redis.call('HDEL', KEYS[1], 'digest')
"""
"""The first HDEL shows that the last one is allowed. No other client sees the key, as a script is atomic."""
REFUSED = re.compile("permission|can't run this|unknown (redis )?command", re.IGNORECASE)


async def check(redis: Any, address: str, learn: bool) -> list[str]:
    """Refuse a Redis that would lose snapshots or refuses our commands; return warnings, a line each.

    Raises ConfigurationError, and what the client raises.
    """
    warnings = await _settings(redis, address)
    try:
        await redis.register_script(WRITE if learn else READ)(keys=[PROBE_KEY])
    except ResponseError as error:
        said = str(error)
        if isinstance(error, ReadOnlyError) or "READONLY" in said:
            raise
        if REFUSED.search(said):
            raise ConfigurationError(
                f"Redis at {address} refuses to {'write' if learn else 'read'} snapshots by a script: {said}: "
                "give the user this right (docs/security.md lists what is needed)"
            ) from None
        warnings.append(f"Redis at {address}: a write fails, so saves will: {said}")
    return warnings


async def _settings(redis: Any, address: str) -> list[str]:
    try:
        info = await redis.info()
    except ResponseError as error:
        if not REFUSED.search(str(error)):
            raise
        return [f"Redis at {address} does not show its settings (INFO): {error}"]
    if info.get("cluster_enabled"):
        raise ConfigurationError(
            f"Redis at {address} is a node of a Redis Cluster: name one Redis that runs without cluster mode"
        )
    version = tuple(map(int, re.findall(r"\d+", str(info.get("redis_version", "")))))[:2]
    if version and version < MIN_VERSION:
        raise ConfigurationError(
            f"Redis at {address} is version {info['redis_version']}: the least is {MIN_VERSION[0]}.{MIN_VERSION[1]}"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        raise ConfigurationError(
            f"Redis at {address} has maxmemory-policy {policy}, which would evict snapshots: set it to noeviction"
        )
    warnings = []
    if policy != "noeviction":
        warnings.append(f"Redis at {address} has maxmemory-policy {policy}: noeviction is safer for snapshots")
    if info.get("aof_enabled") == 0:
        warnings.append(f"Redis at {address} has no AOF: a restart loses snapshots (start it with --appendonly yes)")
    return warnings
