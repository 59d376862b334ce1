"""`perceptron verify`: what the newest snapshot covers is learned again from Kafka, and its state digest compared.

One partition is replayed from its first covered record; of several the order of arrival counts, which is recorded since
the last kept version, so that one is where their replay begins. Holes are skipped. Nothing is written.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import typer

from service.errors import ConfigurationError, DataError, LogLost
from service.learning.initial_weights import GIVEN
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.rules import RULES
from service.learning.weights_file import WeightsFile
from service.settings.load import Settings
from service.snapshots import head as heads
from service.snapshots.head import Head
from service.snapshots.keeper import Snapshot, fetch_newest
from service.snapshots.redis.store import RedisStore
from service.snapshots.rollback import kept_snapshot
from service.streaming.kafka.cluster import Cluster
from service.streaming.records import KafkaRecords
from service.streaming.resume_check import fingerprint
from service.tools.stored_models import none_stored

REPLAY_RECORDS = 1000
TRIES = 5
"""A learner that saves often may sweep what is read here; then it begins again."""
UNWATCHED = Options(bound=False)
"""The bound's sums are no part of the state."""
DIFFERENT = 4
"""The exit code where the state is another."""

Step = tuple[int, int, int]
"""Records to learn: partition, first offset, and the offset after the last."""


def verify_model(settings: Settings, name: str, as_json: bool) -> int:
    """Print what was compared; 0 where the replay gives the stored state, 4 where it gives another."""
    about = asyncio.run(_verify(settings, name))
    if as_json:
        typer.echo(msgspec.json.encode(about))
    else:
        for label, value in _lines(about):
            typer.echo(f"{label:<10}{value}")
    return 0 if about["equal"] else DIFFERENT


async def _verify(settings: Settings, name: str) -> dict[str, Any]:
    async with settings.redis.store() as store:
        snapshot, learner, version = await _begin(store, settings, name)
    head, stored = snapshot.head, snapshot.learner
    steps = _steps(snapshot, learner)
    events, records = learner.counts.events, learner.counts.records
    diverged = await _replay(settings.kafka.cluster, name, snapshot, steps, learner)
    digest = heads.snapshot_content(learner).state_digest
    equal, replayed = digest == head.state_digest, learner.counts.records - records
    empty = sum(to - start for _, start, to in steps) - replayed
    if not equal and learner.observations.gaps and learner.counts.records < stored.counts.records and not diverged:
        raise DataError(
            f"topic {name} holds {learner.counts.records:,} of the {stored.counts.records:,} records that were "
            f"learned: {empty:,} covered offsets are empty, as where a log is compacted"
        )
    return {
        "model": name,
        "version": head.version,
        "order": head.order,
        "from_version": version,
        "covered": head.covered,
        "replayed_records": replayed,
        "replayed_events": learner.counts.events - events,
        "events": head.counts.events,
        "candidates": {name: one.counts.events for name, one in head.beside.items()},
        "offsets_without_record": empty,
        "gaps": learner.observations.gaps,
        "state_digest": head.state_digest,
        "replayed_state_digest": digest,
        "equal": equal,
        "differences": [] if equal else _differences(stored, learner, diverged),
    }


async def _begin(store: RedisStore, settings: Settings, name: str) -> tuple[Snapshot, Learner, int | None]:
    """The newest snapshot, the learner that its replay begins with, and the kept version that this is, if any."""
    for _ in range(TRIES):
        snapshot = await fetch_newest(store, name, asyncio.to_thread, UNWATCHED)
        if snapshot is None:
            raise await none_stored(store, name)
        head = snapshot.head
        begins = {partition: ranges[0][0] for partition, ranges in snapshot.learner.covered.items()}
        if head.order == "log" or not head.kept:
            learner = Learner(head.identity, options=UNWATCHED, start=_start(settings, name, head))
            learner.begin(begins)
            return snapshot, learner, None
        try:
            version = head.kept[-1].version
            base = await kept_snapshot(store, head, snapshot.digest, version, asyncio.to_thread, UNWATCHED)
        except DataError:
            if await store.digest(name) == snapshot.digest:
                raise
            continue  # let go meanwhile: a newer one is the last
        base.learner.begin(begins)
        _drop_others(base.learner, snapshot.learner)
        return snapshot, base.learner, version
    raise DataError(f"model {name} moves on faster than its kept versions can be read: try again")


