"""`perceptron verify`: learn the records of the newest snapshot again from Kafka, and compare the state digests.

A model of one partition is replayed from its first covered record. With several partitions the order of arrival counts.
It is recorded since the last kept version, so their replay begins there. Each part is learned under the settings of its
time. Gaps are skipped. Nothing is written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray

from service.errors import ConfigurationError, DataError, LogLost
from service.learning.best import MAX_COMPARED
from service.learning.events.event_reader import use_compiled_reader
from service.learning.identity import FROM_FILE
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import PartitionId, by_text
from service.learning.rules import RULES
from service.learning.weights_file import WeightsFile
from service.serving.models import ServedModel
from service.settings.load import Settings
from service.snapshots.content import snapshot_content
from service.snapshots.head import Fingerprint, Head
from service.snapshots.ports import Store
from service.snapshots.rollback import kept_snapshot
from service.streaming.kafka.cluster import Cluster, LogReader
from service.streaming.records import KafkaRecords
from service.streaming.resume_check import fingerprint
from service.text import short_json
from service.tools.stored.inspect import newest_snapshot, offsets_as_text
from service.tools.tables import Titles, figures, print_tables

DIFFERENT = 4
"""The exit code if the states differ."""

GROUP_OFFSETS = 4000
"""The offsets that are learned at once: recorded runs may be short, and each call has a cost of its own."""
LARGE_REPLAY = 20_000
"""Offsets from which on the compiled reader is used: it takes a second to load."""
Step = tuple[PartitionId, int, int]
"""Records to learn: partition, first offset, and the offset after the last."""


async def verify_model(settings: Settings, name: str, as_json: bool) -> int:
    """Print what was compared; returns 0 if the replay gives the stored state, else 4."""
    async with settings.redis.store() as store:
        snapshot, learner, version = await _begin(store, settings, name)
    head, stored = snapshot.head, snapshot.learner
    steps = _steps(snapshot, learner)
    events, records, learned = learner.main.counts.events, learner.main.counts.records, stored.main.counts.records
    topics = settings.topics_of(name)
    diverged = await _replay(settings.kafka.cluster, topics, snapshot, steps, learner)
    digest = snapshot_content(learner).head.state_digest
    equal, replayed = digest == head.state_digest, learner.main.counts.records - records
    empty = sum(to - start for _, start, to in steps) - replayed
    if not equal and learner.gaps and learner.main.counts.records < learned and not diverged:
        held = f"{learner.main.counts.records:,} of the {learned:,} records that were learned"
        raise DataError(
            f"topic {' and '.join(topics)} holds {held}: {empty:,} covered offsets are empty, as in a compacted log"
        )
    about: dict[str, Any] = {
        "model": name,
        "version": head.version,
        "order": head.order,
        "from_version": version,
        "covered": by_text(head.covered),
        "replayed_records": replayed,
        "replayed_events": learner.main.counts.events - events,
        "events": head.counts.events,
        "amendments": [*_amendments(stored)],
        "candidates": {name: candidate.counts.events for name, candidate in head.candidate_states.items()},
        "offsets_without_record": empty,
        "gaps": by_text(learner.gaps),
        "state_digest": head.state_digest,
        "replayed_state_digest": digest,
        "equal": equal,
        "result": "equal, bit for bit" if equal else "DIFFERENT",
        "differences": [] if equal else _differences(stored, learner, diverged),
    }
    if as_json:
        typer.echo(msgspec.json.encode(about))
    else:
        tables: dict[Titles, Any] = {("figure", "value"): figures(msgspec.to_builtins(about))}
        print_tables(tables | {(part,): [(line,) for line in about[part]] for part in ("amendments", "differences")})
    return 0 if equal else DIFFERENT


async def _begin(store: Store, settings: Settings, name: str) -> tuple[ServedModel, Learner, int | None]:
    """The newest snapshot, the learner that its replay begins with, and the kept version that this learner is from."""
    # The sums of the bound are left out: they are not part of the state.
    options = Options(MAX_COMPARED, bound=False, label_topic=settings.model_settings(name).options().label_topic)
    snapshot = await newest_snapshot(store, name, options)
    head, stored = snapshot.head, snapshot.learner
    version = None if head.order == "log" or not head.kept else head.kept[-1].version
    if version is None:
        learner = Learner(stored.identities[0], options=options, start=_start(settings, name, head))
    else:
        learner = (await kept_snapshot(store, name, head, snapshot.digest, version, options)).learner
    learner.lists_since = stored.lists_since
    learner.begin({partition: ranges[0][0] for partition, ranges in stored.covered.items()})
    # Candidates of a kept version that were removed or replaced since then are not compared.
    since = {name: (candidate.identity, candidate.since) for name, candidate in stored.candidates.items()}
    learner.candidates = {n: c for n, c in learner.candidates.items() if (c.identity, c.since) == since.get(n)}
    if not (learner.best and stored.best and learner.best.at_its_start == stored.best.at_its_start):
        learner.best = None
    return snapshot, learner, version


def _change(learner: Learner, stored: Learner) -> None:
    """Amend the learner, and add candidates, as the stored model did at the learner's next offsets or before them."""
    following, count = learner.next, len(learner.amendments)
    for amendment, identity in zip(stored.amendments[count:], stored.identities[count + 1 :], strict=True):
        if _reached(following, amendment.since):
            learner.amend(identity)
            learner.amendments[-1] = amendment  # its own offsets may be after a gap
    for name, candidate in stored.candidates.items():
        if name not in learner.candidates and _reached(following, candidate.since):
            learner.add_candidate(name, candidate.identity)
            learner.candidates[name].since = dict(candidate.since)  # the record before that offset may be in a gap
    if (best := stored.best) and not learner.best and _reached(following, best.since):
        learner.best = best.at_its_start


