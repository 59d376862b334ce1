"""Simulated Kafka, Redis and time behind the interfaces that learning awaits.

Every await is a `Step`: the scheduler decides which process continues, or dies there. The simulation assumes this of
the real servers: Redis runs one command at a time. Kafka's client returns everything after the offset of a seek, though
later fetches may lose a beginning. A consumer continues in a recreated topic as if it were the old one, if that has the
offset; only the topic's id differs. Offset 0 holds a record, so that everything learned has a fingerprint.
"""

import functools
import hashlib
import json
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from service.errors import DependencyError
from service.learning.identity import FOLD
from service.snapshots.codec import damaged
from service.snapshots.ports import Commit
from service.streaming.records import Headers, KafkaRecord

NAMES = "abcdefghijklmn"
VALUES: tuple[Any, ...] = (0.5, -1.0, 2.0, 0.1, -0.3, 1.5)
RAW = (*VALUES, True, False, "x", "y")
"""Values that are scaled and values that are not."""
CLASSES = ("a", "b", "c")
BAD = (
    None, b"", b"no event", b'{"features":{"a":1}}', b'{"features":{"new1":1,"a":NaN},"label":1}',
    b'{"features":{"new2":1},"label":"perhaps"}', b'{"features":{"new3":1,"new4":1e31},"label":1}',
)  # fmt: skip


class Violation(AssertionError):
    """A promise was broken."""


class Step:
    """An await: the scheduler continues here when `ready` holds, or never."""

    def __init__(self, at: str, ready: Callable[[], bool] = lambda: True) -> None:
        self.at, self.ready = at, ready

    def __await__(self) -> Generator["Step", None, None]:
        yield self


class Record(NamedTuple):
    """A `KafkaRecord`, and whether it is an event."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    good: bool

    @property
    def kafka(self) -> KafkaRecord:
        return KafkaRecord(*self[:5])


class Partition:
    """Records by offset; some offsets have none. Trimmed records stay here, for the oracle."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.begin = self.end = 0
        self.flipped: tuple[int, int, int] | None = None
        """First offset of a damaged batch, the offset after its last, and the first offset that its header states."""

    def batches(self, at: int, compacted: bool) -> list[tuple[int, int, list[Record]]]:
        """The batches from an offset on: first offset, offset after the last, and records.

        The first is the batch that contains the offset, or else the next one, by the first offsets that headers state.
        A batch without records is a marker or was aborted; a compacted log has only the last of these.
        """
        start, to, says = self.flipped or (self.end, self.end, 0)
        found = [
            (offset, offset + 1, [self.records[offset]] if offset in self.records else [])
            for offset in range(self.end)
            if not start <= offset < to and (offset in self.records or not compacted or offset == self.end - 1)
        ]
        if self.flipped:
            moved = [self.records[o]._replace(offset=o - start + says) for o in range(start, to) if o in self.records]
            found.insert(sum(first < start for first, _, _ in found), (says, says + to - start, moved))
        for i, (first, _, _) in enumerate(found):
            if first >= at:
                return found[i - 1 :] if i and first > at and found[i - 1][1] > at else found[i:]
        return found[-1:] if found and found[-1][1] > at else []


class Topic:
    """A topic between its creation and its deletion."""

    def __init__(
        self, rng: random.Random, partitions: int, values: Sequence[Any] = VALUES, labels: Sequence[Any] = (1, -1)
    ) -> None:
        self._rng, self._values, self._labels = rng, values, labels
        self.partitions = [Partition() for _ in range(partitions)]
        self.compacted = False

    def grow(self) -> None:
        """Add a partition."""
        self.partitions.append(Partition())

    def produce(self) -> None:
        """Add a few records, or offsets without records, to a partition."""
        part = self._rng.choice(self.partitions)
        for _ in range(self._rng.randint(1, 8)):
            if part.end and self._rng.random() < 0.1:
                part.end += self._rng.randint(1, 3)  # a transaction's marker, an aborted or compacted record
            else:
                self._write(part, part.end)
                part.end += 1

    def _write(self, part: Partition, offset: int) -> None:
        rng = self._rng
        good = rng.random() > 0.15
        value = rng.choice(BAD)
        if good:
            features = {name: rng.choice(self._values) for name in rng.sample(NAMES, rng.randint(0, 4))}
            value = json.dumps({"features": features, "label": rng.choice(self._labels)}).encode()
        part.records[offset] = Record(offset, rng.randrange(1 << 40), rng.choice((None, b"k")), value, (), good)


@functools.lru_cache(maxsize=1024)
def refs(head: bytes) -> list[str]:
    """The digests of all blobs that a head refers to, read without our own code."""
    said = json.loads(head)
    arrays = [*said["arrays"].values(), *([said["reference"]] if said["reference"] else [])]
    return [*said["names"], *said["run_blobs"], *(d for a in arrays for d in (*a["base"], *a["deltas"]))]


