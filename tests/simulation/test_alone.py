"""One process in a world with a single fault: histories that few seeds have."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.errors import AnotherCluster, LogLost, SnapshotDamaged, SnapshotForeign
from service.learning.identity import Identity
from tests.simulation.judge import Judge
from tests.simulation.run import Process
from tests.simulation.world import Topic, World


class Alone:
    """A process that is stepped until a condition holds. A head that is not the fold of its records is a Violation."""

    def __init__(self, partitions: int) -> None:
        self.world = World(1)
        self.world.faulty = False
        self.world.topics = []
        self.judge = Judge(self.world)
        self.world.accepted = self.judge.accepted
        self.recreate(partitions)
        self.started: list[Process] = []
        self.process = self.start()

    def start(self, **more: Any) -> Process:
        """Start a process that takes the place of the previous one."""
        self.process = Process(self.world, self.judge, f"p{len(self.started)}", Identity(), {"keep": 0}, **more)
        self.started.append(self.process)
        return self.process

    def recreate(self, partitions: int = 1) -> None:
        """Replace the topic by another, empty one."""
        self.world.topic = Topic(self.world.rng, partitions)
        self.world.topics.append(self.world.topic)

    def produce(self, times: int) -> None:
        for _ in range(times):
            self.world.topic.produce()

    def learn(self, times: int) -> None:
        """Produce events, assign the topic and step until all of it is learned."""
        self.produce(times)
        self.process.log.assign()
        assert self.until(self.judge.whole)

    def reason(self, **more: Any) -> Exception:
        """Why a new process, which takes the place of the previous one, does not learn."""
        process = self.start(**more)
        process.log.assign()
        assert self.until(lambda: process.tell.reason)
        assert process.tell.reason is not None
        return process.tell.reason

    def until(self, holds: Callable[[], object], steps: int = 500) -> bool:
        for _ in range(steps):
            if holds():
                return True
            assert self.process.at is not None
            if self.process.at.ready():
                self.process.at = self.process.coroutine.send(None)
            else:
                self.world.now += 0.1
        return False


@pytest.fixture
def alone(request: pytest.FixtureRequest) -> Iterator[Alone]:
    found = Alone(getattr(request, "param", 1))
    yield found
    for process in found.started:
        process.coroutine.close()


@pytest.mark.parametrize("alone", [2], indirect=True)
def test_a_partition_that_the_group_has_not_heard_of_is_waited_for(alone: Alone) -> None:
    """The head covers two partitions and the assignment has one: wait for the next assignment, which has both."""
    alone.learn(10)
    log = alone.process.log
    alone.produce(1)
    log.assign()
    log.partitions = [0]
    assert not alone.until(alone.judge.whole)
    assert alone.process.tell.reason is None
    log.assign()
    assert alone.until(alone.judge.whole)


def test_another_topic_without_the_last_record_is_not_gone_on_with(alone: Alone) -> None:
    """Its offsets fit, and the record that proves it was deleted: in the same topic that would be retention."""
    alone.learn(3)
    end = alone.world.topic.partitions[0].end
    alone.recreate()
    while (part := alone.world.topic.partitions[0]).end < end + 5:
        alone.produce(1)
    part.begin = end
    reason = alone.reason()
    assert isinstance(reason, LogLost)
    assert "created again since it was learned" in str(reason)


def test_what_was_learned_of_another_topic_is_dropped_at_a_rebalance(alone: Alone) -> None:
    """A dead letter was refused, so the last records were not saved. The new topic got the saved ones back."""
    alone.learn(3)
    log, learning = alone.process.log, alone.process.learning
    alone.world.refusing = True
    part = alone.world.topic.partitions[0]
    saved = part.end
    while all(record.good for offset, record in part.records.items() if offset >= saved):
        alone.produce(1)
    assert alone.until(lambda: learning._model and learning._model.learner.next == {0: part.end})
    alone.recreate()
    new = alone.world.topic.partitions[0]
    new.records, new.end = {o: record for o, record in part.records.items() if o < saved}, saved
    log.assign()
    assert alone.until(lambda: learning._model and learning._model.learner.next == {0: saved})
    assert alone.process.tell.reason is None


def test_another_topic_is_not_gone_on_with_where_nothing_was_learned(alone: Alone) -> None:
    """Its offsets fit, and there is no record that could prove it."""
    alone.learn(0)
    alone.recreate()
    alone.produce(3)
    assert "created again since the model was begun" in str(alone.reason())


@pytest.mark.parametrize("learned", [0, 3])
def test_another_clusters_model_is_not_gone_on_with(alone: Alone, learned: int) -> None:
    """The log of that name here even has the last record learned. The message does not advise to forget the model."""
    alone.learn(learned)
    alone.world.elsewhere = alone.world.topic
    alone.produce(1)
    reason = alone.reason(elsewhere=True)
    assert isinstance(reason, AnotherCluster)
    assert "reset" not in str(reason)
    assert alone.judge.known[alone.world.redis.current].source["cluster"] == "cluster"


def test_what_was_damaged_and_is_given_back_is_gone_on_with(alone: Alone) -> None:
    """The head is the one that the process had, so the digest does not show that something changed."""
    alone.learn(3)
    alone.world.redis.hash = False
    assert alone.until(lambda: isinstance(alone.process.tell.reason, SnapshotDamaged))
    alone.world.redis.hash = True
    alone.produce(1)
    assert alone.until(alone.judge.whole)


def test_two_groups_are_told_of_each_other(alone: Alone) -> None:
    """In turns, each is refused because of a head of the other, and hears whose it is. One group hears nothing."""
    for group, heard in (("ours", 0), ("theirs", 2)):
        before, other = alone.process, alone.start(group=group)
        before.log.assign()
        other.log.assign()
        for process in (before, other) * 2:
            alone.process = process
            alone.produce(1)
            assert alone.until(alone.judge.whole)
        assert alone.world.counts.get("outsider", 0) == heard


def test_a_newer_releases_head_is_not_gone_on_with(alone: Alone) -> None:
    """Any unknown member counts, even null. Once the head is readable again, learning continues by itself."""
    alone.learn(3)
    for _ in range(20):
        alone.world.redis.write_newer(alone.world.rng)
        newer = dict(alone.world.redis.state)
        alone.produce(1)
        assert alone.until(lambda: isinstance(alone.process.tell.reason, SnapshotForeign))
        assert "reset" not in str(alone.process.tell.reason)
        assert alone.world.redis.state.items() >= {k: v for k, v in newer.items() if k[:2] != "b:"}.items()
        alone.world.redis.give_back(alone.world.redis.past[-1])
        assert alone.until(alone.judge.whole)
        assert alone.process.tell.reason is None


def test_a_look_from_before_the_last_save_drops_nothing(alone: Alone) -> None:
    """A digest from before our save is no reason to drop the state; a reset is."""
    process = alone.process
    alone.learn(3)
    process.seen_digest = "of before"
    alone.world.now += 5
    assert not alone.until(lambda: alone.world.counts.get("rewound: replaced"), 100)
    alone.world.redis.state.clear()
    process.seen_digest = ""
    alone.world.now += 5
    assert alone.until(lambda: alone.world.counts.get("rewound: replaced"))
    assert alone.until(alone.judge.whole)
