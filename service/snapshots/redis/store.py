"""Snapshots in Redis: every key name, every command. `commit.lua` is a save, `look.lua` reads digests.

perceptron:{m}      one hash a model (the braces keep it in one slot of a Redis Cluster):
                    head, digest, v:<version> (kept heads), b:<digest> (blobs);
                    after a reset under other settings instead: identity
perceptron:models   the set of model names
perceptron:aliases  a hash: alias to model

In a Redis Cluster no command reads or writes keys of several slots at one moment. There `look` asks for each model by a
command of its own, and a reset or a change of an alias that fails may be half done.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from importlib.resources import files
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from msgspec import convert
from redis.exceptions import ResponseError

from service.errors import DependencyError, PerceptronError, SnapshotDamaged
from service.snapshots.head import damaged
from service.snapshots.ports import Commit, Store, Verdict, before_reset
from service.snapshots.redis import connection
from service.text import host_and_port

MODELS, ALIASES = "perceptron:models", "perceptron:aliases"
MAX_COMMAND_BYTES = 1 << 20
"""Bytes of blobs in one command. A larger write would hold the event loop longer than a slice of learning."""


def key(model: str) -> str:
    """The Redis key of a model."""
    return f"perceptron:{{{model}}}"


def _text(raw: bytes) -> str:
    """A digest or a model's name from the store. Other bytes become text that can be shown."""
    return repr(raw)[2:-1]


