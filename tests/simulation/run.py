"""The scheduler: one seed's run from the first start to the end of the log, with faults in between."""

import contextlib
import hashlib
import json
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from msgspec.structs import replace

from service.errors import (
    AnotherCluster,
    DependencyError,
    Diverged,
    IdentityChanged,
    LogLost,
    SnapshotDamaged,
    SnapshotForeign,
)
from service.learning.events.batch import use_compiled_reader
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import DEFAULT, CandidateOptions, Options
from service.snapshots import blobs, keeper
from service.snapshots.head import Writer
from service.snapshots.keeper import Keeper, fetch_newest
from service.streaming import learn_loop
from tests.simulation.judge import Judge
from tests.simulation.log import SimulatedLog
from tests.simulation.world import CLASSES, RAW, Clock, SimulatedStore, Step, Topic, Violation, World

MOST_BLOCKS = 3
"""The most blocks of runs since the last kept version."""
PATIENCE = 12_000
"""After the last fault, everything is learned within these steps, or a process says why not."""


class Tell:
    """The observer of one process. It checks that what it hears is true."""

    def __init__(self, world: World, judge: Judge, log: SimulatedLog, identity: Identity, group: str) -> None:
        self._world, self._judge, self._log, self._identity, self._group = world, judge, log, identity, group
        self._name, self._torn = log.name, world.torn
        self.reason: Exception | None = None

    def learning(self, learner: Learner, head: Any, digest: str) -> None:
        self.reason, self._torn = None, self._world.torn
        self._world.say(f"{self._name}: learns from {learner.next}")
        if digest not in self._judge.known or learner.identity != self._identity:
            raise Violation(f"version {head.version} was never accepted, or is of other settings")

    def saved(self, saved: Any) -> None:
        self._torn = self._world.torn
        if saved.digest not in self._judge.known:
            raise Violation(f"version {saved.head.version} is said to be saved, and was not accepted")

    def stopped(self, error: Exception) -> None:
        self.reason = error
        self._world.count(f"stopped: {type(error).__name__}")
        self._world.say(f"{self._name}: stops: {type(error).__name__}: {error}")
        if "holds offsets" in str(error) and not self._log.held:
            raise Violation("stopped over the bounds of a topic that is not held")
        readable = self._world.torn == self._torn and self._world.redis.intact
        if isinstance(error, SnapshotDamaged | SnapshotForeign) and readable:
            raise Violation(f"stopped without need: {error}")

    def rewound(self, cause: str) -> None:
        self._world.count(f"rewound: {cause}")
        self._world.say(f"{self._name}: drops its state: {cause}")

    def outside_writer(self, writer: Writer) -> None:
        self._world.count("outsider")
        if writer.group == self._group:
            raise Violation(f"{writer} is one of us")

    def reconciled(self, began: Sequence[str], dropped: Sequence[str], following: Mapping[int, int]) -> None:
        self._world.count("candidates reconciled")
        self._world.say(f"{self._name}: candidates {began} begin at {following}, {dropped} are dropped")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


async def offload(function: Any, *arguments: Any) -> Any:
    await Step("offload")
    answer = function(*arguments)
    await Step("offloaded")
    return answer


class Process:
    """A process that learns, from its start to its end."""

    def __init__(
        self,
        world: World,
        judge: Judge,
        name: str,
        identity: Identity,
        keeping: dict[str, Any],
        group: str = "ours",
        elsewhere: bool = False,
    ) -> None:
        self.name, self.log, self.elsewhere = name, SimulatedLog(world, name, elsewhere), elsewhere
        self.tell = Tell(world, judge, self.log, identity, group)
        clock = Clock(world)
        store = SimulatedStore(world, name, lambda: saver._doubtful[1] if saver._doubtful else [])
        saver = Keeper("t", store, clock, offload, writer=Writer(group, name), **keeping)
        followed = bool(world.redis.state) and world.rng.random() < 0.5
        self.seen_digest: str | None = None
        log: Any = self.log
        self.learning = learn_loop.LearnLoop(
            log, saver, clock, self.tell, identity, followed=lambda: followed, seen_digest=lambda: self.seen_digest
        )
        self.coroutine = self.learning.run()
        self.at: Step | None = Step("start")


