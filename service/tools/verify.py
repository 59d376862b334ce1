"""`perceptron verify`: what the newest snapshot covers is learned again from Kafka, and its state digest compared.

One partition is replayed from its first covered record; of several the order of arrival counts, which is recorded since
the last kept version, so that one is where their replay begins. Holes are skipped. Nothing is written.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import typer

from service.errors import ConfigurationError, DataError, LogLost
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.rules import RULES
from service.learning.start import GIVEN
from service.learning.watch import OffsetGaps
from service.learning.weights import Weights
from service.settings.load import Settings
from service.snapshots import head as heads
from service.snapshots.head import Head
from service.snapshots.keeper import Snapshot, fetch
from service.snapshots.rollback import kept_snapshot
from service.snapshots.store import RedisStore
from service.streaming.kafka.cluster import Cluster
from service.streaming.kafka.log_reader import LogReader
from service.streaming.recognise import fingerprint
from service.streaming.records import KafkaRecords
from service.tools.stored import none_stored

SLICE = 1000
TRIES = 5
"""A learner that saves often may sweep what is read here; then it begins again."""
UNWATCHED = Options(bound=False)
"""The bound's sums are no part of the state."""
DIFFERENT = 4
"""The exit code where the state is another."""


class Begun(NamedTuple):
    """Where a replay begins: a learner, and the kept version that it is, if any."""

    learner: Learner
    version: int | None


class Replayed(NamedTuple):
    """What was read again: records, offsets that held none, and why it could not be learned to the end, if so."""

    records: int
    empty: int
    """Offsets that held no record."""
    gaps: dict[str, OffsetGaps]
    """Where they are, by partition."""
    diverged: str | None


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
        snapshot, begun = await _begin(store, settings, name)
    learner, head = begun.learner, snapshot.head
    before = learner.counts.events
    replayed = await _replay(settings.kafka.cluster, name, snapshot, learner)
    digest = heads.content(learner).state_digest
    equal = digest == head.state_digest
    records, stored = learner.counts.records, snapshot.learner.counts.records
    if not equal and replayed.gaps and records < stored and not replayed.diverged:
        raise DataError(
            f"topic {name} holds {records:,} of the {stored:,} records that were "
            f"learned: {replayed.empty:,} covered offsets are empty, as where a log is compacted"
        )
    return {
        "model": name,
        "version": head.version,
        "order": head.order,
        "from_version": begun.version,
        "covered": head.covered,
        "replayed_records": replayed.records,
        "replayed_events": learner.counts.events - before,
        "events": head.counts.events,
        "candidates": {name: one.counts.events for name, one in head.beside.items()},
        "offsets_without_record": replayed.empty,
        "gaps": replayed.gaps,
        "state_digest": head.state_digest,
        "replayed_state_digest": digest,
        "equal": equal,
        "differences": [] if equal else _differences(snapshot.learner, learner, replayed.diverged),
    }


async def _begin(store: RedisStore, settings: Settings, name: str) -> tuple[Snapshot, Begun]:
    """The newest snapshot, and where its replay begins."""
    for _ in range(TRIES):
        snapshot = await fetch(store, name, asyncio.to_thread, UNWATCHED)
        if snapshot is None:
            raise await none_stored(store, name)
        head = snapshot.head
        if head.order == "log" or not head.kept:
            return snapshot, Begun(_fresh(settings, name, head), None)
        try:
            version = head.kept[-1].version
            base = await kept_snapshot(store, head, snapshot.digest, version, asyncio.to_thread, UNWATCHED)
        except DataError:
            if await store.digest(name) == snapshot.digest:
                raise
            continue  # let go meanwhile: a newer one is the last
        base.learner.begin({p: ranges[0][0] for p, ranges in snapshot.learner.covered.items()})
        _drop_others(base.learner, snapshot.learner)
        return snapshot, Begun(base.learner, version)
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


def _cut(steps: Sequence[tuple[int, int, int]], stored: Learner) -> Iterator[tuple[int, int, int]]:
    """The same steps, none of them over an offset where a candidate began."""
    for partition, start, to in steps:
        cuts = {one.since[partition] for one in stored.candidates.values()}
        edges = [start, *sorted(cut for cut in cuts if start < cut < to), to]
        yield from ((partition, a, b) for a, b in pairwise(edges))


def _fresh(settings: Settings, name: str, head: Head) -> Learner:
    learner = Learner(head.identity, options=UNWATCHED, start=_start(settings, name, head))
    learner.begin({int(p): ranges[0][0] for p, ranges in head.covered.items()})
    return learner


def _start(settings: Settings, name: str, head: Head) -> Weights | None:
    """The weights that the model was begun with, where they are given ones: a head has only what became of them."""
    if not head.identity.start.startswith(GIVEN):
        return None
    start = settings.of(name).start_weights()
    if start is None or start.identity != head.identity.start:
        raise ConfigurationError(
            f"model {name} began with given weights ({head.identity.start[:20]}…), and the setting start has "
            f"{'none' if start is None else 'others'}: set it to their file"
        )
    return start


def _steps(snapshot: Snapshot, learner: Learner) -> list[tuple[int, int, int]]:
    """What to learn again, as (partition, from, to); raises DataError where the recorded order does not lead there."""
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


