"""What a Redis must be and let its user do: looked at and tried out at the start, not found at the first save."""

import re
from typing import Any

import msgspec
from redis.exceptions import ReadOnlyError, ResponseError

from service.errors import ConfigurationError

LEAST = 5, 0
TRIED = "perceptron:{!tried}"
"""A key that no model can have."""

TRY = """
for _, command in ipairs(cjson.decode(ARGV[1])) do
  local said = redis.pcall(unpack(command))
  if type(said) == 'table' and said.err then
    redis.pcall('HDEL', KEYS[1], 'digest', 'blob')
    return {command[1], said.err}
  end
end
return {}
"""
"""Says which of these commands fails first, and how. In a script nobody sees what they leave for a moment."""

FOLLOWING = [["HGET", TRIED, "digest"], ["HMGET", TRIED, "digest", "head"], ["EXISTS", TRIED]]
REFUSED = re.compile("permission|can't run this|unknown (redis )?command", re.IGNORECASE)


def saving(models: str) -> list[list[str]]:
    """What a save needs, beside what following does: what removes is tried before there is something to remove."""
    return [
        ["HDEL", TRIED, "blob"],
        ["HSET", TRIED, "digest", "x", "blob", "x"],
        ["HEXISTS", TRIED, "blob"],
        ["HKEYS", TRIED],
        *FOLLOWING,
        ["HDEL", TRIED, "digest", "blob"],
        ["SREM", models, TRIED],
        ["SADD", models, TRIED],
        ["SREM", models, TRIED],
    ]


async def check(redis: Any, address: str, models: str, learn: bool) -> list[str]:
    """Refuse a Redis that would lose snapshots, or a user that cannot do what is needed; return warnings, a line each.

    Raises ConfigurationError, and what the client raises.
    """
    warnings = await _settings(redis, address)
    commands = saving(models) if learn else [*FOLLOWING, ["SMEMBERS", models]]
    name, said = "EVALSHA and SCRIPT LOAD", ""
    try:
        if failed := await redis.register_script(TRY)(keys=[TRIED, models], args=[msgspec.json.encode(commands)]):
            name, said = (part.decode() for part in failed)
    except ResponseError as error:
        if not REFUSED.search(str(error)):
            raise
        said = str(error)
    if REFUSED.search(said):
        command = re.search(r"run the '(\S+)' command", said)
        what = "keys that begin with perceptron:" if " key" in said else command[1].upper() if command else name
        raise ConfigurationError(
            f"Redis at {address} refuses {what}, which {'learning' if learn else 'following'} needs: {said}: give the "
            "user this right, or the command its name back (docs/security.md lists what is needed)"
        )
    if said.startswith("READONLY"):
        raise ReadOnlyError(said)
    return [*warnings, f"Redis at {address}: {name} fails, so saves will: {said}"] if said else warnings


async def _settings(redis: Any, address: str) -> list[str]:
    try:
        info = await redis.info()
    except ResponseError as error:
        if not REFUSED.search(str(error)):
            raise
        return [f"Redis at {address} does not let its settings be looked at (INFO): {error}"]
    if info.get("cluster_enabled"):
        raise ConfigurationError(
            f"Redis at {address} is a node of a Redis Cluster, whose keys are on several nodes: name one Redis that "
            "runs without cluster mode (cluster-enabled no)"
        )
    version = tuple(map(int, re.findall(r"\d+", str(info.get("redis_version", "")))))[:2]
    if version and version < LEAST:
        raise ConfigurationError(
            f"Redis at {address} is version {info['redis_version']}: the least is {LEAST[0]}.{LEAST[1]}"
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis at {address} has maxmemory-policy {policy}, which would evict snapshots: set it to noeviction"
        )
    if not info.get("aof_enabled"):
        return [f"Redis at {address} has no AOF: a restart loses snapshots (start it with --appendonly yes)"]
    return []