class Redis:
    """One model's hash, with the semantics of commit.lua."""

    def __init__(self) -> None:
        self.state: dict[str, bytes] = {}
        self.past: list[dict[str, bytes]] = [{}]
        self.late: list[tuple[str, Callable[[], object]]] = []
        """Commands that will run some time after their sender gave up."""
        self.hash = True
        """Whether the key is a hash: another type may have replaced it."""
        self.newer: set[str] = set()
        """Digests of heads with content that this release does not know."""

    @property
    def current(self) -> str:
        return self.state.get("digest", b"").decode(errors="replace")

    @property
    def seen_digest(self) -> str | None:
        """The digest that one request for many models finds, see `RedisStore.digests`."""
        digest = self.state.get("digest")
        return self.current if self.hash and (digest or b"").isascii() and (digest or not self.state) else None

    @property
    def intact(self) -> bool:
        """Whether this release can read the current head, if there is one."""
        head = self.state.get("head")
        digest = hashlib.sha256(head).hexdigest() if head is not None else ""
        return self.hash and self.current == digest and digest not in self.newer

    def _done(self) -> None:
        if self.intact:
            self.past.append(dict(self.state))

    def damage(self, rng: random.Random) -> str:
        """Change or remove a field, or replace the key by another type."""
        kept = [field for field in self.state if field[:2] == "v:"]
        field = rng.choice(("digest", "head", *kept[:1], ""))
        if not field or field not in self.state:
            self.hash = False
            return "the key is not a hash"
        value = rng.choice((b"\xff\xfe", b"5", b"[]", self.state[field][1:], None))
        if value is None and field[0] != "v":
            del self.state[field]
        else:
            self.state[field] = value or b"{}"
        return f"{field} is {value!r:.20}"

    def write_newer(self, rng: random.Random) -> str:
        """Save as a newer release, whose head has an unknown member at a random place."""
        said = json.loads(self.state["head"])
        said |= {"version": said["version"] + 1, "parent": self.current}
        where, name, value = rng.choice((
            (said, "later", None), (said, "schema", 2), (said["observations"], "later", 1),
            (said["identity"], "later", None), (said["identity"], "fold", FOLD + 1),
            (said["arrays"], "later", {"base": [], "deltas": []}),
        ))  # fmt: skip
        where[name] = value
        self.state["head"] = json.dumps(said).encode()
        digest = hashlib.sha256(self.state["head"]).hexdigest()
        self.state["digest"] = digest.encode()
        self.newer.add(digest)
        return name

    def give_back(self, state: Mapping[str, bytes]) -> None:
        """Restore a copy of the data."""
        self.state, self.hash = dict(state), True

    def put(self, blobs: Mapping[str, bytes]) -> None:
        self.state.update((f"b:{digest}", blob) for digest, blob in blobs.items())
        self._done()

    def commit(self, parent: str, digest: str, head: bytes, wanted: Iterable[str], keep: str, evict: str) -> str:
        """The steps of commit.lua, in its order."""
        state, current = self.state, self.current
        if current == digest:
            return "OK"
        if current != parent:
            return "CONFLICT"
        if not current and "head" in state:
            return "CONFLICT"
        live = {f"b:{name}" for name in wanted}
        if not live <= state.keys():
            return "MISSING"
        held = [state["head"]] if "head" in state else []
        held += [text for field, text in state.items() if field[:2] == "v:" and field != f"v:{evict}"]
        sweep = True
        for text in held:
            try:
                live |= {f"b:{name}" for name in refs(text)}
            except (ValueError, LookupError, TypeError, AttributeError):
                sweep = False
        state["head"], state["digest"] = head, digest.encode()
        if keep:
            state[f"v:{keep}"] = head
        if evict and evict != keep:
            state.pop(f"v:{evict}", None)
        if sweep:
            self.sweep(live)
        self._done()
        return "OK"

    def sweep(self, live: set[str]) -> None:
        """Remove blobs that nothing refers to."""
        for field in [f for f in self.state if f[:2] == "b:" and f not in live]:
            del self.state[field]

    def whole(self) -> None:
        """Check the invariant between any two commands: all blobs of all heads exist."""
        for field, text in self.state.items():
            if field == "head" or field[:2] == "v:":
                try:
                    names = refs(text)
                except (ValueError, LookupError, TypeError):
                    continue  # damaged
                for name in names:
                    blob = self.state.get(f"b:{name}")
                    if blob is None or hashlib.sha256(blob).hexdigest() != name:
                        raise Violation(f"blob {name[:8]} of {field} is missing or damaged")


