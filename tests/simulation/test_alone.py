"""One process in a world with a single fault: histories that occur in few seeds."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.errors import AnotherCluster, LogLost, SnapshotDamaged, SnapshotForeign
from service.learning.identity import Identity
from tests.partitions import P0
from tests.simulation.judge import Judge
from tests.simulation.run import JOINED, Process, Simulation
from tests.simulation.world import Topic, World

JOINED_SEED = 15
"""A seed whose model has a join."""


class SingleProcess:
    """A process that is stepped until a condition holds. A head that is not the fold of its records is a Violation."""

    def __init__(self, partitions: int, joined: bool = False) -> None:
        """`joined` gives the model a join, with partitions of events and of labels."""
        self.world, self._identity = World(JOINED_SEED if joined else 1), Identity()
        if joined:
            simulation = Simulation(JOINED_SEED)
            self._identity = simulation.identity
            simulation.others[0].coroutine.close()
        self.world.faulty = False
        self.world.topics = []
        self.judge = Judge(self.world)
        self.world.on_accepted = self.judge.check_accepted
        self.recreate(partitions)
        self.started: list[Process] = []
        self.process = self.start()

    def start(self, **options: Any) -> Process:
        """Start a process that takes the place of the previous one."""
        name, keeper_options = f"p{len(self.started)}", {"keep": 0, "options": JOINED}
        self.process = Process(self.world, self.judge, name, self._identity, keeper_options, **options)
        self.started.append(self.process)
        return self.process

    def recreate(self, partitions: int = 1) -> None:
        """Replace the topic by another, empty one."""
        world = self.world
        kinds = (world.values, world.labels, True) if world.joined else ()
        self.world.topic = Topic(world.rng, partitions, *kinds)
        self.world.topics.append(self.world.topic)

    def produce(self, times: int) -> None:
        for _ in range(times):
            self.world.topic.produce()

    def learn(self, times: int) -> None:
        """Produce events, assign the topic and step until all of it is learned."""
        self.produce(times)
        self.process.log.assign()
        assert self.until(self.judge.covers_log)

    def reason(self, **options: Any) -> Exception:
        """The error for which a new process, which takes the place of the previous one, does not learn."""
        process = self.start(**options)
        process.log.assign()
        assert self.until(lambda: process.observer.reason)
        assert process.observer.reason is not None
        return process.observer.reason

    def until(self, holds: Callable[[], object], steps: int = 2000) -> bool:
        for _ in range(steps):
            if holds():
                return True
            assert self.process.waiting is not None
            if self.process.waiting.ready():
                self.process.waiting = self.process.coroutine.send(None)
            else:
                self.world.now += 0.1
        return False


@pytest.fixture
def single(request: pytest.FixtureRequest) -> Iterator[SingleProcess]:
    running = SingleProcess(getattr(request, "param", 1))
    yield running
    for process in running.started:
        process.coroutine.close()


@pytest.mark.parametrize("single", [2], indirect=True)
def test_learning_waits_for_a_partition_that_is_not_assigned_yet(single: SingleProcess) -> None:
    """The head covers two partitions and the assignment has one: wait for the next assignment, which has both."""
    single.learn(10)
    log = single.process.log
    single.produce(1)
    log.assign()
    log.partitions = [P0]
    assert not single.until(single.judge.covers_log)
    assert single.process.observer.reason is None
    log.assign()
    assert single.until(single.judge.covers_log)


def test_learning_waits_for_a_thread_that_reads_the_weights(single: SingleProcess) -> None:
    single.learn(3)
    model: Any = single.process.learning._model
    model.learner.readers = 1
    single.produce(3)
    assert not single.until(single.judge.covers_log)
    model.learner.readers = 0
    assert single.until(single.judge.covers_log)


def test_another_topic_without_the_last_record_is_not_continued(single: SingleProcess) -> None:
    """Its offsets fit, and the record that proves it was deleted: in the same topic that would be retention."""
    single.learn(3)
    end = single.world.topic.partitions[0].end
    single.recreate()
    while (part := single.world.topic.partitions[0]).end < end + 5:
        single.produce(1)
    part.begin = end
    reason = single.reason()
    assert isinstance(reason, LogLost)
    assert "created again since it was learned" in str(reason)


def test_unsaved_learning_from_another_topic_is_dropped_at_a_rebalance(single: SingleProcess) -> None:
    """A dead letter was refused, so the last records were not saved. The new topic got the saved ones back."""
    single.learn(3)
    log, learning = single.process.log, single.process.learning
    single.world.refusing = True
    part = single.world.topic.partitions[0]
    saved_end = part.end
    while all(record.good for offset, record in part.records.items() if offset >= saved_end):
        single.produce(1)
    assert single.until(lambda: learning._model and learning._model.learner.next == {P0: part.end})
    single.recreate()
    recreated = single.world.topic.partitions[0]
    recreated.records, recreated.end = {o: record for o, record in part.records.items() if o < saved_end}, saved_end
    log.assign()
    assert single.until(lambda: learning._model and learning._model.learner.next == {P0: saved_end})
    assert single.process.observer.reason is None


def test_another_topic_is_not_continued_if_nothing_was_learned(single: SingleProcess) -> None:
    """Its offsets fit, and there is no record that could prove it."""
    single.learn(0)
    single.recreate()
    single.produce(3)
    assert "created again since the model was begun" in str(single.reason())


@pytest.mark.parametrize("productions", [0, 3])
def test_another_clusters_model_is_not_continued(single: SingleProcess, productions: int) -> None:
    """Even if a log of that name here has the last record. The message does not advise a reset."""
    single.learn(productions)
    single.world.foreign_topic = single.world.topic
    single.produce(1)
    reason = single.reason(foreign=True)
    assert isinstance(reason, AnotherCluster)
    assert "reset" not in str(reason)
    assert single.judge.heads[single.world.redis.current].source["cluster"] == "cluster"


def test_learning_continues_once_damaged_data_is_restored(single: SingleProcess) -> None:
    """The process had the same head before, so the digest does not show that something changed."""
    single.learn(3)
    single.world.redis.hash = False
    assert single.until(lambda: isinstance(single.process.observer.reason, SnapshotDamaged))
    single.world.redis.hash = True
    single.produce(1)
    assert single.until(single.judge.covers_log)


def test_two_groups_report_each_other(single: SingleProcess) -> None:
    """The saves of each group are refused in turn, and each reports the other's writer; a single group has none."""
    for group, reports in (("ours", 0), ("theirs", 2)):
        first, second = single.process, single.start(group=group)
        first.log.assign()
        second.log.assign()
        for process in (first, second) * 2:
            single.process = process
            single.produce(1)
            assert single.until(single.judge.covers_log)
        assert single.world.counts.get("outsider", 0) == reports


