"""The contract of a store. Valkey, Redis, its Cluster and the simulator keep it: the simulator is a valid model."""

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

from service.errors import DependencyError, SnapshotDamaged
from service.learning.options import DEFAULT
from service.snapshots import head as heads
from service.snapshots import keeper as keepers
from service.snapshots.ports import Commit, Store
from service.snapshots.redis.connection import RedisServer
from service.snapshots.redis.store import RedisStore, key
from tests import saving
from tests.checks import state_digest
from tests.conftest import redis_server
from tests.redis_cluster import redis_cluster
from tests.saving import simulated_store
from tests.simulation.world import Redis as SimulatedRedis


class RedisHash:
    """The hash of one model in Redis, read and written directly, without the store."""

    def __init__(self, client: Any, model: str) -> None:
        self._client, self._key = client, key(model)

    async def get(self) -> dict[str, bytes]:
        return {field.decode(): value for field, value in (await self._client.hgetall(self._key)).items()}

    async def put(self, field: str, value: bytes | None) -> None:
        await (self._client.hdel(self._key, field) if value is None else self._client.hset(self._key, field, value))

    async def retype(self) -> None:
        """Put a value of another type under the model's key."""
        await self._client.set(self._key, b"x")


class SimulatedHash:
    """The hash of one model in the simulator's Redis."""

    def __init__(self, redis: SimulatedRedis) -> None:
        self._redis, self._state = redis, redis.state

    async def get(self) -> dict[str, bytes]:
        return dict(self._state)

    async def put(self, field: str, value: bytes | None) -> None:
        self._state.pop(field, None)
        if value is not None:
            self._state[field] = value

    async def retype(self) -> None:
        self._redis.hash = False


Raw = RedisHash | SimulatedHash
Head = tuple[str, bytes]
"""A head as a store has it: its digest and its bytes."""


@pytest.fixture(scope="module", params=["simulator", "valkey", "redis-server", "cluster"])
def redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | None]:
    """A server or a cluster; None stands for the simulator."""
    if request.param == "simulator":
        yield None
    elif request.param == "cluster":
        with redis_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
            yield RedisServer(f"redis://{nodes[0].address}", cluster=True)
    else:
        with redis_server(request.param, tmp_path_factory.mktemp("redis")) as server:
            yield RedisServer(f"redis://{server.address}/0")


@pytest.fixture
async def store_and_hash(redis: RedisServer | None, topic: str) -> AsyncIterator[tuple[Store, Raw]]:
    if redis is None:
        simulated, simulated_redis = simulated_store()
        yield simulated, SimulatedHash(simulated_redis)
        return
    async with RedisStore(redis) as store, redis.client(3.0) as client:
        yield store, RedisHash(client, topic)


@pytest.fixture
def store(store_and_hash: tuple[Store, Raw]) -> Store:
    return store_and_hash[0]


@pytest.fixture
def raw(store_and_hash: tuple[Store, Raw]) -> Raw:
    return store_and_hash[1]


def blob(text: str) -> tuple[str, bytes]:
    return hashlib.sha256(text.encode()).hexdigest(), text.encode()


def head(version: int, *names: str, reference: bool = False) -> Head:
    """A head, as far as the store reads it, that refers to these blobs: one by each kind of reference."""
    parts = [blob(name)[0] for name in names] + [""] * 4
    content = {
        "version": version,
        "arrays": {"w": {"base": parts[:1], "deltas": [d for d in parts[1:2] if d]}},
        "names": [d for d in parts[2:3] if d],
        "run_blobs": [d for d in parts[3:4] if d],
        "reference": {"base": parts[:1], "deltas": []} if reference else None,
    }
    data = json.dumps(content).encode()
    return hashlib.sha256(data).hexdigest(), data


async def put(store: Store, topic: str, *names: str) -> list[str]:
    await store.put(topic, dict(map(blob, names)))
    return [blob(name)[0] for name in names]