def _drop_others(learner: Learner, stored: Learner) -> None:
    """Leave out the candidates of a kept version that are not, or not since then, those that are stored."""
    wanted = {name: (one.identity, one.since) for name, one in stored.candidates.items()}
    learner.candidates = {n: c for n, c in learner.candidates.items() if (c.identity, c.since) == wanted.get(n)}


def _add_due(learner: Learner, stored: Learner) -> None:
    """Have the candidates that began here."""
    for name, one in stored.candidates.items():
        if name not in learner.candidates and all(learner.next[p] >= offset for p, offset in one.since.items()):
            learner.add_candidate(name, one.identity)
            learner.candidates[name].since = dict(one.since)  # the record before may be in a hole


def _cut(steps: Sequence[Step], stored: Learner) -> Iterator[Step]:
    """The same steps, none of them over an offset where a candidate began."""
    for partition, start, to in steps:
        cuts = {one.since[partition] for one in stored.candidates.values()}
        edges = [start, *sorted(cut for cut in cuts if start < cut < to), to]
        yield from ((partition, a, b) for a, b in pairwise(edges))


def _start(settings: Settings, name: str, head: Head) -> WeightsFile | None:
    """The weights that the model was begun with, where they are given ones: a head has only what became of them."""
    if not head.identity.start.startswith(GIVEN):
        return None
    start = settings.of(name).start_weights
    if start is None or start.identity != head.identity.start:
        raise ConfigurationError(
            f"model {name} began with given weights ({head.identity.start[:20]}…), and the setting start has "
            f"{'none' if start is None else 'others'}: set it to their file"
        )
    return start


def _steps(snapshot: Snapshot, learner: Learner) -> list[Step]:
    """What to learn again; raises DataError where the recorded order does not lead there."""
    head, stored = snapshot.head, snapshot.learner
    if head.order == "log":
        return [(p, start, to) for p, ranges in stored.covered.items() for start, to in ranges]
    at = learner.next
    for partition, start, to in stored.runs:
        if start != at.get(partition):
            break
        at[partition] = to
    if at != stored.next:
        raise DataError(
            f"model {head.model}: the order of its records is known since a version that is not kept any more, so it "
            "cannot be learned again: let the service keep a version (snapshots.keep), and verify from then on"
        )
    return stored.runs


async def _replay(
    cluster: Cluster, topic: str, snapshot: Snapshot, steps: Sequence[Step], learner: Learner
) -> str | None:
    """Learn the covered records again; returns why the model diverged, if it did.

    Raises LogLost if they are not all there, and DependencyError.
    """
    known = {int(p): position.fingerprint for p, position in snapshot.head.next.items()}
    learner.observations.gaps = {}
    async with cluster.reader(topic, LogLost(f"{cluster} has no topic {topic}")) as reader:
        _check_log(topic, steps, await reader.bounds())
        for partition, start, to in _cut(steps, snapshot.learner):
            learner.skip(partition, start)
            _add_due(learner, snapshot.learner)
            async for part in reader.read(partition, start, to):
                seen = known[partition]
                for record in part[part.find(seen.offset) : part.find(seen.offset + 1)] if seen else ():
                    if fingerprint(record) != seen:
                        raise LogLost(
                            f"topic {topic}: the record at offset {record.offset} of partition {partition} is not the "
                            "one that was learned, so the topic was recreated"
                        )
                for run in _slices(part):
                    _cover(learner, partition, int(run.offsets[0]))
                    if diverged := learner.apply(partition, run).diverged:
                        return diverged
            _cover(learner, partition, to)
    _add_due(learner, snapshot.learner)
    return None