def test_a_newer_releases_head_is_not_continued(single: SingleProcess) -> None:
    """Any unknown member shows it, even null. Once the head is readable again, learning continues by itself."""
    single.learn(3)
    for _ in range(20):
        single.world.redis.write_newer(single.world.rng)
        newer = dict(single.world.redis.state)
        single.produce(1)
        assert single.until(lambda: isinstance(single.process.observer.reason, SnapshotForeign))
        assert "reset" not in str(single.process.observer.reason)
        assert single.world.redis.state.items() >= {k: v for k, v in newer.items() if k[:2] != "b:"}.items()
        single.world.redis.restore(single.world.redis.past[-1])
        assert single.until(single.judge.covers_log)
        assert single.process.observer.reason is None


def test_a_digest_from_before_the_last_save_drops_nothing(single: SingleProcess) -> None:
    """A digest from before our save is no reason to drop the state; a reset is."""
    process = single.process
    single.learn(3)
    process.seen_digest = "of before"
    single.world.now += 5
    assert not single.until(lambda: single.world.counts.get("rewound: replaced"), 100)
    single.world.redis.state.clear()
    process.seen_digest = ""
    single.world.now += 5
    assert single.until(lambda: single.world.counts.get("rewound: replaced"))
    assert single.until(single.judge.covers_log)


def test_a_join_whose_rebuilding_ends_early_is_rebuilt_anew() -> None:
    joined = SingleProcess(2, joined=True)
    joined.learn(60)
    process = joined.start()
    process.log.assign()

    def has_remembered() -> bool:
        model: Any = process.learning._model
        return bool(model and model.learner.join._memory.items["state"].any())

    assert joined.until(has_remembered)
    process.log.revoke()
    process.log.assign()
    joined.produce(5)
    assert joined.until(joined.judge.covers_log), process.observer.reason
    for each in joined.started:
        each.coroutine.close()