async def save(store: Store, topic: str, parent: str, new: Head, *names: str, keep: str = "", evict: str = "") -> str:
    blobs = dict(map(blob, names))
    return await store.commit(topic, Commit(parent, *new, list(blobs), keep, evict, blobs))


@pytest.fixture
async def first(store: Store, topic: str) -> Head:
    """The head of a model that was saved once, with the blob "a"."""
    first_head = head(1, "a")
    assert await save(store, topic, "", first_head, "a") == "OK"
    return first_head


async def test_blobs_that_are_put_can_be_read_and_make_no_head(store: Store, raw: Raw, topic: str) -> None:
    """Before the first put there is no head, no blob and no hash."""
    names = [f"b{i}" for i in range(40)]
    await store.put(topic, {})
    assert await raw.get() == {}
    assert (await store.digest(topic), await store.head(topic)) == ("", None)
    assert (await store.blobs(topic, [blob("a")[0]]), await store.blobs(topic, [])) == ({}, {})
    digests = await put(store, topic, *names)
    await put(store, topic, *names)
    assert await store.blobs(topic, [*digests, blob("z")[0]]) == dict(map(blob, names))
    assert await store.head(topic) is None
    assert len(await raw.get()) == 40


async def test_after_a_reset_the_first_head_needs_the_identity_that_it_left(store: Store, raw: Raw, topic: str) -> None:
    """A candidate's identity is not the head's."""
    identity, (_, rest) = b'{"eta":2.0}', head(1, "a")
    candidates, own = (b'"candidates":{"c":{"identity":%b}}' % identity, b'"identity":%b,"state_digest":""' % identity)
    await raw.put("identity", identity)
    assert await store.required_identity(topic) == identity
    for members, verdict in ((candidates, "CONFLICT"), (own, "OK")):
        data = b"{%b,%b" % (members, rest[1:])
        assert await save(store, topic, "", (hashlib.sha256(data).hexdigest(), data), "a") == verdict
    assert await store.required_identity(topic) is None


async def test_a_first_head_has_no_parent_and_a_later_one_the_current(store: Store, raw: Raw, topic: str) -> None:
    first, second = head(1, "a"), head(2, "b")
    assert await save(store, topic, "0" * 64, first, "a") == "CONFLICT"
    assert await save(store, topic, "", first, "a") == "OK"
    assert await save(store, topic, "", second, "b") == "CONFLICT"
    assert await store.head(topic) == first
    assert await save(store, topic, first[0], second, "b") == "OK"
    assert (await store.digest(topic), await store.head(topic)) == (second[0], second)
    assert await save(store, topic, first[0], head(2, "c"), "c") == "CONFLICT"
    assert (await raw.get())["head"] == second[1]


async def test_a_repeated_commit_is_accepted_once(store: Store, raw: Raw, topic: str, first: Head) -> None:
    second, third = head(2, "b"), head(3, "c")
    assert await save(store, topic, first[0], second, "b", keep="2") == "OK"
    before = await raw.get()
    # The repeated commit is not read further: neither its parent, nor its blobs, nor the versions it keeps.
    assert await store.commit(topic, Commit(first[0], *second, [blob("gone")[0]], "9", "2")) == "OK"
    assert await raw.get() == before
    assert await save(store, topic, second[0], third, "c") == "OK"
    assert await save(store, topic, first[0], second, "b") == "CONFLICT", "the second head is no longer current"


async def test_a_head_with_missing_blobs_is_refused(store: Store, raw: Raw, topic: str, first: Head) -> None:
    """A refused commit changes nothing, and does not sweep the blobs of another save."""
    second = head(2, "b", "a")
    await put(store, topic, "of another save")
    before = await raw.get()
    assert await store.commit(topic, Commit(first[0], *second, [blob("b")[0], blob("a")[0]])) == "MISSING"
    assert await store.commit(topic, Commit("", *second, [blob("b")[0]])) == "CONFLICT", "the parent is checked first"
    assert await store.commit(topic, Commit("0" * 64, *head(2, "a"), [blob("a")[0]], "2", "1")) == "CONFLICT"
    assert await raw.get() == before
    assert await save(store, topic, first[0], second, "b", "a") == "OK"