class RedisStore(Store):
    """The store on one Redis, by its URL or by all that is needed to reach it."""

    def __init__(self, server: str | connection.RedisServer, timeout: float = 3.0) -> None:
        self.missing_since, self.failure = 0.0, "Redis has not answered yet"
        self._server = connection.RedisServer(server) if isinstance(server, str) else server
        # Typed as Any: redis-py's stubs answer str or bytes. Without decode_responses it is bytes.
        self._redis: Any = self._server.client(timeout)
        # At its limit of connections the client of a cluster fails, where a pool waits.
        self._turn = asyncio.Semaphore(connection.MAX_CONNECTIONS) if self._server.cluster else nullcontext()
        self._commit = self._redis.register_script(files(__package__).joinpath("commit.lua").read_text())
        self._look = self._redis.register_script(files(__package__).joinpath("look.lua").read_text())

    @property
    def address(self) -> str:
        """The address of Redis; with sentinels, of the primary that they named last."""
        if self._server.sentinels:
            primary = self._redis.connection_pool.master_address
            return f"{host_and_port(*primary) if primary else self._server.service} (by Sentinel)"
        url = urlsplit(self._server.url)
        address = host_and_port(url.hostname or "localhost", url.port or 6379)
        return url.path if url.scheme == "unix" else f"{address}{url.path}"

    def _key(self, model: str) -> str:
        """The key of a model. In a cluster a reset renames it, so both names are in one slot."""
        suffix = before_reset("") if self._server.cluster and model.endswith(before_reset("")) else ""
        return key(model.removesuffix(suffix)) + suffix

    async def check(self, learn: bool = True) -> list[str]:
        async with self._translated_errors():
            return await connection.check_server(self._redis, f"Redis at {self.address}", learn)

    async def digest(self, model: str) -> str:
        async with self._translated_errors(model):
            digest = convert(await self._redis.hget(self._key(model), "digest"), bytes | None)
        if digest:
            return _text(digest)
        head = await self.head(model)
        return head[0] if head else ""

    async def look(self, models: Sequence[str]) -> tuple[list[str | None], dict[str, str]]:
        if self._server.cluster:
            async with self._translated_errors():
                pairs = convert(await self._redis.hgetall(ALIASES), dict[bytes, bytes])
            digests = await asyncio.gather(*map(self._digest_unless_damaged, models))
            return digests, {_text(alias): _text(model) for alias, model in pairs.items()}
        async with self._translated_errors():
            reply = await self._look(keys=[ALIASES, *map(self._key, models)])
            names, values = convert(reply, tuple[list[bytes], list[Any]])
            aliases = dict(zip(map(_text, names[::2]), map(_text, names[1::2]), strict=True))
            digests = [_text(raw) if isinstance(raw, bytes) else None for _, raw in zip(models, values, strict=True)]
        return digests, aliases

    async def _digest_unless_damaged(self, model: str) -> str | None:
        try:
            return await self.digest(model)
        except SnapshotDamaged:
            return None

    async def head(self, model: str) -> tuple[str, bytes] | None:
        async with self._translated_errors(model):
            reply = await self._redis.hmget(self._key(model), ["digest", "head"])
            digest, head = convert(reply, tuple[bytes | None, bytes | None])
        if bool(digest) != bool(head):
            raise damaged(model, f"Redis has its {'digest and no head' if digest else 'head and no digest'}")
        return (_text(digest), head) if digest and head else None

    async def blobs(self, model: str, digests: Iterable[str]) -> dict[str, bytes]:
        fields = await self._fields(model, [f"b:{digest}" for digest in digests])
        return {name.removeprefix("b:"): blob for name, blob in fields.items()}

    async def put(self, model: str, blobs: dict[str, bytes]) -> None:
        async with self._translated_errors(model):
            while blobs:
                part, size = dict[str, bytes](), 0
                while blobs and size < MAX_COMMAND_BYTES:
                    digest, blob = blobs.popitem()
                    part[f"b:{digest}"], size = blob, size + len(blob)
                await self._redis.hset(self._key(model), mapping=part)

    async def commit(self, model: str, new: Commit) -> Verdict:
        if not new.parent:
            async with self._translated_errors():
                await self._redis.sadd(MODELS, model)
        blobs = chain.from_iterable(new.blobs.items())
        args: list[Any] = [new.parent, new.digest, new.head, new.keep, new.evict, len(new.refs), *new.refs, *blobs]
        async with self._translated_errors(model):
            verdict: Verdict = convert(str(await self._commit(keys=[self._key(model)], args=args), "ascii"), Verdict)
            return verdict

    async def required_identity(self, model: str) -> bytes | None:
        async with self._translated_errors(model):
            return convert(await self._redis.hget(self._key(model), "identity"), bytes | None)

    async def kept(self, model: str, versions: Iterable[int]) -> list[bytes]:
        return [*(await self._fields(model, [f"v:{version}" for version in versions])).values()]

    async def models(self) -> list[str]:
        async with self._translated_errors():
            return sorted(map(_text, convert([*await self._redis.smembers(MODELS)], list[bytes])))

    async def set_alias(self, alias: str, model: str) -> None:
        async with self._translated_errors(), self._redis.pipeline() as transaction:
            if alias == model:
                transaction.hdel(ALIASES, alias)
            else:
                transaction.hset(ALIASES, alias, model)
            transaction.delete(self._key(before_reset(alias)))
            await transaction.execute()

    async def reset(self, model: str, identity: bytes, keep: bool) -> None:
        async with self._translated_errors(), self._redis.pipeline() as transaction:
            if keep:
                transaction.execute_command("RENAME", self._key(model), self._key(before_reset(model)))
                transaction.hset(ALIASES, model, before_reset(model))
            transaction.delete(self._key(model))
            transaction.srem(MODELS, model)
            if identity:
                transaction.hset(self._key(model), "identity", identity)
            await transaction.execute()

    async def __aexit__(self, *_: object) -> None:
        await self._redis.aclose()

    async def _fields(self, model: str, names: Sequence[str]) -> dict[str, bytes]:
        """The fields with these names that a model's hash has, at most 16 by one command."""
        fields = dict[str, bytes]()
        for i in range(0, len(names), 16):
            part = names[i : i + 16]
            async with self._translated_errors(model):
                values = convert(await self._redis.hmget(self._key(model), part), list[bytes | None])
                fields |= {name: value for name, value in zip(part, values, strict=True) if value is not None}
        return fields

    @asynccontextmanager
    async def _translated_errors(self, model: str = "") -> AsyncIterator[None]:
        """Raise Redis' errors as ours. A key of another type is damage of this model."""
        try:
            async with self._turn:
                yield
        except PerceptronError:
            raise
        except Exception as error:  # also of the client, if a reply is of another kind than it expects
            if model and "WRONGTYPE" in str(error):
                self.missing_since = 0.0  # Redis answered
                raise damaged(model, f"its key {self._key(model)} in Redis is not a hash") from error
            # New connections go to the server that is the primary then. The client of a cluster finds it by itself.
            if connection.is_not_primary(error) and not self._server.cluster:
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            if not isinstance(error, ResponseError):  # that is an answer
                self.missing_since = self.missing_since or time.time()
            self.failure = f"Redis at {self.address}: {connection.redis_failure(error, secured=self._server.secured)}"
            raise DependencyError(self.failure, "redis") from error
        self.missing_since, self.failure = 0.0, ""
        # redis-py can swallow a cancellation that arrives while it connects. The task must end nevertheless.
        if (task := asyncio.current_task()) and task.cancelling():
            raise asyncio.CancelledError
