"""Simulated Kafka, Redis and time with the interfaces that learning expects.

Every await is a `Step`: the scheduler decides which process continues or crashes there. The simulation assumes this of
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
from service.learning.records import PartitionId
from service.snapshots.head import damaged
from service.snapshots.ports import Commit
from service.streaming.records import Headers, KafkaRecord
from tests.join_oracle import JoinRecord

NAMES = "abcdefghijklmn"
VALUES: tuple[Any, ...] = (0.5, -1.0, 2.0, 0.1, -0.3, 1.5)
RAW = (*VALUES, True, False, "x", "y")
"""Values that are scaled and values that are not."""
WILD = (*RAW, 1e6)
"""The same, and one that is clipped."""
CLASSES = ("a", "b", "c")
BAD = (
    None, b"", b"no event", b'{"features":{"a":1}}', b'{"features":{"new1":1,"a":NaN},"label":1}',
    b'{"features":{"new2":1},"label":"perhaps"}', b'{"features":{"new3":1,"new4":1e31},"label":1}',
)  # fmt: skip


FIRST_LABEL_RANK = 1000
"""The rank of the first partition of labels."""
WINDOW = 1000
"""Milliseconds that a label may be later than its event."""


def partition_at(number: int, joined: bool) -> PartitionId:
    """The id of a partition in the simulation. If labels have a topic of their own, every second one is of labels."""
    return PartitionId(number // 2, ("events", "labels")[number % 2]) if joined else PartitionId(number)


def number_of(partition: PartitionId) -> int:
    """The number of a partition in the simulation."""
    return 2 * partition.number + (partition.topic == "labels") if partition.topic else partition.number


class Violation(AssertionError):
    """A guarantee of the service was broken."""


class Step:
    """An await: the scheduler continues here when `ready` holds, or never."""

    def __init__(self, name: str, ready: Callable[[], bool] = lambda: True) -> None:
        self.name, self.ready = name, ready

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
    joined: JoinRecord | None = None
    """What a join sees of it."""

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

    def batches(self, seek: int, compacted: bool) -> list[tuple[int, int, list[Record]]]:
        """The batches from an offset on: first offset, offset after the last, and records.

        The first is the batch that contains the offset, or else the next one, by the first offsets that headers state.
        A batch without records is a marker or was aborted; a compacted log has only the last of these.
        """
        start, to, stated = self.flipped or (self.end, self.end, 0)
        batches = [
            (offset, offset + 1, [self.records[offset]] if offset in self.records else [])
            for offset in range(self.end)
            if not start <= offset < to and (offset in self.records or not compacted or offset == self.end - 1)
        ]
        if self.flipped:
            moved = [self.records[o]._replace(offset=o - start + stated) for o in range(start, to) if o in self.records]
            batches.insert(sum(first < start for first, _, _ in batches), (stated, stated + to - start, moved))
        for i, (first, _, _) in enumerate(batches):
            if first >= seek:
                return batches[i - 1 :] if i and first > seek and batches[i - 1][1] > seek else batches[i:]
        return batches[-1:] if batches and batches[-1][1] > seek else []


class Topic:
    """A topic between its creation and its deletion."""

    def __init__(
        self, rng: random.Random, partitions: int, values: Sequence[Any] = VALUES, labels: Sequence[Any] = (1, -1),
        joined: bool = False,
    ) -> None:  # fmt: skip
        """`joined` makes it two topics, of events and of labels: see `partition_at`."""
        self._rng, self._values, self._labels, self.joined = rng, values, labels, joined
        self.time = 1_700_000_000_000
        """The timestamp of the last record, more or less."""
        self.partitions = [Partition() for _ in range(partitions)]
        self.compacted = False

    def grow(self) -> None:
        """Add a partition."""
        self.partitions.append(Partition())

    def produce(self) -> None:
        """Append a few records, or offsets without records, to a random partition."""
        part = self._rng.choice(self.partitions)
        for _ in range(self._rng.randint(1, 8)):
            if part.end and self._rng.random() < 0.1:
                part.end += self._rng.randint(1, 3)  # a transaction's marker, an aborted or compacted record
            else:
                self._write(part, part.end)
                part.end += 1

    def _write(self, part: Partition, offset: int) -> None:
        rng = self._rng
        if self.joined:
            part.records[offset] = self._joined_record(self.partitions.index(part), offset)
            return
        good = rng.random() > 0.15
        value = rng.choice(BAD)
        if good:
            features = {name: rng.choice(self._values) for name in rng.sample(NAMES, rng.randint(0, 4))}
            value = json.dumps({"features": features, "label": rng.choice(self._labels)}).encode()
        part.records[offset] = Record(offset, rng.randrange(1 << 40), rng.choice((None, b"k")), value, (), good)

    def _joined_record(self, number: int, offset: int) -> Record:
        """An event, with a label or without one, or a label, or something bad."""
        rng, of_labels = self._rng, number % 2 == 1
        self.time += rng.choice((0, 1, 10, 50)) if rng.random() < 0.98 else rng.choice((2 * WINDOW, 10 * WINDOW))
        time = self.time - rng.choice((0, 0, 0, 5, WINDOW // 2, 2 * WINDOW))
        if rng.random() < 0.01:
            time += 10 * 86_400_000
        kind, label, id_ = "label" if of_labels else "event", None, f"id{rng.randrange(40)}"
        if rng.random() < (0.9 if of_labels else 0.1):
            label = rng.choice(self._labels)
        value: dict[str, Any] = {"id": id_, "label": label}
        if not of_labels:
            value["features"] = {name: rng.choice(self._values) for name in rng.sample(NAMES, rng.randint(0, 4))}
        text = json.dumps(value).encode()
        if not (good := rng.random() > 0.1):
            kind, text = "other", rng.choice((b"", b"no event", b'{"label":1}', b'{"id":7.5,"label":1,"features":{}}'))
        rank = number // 2 + FIRST_LABEL_RANK * of_labels
        return Record(offset, time, None, text, (), good, JoinRecord(rank, offset, time, id_, kind, label))


@functools.lru_cache(maxsize=1024)
def refs(data: bytes) -> list[str]:
    """The digests of all blobs that a head refers to, read without our own code."""
    head = json.loads(data)
    arrays = [*head["arrays"].values(), *([head["reference"]] if head["reference"] else [])]
    return [*head["names"], *head["run_blobs"], *(d for a in arrays for d in (*a["base"], *a["deltas"]))]


class Redis:
    """One model's hash, with the semantics of commit.lua."""

    def __init__(self) -> None:
        self.state: dict[str, bytes] = {}
        self.past: list[dict[str, bytes]] = [{}]
        self.late: list[tuple[str, Callable[[], object]]] = []
        """Commands that will run some time after their sender gave up."""
        self.hash = True
        """Whether the key is a hash; False if a value of another type has replaced it."""
        self.newer: set[str] = set()
        """Digests of heads with content that this release does not know."""

    @property
    def current(self) -> str:
        return self.state.get("digest", b"").decode(errors="replace")

    @property
    def seen_digest(self) -> str | None:
        """The digest that one request for many models returns, see `RedisStore.digests`."""
        digest = self.state.get("digest")
        is_known = digest or not self.state or "identity" in self.state
        return self.current if self.hash and (digest or b"").isascii() and is_known else None

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
        versions = [field for field in self.state if field[:2] == "v:"]
        field = rng.choice(("digest", "head", *versions[:1], ""))
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
        head = json.loads(self.state["head"])
        head |= {"version": head["version"] + 1, "parent": self.current}
        target, name, value = rng.choice((
            (head, "later", None), (head, "schema", 2), (head["observations"], "later", 1),
            (head["identity"], "later", None), (head["identity"], "fold", FOLD + 1),
            (head["arrays"], "later", {"base": [], "deltas": []}),
        ))  # fmt: skip
        target[name] = value
        self.state["head"] = json.dumps(head).encode()
        digest = hashlib.sha256(self.state["head"]).hexdigest()
        self.state["digest"] = digest.encode()
        self.newer.add(digest)
        return name

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Restore a copy of the data."""
        self.state, self.hash = dict(state), True

    def put(self, blobs: Mapping[str, bytes]) -> None:
        self.state.update((f"b:{digest}", blob) for digest, blob in blobs.items())
        self._done()

    def commit(self, parent: str, digest: str, head: bytes, blob_names: Iterable[str], keep: str, evict: str) -> str:
        """The steps of commit.lua, in its order."""
        state, current = self.state, self.current
        if current == digest:
            return "OK"
        if current != parent:
            return "CONFLICT"
        if not current and "head" in state:
            return "CONFLICT"
        required = state.get("identity")
        if required and required + b',"state_digest":' not in head:
            return "CONFLICT"
        live = {f"b:{name}" for name in blob_names}
        if not live <= state.keys():
            return "MISSING"
        heads = [state["head"]] if "head" in state else []
        heads += [text for field, text in state.items() if field[:2] == "v:" and field != f"v:{evict}"]
        sweep = True
        for text in heads:
            try:
                live |= {f"b:{name}" for name in refs(text)}
            except (ValueError, LookupError, TypeError, AttributeError):
                sweep = False
        state["head"], state["digest"] = head, digest.encode()
        state.pop("identity", None)
        if keep:
            state[f"v:{keep}"] = head
        if evict and evict != keep:
            state.pop(f"v:{evict}", None)
        if sweep:
            self.sweep(live)
        self._done()
        return "OK"

    def sweep(self, live: set[str]) -> None:
        """Remove the blobs to which no head refers."""
        for field in [f for f in self.state if f[:2] == "b:" and f not in live]:
            del self.state[field]

    def check_blobs(self) -> None:
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
        self.values = WILD if seed % 16 == 13 else RAW if seed % 8 == 5 else VALUES
        self.labels: Sequence[Any] = CLASSES if seed % 8 == 4 else (1, -1)
        self.joined = (seed % 10 == 5 or seed % 40 in (4, 22)) and seed % 13 != 5
        count = self.rng.choice((1, 1, 2, 3)) + self.joined
        self.topic = Topic(self.rng, count, self.values, self.labels, self.joined)
        self.foreign_topic = Topic(self.rng, 1 + self.joined, self.values, self.labels, self.joined)
        """A topic of the same name on another cluster."""
        self.topics = [self.foreign_topic, self.topic]
        self.committed: dict[int, int] = {}
        self.letters: dict[bytes, set[bytes | None]] = {}
        self.history: list[str] = []
        self.counts: dict[str, int] = {}
        self.on_accepted: Callable[[str, bytes, list[tuple[int, int, int]]], None] = lambda *_: None

    def topics_of(self, source: Any) -> list[Topic]:
        """The topic that a head was learned from; the first topic is on the other cluster."""
        return [self.topics[int(source["topic_id"])]]

    def say(self, message: str) -> None:
        self.history.append(f"{self.now:8.2f} {message}")

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def chance(self, probability: float) -> bool:
        return self.faulty and self.rng.random() < probability


class Twin:
    """The world of a second model that learns the same topic: it has its own snapshots and dead letters."""

    def __init__(self, world: World) -> None:
        self._world, self.redis, self.torn = world, Redis(), 0
        self.committed: dict[int, int] = {}
        self.letters: dict[bytes, set[bytes | None]] = {}
        self.on_accepted: Callable[[str, bytes, list[tuple[int, int, int]]], None] = lambda *_: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


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

    async def _ask(self, name: str, run: Callable[[], Any]) -> Any:
        world = self._world

        def command() -> Any:
            if not world.redis.hash:
                raise damaged("t", "it is not a hash")
            return run()

        await Step(name)
        if world.chance(0.03):
            late = world.rng.random() < 0.5
            world.count("late" if late else "unanswered")
            if late:
                world.redis.late.append((f"{name} of {self._name}", command))
            world.say(f"{self._name}: {name} fails{', and will come late' if late else ''}")
            self.missing_since = world.now + 1.0
            raise DependencyError(f"{name}: no answer", "redis")
        answer = command()
        if world.chance(0.03):
            world.count("doubled")
            world.say(f"{self._name}: {name} twice")
            if world.rng.random() < 0.5:
                answer = command()
            else:
                world.redis.late.append((f"{name} of {self._name}, again", command))
        await Step(f"{name} done")
        if world.chance(0.03):
            world.count("reply lost")
            world.say(f"{self._name}: reply to {name} lost")
            self.missing_since = world.now + 1.0
            raise DependencyError(f"{name}: reply lost", "redis")
        self.missing_since = 0.0
        return answer

    async def digest(self, model: str) -> str:
        answer: str = await self._ask("digest", lambda: self._world.redis.current)
        if not answer and (head := await self.head(model)):
            return head[0]
        return answer

    async def head(self, model: str) -> tuple[str, bytes] | None:  # noqa: ARG002 - there is one model
        def read() -> tuple[str, bytes] | None:
            redis = self._world.redis
            if bool(redis.current) != bool(redis.state.get("head")):
                raise damaged("t", "half of its head is gone")
            return (redis.current, redis.state["head"]) if redis.current else None

        answer: tuple[str, bytes] | None = await self._ask("head", read)
        return answer

    async def required_identity(self, model: str) -> bytes | None:  # noqa: ARG002
        answer: bytes | None = await self._ask("required identity", lambda: self._world.redis.state.get("identity"))
        return answer

    async def blobs(self, model: str, digests: Iterable[str]) -> dict[str, bytes]:  # noqa: ARG002
        names, blobs = list(digests), dict[str, bytes]()
        for i in range(0, len(names), 3):

            def read(chunk: list[str] = names[i : i + 3]) -> dict[str, bytes]:
                state = self._world.redis.state
                return {d: state[f"b:{d}"] for d in chunk if f"b:{d}" in state}

            blobs |= await self._ask("blobs", read)
        return blobs

    async def put(self, model: str, blobs: Mapping[str, bytes]) -> None:  # noqa: ARG002
        items = list(blobs.items())
        for i in range(0, len(items), 3):
            chunk = dict(items[i : i + 3])
            await self._ask("put", functools.partial(self._world.redis.put, chunk))

    async def commit(self, model: str, new: Commit) -> Any:
        """Commit as the real store does. Others may act between blobs and head; the judge checks accepted heads."""
        await self.put(model, new.blobs)
        parent, digest, head, refs, keep, evict, _ = new
        world, blob_names, cut = self._world, list(refs), list(self._cut())

        def command() -> str:
            previous, required = world.redis.current, world.redis.state.get("identity")
            world.torn += not world.redis.intact  # this save may repair it while another process reads it
            verdict = world.redis.commit(parent, digest, head, blob_names, keep, evict)
            world.count(verdict)
            version = json.loads(head).get("version") if model else ""
            world.say(
                f"{self._name}: commit of {digest[:6]} (version {version}) on {parent[:6] or 'nothing'}: {verdict}"
            )
            if verdict == "CONFLICT" and previous == digest:
                raise Violation("a save was refused although its head is the current one")
            if verdict == "OK" and required and json.loads(head)["identity"] != json.loads(required):
                raise Violation("a reset requires other settings of this head")
            if previous != world.redis.current:
                world.on_accepted(previous, head, cut)
            return verdict

        return await self._ask("commit", command)