async def test_blobs_of_a_head_are_put_before_or_with_its_commit(store: Store, raw: Raw, topic: str) -> None:
    """A large save puts its blobs before; a small one sends them with the commit."""
    [put_before, put_along, _] = refs = [blob(name)[0] for name in ("b", "a", "never")]
    await put(store, topic, "b")
    new, blobs = head(1, "b", "a"), dict([blob("a")])
    assert await store.commit(topic, Commit("", *new, refs, blobs=blobs)) == "MISSING"
    assert await store.head(topic) is None
    assert await store.commit(topic, Commit("", *new, [put_before, put_along], blobs=blobs)) == "OK"
    assert {f for f in await raw.get() if f.startswith("b:")} == {f"b:{put_before}", f"b:{put_along}"}
    assert await store.blobs(topic, refs) == dict(map(blob, "ab"))


async def test_a_commit_sweeps_blobs_without_references(store: Store, raw: Raw, topic: str) -> None:
    """Every kind of reference in the head, its parent and the kept versions protects its blob."""
    parent = ""
    for version, names in enumerate((("a", "b", "c", "d"), ("e", "f", "g", "h"), ("i", "j", "k", "l")), 1):
        new = head(version, *names, reference=version == 2)
        await put(store, topic, f"killed{version}")
        assert await save(store, topic, parent, new, *names, keep="1" if version == 1 else "") == "OK"
        parent = new[0]
    fields = {f for f in await raw.get() if f.startswith("b:")}
    assert fields == {f"b:{blob(name)[0]}" for name in "abcdefghijkl"}
    new = head(4, "m")
    assert await save(store, topic, parent, new, "m", evict="1", keep="4") == "OK"
    fields = {f for f in await raw.get() if f.startswith("b:")}
    assert fields == {f"b:{blob(name)[0]}" for name in "ijklm"}
    assert {f for f in await raw.get() if f.startswith("v:")} == {"v:4"}
    assert await save(store, topic, new[0], head(5, "n"), "n", evict="5", keep="5") == "OK"
    assert "v:5" in await raw.get(), "a version that is both kept and evicted is kept"


async def test_a_damaged_kept_head_stops_the_sweep(store: Store, raw: Raw, topic: str, first: Head) -> None:
    await save(store, topic, first[0], head(2, "b"), "b", keep="2")
    for damage in (b"no json", b"{}", b"[]", b'{"names":1,"run_blobs":[],"arrays":{},"reference":null}'):
        await raw.put("v:2", damage)
        await put(store, topic, "garbage")
        current = await store.digest(topic)
        new = head(3, "c", damage.hex())
        assert await save(store, topic, current, new, "c", damage.hex()) == "OK"
        assert f"b:{blob('garbage')[0]}" in await raw.get()
    await raw.put("v:2", None)
    assert await save(store, topic, new[0], head(4, "d"), "d") == "OK"
    assert f"b:{blob('garbage')[0]}" not in await raw.get()


async def test_half_a_head_is_damage(store: Store, raw: Raw, topic: str, first: Head) -> None:
    """Half a head is not treated as a missing head: a new model would replace it."""
    await raw.put("head", None)
    with pytest.raises(SnapshotDamaged, match="or `perceptron reset"):
        await store.head(topic)
    assert await store.digest(topic) == first[0]
    await raw.put("head", first[1])
    await raw.put("digest", None)
    for method in (store.head, store.digest):
        with pytest.raises(SnapshotDamaged):
            await method(topic)
    assert await save(store, topic, "", head(1, "b"), "b") == "CONFLICT"
    assert (await raw.get())["head"] == first[1]


