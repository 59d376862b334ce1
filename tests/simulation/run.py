"""The scheduler: one seed's run from the first start to the end of the log, with faults in between."""

import contextlib
import hashlib
import json
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest import mock

import msgspec
from msgspec.structs import replace

from service import errors
from service.learning import best
from service.learning.events.event_reader import use_compiled_reader
from service.learning.identity import Identity, JoinRules
from service.learning.learner import Learner
from service.learning.options import DEFAULT, CandidateOptions, Options
from service.learning.records import PartitionId
from service.snapshots import blobs, keeper
from service.snapshots.head import Writer
from service.snapshots.keeper import Keeper, fetch_newest
from service.streaming import learn_loop
from tests.simulation.judge import Judge
from tests.simulation.log import SimulatedLog
from tests.simulation.world import (
    CLASSES,
    RAW,
    WILD,
    WINDOW,
    Clock,
    SimulatedStore,
    Step,
    Topic,
    Twin,
    Violation,
    World,
    number_of,
)

MAX_BLOCKS = 3
"""The maximum number of blocks of runs since the last kept version."""
JOINED = Options(label_topic="labels")
"""The options of all models: in some simulations labels have a topic of their own."""
MAX_SETTLE_STEPS = 12_000
"""Steps after the last fault in which everything must be learned, or a process must report an error."""


class ProcessObserver:
    """The observer of one process. It checks that each report is true."""

    def __init__(self, world: World, judge: Judge, log: SimulatedLog, identity: Identity, group: str) -> None:
        self._world, self._judge, self._log, self._identity, self._group = world, judge, log, identity, group
        self._name, self._torn = log.name, world.torn
        self.reason: Exception | None = None

    def learning(self, learner: Learner, head: Any, digest: str) -> None:
        self.reason, self._torn = None, self._world.torn
        self._world.say(f"{self._name}: learns from {learner.next}")
        if digest not in self._judge.heads or learner.identity != self._identity:
            raise Violation(f"version {head.version} was never accepted, or has other settings")

    def rebuilding(self, *_: int) -> None:
        self.reason = None

    def saved(self, save: Any) -> None:
        self._torn = self._world.torn
        if save.digest not in self._judge.heads:
            raise Violation(f"version {save.head.version} is reported as saved, but was not accepted")

    def stopped(self, error: Exception) -> None:
        self.reason = error
        self._world.count(f"stopped: {type(error).__name__}")
        self._world.say(f"{self._name}: stops: {type(error).__name__}: {error}")
        if "holds offsets" in str(error) and not self._log.held:
            raise Violation("stopped because of the bounds of a topic that is not held")
        readable = self._world.torn == self._torn and self._world.redis.intact
        if isinstance(error, errors.SnapshotDamaged | errors.SnapshotForeign) and readable:
            raise Violation(f"stopped without need: {error}")

    def rewound(self, cause: str) -> None:
        self._world.count(f"rewound: {cause}")
        self._world.say(f"{self._name}: drops its state: {cause}")

    def outside_writer(self, writer: Writer) -> None:
        self._world.count("outsider")
        if writer.group == self._group:
            raise Violation(f"{writer} belongs to this group")

    def reconciled(self, began: Sequence[str], dropped: Sequence[str], following: Mapping[PartitionId, int]) -> None:
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
        keeper_options: dict[str, Any],
        group: str = "ours",
        foreign: bool = False,
    ) -> None:
        self.name, self.log, self.foreign = name, SimulatedLog(world, name, foreign), foreign
        self.observer = ProcessObserver(world, judge, self.log, identity, group)
        clock = Clock(world)
        store = SimulatedStore(world, name, lambda: saver._doubtful[1] if saver._doubtful else [])
        saver = Keeper("t", store, clock, offload, writer=Writer(group, name), **keeper_options)
        followed = bool(world.redis.state) and world.rng.random() < 0.5
        self.seen_digest: str | None = None
        log: Any = self.log
        self.learning = learn_loop.LearnLoop(
            log, saver, clock, self.observer, identity, followed=lambda: followed, seen_digest=lambda: self.seen_digest
        )
        self.coroutine = self.learning.run()
        self.waiting: Step | None = Step("start")


