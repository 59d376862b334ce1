"""The promises of a store, held by Valkey, by Redis and by the simulator's store: else it would prove only itself."""

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from service.embedded.servers import Server
from service.errors import DependencyError, SnapshotDamaged
from service.learning.options import DEFAULT
from service.snapshots import codec
from service.snapshots import keeper as keepers
from service.snapshots.ports import Commit, Store
from service.snapshots.redis.store import RedisStore, key
from tests import saving
from tests.checks import state_digest
from tests.conftest import redis_server
from tests.saving import simulated_store
from tests.simulation.world import Redis as SimulatedRedis


class OfRedis:
    """The hash of one model in Redis, seen past the store."""

    def __init__(self, client: Any, model: str) -> None:
        self._client, self._key = client, key(model)

    async def get(self) -> dict[str, bytes]:
        return {field.decode(): value for field, value in (await self._client.hgetall(self._key)).items()}

    async def put(self, field: str, value: bytes | None) -> None:
        await (self._client.hdel(self._key, field) if value is None else self._client.hset(self._key, field, value))

    async def retype(self) -> None:
        """Put a value of another type under the model's key."""
        await self._client.set(self._key, b"x")


class OfSimulation:
    """The same in the simulator's Redis."""

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


Raw = OfRedis | OfSimulation


@pytest.fixture(scope="module", params=["simulator", "valkey", "redis-server"])
def redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server | None]:
    """A server of each kind; None stands for the simulator."""
    if request.param == "simulator":
        yield None
    else:
        with redis_server(request.param, tmp_path_factory.mktemp("redis")) as server:
            yield server


@pytest.fixture
async def both(redis: Server | None, topic: str) -> AsyncIterator[tuple[Store, Raw]]:
    if redis is None:
        simulated, content = simulated_store()
        yield simulated, OfSimulation(content)
        return
    store = RedisStore(url := f"redis://{redis.address}/0")
    async with Redis.from_url(url) as client:
        yield store, OfRedis(client, topic)
    await store.close()


@pytest.fixture
def store(both: tuple[Store, Raw]) -> Store:
    return both[0]


@pytest.fixture
def raw(both: tuple[Store, Raw]) -> Raw:
    return both[1]


def blob(text: str) -> tuple[str, bytes]:
    return hashlib.sha256(text.encode()).hexdigest(), text.encode()


def head(version: int, *names: str, reference: bool = False) -> tuple[str, bytes]:
    """A head of these blobs, as far as the store reads one: each kind of reference has one of them."""
    parts = [blob(name)[0] for name in names] + [""] * 4
    said = {
        "version": version,
        "arrays": {"w": {"base": parts[:1], "deltas": [d for d in parts[1:2] if d]}},
        "names": [d for d in parts[2:3] if d],
        "run_blobs": [d for d in parts[3:4] if d],
        "reference": {"base": parts[:1], "deltas": []} if reference else None,
    }
    data = json.dumps(said).encode()
    return hashlib.sha256(data).hexdigest(), data


async def put(store: Store, topic: str, *names: str) -> list[str]:
    await store.put(topic, dict(map(blob, names)))
    return [blob(name)[0] for name in names]


async def save(
    store: Store, topic: str, parent: str, said: tuple[str, bytes], *names: str, keep: str = "", evict: str = ""
) -> str:
    blobs = dict(map(blob, names))
    return await store.commit(topic, Commit(parent, *said, list(blobs), keep, evict, blobs))


async def test_blobs_are_there_once_put_and_make_no_head(store: Store, raw: Raw, topic: str) -> None:
    """Before that there is nothing: no head, no blobs, no hash."""
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


async def test_a_commit_said_twice_is_accepted_once(store: Store, raw: Raw, topic: str) -> None:
    first, second, third = head(1, "a"), head(2, "b"), head(3, "c")
    await save(store, topic, "", first, "a")
    assert await save(store, topic, first[0], second, "b", keep="2") == "OK"
    before = await raw.get()
    # Said again it is not read further: neither its parent, nor its blobs, nor what it keeps.
    assert await store.commit(topic, Commit(first[0], *second, [blob("gone")[0]], "9", "2")) == "OK"
    assert await raw.get() == before
    assert await save(store, topic, second[0], third, "c") == "OK"
    assert await save(store, topic, first[0], second, "b") == "CONFLICT", "it is not current any more"


