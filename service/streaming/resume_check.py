"""Whether this process may continue a stored model: it needs the same cluster, settings and log.

Also where a new model begins.
"""

import zlib
from collections.abc import Callable, Mapping

from service.errors import AnotherCluster, DependencyError, IdentityChanged, LogLost
from service.learning.identity import AMENDABLE, OF_A_CANDIDATE, Identity
from service.learning.records import PartitionId
from service.snapshots.head import Fingerprint, Head, TopicIdentity
from service.streaming.ports import Bounds, Log, Observer
from service.streaming.records import KafkaRecord


def same_settings(model: str, head: Head, identity: Identity, source: TopicIdentity) -> None:
    """Raise AnotherCluster or IdentityChanged if the model was learned elsewhere, or under other settings.

    The cluster is checked first: a model of another cluster means nothing here, and is not ours to reset.
    """
    if head.source.elsewhere(source):
        raise AnotherCluster(
            f"model {model} was learned from Kafka cluster {head.source.cluster}, and this is {source.cluster}: it may "
            "be somebody else's. Go back to that cluster, or give this one another Redis database (redis.url)"
        )
    if differences := identity.differences(head.identity):
        ways = ["restore them"]
        if not identity.differences(head.identity, AMENDABLE):
            ways.append(f"continue under these with `perceptron amend -m {model} --yes`")
        if not identity.differences(head.identity, OF_A_CANDIDATE):
            ways.append("learn these as a candidate")
        raise IdentityChanged(
            f"model {model} was learned under other settings ({'; '.join(differences)}): {', '.join(ways)}, or forget "
            f"the model with `perceptron reset -m {model} --yes`"
        )


def settings_of_reset(model: str, required: Identity | None, identity: Identity) -> None:
    """Raise IdentityChanged if a reset requires another identity of the model that begins."""
    if required and (differences := identity.differences(required)):
        raise IdentityChanged(
            f"model {model} was reset to be learned under other settings ({'; '.join(differences)}): restart this "
            f"process with them, or say `perceptron reset -m {model} --yes` with the settings of this process"
        )


def lost_topic_message(model: str, topic: str) -> str:
    """The sentence about a stored model whose topic does not exist."""
    return (
        f"topic {topic} does not exist, so model {model} learns nothing: restore the topic with its records, or forget "
        f"the model with `perceptron reset -m {model} --yes`"
    )


def first_offsets(
    topic_of: Callable[[PartitionId], str], bounds: Bounds, start_at: str | Mapping[PartitionId, int] | None
) -> dict[PartitionId, int]:
    """The offset where each partition of a new model, or each new partition, begins; raises LogLost.

    `start_at` is `earliest`, `latest`, or the offset of each partition; without one a partition begins at 0.
    """
    if isinstance(start_at, str):
        return {p: begin if start_at == "earliest" else end for p, (begin, end) in bounds.items()}
    starts = {p: (start_at or {}).get(p, 0) for p in bounds}
    for partition, (begin, end) in sorted(bounds.items()):
        if not begin <= (offset := starts[partition]) <= end:
            raise LogLost(
                f"topic {topic_of(partition)}: learning would begin at offset {offset} of partition "
                f"{partition.number}, which holds {begin} to {end}: say where with --start-at earliest, latest or "
                f"{partition}:OFFSET"
            )
    return starts


def other_record(model: str, topic_of: Callable[[PartitionId], str], partition: PartitionId, offset: int) -> LogLost:
    """The error if a record is not the one that was learned at its offset."""
    return LogLost(
        f"topic {topic_of(partition)}: the record at offset {offset} of partition {partition.number} is not the one "
        "that was learned, so the topic was recreated: restore its records, or start from scratch with `perceptron "
        f"reset -m {model} --yes`"
    )


def check_held(
    model: str, topic_of: Callable[[PartitionId], str], rebuild: Mapping[PartitionId, int], bounds: Bounds
) -> None:
    """Raise LogLost if the log no longer has the records that a join remembers."""
    for partition, offset in sorted(rebuild.items()):
        begin, _ = bounds.get(partition, (offset, offset))
        if begin > offset:
            raise LogLost(
                f"topic {topic_of(partition)}: partition {partition.number} begins at offset {begin}, and the join "
                f"remembers records from {offset} on, so their events cannot be held again: `perceptron join drop -m "
                f"{model} --yes` leaves them out"
            )


def check_offsets(
    model: str,
    topic_of: Callable[[PartitionId], str],
    head: Head,
    following: Mapping[PartitionId, int],
    bounds: Bounds,
    recreated: bool = False,
) -> None:
    """Check that each partition of a log with these bounds still has the next offset to learn, or ends there.

    `following` has this offset by partition; it may be after the head's. `recreated` says whether the topic was
    created again. Raises LogLost and DependencyError.
    """
    for partition, offset in sorted(following.items()):
        where = f"topic {topic_of(partition)}: partition {partition.number}"
        if partition not in bounds and not recreated:
            # A topic never loses partitions: the group's leader does not know yet that one was added.
            raise DependencyError(f"{where}, which was learned, is not assigned to us yet", "kafka")
        begin, end = bounds.get(partition, (0, 0))
        if not begin <= offset <= end:
            cure = f"`perceptron reset -m {model} --yes` forgets the model, so that it starts from scratch"
            if head.kept and begin > offset and not recreated:
                resume_at = [
                    f"{p}:{first}" for p, (first, _) in sorted(bounds.items()) if first > following.get(p, first)
                ]
                cure = (
                    f"`perceptron rollback -m {model} --to {head.kept[-1].version} --resume-at {','.join(resume_at)} "
                    f"--yes` goes on without the records that are gone, and {cure}"
                )
            raise LogLost(
                f"{where} holds offsets {begin} to {end}, but the snapshot continues at {offset}: the log was trimmed "
                f"or the topic recreated: {cure}"
            )


async def check_last_records(log: Log, head: Head, recreated: bool, observer: Observer) -> None:
    """Check that the last record learned from each partition is still in the log.

    If compaction or retention removed the record, the check is skipped, and the observer hears of it. If the topic was
    recreated, the record is required: it proves that the topic got its old records back. A model that has learned
    nothing has no such proof. A topic that is no longer ours is not checked. Raises LogLost and DependencyError.
    """
    start_over = f"start from scratch with `perceptron reset -m {log.model} --yes`"
    learned = {p: any(start < end for start, end in ranges) for p, ranges in head.covered.items()}
    if recreated and not any(learned.values()):
        raise LogLost(
            f"model {log.model}: its topic was created again since the model was begun, and the model has learned "
            f"nothing: {start_over}"
        )
    records = await log.records_at({p: at.fingerprint.offset for p, at in head.next.items() if at.fingerprint})
    for partition, position in head.next.items():
        last, topic, number = position.fingerprint, log.topic_of(partition), partition.number
        record = records.get(partition)
        if record is None and recreated and learned[partition] and log.held:
            raise LogLost(
                f"topic {topic}: the topic was created again since it was learned, and partition {number} has no "
                f"record to compare with the last one learned{f', at offset {last.offset}' if last else ''}: restore "
                f"its records, or {start_over}"
            )
        if last and record is None and log.held:
            observer.fingerprint_missing(partition, last.offset)
        elif last and record and fingerprint(record) != last:
            raise other_record(log.model, log.topic_of, partition, last.offset)


def fingerprint(record: KafkaRecord) -> Fingerprint:
    """The fingerprint by which a record is recognised."""
    crc = zlib.crc32(record.value or b"", zlib.crc32(record.key or b""))
    return Fingerprint(record.offset, record.timestamp, crc)