class Reader:
    """A process that follows the model's snapshots. It must not report damage that does not exist."""

    def __init__(self, world: World) -> None:
        self.name, self.world = "reader", world
        self.coroutine = self.run()
        self.waiting: Step | None = Step("start")

    async def run(self) -> None:
        store, clock, snapshot = SimulatedStore(self.world, "reader"), Clock(self.world), None
        while True:
            torn = self.world.torn
            try:
                snapshot = await fetch_newest(store, "t", offload, DEFAULT, snapshot)
            except errors.DependencyError:
                pass
            except (errors.SnapshotDamaged, errors.SnapshotForeign):
                # If Redis was emptied and a head came back, nothing shows that the head was missing meanwhile.
                if torn == self.world.torn and self.world.redis.intact:
                    raise
            if snapshot and snapshot.learner.identity != snapshot.head.identity:
                raise Violation("the reader has other settings than the head")
            await clock.sleep(0.3)


class Operator(Reader):
    """Amends the model to the settings of the simulation, as `perceptron amend` does."""

    def __init__(self, simulation: "Simulation") -> None:
        super().__init__(simulation.world)
        self.name, self.simulation = "operator", simulation

    async def run(self) -> None:
        options = dict[str, Any](self.simulation.keeper_options, keep_every=0.0)
        store = SimulatedStore(self.world, self.name, lambda: saver._doubtful[1] if saver._doubtful else [])
        saver = Keeper("t", store, Clock(self.world), offload, **options)
        with contextlib.suppress(errors.PerceptronError):
            while (learner := await saver.restore()) and learner.identity != self.simulation.identity:
                learner.amend(self.simulation.identity)
                assert saver.head
                if await saver.save(learner, {}, saver.head.source):
                    self.world.count("amended")


@contextlib.contextmanager
def small_slices(slice_: int, block: int, seconds: float) -> Iterator[None]:
    """Make slices and blocks so small that a few records fill several; with 0 seconds a slice is one record."""
    with (
        mock.patch.object(learn_loop, "MAX_SLICE_RECORDS", slice_),
        mock.patch.object(learn_loop, "SLICE_SECONDS", seconds),
        mock.patch.object(keeper, "PAUSE_PER_COST", 2),  # a save is due sooner
        mock.patch.object(blobs, "BLOCK_COLUMNS", block),
        mock.patch.object(blobs, "BLOCK_NAMES", block),
        mock.patch.object(blobs, "BLOCK_RUNS", block),
        mock.patch.object(keeper, "MAX_RUNS", MAX_BLOCKS * block),
        mock.patch.object(best, "DECISION_EVENTS", 5),
    ):
        yield