async def test_a_head_whose_blobs_are_gone_is_missing_them(store: Store, raw: Raw, topic: str) -> None:
    """A refused commit changes nothing: it does not sweep the blobs of another save either."""
    first, second = head(1, "a"), head(2, "b", "a")
    await save(store, topic, "", first, "a")
    await put(store, topic, "of another save")
    before = await raw.get()
    assert await store.commit(topic, Commit(first[0], *second, [blob("b")[0], blob("a")[0]])) == "MISSING"
    assert await store.commit(topic, Commit("", *second, [blob("b")[0]])) == "CONFLICT", "the parent is looked at first"
    assert await store.commit(topic, Commit("0" * 64, *head(2, "a"), [blob("a")[0]], "2", "1")) == "CONFLICT"
    assert await raw.get() == before
    assert await save(store, topic, first[0], second, "b", "a") == "OK"


async def test_blobs_that_are_there_or_come_along_make_a_head(store: Store, raw: Raw, topic: str) -> None:
    """Some were put before, as those of a large save are."""
    [ahead, along, _] = refs = [blob(name)[0] for name in ("b", "a", "never")]
    await put(store, topic, "b")
    said, blobs = head(1, "b", "a"), dict([blob("a")])
    assert await store.commit(topic, Commit("", *said, refs, blobs=blobs)) == "MISSING"
    assert await store.head(topic) is None
    assert await store.commit(topic, Commit("", *said, [ahead, along], blobs=blobs)) == "OK"
    assert {f for f in await raw.get() if f.startswith("b:")} == {f"b:{ahead}", f"b:{along}"}
    assert await store.blobs(topic, refs) == dict(map(blob, "ab"))


async def test_what_nobody_refers_to_is_swept_with_the_commit(store: Store, raw: Raw, topic: str) -> None:
    """Head, parent, kept versions: every kind of reference of theirs holds its blob."""
    parent = ""
    for version, names in enumerate((("a", "b", "c", "d"), ("e", "f", "g", "h"), ("i", "j", "k", "l")), 1):
        said = head(version, *names, reference=version == 2)
        await put(store, topic, f"killed{version}")
        assert await save(store, topic, parent, said, *names, keep="1" if version == 1 else "") == "OK"
        parent = said[0]
    fields = {f for f in await raw.get() if f.startswith("b:")}
    assert fields == {f"b:{blob(name)[0]}" for name in "abcdefghijkl"}
    said = head(4, "m")
    assert await save(store, topic, parent, said, "m", evict="1", keep="4") == "OK"
    fields = {f for f in await raw.get() if f.startswith("b:")}
    assert fields == {f"b:{blob(name)[0]}" for name in "ijklm"}
    assert {f for f in await raw.get() if f.startswith("v:")} == {"v:4"}
    assert await save(store, topic, said[0], head(5, "n"), "n", evict="5", keep="5") == "OK"
    assert "v:5" in await raw.get(), "evicting what is kept keeps it"


async def test_a_kept_head_that_is_damaged_stops_the_sweeping(store: Store, raw: Raw, topic: str) -> None:
    first, second = head(1, "a"), head(2, "b")
    await save(store, topic, "", first, "a")
    await save(store, topic, first[0], second, "b", keep="2")
    for damage in (b"no json", b"{}", b"[]", b'{"names":1,"run_blobs":[],"arrays":{},"reference":null}'):
        await raw.put("v:2", damage)
        await put(store, topic, "garbage")
        current = await store.digest(topic)
        said = head(3, "c", damage.hex())
        assert await save(store, topic, current, said, "c", damage.hex()) == "OK"
        assert f"b:{blob('garbage')[0]}" in await raw.get()
    await raw.put("v:2", None)
    assert await save(store, topic, said[0], head(4, "d"), "d") == "OK"
    assert f"b:{blob('garbage')[0]}" not in await raw.get()