def _reached(following: Mapping[PartitionId, int], since: Mapping[PartitionId, int]) -> bool:
    return all(following[partition] >= offset for partition, offset in since.items())


def _cut(steps: Sequence[Step], stored: Learner) -> Iterator[Step]:
    """The same steps, cut where a candidate began or an amendment happened, and into small ones."""
    begun = [each.since for each in (*stored.candidates.values(), *stored.amendments, stored.best) if each]
    for partition, start, to in steps:
        cuts = {since.get(partition, start) for since in begun}.union(range(start, to, GROUP_OFFSETS))
        edges = [start, *sorted(cut for cut in cuts if start < cut < to), to]
        yield from ((partition, a, b) for a, b in pairwise(edges))


def _start(settings: Settings, name: str, head: Head) -> WeightsFile | None:
    """The weights of the file that the model began with, if it did: its head has only their digest."""
    if not head.identity.start.startswith(FROM_FILE):
        return None
    start = settings.model_settings(name).start_weights
    if start is None or start.identity != head.identity.start:
        digest = head.identity.start[:20]
        raise ConfigurationError(f"model {name} began with a file of weights ({digest}…): set start to it")
    return start


def _steps(snapshot: ServedModel, learner: Learner) -> list[Step]:
    """The records to learn again; raises DataError if the recorded order does not lead to the stored state."""
    head, stored = snapshot.head, snapshot.learner
    if head.order == "log":
        return [(p, start, to) for p, ranges in stored.covered.items() for start, to in ranges]
    following, partitions = learner.next, list(stored.covered)
    steps = [(partitions[index], start, to) for index, start, to in stored.runs]
    for partition, start, to in steps:
        if start != following.get(partition):
            break
        following[partition] = to
    if following != stored.next:
        why = "the order of its records is known only since a version that is not kept any more"
        cure = "set snapshots.keep above 0, and verify after the next kept version"
        raise DataError(f"model {head.model} cannot be learned again: {why}: {cure}")
    return steps


async def _replay(
    cluster: Cluster, topics: list[str], served: ServedModel, steps: list[Step], learner: Learner
) -> str | None:
    """Learn the covered records again; returns why the model diverged, if it did.

    Raises LogLost if records are missing, and DependencyError.
    """
    if sum(to - start for _, start, to in steps) > LARGE_REPLAY:
        use_compiled_reader(True)
    fingerprints = {p: position.fingerprint for p, position in served.head.next.items()}
    learner.gaps = {}
    topic = " and ".join(topics)
    async with cluster.reader(served.head.model, topics, LogLost(f"{cluster} has no topic {topic}")) as reader:
        _check_log(topic, steps, reader.bounds)
        if learner.join and (state := learner.join.stored):
            for partition, start in state.rebuild.items():
                async for part in reader.read(partition, start, learner.next[partition]):
                    learner.remember(part)
            if not learner.join.finish_rebuild():
                raise LogLost(f"topic {topic}: the log no longer has the records that the join remembers")
        for group in _groups(_cut(steps, served.learner), learner, served.learner):
            learner.skip(*group[0][:2])
            _change(learner, served.learner)
            records = await _read_group(reader, group, learner, partial(_check_last, topic, fingerprints))
            while records:
                outcome = learner.apply(records)
                if outcome.diverged:
                    return outcome.diverged
                records = records[outcome.consumed :]
            for partition, to in {partition: to for partition, _, to in group}.items():
                learner.cover(partition, to)
    _change(learner, served.learner)
    return None


