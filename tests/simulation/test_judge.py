"""The judge of real servers does not know which log of a name a head is from: what two have in common is of both."""

import random
from typing import Any

import pytest

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.snapshots.head import Source
from service.snapshots.keeper import Saved
from tests.conftest import event
from tests.faults.watcher import Seen
from tests.releases import Fields
from tests.saving import FakeClock, keeper
from tests.simulation.judge import Judge
from tests.simulation.world import Record, Topic, Violation


def log(*values: int) -> Topic:
    """A log of one partition, of these events."""
    topic = Topic(random.Random(0), 1)
    part = topic.partitions[0]
    part.records = {i: Record(i, 0, None, event({"a": v}, i % 2), (), True) for i, v in enumerate(values)}
    return topic


@pytest.mark.parametrize(("learned", "right"), [((1, 2, 3, 4), True), ((1, 2, 5, 6), True), ((1, 2, 3, 6), False)])
@pytest.mark.parametrize("turned", [False, True])
async def test_a_head_is_of_each_log_that_begins_like_it(learned: Any, right: bool, turned: bool) -> None:
    """And of the one that goes on like it; of both in turn it cannot be."""
    logs = [log(1, 2, 3, 4), log(1, 2, 5, 6)]
    world, store = Seen("m", logs[::-1] if turned else logs, {}), Fields()
    world.redis.state = store.fields
    judge, saving, learner = Judge(world), keeper(store, "m", clock := FakeClock()), Learner(Identity())
    learner.begin({0: 0})
    verdicts = []
    for offset, record in log(*learned).partitions[0].records.items():
        learner.apply(0, Records.of(offset, [record.value]))
        before = store.fields.get("digest", b"").decode()
        assert isinstance(await saving.save(learner, {}, Source("c", "t")), Saved)
        clock.seconds += 1
        try:
            judge.accepted(before, store.fields["head"], None)
            verdicts.append(True)
        except Violation:
            verdicts.append(False)
            break
    assert verdicts == ([True] * 4 if right else [True] * 3 + [False])