async def test_half_a_head_is_damage(store: Store, raw: Raw, topic: str) -> None:
    """Neither half is taken for no head: a model begun from scratch would take its place."""
    first = head(1, "a")
    await save(store, topic, "", first, "a")
    await raw.put("head", None)
    with pytest.raises(SnapshotDamaged, match="or `perceptron reset"):
        await store.head(topic)
    assert await store.digest(topic) == first[0]
    await raw.put("head", first[1])
    await raw.put("digest", None)
    for asked in (store.head, store.digest):
        with pytest.raises(SnapshotDamaged):
            await asked(topic)
    assert await save(store, topic, "", head(1, "b"), "b") == "CONFLICT"
    assert (await raw.get())["head"] == first[1]


async def test_a_digest_that_is_none_is_no_heads(store: Store, raw: Raw, topic: str) -> None:
    """Whatever the bytes, they are read; and no head has them."""
    first = head(1, "a")
    await save(store, topic, "", first, "a")
    for damage in (b"\xff\xfe", b"5", b"\x1b[2J", b"[]"):
        await raw.put("digest", damage)
        said = await store.head(topic)
        assert said is not None
        assert (said[1], said[0] == await store.digest(topic)) == (first[1], True)
        with pytest.raises(SnapshotDamaged, match="do not match their digest"):
            codec.readable(topic, *said)
        assert await save(store, topic, first[0], head(2, "b"), "b") == "CONFLICT"


async def test_another_type_of_key_is_damage_of_this_model(store: Store, raw: Raw, topic: str) -> None:
    first = head(1, "a")
    await save(store, topic, "", first, "a")
    await raw.retype()
    for asked in (
        store.digest(topic), store.head(topic), store.blobs(topic, [blob("a")[0]]), store.put(topic, dict([blob("b")])),
        store.commit(topic, Commit(first[0], *head(2, "b"), [blob("b")[0]])),
    ):  # fmt: skip
        with pytest.raises(SnapshotDamaged, match=" is not a hash"):
            await asked


async def test_a_keeper_that_lost_a_reply_finds_out(store: Store, topic: str) -> None:
    """A save that may or may not have been accepted is neither refused nor lost."""
    for call, along in (("put", -1), ("commit", keepers.MAX_INLINE_BLOB_BYTES)):
        for carried_out in (True, False):
            ours = saving.keeper(store, topic)
            learner = await ours.restore() or saving.fresh()
            version = (await saving.save(ours, learner)).head.version
            saving.learn(learner, "a")
            ours.store = saving.Losing(store, call, carried_out)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(keepers, "MAX_INLINE_BLOB_BYTES", along)
                with pytest.raises(DependencyError):
                    await saving.save(ours, learner)
            saving.learn(learner, "b")
            assert await ours.current()
            accepted = carried_out and call == "commit"
            assert (await saving.save(ours, learner)).head.version == version + (2 if accepted else 1)
            restored = await saving.keeper(store, topic).restore()
            assert restored is not None
            assert restored.counts.events == learner.counts.events
            assert restored.runs == learner.runs
            assert state_digest(restored) == state_digest(learner)


async def test_a_keeper_uploads_again_what_vanished(store: Store, raw: Raw, topic: str) -> None:
    """Blobs that the store had, and that the next head refers to next to its own."""
    ours, learner = saving.keeper(store, topic), saving.fresh()
    saving.learn(learner, *(f"n{i}" for i in range(9000)))
    before = await saving.save(ours, learner)
    for ref in before.head.refs:
        await raw.put(f"b:{ref}", None)
    saving.learn(learner, "n0")
    after = await saving.save(ours, learner)
    assert set(after.head.refs) & set(before.head.refs)
    assert await saving.keeper(store, topic).restore() is not None


async def test_a_reader_that_is_overtaken_looks_again(store: Store, topic: str) -> None:
    """Between its look at the head and its look at the blobs two saves came, and swept them."""
    ours, learner = saving.keeper(store, topic), saving.fresh()
    saving.learn(learner, "a")
    await saving.save(ours, learner)
    asked: list[str] = []

    class Overtaken:
        head = staticmethod(store.head)

        async def blobs(self, model: str, digests: Iterable[str]) -> dict[str, bytes]:
            asked.append(model)
            for name in ("b", "c") if len(asked) == 1 else ():
                saving.learn(learner, name)
                await saving.save(ours, learner)
            return await store.blobs(model, digests)

    snapshot = await keepers.fetch_newest(Overtaken(), topic, saving.here, DEFAULT)  # type: ignore[arg-type]
    assert snapshot is not None
    assert (snapshot.head.version, len(asked)) == (3, 2)