async def test_a_malformed_digest_matches_no_head(store: Store, raw: Raw, topic: str, first: Head) -> None:
    """Any bytes can be read as the digest, and no head matches them."""
    for damage in (b"\xff\xfe", b"5", b"\x1b[2J", b"[]"):
        await raw.put("digest", damage)
        newest = await store.head(topic)
        assert newest is not None
        assert (newest[1], newest[0] == await store.digest(topic)) == (first[1], True)
        with pytest.raises(SnapshotDamaged, match="do not match their digest"):
            heads.Head.decode_current(topic, *newest)
        assert await save(store, topic, first[0], head(2, "b"), "b") == "CONFLICT"


async def test_a_key_of_another_type_is_damage(store: Store, raw: Raw, topic: str, first: Head) -> None:
    await raw.retype()
    for call in (
        store.digest(topic), store.head(topic), store.blobs(topic, [blob("a")[0]]), store.put(topic, dict([blob("b")])),
        store.commit(topic, Commit(first[0], *head(2, "b"), [blob("b")[0]])),
    ):  # fmt: skip
        with pytest.raises(SnapshotDamaged, match=" is not a hash"):
            await call


async def test_a_keeper_that_lost_a_reply_finds_out(store: Store, topic: str) -> None:
    """A save that may or may not have been accepted is neither refused nor lost."""
    for call, inline_limit in (("put", -1), ("commit", keepers.MAX_INLINE_BLOB_BYTES)):
        for carried_out in (True, False):
            keeper = saving.keeper(store, topic)
            learner = await keeper.restore() or saving.new_learner()
            version = (await saving.save(keeper, learner)).head.version
            saving.learn(learner, "a")
            keeper.store = saving.ReplyLosingStore(store, call, carried_out)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(keepers, "MAX_INLINE_BLOB_BYTES", inline_limit)
                with pytest.raises(DependencyError):
                    await saving.save(keeper, learner)
            saving.learn(learner, "b")
            assert await keeper.current()
            accepted = carried_out and call == "commit"
            assert (await saving.save(keeper, learner)).head.version == version + (2 if accepted else 1)
            restored = await saving.keeper(store, topic).restore()
            assert restored is not None
            assert restored.main.counts.events == learner.main.counts.events
            assert restored.runs == learner.runs
            assert state_digest(restored) == state_digest(learner)


async def test_a_keeper_uploads_again_what_vanished(store: Store, raw: Raw, topic: str) -> None:
    """The lost blobs were in the store, and the next head refers to some of them."""
    ours, learner = saving.keeper(store, topic), saving.new_learner()
    saving.learn(learner, *(f"n{i}" for i in range(9000)))
    before = await saving.save(ours, learner)
    for ref in before.head.refs:
        await raw.put(f"b:{ref}", None)
    saving.learn(learner, "n0")
    after = await saving.save(ours, learner)
    assert set(after.head.refs) & set(before.head.refs)
    assert await saving.keeper(store, topic).restore() is not None


async def test_a_reader_that_is_overtaken_looks_again(store: Store, topic: str) -> None:
    """Two saves between its read of the head and its read of the blobs swept the blobs."""
    ours, learner = saving.keeper(store, topic), saving.new_learner()
    saving.learn(learner, "a")
    await saving.save(ours, learner)
    requests: list[str] = []

    class Overtaken:
        head = staticmethod(store.head)

        async def blobs(self, model: str, digests: Iterable[str]) -> dict[str, bytes]:
            requests.append(model)
            for name in ("b", "c") if len(requests) == 1 else ():
                saving.learn(learner, name)
                await saving.save(ours, learner)
            return await store.blobs(model, digests)

    snapshot = await keepers.fetch_newest(Overtaken(), topic, saving.run_here, DEFAULT)  # type: ignore[arg-type]
    assert snapshot is not None
    assert (snapshot.head.version, len(requests)) == (3, 2)
