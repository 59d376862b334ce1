"""A topic as a seed makes it, seen through the interface that learning awaits: what the log contract holds to Kafka."""

from collections.abc import Mapping

from service.errors import DependencyError, LogGap
from service.snapshots.head import Source
from service.streaming.dead_letters import DeadLetter
from service.streaming.offsets import DOUBTFUL, Offsets, Wrong
from service.streaming.records import Records
from tests.simulation.world import Record, Step, Topic, World


class SimulatedLog:
    """`streaming.ports.Log` for one process, assigned and revoked as `log.TopicLog` is."""

    topic = "t"

    def __init__(self, world: World, name: str, elsewhere: bool = False) -> None:
        """Of another cluster, where it is `elsewhere`."""
        self._world, self.name, self._elsewhere = world, name, elsewhere
        self.partitions: list[int] = []
        self.stopping = False
        self._assignment = self._acquired = 0
        self._at: dict[int, int] = {}
        self._sought: set[int] = set()
        self._pending: list[DeadLetter] = []

    def assign(self) -> None:
        """The group gives us the topic. The client goes on from committed offsets, where there are any."""
        self.partitions = list(range(len(self._topic.partitions)))
        committed = {} if self._elsewhere else self._world.committed
        self._at = {p: o for p, o in committed.items() if p in self.partitions}
        self._sought = set()
        self._assignment += 1

    def revoke(self) -> None:
        self.partitions = []
        self._assignment += 1

    async def acquire(self) -> bool:
        await Step("acquire", lambda: self.stopping or bool(self.partitions))
        if self.stopping or not self.partitions:
            return not self.stopping and await self.acquire()
        self._acquired = self._assignment
        return True

    @property
    def held(self) -> bool:
        return bool(self.partitions) and self._acquired == self._assignment and not self.stopping

    def release(self) -> None:
        pass

    @property
    def _topic(self) -> Topic:
        return self._world.elsewhere if self._elsewhere else self._world.topic

    async def _ask(self, what: str) -> Topic:
        """The topic that answers."""
        await Step(what)
        if self._world.chance(0.02):
            self._world.say(f"{self.name}: {what} fails")
            raise DependencyError(f"{what}: no answer", "kafka")
        return self._topic

    async def source(self) -> Source:
        topic = await self._ask("source")
        await Step("source done")
        return Source("elsewhere", "0") if self._elsewhere else Source("cluster", str(self._world.topics.index(topic)))

    async def bounds(self) -> dict[int, tuple[int, int]]:
        partitions = self.partitions
        if not partitions:
            return {}
        topic = await self._ask("bounds")
        found = {p: (topic.partitions[p].begin, topic.partitions[p].end) for p in partitions}
        await Step("bounds done")
        return found

    async def positions(self) -> dict[int, int]:
        await Step("positions")
        if any(p not in self._at for p in self.partitions):
            raise DependencyError("no position", "kafka")
        return {p: self._at[p] for p in self.partitions}

    async def read(self, partition: int, offset: int) -> Record | None:
        at = self._at
        topic = await self._ask("read")
        part = topic.partitions[partition]
        if not self.held or not part.begin <= offset < part.end:
            return None
        found = self._fetched(topic, partition, offset)[:1]
        at[partition] = offset + 1
        return found[0] if found and found[0].offset == offset else None

    def seek(self, offsets: Mapping[int, int]) -> None:
        self._at.update({p: o for p, o in offsets.items() if p in self.partitions})
        self._sought.update(offsets)

    async def poll(self, idle: bool = False) -> dict[int, Records]:  # noqa: ARG002 - time has no weight here
        if not self.held:
            return {}
        at, partitions, rng = self._at, list(self.partitions), self._world.rng
        topic = await self._ask("poll")
        polled: dict[int, Records] = {}
        rng.shuffle(partitions)
        for p in partitions:
            part = topic.partitions[p]
            if p not in at or rng.random() < 0.2:
                continue
            if not part.begin <= at[p] <= part.end:
                raise DependencyError("offset out of range", "kafka")
            # At its end a broker has nothing to give, whatever a batch says there.
            found = self._fetched(topic, p, at[p])[: rng.randint(1, 7)] if at[p] < part.end else []
            at[p] = found[-1].offset + 1 if found else part.end
            if p not in self._sought and len(found) > 1 and self._world.chance(0.3):
                self._world.count("fetch cut")
                found = found[rng.randint(1, len(found) - 1) :]
            self._sought.discard(p)
            if found:
                polled[p] = Records(found)
        await Step("polled")
        if not polled:
            self._world.now += 0.2
        return polled

    def _fetched(self, topic: Topic, partition: int, at: int) -> list[Record]:
        """Records as the client takes them from what the log says: those before where it stands it drops."""
        part, found = topic.partitions[partition], list[Record]()

        def has(offset: int) -> tuple[int, int]:
            return part.batches(offset, topic.compacted)[0][:2]

        def in_place(wrong: Wrong, *batch: int) -> bool:
            if batch[0] < part.begin:
                return True
            if wrong == "beyond" and batch[1] > part.end:
                return False
            before = has(batch[0] - 1) if batch[0] > part.begin else (0, batch[0])
            compacted = topic.compacted and wrong in ("unsure", "beyond") and before == batch
            return has(batch[0]) == batch and (before[1] == batch[0] or compacted)

        batches = part.batches(at, topic.compacted)
        if part.flipped and at < part.end and not batches:
            raise LogGap(f"the log has nothing from offset {at} of partition {partition} on")  # so the watchdog finds
        placed: tuple[int, ...] = ()
        end = part.end - at % 2  # a broker looks where its log ends before it reads there
        offsets = Offsets(at, end, compacted=topic.compacted, sure=lambda *batch: batch == placed)
        for i, (first, following, records) in enumerate(batches):
            then = batches[i + 1][0] if i + 1 < len(batches) else None
            wrong = offsets.wrong(first, following, then)
            if wrong in DOUBTFUL and in_place(wrong, first, following):
                placed = first, following
                wrong = offsets.wrong(first, following, then)
            if wrong:
                if found:
                    return found
                raise LogGap(f"offset {at} of partition {partition} is {wrong}: the log goes on with {first}")
            found += [record for record in records if record.offset >= at]
            at = following
        return found

    def commit(self, offsets: Mapping[int, int]) -> None:
        if self.held and not self._elsewhere:
            self._world.committed.update(offsets)

    async def publish(self, letter: DeadLetter) -> None:
        self._pending.append(letter)
        await Step("publish")
        if self._world.rng.random() < 0.3:
            self._acknowledge()

    async def flush(self) -> None:
        await Step("flush")
        if self._pending and (self._world.refusing or self._world.chance(0.1)):
            self._world.say(f"{self.name}: flush fails")
            raise DependencyError("dead letters: no answer", "kafka")
        self._acknowledge()
        await Step("flushed")

    def _acknowledge(self) -> None:
        if self._world.refusing:
            return
        for letter in self._pending:
            self._world.letters.setdefault(letter.key, set()).add(letter.value)
        self._pending = []