class Reader:
    """A process that follows the model's snapshots. It must not find damage that nobody made."""

    def __init__(self, world: World) -> None:
        self.name, self.world = "reader", world
        self.coroutine = self.run()
        self.at: Step | None = Step("start")

    async def run(self) -> None:
        store, clock, before = SimulatedStore(self.world, "reader"), Clock(self.world), None
        while True:
            torn = self.world.torn
            try:
                before = await fetch_newest(store, "t", offload, DEFAULT, before)
            except DependencyError:
                pass
            except (SnapshotDamaged, SnapshotForeign):
                # If Redis was emptied and a head came back, the head looks as if it had been there all along.
                if torn == self.world.torn and self.world.redis.intact:
                    raise
            await clock.sleep(0.3)


@contextlib.contextmanager
def small(slice_: int, block: int, seconds: float) -> Iterator[None]:
    """Make slices and blocks so small that a few records fill several; with 0 seconds a slice is one record."""
    with (
        mock.patch.object(learn_loop, "MAX_SLICE_RECORDS", slice_),
        mock.patch.object(learn_loop, "SLICE_SECONDS", seconds),
        mock.patch.object(keeper, "PAUSE_PER_COST", 2),  # a save is due sooner
        mock.patch.object(blobs, "BLOCK_COLUMNS", block),
        mock.patch.object(blobs, "BLOCK_NAMES", block),
        mock.patch.object(blobs, "BLOCK_RUNS", block),
        mock.patch.object(keeper, "MAX_RUNS", MOST_BLOCKS * block),
    ):
        yield


class Simulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        use_compiled_reader(False)  # it cuts slices at other records: a seed would have two histories
        self.seed, self.world = seed, World(seed)
        self.judge, rng = Judge(self.world), self.world.rng
        self.world.accepted = self.accepted
        self.keeping = {"keep": rng.choice((0, 1, 1, 3)), "keep_every": rng.choice((0.5, 2.0, 10.0))}
        # Simulated time stands still in a slice: it is learned whole, or with 0 seconds record by record.
        self.sizes = rng.choice((2, 3, 200)), rng.choice((2, 3, 8)), 0.0 if seed % 3 == 0 else 1.0
        # Some models diverge, after a few events or a few dozen.
        recent: dict[str, Any] = {"average": "recent", "half_life": 3} if seed % 4 == 1 or seed % 16 == 12 else {}
        scaled: dict[str, Any] = {"scale": "standard"} if self.world.values is RAW else {}
        eta = rng.choice((1.0, 0.5, 0.3)) * (3e14 if seed % 16 == 9 else 1.0)
        margins: dict[str, Any] = {"margin": (0.5, 4.0)} if seed % 8 == 3 else {}
        classes: dict[str, Any] = {"labels": CLASSES} if self.world.labels is CLASSES else {}
        self.identity = Identity(eta=eta, **recent, **scaled, **margins, **classes)
        # Some processes learn candidates too.
        self.besides = random.Random(f"candidates of {seed}")
        self.processes: list[Process] = []
        self.paces: dict[str, float] = {}
        self.reader = Reader(self.world)
        self.started, self.next_look = 0, 0.0
        # An own random generator, so that flips do not change the rest of a history.
        self.flips = random.Random(f"flips of {seed}")
        self.world.topic.compacted = self.flips.random() < 0.2
        self.flipping = self.flips.choice((0.0, 0.003))
        self.kept_at = {"": 0.0}
        """When the last kept version of each accepted head was accepted."""
        wanted: list[tuple[Callable[[], None], float]] = [
            (self.spawn, 1.0), (self.crash, 1.0), (self.stop, 0.3), (self.assign, 3.0), (self.revoke, 2.0),
            (self.roll_back, 0.7), (self.empty, 0.15), (self.late, 2.0), (self.world_produces, 5.0), (self.trim, 0.1),
            (self.recreate, 0.07), (self.add_partition, 0.15), (self.jump, 0.3), (self.reset, 1.0),
            (self.change_pace, 1.0), (self.refuse, 0.3),
        ]  # fmt: skip
        # Only every fourth seed has these, so that the other histories stay the same.
        self.strange = seed % 4 == 2
        if self.strange:
            wanted += [(self.damage, 0.3), (self.newer, 0.2), (self.give_back, 1.0)]
        self.faults = [(fault, weight * rng.choice((0.0, 0.5, 1.0, 1.0, 3.0))) for fault, weight in wanted]
        self.often = rng.choice((0.02, 0.05, 0.15))

    def run(self) -> World:
        """Run the whole history; raises Violation with it."""
        rng = self.world.rng
        try:
            with small(*self.sizes):
                for _ in range(rng.randint(1, 4)):
                    self.world.topic.produce()
                self.spawn()
                self.processes[0].log.assign()
                for _ in range(rng.randint(300, 3000)):
                    if self.flips.random() < self.flipping:
                        self.flip()
                    if rng.random() < self.often:
                        fault = rng.choices([f for f, _ in self.faults], [w for _, w in self.faults])[0]
                        fault()
                    else:
                        self.step()
                self.heal()
                self.settle()
                self.keep()
                self.world.redis.whole()
                self.judge.letters()
        except Violation as violation:
            history = "\n".join(self.world.history)
            raise Violation(f"{history}\nseed {self.seed}: {violation}") from violation
        finally:
            for process in self.processes:
                process.coroutine.close()
            self.reader.coroutine.close()
        return self.world

    def settle(self) -> None:
        """Step until everything is learned, or a process said why not."""
        for _ in range(PATIENCE):
            if self.learned() or self.excused():
                return
            self.step()
        raise Violation("not everything is learned, and nobody says why")

    def keep(self) -> None:
        """Check that a version is kept when it is due, even if the wall clock jumped before."""
        if not self.keeping["keep"] or not self.learned():
            return
        self.world.now += 2 * self.keeping["keep_every"]
        due = self.world.now
        while self.judge.whole():
            self.world.topic.produce()
        self.settle()
        if self.learned() and self.kept_at[self.world.redis.current] < due:
            raise Violation("no version was kept though one was due")

    def accepted(self, before: str, head: bytes, cut: list[tuple[int, int, int]]) -> None:
        """Let the judge check an accepted head, and check the length of the order that it records."""
        self.judge.accepted(before, head, cut)
        digest, said = hashlib.sha256(head).hexdigest(), json.loads(head)
        kept = bool(said["kept"]) and said["kept"][-1]["version"] == said["version"]
        self.kept_at[digest] = self.world.now if kept else self.kept_at[before]
        if kept and not self.keeping["keep"]:
            self.world.count("kept for its order")
        if (order := len(self.judge.known[digest].runs)) > keeper.MAX_RUNS:
            raise Violation(f"version {said['version']} records the order of {order} runs")

    def step(self) -> None:
        """Let one process that is ready run to its next await; if none is ready, let time pass."""
        world = self.world
        world.now += world.rng.random() * 0.02
        if world.now > self.next_look:
            self.next_look = world.now + 1.0
            for process in self.processes:
                process.seen_digest = world.redis.seen_digest
        everybody: list[Process | Reader] = [*self.processes, self.reader]
        ready = [p for p in everybody if p.at is not None and p.at.ready()]
        if not ready:
            world.now += 0.1
            return
        who = world.rng.choices(ready, [self.paces.get(p.name, 1.0) for p in ready])[0]
        try:
            who.at = who.coroutine.send(None)
        except StopIteration:
            world.say(f"{who.name}: ends")
            self.processes = [p for p in self.processes if p is not who]
        except Violation:
            raise
        except Exception as error:
            world.history.append(traceback.format_exc())
            raise Violation(f"{who.name} ended with {type(error).__name__}: {error}") from error

    def _note(self, what: str) -> None:
        self.world.count(what.partition(":")[0])
        self.world.say(f"-- {what}")

    def spawn(self) -> None:
        """Start a process; a few have other settings."""
        if len(self.processes) < 4:
            self.started += 1
            rng = self.world.rng
            identity = Identity(eta=0.25, labels=self.identity.labels) if self.world.chance(0.03) else self.identity
            group = "theirs" if self.strange and rng.random() < 0.2 else "ours"
            elsewhere = self.strange and self.world.chance(0.1)
            keeping = self.keeping | {"options": self.options(identity)}
            process = Process(self.world, self.judge, f"p{self.started}", identity, keeping, group, elsewhere)
            self.processes.append(process)
            self.paces[process.name] = rng.choice((0.1, 1.0, 1.0))
            self._note(f"start: {process.name}{', other settings' if identity is not self.identity else ''}")
            if elsewhere:
                self._note("elsewhere")
                self.world.elsewhere.produce()

    def options(self, identity: Identity) -> Options:
        """Every third seed with two labels has some or all candidates. One of them diverges, one changes."""
        rng = self.besides
        if self.seed % 3 != 1 or identity.multiclass:
            return DEFAULT
        every: dict[str, Any] = {
            "wide": {"margin": (0.5, 3.0)}, "calm": {"average": "recent", "half_life": 4}, "wild": {"eta": 3e14},
            "slow": {"eta": identity.eta * rng.choice((0.5, 0.5, 0.5, 0.25))},
        }  # fmt: skip
        names = rng.choice((list(every), list(every), rng.sample(list(every), 2), []))
        candidates = {name: CandidateOptions(replace(identity, **every[name])) for name in names}
        return Options(candidates={name: one for name, one in candidates.items() if one.identity != identity})

    def _one(self) -> Process | None:
        return self.world.rng.choice(self.processes) if self.processes else None

    def crash(self) -> None:
        if process := self._one():
            self.processes.remove(process)
            process.coroutine.close()
            self._note(f"crash: {process.name} at {process.at.at if process.at else '?'}")

    def stop(self) -> None:
        if process := self._one():
            process.log.stopping = True
            self._note(f"stop: {process.name}")

    def assign(self) -> None:
        """Assign the topic; the process that had it may hear of that much later, or never."""
        if process := self._one():
            process.log.assign()
            self._note(f"assign: {process.name}")

    def revoke(self) -> None:
        if process := self._one():
            process.log.revoke()
            self._note(f"revoke: {process.name}")

    def change_pace(self) -> None:
        if process := self._one():
            self.paces[process.name] = self.world.rng.choice((0.002, 0.05, 1.0, 5.0))

    def refuse(self) -> None:
        """Remove the dead-letter topic, or restore it."""
        self.world.refusing = not self.world.refusing
        self._note(f"dead letters {'refused' if self.world.refusing else 'taken'}")

    def roll_back(self) -> None:
        redis, rng = self.world.redis, self.world.rng
        recent = redis.past[-rng.choice((2, 3, 5, 10, 1000)) :]
        redis.give_back(rng.choice(recent))
        self.world.torn += 1
        self._note(f"redis rolled back: to {redis.current[:6] or 'nothing'}")

    def empty(self) -> None:
        self.world.redis.give_back({})
        self.world.torn += 1
        self._note("redis emptied")

    def damage(self) -> None:
        if self.world.redis.state:
            self.world.torn += 1
            self._note(f"damage: {self.world.redis.damage(self.world.rng)}")

    def newer(self) -> None:
        redis = self.world.redis
        if redis.current and redis.intact:
            self.world.torn += 1
            self._note(f"a newer release saved: {redis.write_newer(self.world.rng)}")

    def give_back(self) -> None:
        """Replace unreadable data by the last readable copy."""
        if not self.world.redis.intact:
            self.world.redis.give_back(self.world.redis.past[-1])
            self.world.torn += 1
            self._note(f"given back: {self.world.redis.current[:6] or 'nothing'}")

    def reset(self) -> None:
        """Reset the model if a process has stopped, as an operator does."""
        if any(p.tell.reason for p in self.processes):
            self.empty()

    def late(self) -> None:
        redis = self.world.redis
        if redis.late:
            what, command = redis.late.pop(self.world.rng.randrange(len(redis.late)))
            self._note(f"late: {what}")
            with contextlib.suppress(SnapshotDamaged):
                command()
            redis.whole()

    def world_produces(self) -> None:
        self.world.topic.produce()

    def trim(self) -> None:
        part = self.world.rng.choice(self.world.topic.partitions)
        if offsets := [o for o in part.records if o >= part.begin]:
            part.begin = self.world.rng.choice(offsets)
            self._note(f"trim: partition {self.world.topic.partitions.index(part)} to {part.begin}")

    def flip(self) -> None:
        """Flip a bit of the base offset, which no checksum covers, of a batch with a record.

        The damaged batch is made of several: it does not join one that a process has read with a later one.
        """
        topic = self.world.topic
        part = self.flips.choice(topic.partitions)
        start = self.flips.choice([o for o in part.records if o >= part.begin] or [-1])
        if start >= 0 and part.flipped is None:
            to = min(part.end, start + self.flips.randint(1, 5))
            says = start ^ 1 << self.flips.choice((0, 1, 2, 3, 4, 5, 8, 40))
            after = min((o for o in part.records if o >= to), default=says + to - start)
            # In a compacted log, only other batches that it overlaps show that a batch is misplaced.
            index = topic.partitions.index(part)
            joins = any(process.log.has_read_into(index, start, to) for process in self.processes)
            if not joins and (not topic.compacted or (start < says and after < says + to - start)):
                part.flipped = start, to, says
                self._note(f"base offset flipped: {index}:{part.flipped}")

    def recreate(self) -> None:
        world = self.world
        world.topic = Topic(world.rng, len(world.topic.partitions), world.values, world.labels)
        world.topics.append(world.topic)
        world.committed = {}
        for _ in range(world.rng.randint(0, 12)):
            world.topic.produce()
        self._note("topic recreated")
        for process in self.processes:  # a process that sees only the new topic does not lose it
            if world.rng.random() < 0.5:
                process.log.revoke()

    def add_partition(self) -> None:
        if len(self.world.topic.partitions) < 4:
            self.world.topic.grow()
            self._note("partition added")

    def jump(self) -> None:
        self.world.jump += self.world.rng.choice((-3600.0, 3600.0, -1.0, 5.0))
        self._note("wall clock jumps")

    def heal(self) -> None:
        """End the faults: late commands arrive, and one process runs and has the topic."""
        self._note("faults end")
        self.world.faulty = self.world.refusing = False
        while self.world.redis.late:
            self.late()
        self.give_back()
        for process in self.processes:
            process.log.revoke()
        self.paces = {}
        if mended := [p for p in self.world.topic.partitions if p.flipped and self.flips.random() < 0.9]:
            for part in mended:  # new processes start, which did not stop because of it
                part.flipped = None
            for process in self.processes:
                process.log.stopping = True
        for process in self.processes[:]:
            if process.learning._identity != self.identity or process.log.stopping or process.elsewhere:
                self.processes.remove(process)
                process.coroutine.close()
        if not self.processes or self.world.rng.random() < 0.3:
            self.spawn()
        self.last = self.processes[-1]
        self.last.tell.reason = None
        self.last.log.assign()

    def learned(self) -> bool:
        """Whether the current head covers the log, and the process did not stop."""
        return self.judge.whole() and self.last.tell.reason is None

    def excused(self) -> bool:
        """Whether the process stopped; raises Violation if its reason is not a good one."""
        reason, world = self.last.tell.reason, self.world
        if reason is None:
            return False
        digest = world.redis.current
        if self.last.learning._keeper.digest != digest or self.last.at is None or self.last.at.at != "sleep":
            return False  # a zombie saved meanwhile: the process checks again
        bounds = [(part.begin, part.end) for part in world.topic.partitions]
        if isinstance(reason, IdentityChanged) and digest:
            good = json.loads(world.redis.state["head"])["identity"]["eta"] != self.identity.eta
        elif isinstance(reason, Diverged) and digest:
            good = self.judge.diverges(digest)
        elif isinstance(reason, LogLost):
            head = self.judge.known[digest] if digest else None
            starts = [head.next.get(p, 0) if head else 0 for p in range(len(bounds))]
            lost = any(not begin <= o <= end for o, (begin, end) in zip(starts, bounds, strict=True))
            # A misplaced batch stops learning before it, or at a start that looks for the last record in it. If it
            # overlaps with the first batch after a seek, nothing shows which of the two is misplaced.
            for p, part in enumerate(world.topic.partitions):
                if part.flipped:
                    start, to, says = part.flipped
                    behind = starts[p] > max(to, says + to - start)
                    lost |= not behind and len(part.records.keys() & range(starts[p], start)) <= 1
            good = lost or (head and head.source["topic_id"] != str(world.topics.index(world.topic)))
        elif isinstance(reason, AnotherCluster) and digest:
            good = self.judge.known[digest].source["cluster"] == "elsewhere"
        else:
            good = False
        if not good:
            raise Violation(f"stopped without need: {type(reason).__name__}: {reason}")
        world.count("excused")
        return True