def _cover(learner: Learner, partition: int, to: int) -> None:
    """Cover the offsets up to `to`, which hold no record."""
    if to > (start := learner.next[partition]):
        learner.observations.add_gap(partition, (start, to))
        learner.cover(partition, to)


def _check_log(topic: str, steps: Sequence[Step], there: dict[int, tuple[int, int]]) -> None:
    for partition, start, to in steps:
        begin, end = there.get(partition, (0, 0))
        if start < begin and start < to:
            raise LogLost(
                f"topic {topic}: partition {partition} begins at {begin}, so the records from {start} to "
                f"{min(begin, to)}, which were learned, are gone: they cannot be learned again"
            )
        if to > end:
            raise LogLost(
                f"topic {topic}: partition {partition} ends at {end}, but the model has learned up to {to}: it is not "
                "the log that was learned"
            )


def _slices(records: KafkaRecords) -> Iterator[KafkaRecords]:
    """Contiguous records, not many at once."""
    for run in records.runs():
        for i in range(0, len(run), REPLAY_RECORDS):
            yield run[i : i + REPLAY_RECORDS]


def _differences(stored: Learner, replayed: Learner, diverged: str | None) -> list[str]:
    """What is not the same, for a person."""
    found = [f"the replay diverged: {diverged}"] if diverged else []
    ours, theirs = msgspec.to_builtins(replayed.counts), msgspec.to_builtins(stored.counts)
    if stored.identity.multiclass and ours.pop("confusion") != theirs["confusion"]:
        found.append("confusion")  # it fills no line
    found += [f"{name}: {theirs[name]} stored, {ours[name]} replayed" for name in ours if ours[name] != theirs[name]]
    for name, one in stored.candidates.items():
        again = replayed.candidates.get(name)
        if again is None or (one.counts, one.diverged_at) != (again.counts, again.diverged_at):
            found.append(f"the counts of candidate {name}")
    if stored.covered != replayed.covered:
        found.append(f"covered: {stored.covered} stored, {replayed.covered} replayed")
    if len(stored.columns) != len(replayed.columns) or stored.columns.names != replayed.columns.names:
        return [*found, f"columns: {len(stored.columns):,} stored, {len(replayed.columns):,} replayed, or their order"]
    for name, array in stored.arrays.items():
        again_array = replayed.arrays.get(name, np.full_like(array, np.nan))
        other = np.flatnonzero(array.view(np.uint64) != again_array.view(np.uint64))
        if len(other):
            column = int(other[0])
            called = stored.columns.name_of(column) if column else "the bias"
            found.append(
                f"{name}: {len(other):,} of {len(array):,} columns, such as {called}: "
                f"{float(array[column])!r} stored, {float(again_array[column])!r} replayed"
            )
    if not all(RULES[one.identity.rule].exact for one in (stored, *stored.candidates.values())):
        found.append("the logistic rule's exp may differ between machines")
    return found


def _lines(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "model", f"{about['model']}, version {about['version']:,}, {about['events']:,} events"
    for partition, ranges in about["covered"].items():
        yield "covered", f"partition {partition}: {', '.join(f'{start:,} to {to:,}' for start, to in ranges)}"
    begun = "the first record" if about["from_version"] is None else f"kept version {about['from_version']:,}"
    counts = f"{about['replayed_records']:,} records, {about['replayed_events']:,} of them events"
    yield "replayed", f"{counts}, from {begun} on; {about['offsets_without_record']:,} offsets hold no record"
    for partition, gaps in about["gaps"].items():
        first, last = (f"{start:,} to {to:,}" for start, to in (gaps.first, gaps.last))
        yield "gaps", f"partition {partition}: {gaps.count:,} gaps, the first {first}, the last {last}"
    for name, events in about["candidates"].items():
        yield "candidate", f"{name}, {events:,} events"
    yield "stored", about["state_digest"]
    yield "replay", about["replayed_state_digest"]
    yield "result", "equal, bit for bit" if about["equal"] else "DIFFERENT"
    for difference in about["differences"]:
        yield "", difference