def _groups(steps: Iterable[Step], learner: Learner, stored: Learner) -> Iterator[list[Step]]:
    """The steps in groups, each of which is learned at once. Before a change of settings, a step is a group."""
    group, following, count = list[Step](), learner.next, 0
    for partition, start, to in steps:
        changes = len(learner.amendments) + len(learner.candidates) < len(stored.amendments) + len(stored.candidates)
        changes |= bool(stored.best and not learner.best)
        if group and (changes or start != following[partition] or count >= GROUP_OFFSETS):
            yield group
            group, following, count = [], learner.next, 0
        group.append((partition, start, to))
        following[partition], count = to, count + to - start
    if group:
        yield group


async def _read_group(
    reader: LogReader, group: Sequence[Step], learner: Learner, check: Callable[[KafkaRecords], None]
) -> KafkaRecords | None:
    """The records of these steps, in their order, if there are any; counts the gaps in the log."""
    parts, keys = list[KafkaRecords](), list[NDArray[np.int64]]()
    for partition in dict.fromkeys(partition for partition, *_ in group):
        own = np.array([(start, to, i) for i, (p, start, to) in enumerate(group) if p == partition])
        start, end = int(own[0, 0]), int(own[-1, 1])
        offsets = [np.array([start - 1])]
        async for part in reader.read(partition, start, end):
            check(part)
            parts.append(part)
            keys.append(own[np.searchsorted(own[:, 0], part.offsets, "right") - 1, 2])
            offsets.append(part.offsets)
        edges = np.concatenate([*offsets, [end]])
        for i in np.flatnonzero(np.diff(edges) > 1).tolist():
            learner.add_gap(partition, (int(edges[i]) + 1, int(edges[i + 1])))
    return KafkaRecords.merged(parts, np.concatenate(keys)) if parts else None


def _check_last(topic: str, fingerprints: Mapping[PartitionId, Fingerprint | None], records: KafkaRecords) -> None:
    """Raise LogLost if these records have the last one that was learned of their partition, and it is another one."""
    last = fingerprints[records.partitions[0]]
    for record in records[records.find(last.offset) : records.find(last.offset + 1)] if last else ():
        if fingerprint(record) != last:
            place = f"offset {record.offset} of partition {records.partitions[0]}"
            why = "is not the one that was learned, so the topic was recreated"
            raise LogLost(f"topic {topic}: the record at {place} {why}")


def _check_log(topic: str, steps: Sequence[Step], bounds: dict[PartitionId, tuple[int, int]]) -> None:
    for partition, start, to in steps:
        begin, end = bounds.get(partition, (0, 0))
        if to > end or start < min(begin, to):
            has = f"partition {partition} has the offsets {begin} to {end}"
            raise LogLost(f"topic {topic}: {has}, and {start} to {to} were learned: they cannot be learned again")


def _differences(stored: Learner, replayed: Learner, diverged: str | None) -> list[str]:
    """The differences as lines of text."""
    differences = [f"the replay diverged: {diverged}"] if diverged else []
    ours = _figures(replayed)
    for name, figure in _figures(stored).items():
        if figure != ours.get(name):
            differences.append(f"{name}: {short_json(figure)} stored, {short_json(ours.get(name))} replayed")
    if stored.columns.names != replayed.columns.names:
        return [*differences, "columns: their names or order"]
    for name, array in stored.arrays.items():
        other = replayed.arrays.get(name, np.full_like(array, np.nan))
        if count := np.count_nonzero(array.view(np.uint64) != other.view(np.uint64)):
            differences.append(f"{name}: {count:,} of {len(array):,} columns")
    if not all(RULES[classifier.identity.rule].exact for classifier in (stored.main, *stored.candidates.values())):
        differences.append("the logistic rule's exp may differ between machines")
    return differences


def _figures(learner: Learner) -> dict[str, Any]:
    """The figures of a state that the differences show."""
    candidates = {f"candidate {name}": msgspec.to_builtins(c.counts) for name, c in learner.candidates.items()}
    counts, best = msgspec.to_builtins(learner.main.counts), learner.best and learner.best.answering
    return {**counts, **candidates, "answering": best, "covered": by_text(learner.covered)}


def _amendments(learner: Learner) -> Iterator[str]:
    """The changes of the settings, and the offsets at which they began."""
    for old, new in zip(learner.amendments, learner.identities[1:], strict=True):
        yield f"{'; '.join(new.differences(old.identity))}, from {offsets_as_text(old.since)} on"
    if learner.lists_since not in ({}, learner.next):
        yield f"lists of objects and byte order marks are read, from {offsets_as_text(learner.lists_since)} on"
