"""Partitions are merged by time, in the same order however their records arrive."""

import random
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.learning.records import PartitionId
from service.streaming.merge import Merge
from service.streaming.records import KafkaRecord
from tests.batches import join_records

WINDOW, STEP = 100, 10
Place = tuple[int, int]
"""Partition and offset."""


def merged_one_by_one(logs: Sequence[Sequence[int]]) -> Iterator[Place]:
    """The places of all records in order: the rule for complete partitions, a record at a time."""
    following, now = [0] * len(logs), -1
    while any(i < len(times) for i, times in zip(following, logs, strict=True)):
        steps = {}
        for partition, (i, times) in enumerate(zip(following, logs, strict=True)):
            if i < len(times):
                far = i + 1 < len(times) and times[i] > times[i + 1] + WINDOW
                steps[partition] = times[i + far] // STEP
        now = max(now, min(steps.values()))
        first = min(partition for partition, step in steps.items() if step <= now)
        yield first, following[first]
        following[first] += 1


@given(seed=st.integers(0, 2**32))
def test_the_order_depends_on_the_records_alone(seed: int) -> None:
    rng = random.Random(seed)
    logs = [
        [max(0, 20 * i + rng.choice((0, 0, 5, -60, 130, 5000))) for i in range(rng.randrange(30))]
        for _ in range(rng.randint(1, 4))
    ]
    ids = [*map(PartitionId, range(len(logs)))]
    merge, have, order = Merge(ids, WINDOW, STEP), [0] * len(logs), list[Place]()
    while len(order) < sum(map(len, logs)):
        polled = {}
        for partition in rng.sample(merge.short, rng.randint(0, len(merge.short))):
            begin, count = have[partition.number], rng.choice((0, 1, 2, 7))
            times = logs[partition.number][begin : begin + count]
            have[partition.number] += len(times)
            if times:
                records = [KafkaRecord(begin + i, time, None, b"%d" % (begin + i), ()) for i, time in enumerate(times)]
                polled[partition] = join_records(records, partition)
        merge.add(polled)
        ends = {partition for partition in ids if have[partition.number] == len(logs[partition.number])}
        for taken in merge.take(ends):
            assert [record.value for record in taken] == [b"%d" % offset for offset in taken.offsets]
            assert (np.diff(taken.values.begins) > 0).all()  # the readers of values require it
            order += [(partition.number, offset) for partition, offset in map(taken.place, range(len(taken)))]
    assert order == [*merged_one_by_one(logs)]
    assert not merge.waiting


def test_a_record_waits_for_the_next_one_of_its_partition_and_of_the_others() -> None:
    ids = [PartitionId(0), PartitionId(1)]
    merge = Merge(ids, WINDOW, STEP)
    merge.add({ids[0]: join_records([KafkaRecord(0, 10, None, b"", ()), KafkaRecord(1, 50, None, b"", ())])})
    assert [*merge.take({ids[0]})] == []
    assert merge.short == [ids[1]]
    [records] = merge.take({ids[1]})
    assert (len(records), records.place(0)) == (1, (ids[0], 0))
    [records] = merge.take(set(ids))
    assert (len(records), records.place(0)) == (1, (ids[0], 1))