class World:
    """The world that all processes share, and the history of faults."""

    name = "t"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now, self.jump = 0.0, 0.0
        self.faulty, self.torn, self.refusing = True, 0, False
        self.redis = Redis()
        self.values = RAW if seed % 8 == 5 else VALUES
        self.labels: Sequence[Any] = CLASSES if seed % 8 == 4 else (1, -1)
        self.topic = Topic(self.rng, self.rng.choice((1, 1, 2, 3)), self.values, self.labels)
        self.elsewhere = Topic(self.rng, 1, self.values, self.labels)
        """A topic of the same name on another cluster."""
        self.topics = [self.elsewhere, self.topic]
        self.committed: dict[int, int] = {}
        self.letters: dict[bytes, set[bytes | None]] = {}
        self.history: list[str] = []
        self.counts: dict[str, int] = {}
        self.accepted: Callable[[str, bytes, list[tuple[int, int, int]]], None] = lambda *_: None

    def topics_of(self, source: Any) -> list[Topic]:
        """The topic that a head was learned from; the first one is on the other cluster."""
        return [self.topics[int(source["topic_id"])]]

    def say(self, what: str) -> None:
        self.history.append(f"{self.now:8.2f} {what}")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def chance(self, probability: float) -> bool:
        return self.faulty and self.rng.random() < probability


class Clock:
    """The world's time. The wall clock jumps."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        return self._world.now

    def time(self) -> float:
        return 1_700_000_000.0 + self._world.now + self._world.jump

    async def sleep(self, seconds: float) -> None:
        until = self._world.now + seconds
        await Step("sleep", lambda: self._world.now >= until)


class SimulatedStore:
    """`snapshots.ports.ModelStore` for one process."""

    def __init__(self, world: World, name: str, cut: Callable[[], list[tuple[int, int, int]]] = list) -> None:
        """`cut` returns the runs that the head being saved records for its kept version."""
        self._world, self._name, self._cut = world, name, cut
        self.missing_since = 0.0

    async def _ask(self, what: str, of_hash: Callable[[], Any]) -> Any:
        world = self._world

        def command() -> Any:
            if not world.redis.hash:
                raise damaged("t", "it is not a hash")
            return of_hash()

        await Step(what)
        if world.chance(0.03):
            late = world.rng.random() < 0.5
            world.count("late" if late else "unanswered")
            if late:
                world.redis.late.append((f"{what} of {self._name}", command))
            world.say(f"{self._name}: {what} fails{', and will come late' if late else ''}")
            self.missing_since = world.now + 1.0
            raise DependencyError(f"{what}: no answer", "redis")
        answer = command()
        if world.chance(0.03):
            world.count("doubled")
            world.say(f"{self._name}: {what} twice")
            if world.rng.random() < 0.5:
                answer = command()
            else:
                world.redis.late.append((f"{what} of {self._name}, again", command))
        await Step(f"{what} done")
        if world.chance(0.03):
            world.count("reply lost")
            world.say(f"{self._name}: reply to {what} lost")
            self.missing_since = world.now + 1.0
            raise DependencyError(f"{what}: reply lost", "redis")
        self.missing_since = 0.0
        return answer

    async def digest(self, model: str) -> str:
        answer: str = await self._ask("digest", lambda: self._world.redis.current)
        if not answer and (found := await self.head(model)):
            return found[0]
        return answer

    async def head(self, model: str) -> tuple[str, bytes] | None:  # noqa: ARG002 - there is one
        def read() -> tuple[str, bytes] | None:
            redis = self._world.redis
            if bool(redis.current) != bool(redis.state.get("head")):
                raise damaged("t", "half of its head is gone")
            return (redis.current, redis.state["head"]) if redis.current else None

        found: tuple[str, bytes] | None = await self._ask("head", read)
        return found

    async def blobs(self, model: str, digests: Iterable[str]) -> dict[str, bytes]:  # noqa: ARG002
        wanted, found = list(digests), dict[str, bytes]()
        for i in range(0, len(wanted), 3):

            def read(part: list[str] = wanted[i : i + 3]) -> dict[str, bytes]:
                state = self._world.redis.state
                return {d: state[f"b:{d}"] for d in part if f"b:{d}" in state}

            found |= await self._ask("blobs", read)
        return found

    async def put(self, model: str, blobs: Mapping[str, bytes]) -> None:  # noqa: ARG002
        items = list(blobs.items())
        for i in range(0, len(items), 3):
            part = dict(items[i : i + 3])
            await self._ask("put", functools.partial(self._world.redis.put, part))

    async def commit(self, model: str, new: Commit) -> Any:
        """Commit as the real store does. Others may act between blobs and head; the judge checks accepted heads."""
        await self.put(model, new.blobs)
        parent, digest, head, refs, keep, evict, _ = new
        world, wanted, cut = self._world, list(refs), list(self._cut())

        def command() -> str:
            before = world.redis.current
            world.torn += not world.redis.intact  # which this save may mend, while somebody looks at it
            verdict = world.redis.commit(parent, digest, head, wanted, keep, evict)
            world.count(verdict)
            version = json.loads(head).get("version") if model else ""
            world.say(
                f"{self._name}: commit of {digest[:6]} (version {version}) on {parent[:6] or 'nothing'}: {verdict}"
            )
            if verdict == "CONFLICT" and before == digest:
                raise Violation("a save was refused whose head is the current one")
            if before != world.redis.current:
                world.accepted(before, head, cut)
            return verdict

        return await self._ask("commit", command)