async def _replay(cluster: Cluster, topic: str, snapshot: Snapshot, learner: Learner) -> Replayed:
    """Learn the covered records again; raises LogLost where they are not all there, and DependencyError."""
    steps = _steps(snapshot, learner)
    known = {int(p): position.fingerprint for p, position in snapshot.head.next.items()}
    records, empty = 0, 0
    learner.watch.gaps = {}

    def pass_over(partition: int, to: int) -> None:
        nonlocal empty
        start = learner.next[partition]
        if to > start:
            empty += to - start
            learner.watch.add_gap(partition, (start, to))
            learner.pass_over(partition, to)

    async with cluster.reader(topic, LogLost(f"{cluster} has no topic {topic}")) as reader:
        _check_log(topic, steps, await reader.bounds())
        for partition, start, to in _cut(steps, snapshot.learner):
            learner.skip(partition, start)
            _add_due(learner, snapshot.learner)
            async for part in _read(reader, topic, partition, start, to):
                seen = known[partition]
                for record in part[part.find(seen.offset) : part.find(seen.offset + 1)] if seen else ():
                    if fingerprint(record) != seen:
                        raise LogLost(
                            f"topic {topic}: the record at offset {record.offset} of partition {partition} is not the "
                            "one that was learned, so the topic was recreated"
                        )
                for run in _slices(part):
                    pass_over(partition, int(run.offsets[0]))
                    outcome = learner.apply(partition, run)
                    records += outcome.consumed
                    if outcome.diverged:
                        return Replayed(records, empty, learner.watch.gaps, outcome.diverged)
            pass_over(partition, to)
    _add_due(learner, snapshot.learner)
    return Replayed(records, empty, learner.watch.gaps, None)


def _check_log(topic: str, steps: Sequence[tuple[int, int, int]], there: dict[int, tuple[int, int]]) -> None:
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


async def _read(reader: LogReader, topic: str, partition: int, start: int, to: int) -> AsyncIterator[KafkaRecords]:
    """As the reader; raises LogLost if the log cannot be read on."""
    try:
        async for records in reader.read(partition, start, to):
            yield records
    except DataError as error:
        raise LogLost(f"{error}: the records of topic {topic} that were learned cannot be learned again") from error


def _slices(records: KafkaRecords) -> Iterator[KafkaRecords]:
    """Contiguous records, not many at once."""
    for run in records.runs():
        for i in range(0, len(run), SLICE):
            yield run[i : i + SLICE]


def _differences(stored: Learner, replayed: Learner, diverged: str | None) -> list[str]:
    """What is not the same, for a person; a confusion of many labels, which fills no line, by its name alone."""
    found = [f"the replay diverged: {diverged}"] if diverged else []
    ours, theirs = msgspec.to_builtins(replayed.counts), msgspec.to_builtins(stored.counts)
    if stored.identity.multiclass and ours.pop("confusion") != theirs["confusion"]:
        found.append("confusion")
    found += [f"{name}: {theirs[name]} stored, {ours[name]} replayed" for name in ours if ours[name] != theirs[name]]
    for name, one in stored.candidates.items():
        if (again := replayed.candidates.get(name)) is None:
            found.append(f"candidate {name}: not replayed")
        elif (one.counts, one.diverged_at) != (again.counts, again.diverged_at):
            counts = msgspec.to_builtins(one.counts), msgspec.to_builtins(again.counts)
            found.append(f"candidate {name}: {counts[0]} stored, {counts[1]} replayed")
    if stored.covered != replayed.covered:
        found.append(f"covered: {stored.covered} stored, {replayed.covered} replayed")
    if len(stored.columns) != len(replayed.columns):
        found.append(f"columns: {len(stored.columns):,} stored, {len(replayed.columns):,} replayed")
    elif stored.columns.names != replayed.columns.names:
        found.append("the names of the columns, or their order")
    else:
        for name, array in stored.arrays.items():
            if name not in replayed.arrays:
                continue
            other = np.flatnonzero(array.view(np.uint64) != replayed.arrays[name].view(np.uint64))
            if len(other):
                c = int(other[0])
                label = stored.columns.name_of(c) if c else "the bias"
                found.append(
                    f"{name}: {len(other):,} of {len(array):,} columns, such as {label}: "
                    f"{float(array[c])!r} stored, {float(replayed.arrays[name][c])!r} replayed"
                )
    if not all(RULES[one.identity.rule].exact for one in (stored, *stored.candidates.values())):
        found.append("the logistic rule's exp may differ between machines")
    return found


def gap_text(gaps: OffsetGaps) -> str:
    """How many gaps there are, and the first and the last, for a person."""
    first, last = (f"{start:,} to {end:,}" for start, end in (gaps.first, gaps.last))
    return f"1 gap, {first}" if gaps.count == 1 else f"{gaps.count:,} gaps, the first {first}, the last {last}"


def _lines(about: dict[str, Any]) -> list[tuple[str, str]]:
    begun = "the first record" if about["from_version"] is None else f"kept version {about['from_version']:,}"
    empty, gaps = about["offsets_without_record"], about["gaps"]
    ranges = [(p, ", ".join(f"{a:,} to {b:,}" for a, b in part)) for p, part in about["covered"].items()]
    return [
        ("model", f"{about['model']}, version {about['version']:,}, {about['events']:,} events"),
        *(("covered", f"partition {partition}: {part}") for partition, part in ranges),
        (
            "replayed",
            f"{about['replayed_records']:,} records, {about['replayed_events']:,} of them events, from {begun} on"
            + (f"; {empty:,} offsets hold no record" if empty else ""),
        ),
        *(("gaps", f"partition {p}: {gap_text(g)}") for p, g in gaps.items()),
        *(("candidate", f"{name}, {events:,} events") for name, events in about["candidates"].items()),
        ("stored", about["state_digest"]),
        ("replay", about["replayed_state_digest"]),
        ("result", "equal, bit for bit" if about["equal"] else "DIFFERENT"),
        *(("", difference) for difference in about["differences"]),
    ]