class Simulation:
    """One seed."""

    def __init__(self, seed: int, twin_of: World | None = None) -> None:
        use_compiled_reader(False)  # it cuts slices at other records: a seed would have two histories
        self.seed, self.is_twin = seed, twin_of is not None
        self.world = cast(World, Twin(twin_of)) if twin_of else World(seed)
        self.judge, rng = Judge(self.world), self.world.rng
        self.world.on_accepted = self.check_accepted
        self.keeper_options = {"keep": rng.choice((0, 1, 1, 3)), "keep_every": rng.choice((0.5, 2.0, 10.0))}
        # Simulated time stands still in a slice: the slice is learned as a whole, or with 0 seconds record by record.
        self.sizes = rng.choice((2, 3, 200)), rng.choice((2, 3, 8)), 0.0 if seed % 3 == 0 else 1.0
        # Some models diverge, after a few events or a few dozen.
        recent: dict[str, Any] = {"average": "recent", "half_life": 3} if seed % 4 == 1 or seed % 16 == 12 else {}
        scaled: dict[str, Any] = {"scale": "standard"} if self.world.values in (RAW, WILD) else {}
        scaled |= {"clip": 1.0} if self.world.values is WILD else {}
        eta = rng.choice((1.0, 0.5, 0.3)) * (3e14 if seed % 16 == 9 else 1.0)
        margins: dict[str, Any] = {"margin": (0.5, 4.0)} if seed % 8 == 3 else {}
        classes: dict[str, Any] = {"labels": CLASSES} if self.world.labels is CLASSES else {}
        self.identity = Identity(eta=eta, **recent, **scaled, **margins, **classes, **self.join_settings())
        # Some processes learn candidates too.
        self.candidate_rng = random.Random(f"candidates of {seed}")
        self.processes: list[Process] = []
        self.paces: dict[str, float] = {}
        self.others = [Reader(self.world)]
        """The reader, then the operators that are at work."""
        self.started, self.next_look = 0, 0.0
        # A separate random generator, so that flips do not change the rest of a history.
        self.flip_rng = random.Random(f"flips of {seed}")
        has_twin = seed % 13 == 5
        if not self.is_twin:
            self.world.topic.compacted = self.flip_rng.random() < 0.2 and not self.world.joined
        self.flip_probability = 0.0 if has_twin or self.world.joined else self.flip_rng.choice((0.0, 0.003))
        self.kept_at = {"": 0.0}
        """When the last kept version of each accepted head was accepted."""
        faults: list[tuple[Callable[[], None], float]] = [
            (self.spawn, 1.0), (self.crash, 1.0), (self.stop, 0.3), (self.assign, 3.0), (self.revoke, 2.0),
            (self.roll_back, 0.7), (self.empty_redis, 0.15), (self.run_late_command, 2.0), (self.produce, 5.0),
            (self.trim, 0.1), (self.recreate, 0.07), (self.add_partition, 0.15), (self.jump_clock, 0.3),
            (self.reset, 1.0), (self.change_pace, 1.0), (self.toggle_dead_letters, 0.3),
        ]  # fmt: skip
        # Only some seeds have these, so that the other histories stay the same.
        self.has_damage, self.has_amendments = seed % 4 == 2, seed % 11 == 6
        if seed % 11 == 7:
            faults.append((self.reset_to_other_settings, 2.0))
        if self.has_amendments:
            faults.append((self.amend, 2.0))
        if self.has_damage:
            faults += [(self.damage, 0.3), (self.save_as_newer_release, 0.2), (self.repair, 1.0)]
        if self.is_twin:  # what happens to the topic happens once
            faults = faults[:8] + faults[13:]
        self.twins = [Simulation(seed, self.world)] if has_twin and not self.is_twin else []
        """A second model of the same topic."""
        self.faults = [(fault, weight * rng.choice((0.0, 0.5, 1.0, 1.0, 3.0))) for fault, weight in faults]
        self.fault_probability = rng.choice((0.02, 0.05, 0.15))

    def join_settings(self) -> dict[str, Any]:
        """The settings of a join, if this model has one."""
        if not self.world.joined:
            return {}
        rng = random.Random(f"join of {self.seed}")
        default = rng.choice((None, self.world.labels[-1]))
        rules = JoinRules(
            id="/id", label="/label", label_value=None, where={}, own_topic=True, window=WINDOW, default_label=default,
            waits_for_labels=default is not None and rng.random() < 0.5, max_held=rng.choice((5, 1000, 1000)),
        )  # fmt: skip
        return {"join": rules}

    def run(self) -> World:
        """Run the whole history; raises Violation with it."""
        rng = self.world.rng
        try:
            with small_slices(*self.sizes):
                for _ in range(rng.randint(1, 4)):
                    self.world.topic.produce()
                models = [self, *self.twins]
                for model in models:
                    model.spawn()
                    model.processes[0].log.assign()
                for _ in range(rng.randint(300, 3000)):
                    if self.flip_rng.random() < self.flip_probability:
                        self.flip()
                    model = rng.choice(models) if self.twins else self
                    if rng.random() < model.fault_probability:
                        fault = rng.choices([f for f, _ in model.faults], [w for _, w in model.faults])[0]
                        fault()
                    else:
                        model.step()
                for model in models:
                    model.heal()
                    model.settle()
                    model.check_keeping()
                    model.world.redis.check_blobs()
                    model.judge.check_letters()
        except Violation as violation:
            history = "\n".join(self.world.history)
            raise Violation(f"{history}\nseed {self.seed}: {violation}") from violation
        finally:
            for model in [self, *self.twins]:
                for process in model.processes:
                    process.coroutine.close()
                for other in model.others:
                    other.coroutine.close()
        return self.world

    def settle(self) -> None:
        """Step until everything is learned, or the process has stopped for a good reason."""
        for _ in range(MAX_SETTLE_STEPS):
            if self.all_learned() or self.stopped_for_good_reason():
                return
            self.step()
        raise Violation("not everything is learned, and no process reports why")

    def check_keeping(self) -> None:
        """Check that a due version is kept, even if the wall clock jumped before."""
        if not self.keeper_options["keep"] or not self.all_learned():
            return
        self.world.now += 2 * self.keeper_options["keep_every"]
        due_at = self.world.now
        while self.judge.covers_log():
            self.world.topic.produce()
        self.settle()
        if self.all_learned() and self.kept_at[self.world.redis.current] < due_at:
            raise Violation("no version was kept though one was due")

    def check_accepted(self, previous: str, head: bytes, cut: list[tuple[int, int, int]]) -> None:
        """Let the judge check an accepted head, and check the length of the order that it records."""
        self.judge.check_accepted(previous, head, cut)
        digest, content = hashlib.sha256(head).hexdigest(), json.loads(head)
        is_kept = bool(content["kept"]) and content["kept"][-1]["version"] == content["version"]
        self.kept_at[digest] = self.world.now if is_kept else self.kept_at[previous]
        if is_kept and not self.keeper_options["keep"]:
            self.world.count("kept for its order")
        if (order := len(self.judge.heads[digest].runs)) > keeper.MAX_RUNS:
            raise Violation(f"version {content['version']} records the order of {order} runs")

    def step(self) -> None:
        """Let one process that is ready run to its next await; if none is ready, let time pass."""
        world = self.world
        world.now += world.rng.random() * 0.02
        if world.now > self.next_look:
            self.next_look = world.now + 1.0
            for process in self.processes:
                process.seen_digest = world.redis.seen_digest
        actors: list[Process | Reader] = [*self.processes, *self.others]
        ready = [p for p in actors if p.waiting is not None and p.waiting.ready()]
        if not ready:
            world.now += 0.1
            return
        actor = world.rng.choices(ready, [self.paces.get(p.name, 1.0) for p in ready])[0]
        try:
            actor.waiting = actor.coroutine.send(None)
        except StopIteration:
            world.say(f"{actor.name}: ends")
            self.processes = [p for p in self.processes if p is not actor]
            self.others = [o for o in self.others if o is not actor]
        except Violation:
            raise
        except Exception as error:
            world.history.append(traceback.format_exc())
            raise Violation(f"{actor.name} ended with {type(error).__name__}: {error}") from error

    def _note(self, message: str) -> None:
        self.world.count(message.partition(":")[0])
        self.world.say(f"-- {message}")

    def spawn(self) -> None:
        """Start a process; a few have other settings."""
        if len(self.processes) < 4:
            self.started += 1
            rng = self.world.rng
            other_settings = Identity(eta=0.25, labels=self.identity.labels, join=self.identity.join)
            identity = other_settings if self.world.chance(0.03) else self.identity
            group = "theirs" if self.has_damage and rng.random() < 0.2 else "ours"
            foreign = self.has_damage and self.world.chance(0.1)
            keeper_options = self.keeper_options | {"options": self.options(identity)}
            process = Process(self.world, self.judge, f"p{self.started}", identity, keeper_options, group, foreign)
            self.processes.append(process)
            self.paces[process.name] = rng.choice((0.1, 1.0, 1.0))
            self._note(f"start: {process.name}{', other settings' if identity is not self.identity else ''}")
            if foreign:
                self._note("elsewhere")
                self.world.foreign_topic.produce()

    def options(self, identity: Identity) -> Options:
        """The options of a new process: every third seed with two labels has candidates. One diverges, one changes.

        In some seeds the best one answers, except for processes with two candidates.
        """
        rng = self.candidate_rng
        if self.seed % 3 != 1 or identity.multiclass:
            return JOINED
        variants: dict[str, Any] = {
            "wide": {"margin": (0.5, 3.0)}, "calm": {"average": "recent", "half_life": 4}, "wild": {"eta": 3e14},
            "slow": {"eta": identity.eta * rng.choice((0.5, 0.5, 0.5, 0.25))},
        }  # fmt: skip
        names = rng.choice((list(variants), list(variants), rng.sample(list(variants), 2), []))
        candidates = {name: CandidateOptions(replace(identity, **variants[name])) for name in names}
        serve = "best" if self.seed % 6 == 4 and not identity.average and len(names) != 2 else "last"
        candidates = {name: new for name, new in candidates.items() if new.identity != identity}
        return JOINED._replace(window=8, serve=serve, candidates=candidates)

    def _random_process(self) -> Process | None:
        return self.world.rng.choice(self.processes) if self.processes else None

    def crash(self) -> None:
        if process := self._random_process():
            self.processes.remove(process)
            process.coroutine.close()
            self._note(f"crash: {process.name} at {process.waiting.name if process.waiting else '?'}")

    def stop(self) -> None:
        if process := self._random_process():
            process.log.stopping = True
            self._note(f"stop: {process.name}")

    def assign(self) -> None:
        """Assign the topic to a process; the process that had it may learn this much later, or never."""
        if process := self._random_process():
            process.log.assign()
            self._note(f"assign: {process.name}")

    def revoke(self) -> None:
        if process := self._random_process():
            process.log.revoke()
            self._note(f"revoke: {process.name}")

    def change_pace(self) -> None:
        if process := self._random_process():
            self.paces[process.name] = self.world.rng.choice((0.002, 0.05, 1.0, 5.0))

    def toggle_dead_letters(self) -> None:
        """Remove the dead-letter topic, or restore it."""
        self.world.refusing = not self.world.refusing
        self._note(f"dead letters {'refused' if self.world.refusing else 'taken'}")

    def roll_back(self) -> None:
        redis, rng = self.world.redis, self.world.rng
        recent = redis.past[-rng.choice((2, 3, 5, 10, 1000)) :]
        redis.restore(rng.choice(recent))
        self.world.torn += 1
        self._note(f"redis rolled back: to {redis.current[:6] or 'nothing'}")

    def empty_redis(self) -> None:
        self.world.redis.restore({})
        self.world.torn += 1
        self._note("redis emptied")

    def damage(self) -> None:
        if self.world.redis.state:
            self.world.torn += 1
            self._note(f"damage: {self.world.redis.damage(self.world.rng)}")

    def save_as_newer_release(self) -> None:
        redis = self.world.redis
        if redis.current and redis.intact:
            self.world.torn += 1
            self._note(f"a newer release saved: {redis.write_newer(self.world.rng)}")

    def repair(self) -> None:
        """Replace unreadable data by the last readable copy."""
        if not self.world.redis.intact:
            self.world.redis.restore(self.world.redis.past[-1])
            self.world.torn += 1
            self._note(f"given back: {self.world.redis.current[:6] or 'nothing'}")

    def reset(self) -> None:
        """Reset the model if a process has stopped, as an operator does."""
        if any(p.observer.reason for p in self.processes):
            self.empty_redis()

    def reset_to_other_settings(self) -> None:
        """Reset the model, as an operator who changed eta does. Processes that run keep the settings that they have."""
        self.identity = replace(self.identity, eta=self.identity.eta * self.world.rng.choice((0.5, 2.0)))
        self.world.redis.restore({"identity": msgspec.json.encode(self.identity)})
        self.world.torn += 1
        self._note(f"reset: eta is {self.identity.eta}")

    def amend(self) -> None:
        """Change the settings, and amend the model to them. Processes that run keep the settings that they have."""
        changes: dict[str, Any] = {"eta": self.identity.eta * self.world.rng.choice((0.5, 0.75, 2.0))}
        if self.identity.half_life:
            changes["half_life"] = self.world.rng.choice((2, 3, 7))
        if self.identity.margin:
            changes["margin"] = self.world.rng.choice(((0.5, 4.0), (0.0, 1.0)))
        self.identity = replace(self.identity, **changes)
        self.others.append(Operator(self))
        self._note(f"amend: {changes}")

    def run_late_command(self) -> None:
        redis = self.world.redis
        if redis.late:
            name, command = redis.late.pop(self.world.rng.randrange(len(redis.late)))
            self._note(f"late: {name}")
            with contextlib.suppress(errors.SnapshotDamaged):
                command()
            redis.check_blobs()

    def produce(self) -> None:
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
        part = self.flip_rng.choice(topic.partitions)
        start = self.flip_rng.choice([o for o in part.records if o >= part.begin] or [-1])
        if start >= 0 and part.flipped is None:
            end = min(part.end, start + self.flip_rng.randint(1, 5))
            stated = start ^ 1 << self.flip_rng.choice((0, 1, 2, 3, 4, 5, 8, 40))
            next_record = min((o for o in part.records if o >= end), default=stated + end - start)
            # In a compacted log, only other batches that it overlaps show that a batch is misplaced.
            index = PartitionId(topic.partitions.index(part))
            joins = any(process.log.has_read_into(index, start, end) for process in self.processes)
            if not joins and (not topic.compacted or (start < stated and next_record < stated + end - start)):
                part.flipped = start, end, stated
                self._note(f"base offset flipped: {index}:{part.flipped}")

    def recreate(self) -> None:
        world = self.world
        world.topic = Topic(world.rng, len(world.topic.partitions), world.values, world.labels, world.joined)
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

    def jump_clock(self) -> None:
        self.world.jump += self.world.rng.choice((-3600.0, 3600.0, -1.0, 5.0))
        self._note("wall clock jumps")

    def heal(self) -> None:
        """End the faults: late commands arrive, and one process runs and has the topic."""
        self._note("faults end")
        self.world.faulty = self.world.refusing = False
        while self.world.redis.late:
            self.run_late_command()
        self.repair()
        for process in self.processes:
            process.log.revoke()
        self.paces = {}
        if self.has_amendments:
            self.others.append(Operator(self))
        if repaired := [p for p in self.world.topic.partitions if p.flipped and self.flip_rng.random() < 0.9]:
            for part in repaired:  # new processes start, which have not stopped because of it
                part.flipped = None
            for process in self.processes:
                process.log.stopping = True
        for process in self.processes[:]:
            if process.learning.identity != self.identity or process.log.stopping or process.foreign:
                self.processes.remove(process)
                process.coroutine.close()
        if not self.processes or self.world.rng.random() < 0.3:
            self.spawn()
        self.last = self.processes[-1]
        self.last.observer.reason = None
        self.last.log.assign()

    def all_learned(self) -> bool:
        """Whether the current head covers the log, and the process did not stop."""
        return self.judge.covers_log() and self.last.observer.reason is None

    def stopped_for_good_reason(self) -> bool:
        """Whether the process stopped; raises Violation if it had no good reason."""
        reason, world = self.last.observer.reason, self.world
        if reason is None or self.others[1:]:
            return False
        digest = world.redis.current
        waiting = self.last.waiting
        if self.last.learning.keeper.digest != digest or waiting is None or waiting.name != "sleep":
            return False  # a process without the topic saved meanwhile: this process checks again
        bounds = [(part.begin, part.end) for part in world.topic.partitions]
        justified: Any = False
        if isinstance(reason, errors.IdentityChanged) and not digest:
            required = world.redis.state.get("identity")
            justified = required not in (None, msgspec.json.encode(self.last.learning.identity))
        elif isinstance(reason, errors.IdentityChanged):
            justified = self.judge.heads[digest].settings[-1][1] != json.loads(msgspec.json.encode(self.identity))
        elif isinstance(reason, errors.Diverged) and digest:
            justified = self.judge.diverges(digest)
        elif isinstance(reason, errors.LogLost):
            head = self.judge.heads[digest] if digest else None
            starts = [head.next.get(p, 0) if head else 0 for p in range(len(bounds))]
            log_lost = any(not begin <= o <= end for o, (begin, end) in zip(starts, bounds, strict=True))
            join = json.loads(world.redis.state.get("head", b"{}")).get("join", {"partitions": {}})
            for p, state in join["partitions"].items():
                log_lost |= state["rebuild"] < bounds[number_of(PartitionId.from_text(p))][0]
            # A misplaced batch stops learning before it, or at a start that looks for the last record in it. If it
            # overlaps with the first batch after a seek, nothing shows which of the two batches is misplaced.
            for p, part in enumerate(world.topic.partitions):
                if part.flipped:
                    start, to, stated = part.flipped
                    past_overlap = starts[p] > max(to, stated + to - start)
                    log_lost |= not past_overlap and len(part.records.keys() & range(starts[p], start)) <= 1
            justified = log_lost or (head and head.source["topic_id"] != str(world.topics.index(world.topic)))
        elif isinstance(reason, errors.AnotherCluster) and digest:
            justified = self.judge.heads[digest].source["cluster"] == "elsewhere"
        if not justified:
            raise Violation(f"stopped without need: {type(reason).__name__}: {reason}")
        world.count("excused")
        return True
