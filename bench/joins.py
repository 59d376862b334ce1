"""P11: a model whose labels come later: events a second, records a second of a restart and of `verify`, bytes held."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from bench import world
from bench.figure import Figure
from service.learning.events.event_reader import use_compiled_reader
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity, JoinRules
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import PartitionId, Records
from tests.conftest import perceptron, wait

EVENTS, VALUES, ROUNDS = 200_000, 20, 3
WINDOW, PER_SECOND = 60_000, 1000
"""The window in milliseconds, and the events of a second of their timestamps."""
START = 1_700_000_000_000
EVENT_LOG, LABEL_LOG = PartitionId(0, "events"), PartitionId(0, "labels")
OPTIONS = Options(label_topic="labels")
Slices = list[Records]
PARTITIONS = 4
SETTINGS = """
topics = []
[models.late]
topic = "{events}"
[models.late.join]
topic = "{labels}"
window = "1m"
"""


def figures() -> list[Figure]:
    """Events of 20 named features, each with a label: read, joined and learned in one process, and by a service."""
    use_compiled_reader(True)
    log, rows = list(_log()), list[Figure]()
    for what, default in (("without a default label", None), ("with one", 0)):
        rounds = [_round(log, default) for _ in range(ROUNDS + 1)][1:]  # the first one compiles
        learned, restored = ([figures[i] for figures in rounds] for i in (0, 1))
        rows.append(Figure("P11", f"joined events a second, {what}", learned, 150_000, True, "/s"))
        rows.append(Figure("P11", f"records a second of a restart, {what}", restored, 500_000, True, "/s"))
    rows.append(Figure("P11", "a held event, besides its bytes", [_in_new_process(_held_bytes)], 200, False, "B"))
    rows.append(Figure("P11", "records a second of `verify`, 4 + 4 partitions", _verified(log), 100_000, True, "/s"))
    return rows


def _learner(default: int | None, window: int = WINDOW) -> Learner:
    rules = JoinRules(
        id="/id", label="/label", label_value=None, where={}, own_topic=True, window=window, default_label=default,
        waits_for_labels=False, max_held=10_000_000,
    )  # fmt: skip
    learner = Learner(Identity(labels=(0, 1), join=rules), options=OPTIONS)
    learner.begin({EVENT_LOG: 0, LABEL_LOG: 0})
    return learner


def _log() -> Iterator[Records]:
    """The events and labels of each second. A label comes at most 50 seconds after its event."""
    rng, waiting, offsets = random.Random(1), list[tuple[int, bytes]](), {EVENT_LOG: 0, LABEL_LOG: 0}

    def records(partition: PartitionId, times: Sequence[int], values: Sequence[bytes]) -> Records:
        first = offsets[partition]
        offsets[partition] += len(values)
        numbers = np.arange(first, first + len(values))
        return Records(numbers, np.array(times, np.int64), ValueBuffer.from_values(values), [partition])

    for begin in range(0, EVENTS, PER_SECOND):
        time_, values, due = START + begin * 1000 // PER_SECOND, list[bytes](), list[tuple[int, bytes]]()
        for i in range(begin, begin + PER_SECOND):
            features = {f"n{k}": round(rng.gauss(0, 1), 3) for k in range(VALUES)}
            values.append(json.dumps({"id": f"request-{i}", "features": features}).encode())
            label = json.dumps({"id": f"request-{i}", "label": i % 2}).encode()
            waiting.append((time_ + rng.randrange(50_000), label))
        yield records(EVENT_LOG, [time_] * PER_SECOND, values)
        waiting.sort()
        while waiting and waiting[0][0] <= time_:
            due.append(waiting.pop(0))
        if due:
            yield records(LABEL_LOG, *zip(*due, strict=True))


def _apply(learner: Learner, log: Slices) -> float:
    """Learn the log; returns the seconds that it took."""
    began = time.process_time()
    for records in log:
        part: Any = records
        while part:
            part = part[learner.apply(part).consumed :]
    return time.process_time() - began


def _round(log: Slices, default: int | None) -> tuple[float, float]:
    """Events a second, and records a second of a restart."""
    learner, again = _learner(default), _learner(default)
    took = _apply(learner, log)
    assert learner.join
    assert learner.main.counts.join
    state = learner.join.state(learner.next)
    for partition, offset in learner.next.items():
        again.cover(partition, offset)
    join, count = again.restore_join(state, learner.main.counts.join), 0
    began = time.process_time()
    for records in log:
        part = records[records.find(state.rebuild[records.partitions[0]]) :]
        again.remember(part)
        count += len(part)
    restart = time.process_time() - began
    assert join.finish_rebuild()
    return EVENTS / took, count / restart


def _in_new_process(measure: Callable[[], float]) -> float:
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        return processes.submit(measure).result()


def _held_bytes() -> float:
    """What the process takes more for each event that is held, besides the event's own bytes."""
    use_compiled_reader(True)
    log = list(_log())
    _apply(_learner(None), log[:20])  # compiled code
    learner, before = _learner(None, window=10**9), _resident_bytes()
    events = [each for each in log if each.partitions == [EVENT_LOG]]
    _apply(learner, events)
    values = sum(int((records.values.ends - records.values.begins).sum()) for records in events)
    return (_resident_bytes() - before - values) / EVENTS


def _verified(log: Slices) -> list[float]:
    """Records a second that `perceptron verify` learns again, with its start."""
    forever: dict[str, Any] = {"retention.ms": "-1"}
    topics = {name: world.new_topic(name, PARTITIONS, **forever) for name in ("events", "labels")}

    async def send_all() -> None:
        async with world.producer(linger_ms=20) as client:
            for records in log:
                topic = topics[records.partitions[0].topic]
                for time_, value in zip(records.timestamps.tolist(), records.values, strict=True):
                    await client.send(topic, value, timestamp_ms=time_)

    asyncio.run(send_all())
    count, rates = sum(map(len, log)), list[float]()
    with world.service("", SETTINGS.format(**topics)) as running:
        wait(lambda: sum(running.http.get("/v1/models/late").json()["next"].values()) == count, "all is learned", 300.0)
        command = "-c", str(running.config), "verify", "-m", "late", "-b", world.kafka().address
        for _ in range(ROUNDS):
            began = time.monotonic()
            done = perceptron(*command, "--redis", running.redis_url, "--json", seconds=300.0)
            took, report = time.monotonic() - began, json.loads(done.stdout)
            assert report["equal"]
            rates.append(report["replayed_records"] / took)
    return rates


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
