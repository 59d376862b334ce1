"""The join learns what the oracle learns, in the same order, however records come and wherever it restarts."""

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity, JoinRules
from service.learning.join.memory import OUTCOMES
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import PartitionId, Records
from service.serving.model_info import Accuracy
from service.snapshots.content import restore_learner, snapshot_content
from tests.join_oracle import JoinOracle, JoinRecord, JoinSettings

START = 1_700_000_000_000
OPTIONS = Options(label_topic="labels")
DAY = 86_400_000


def random_settings(rng: random.Random) -> JoinSettings:
    window = rng.choice((1000, 60_000))
    step = min(1000, window // 100)
    default = rng.choice((None, -1.0))
    events, labels = rng.choice(((1, 1), (2, 1), (1, 2), (2, 2), (1, 0), (2, 0)))
    held, gap = rng.choice((None, None, 5)), rng.choice((0, 0, 10 * window))
    waits = default is not None and rng.random() < 0.5
    return JoinSettings(events, labels, window, step, default, waits, held, horizon=DAY, gap=gap)


def random_log(rng: random.Random, settings: JoinSettings, count: int) -> list[JoinRecord]:
    """Records in an order in which they may come; timestamps go back and forth, and a few lie far ahead."""
    records, offsets, now = list[JoinRecord](), [0] * 4, START
    w, ids = settings.window, rng.choice((2, 5, 20, 200))
    for _ in range(count):
        now += int(w * rng.choice((0, 0.001, 0.02, 0.1)))
        if rng.random() < 0.02:
            now += int(w * rng.choice((1.5, 5)))
        kind = rng.choices(("event", "labelled", "label", "withdrawal", "other"), (8, 2, 8, 1, 1))[0]
        partition = rng.randrange(settings.event_partitions)
        if settings.label_partitions and kind in ("label", "withdrawal"):
            partition = settings.event_partitions + rng.randrange(settings.label_partitions)
        time = now + int(w * rng.uniform(-0.05, 0.05))
        if rng.random() < 0.1:
            time = now - int(w * rng.choice((0.3, 0.9, 1.3, 2.5)))
        if rng.random() < 0.02:
            time = now + 2 * DAY
        for _ in range(rng.choice((1, 1, 1, 2))):
            label = float(rng.choice((-1, 1))) if kind in ("labelled", "label") else None
            name = {"labelled": "event", "withdrawal": "label"}.get(kind, kind)
            records.append(JoinRecord(partition, offsets[partition], time, f"id{rng.randrange(ids)}", name, label))
            offsets[partition] += 1
    return records


def value_of(record: JoinRecord, label: float | None) -> bytes:
    if record.kind == "other":
        return b"no event"
    value: dict[str, Any] = {"id": record.id, "label": label}
    if record.kind == "event":
        value["features"] = {"a": record.offset % 7, record.id: 1}
    return json.dumps(value).encode()


def partition_of(record: JoinRecord, settings: JoinSettings) -> PartitionId:
    if not settings.label_partitions:
        return PartitionId(record.partition)
    of_labels = record.partition - settings.event_partitions
    return PartitionId(of_labels, "labels") if of_labels >= 0 else PartitionId(record.partition, "events")


def identity_of(settings: JoinSettings) -> Identity:
    rules = JoinRules(
        id="/id", label="/label", label_value=None, where={}, own_topic=bool(settings.label_partitions),
        window=settings.window, default_label=None if settings.default_label is None else -1,
        waits_for_labels=settings.waits_for_labels, max_held=settings.max_held or 1_000_000,
    )  # fmt: skip
    return Identity(join=rules, once=settings.gap or msgspec.UNSET)


def records_of(log: Sequence[JoinRecord], settings: JoinSettings) -> Records:
    own, offsets, times = (np.array([record[part] for record in log], np.int64) for part in (0, 1, 2))
    values = ValueBuffer.from_values([value_of(each, each.label) for each in log])
    by_number = {record.partition: partition_of(record, settings) for record in sorted(log)}
    return Records(offsets, times, values, [*by_number.values()], np.searchsorted([*by_number], own))


def new_learner(settings: JoinSettings) -> Learner:
    learner = Learner(identity_of(settings), options=OPTIONS)
    count = settings.event_partitions + settings.label_partitions
    learner.begin({partition_of(JoinRecord(p, 0, 0, "", ""), settings): 0 for p in range(count)})
    return learner


def apply(learner: Learner, log: Sequence[JoinRecord], settings: JoinSettings, rng: random.Random) -> None:
    """Apply records in this order, in slices of any size."""
    records = records_of(log, settings)
    while records:
        records = records[learner.apply(records[: rng.choice((1, 3, 50))]).consumed :]


def restarted(learner: Learner, log: Sequence[JoinRecord], settings: JoinSettings, rng: random.Random) -> Learner:
    """A learner that a new process restores from the head of this one, and from the log."""
    content = snapshot_content(learner)
    _, finish = restore_learner(content.head, content.blobs, OPTIONS)
    new = finish()
    assert new.join is not None
    assert new.join.stored is not None
    rebuild = new.join.stored.rebuild
    partitions = list(rebuild)
    rng.shuffle(partitions)
    for partition in partitions:
        own = [each for each in log if partition_of(each, settings) == partition]
        if part := own[rebuild[partition] :]:
            new.remember(records_of(part, settings))
    assert new.join.finish_rebuild()
    assert snapshot_content(new).head.state_digest == content.head.state_digest
    return new


def learn_directly(learned: Sequence[tuple[int, int, float]], log: Sequence[JoinRecord]) -> Learner:
    """A model without a join that learns these events, with their labels."""
    learner, events = Learner(Identity()), {each[:2]: each for each in log}
    values = [value_of(events[partition, offset], label) for partition, offset, label in learned]
    learner.begin({PartitionId(0): 0})
    learner.apply(Records.from_values(0, values))
    return learner


@given(seed=st.integers(0, 2**32))
def test_the_join_learns_what_the_oracle_learns(seed: int) -> None:
    rng = random.Random(seed)
    settings = random_settings(rng)
    log = random_log(rng, settings, rng.choice((20, 60, 200)))
    oracle, learner, cut = JoinOracle(settings), new_learner(settings), rng.randrange(len(log))
    for record in log:
        oracle.apply(record)
    apply(learner, log[:cut], settings, rng)
    continued = restarted(learner, log[:cut], settings, rng)
    for each in (learner, continued):
        apply(each, log[cut:], settings, rng)
    expected = learn_directly(oracle.learned, log)
    assert snapshot_content(learner).head.state_digest == snapshot_content(continued).head.state_digest
    assert learner.main.counts.join
    outcomes = {name: count for name in OUTCOMES if (count := learner.main.counts.join[name])}
    assert outcomes == dict(oracle.counts)
    assert learner.main.counts.events == len(oracle.learned)
    assert learner.columns.names == expected.columns.names
    assert learner.main.weights.tobytes() == expected.main.weights.tobytes()


@given(seed=st.integers(0, 2**32))
def test_an_id_is_learned_once_in_its_span_also_after_a_restart(seed: int) -> None:
    rng, span, now = random.Random(seed), 1000, START
    settings, log = JoinSettings(2, 0, 0, gap=span), list[JoinRecord]()
    for _ in range(rng.choice((10, 60, 200))):
        now += rng.choice((0, 1, 50, 400))
        partition, id_ = rng.randrange(2), f"id{rng.randrange(6)}"
        offset = sum(each.partition == partition for each in log)
        time = now - rng.choice((0, 0, 0, 300, 1500, 2500))
        log.append(JoinRecord(partition, offset, time, id_, "event", float(rng.choice((-1, 1)))))
    identity = Identity(once=span)
    learner = Learner(identity)
    learner.begin({PartitionId(0): 0, PartitionId(1): 0})
    cut, stream, tails = rng.randrange(len(log)), float("-inf"), (list[int](), list[int]())
    expected, applied = list[tuple[int, int, float]](), list[tuple[str, int]]()
    counts = {"repeated": 0, "expired": 0}
    for record in log:
        tail = tails[record.partition]
        tail.append(record.time)
        if len(tail) > 1:
            reached: float = min(tail[-2:])
            if reached > stream + span:
                reached = min(tail[-10:]) if len(tail) > 9 else stream
            stream = max(stream, reached)
        same = [time for id_, time in applied if id_ == record.id and abs(time - record.time) <= span]
        applied.append((record.id, record.time))
        if record.time < stream - span:
            counts["expired"] += 1
        elif same:
            counts["repeated"] += 1
        else:
            expected.append((record.partition, record.offset, record.label or 0.0))
    apply(learner, log[:cut], settings, rng)
    continued = restarted(learner, log[:cut], settings, rng)
    for each in (learner, continued):
        apply(each, log[cut:], settings, rng)
        assert each.main.counts.join
        outcomes = each.main.counts.join
        assert {name: outcomes[name] for name in counts} == counts
        assert each.main.weights.tobytes() == learn_directly(expected, log).main.weights.tobytes()


def test_records_that_come_three_times_do_not_make_coin_flips_look_learned() -> None:
    rng = random.Random(1)
    flips = [(START + 1000 * i, f"id{i}", float(rng.choice((-1, 1)))) for i in range(1000)]
    log = [
        JoinRecord(0, 3 * i + k, time, id_, "event", label)
        for i, (time, id_, label) in enumerate(flips)
        for k in range(3)
    ]
    accuracies = []
    for once in (msgspec.UNSET, 60_000):
        learner = Learner(Identity(once=once))
        learner.begin({PartitionId(0): 0})
        apply(learner, log, JoinSettings(1, 0, 0), rng)
        accuracies.append(Accuracy.from_classifier(learner.main, averaged=False))
    repeated, once_each = accuracies
    assert repeated.all_interval
    assert once_each.all_interval
    assert repeated.all_interval[0] > 0.6
    assert once_each.all_interval[0] < 0.5 < once_each.all_interval[1]
