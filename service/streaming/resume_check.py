"""Whether a stored model may be gone on with here: the same cluster, settings and log that it was learned with."""

import zlib
from collections.abc import Mapping

from service.errors import AnotherCluster, DependencyError, IdentityChanged, LogLost
from service.learning.identity import Identity
from service.snapshots.head import Fingerprint, Head, Source
from service.streaming.ports import Log, Observer
from service.streaming.records import KafkaRecord


def same_settings(model: str, head: Head, identity: Identity, source: Source) -> None:
    """Raise AnotherCluster or IdentityChanged where the model was not learned here, or not so.

    The cluster comes first: nothing of another one's model has a meaning here, and it is not ours to forget.
    """
    if head.source.elsewhere(source):
        raise AnotherCluster(
            f"model {model} was learned from Kafka cluster {head.source.cluster}, and this is {source.cluster}: it may "
            "be somebody else's. Go back to that cluster, or give this one another Redis database (redis.url)"
        )
    if differences := identity.differences(head.identity):
        raise IdentityChanged(
            f"model {model} was learned under other settings ({'; '.join(differences)}): "
            f"restore them, or forget the model with `perceptron reset -t {model} --yes`"
        )


async def check_resumable(
    log: Log,
    head: Head,
    identity: Identity,
    source: Source,
    following: Mapping[int, int],
    bounds: Mapping[int, tuple[int, int]],
    tell: Observer,
) -> None:
    """Return where the head can be gone on with in this log, which has these bounds and is that of `source`.

    What was learned since the head goes on at `following`, by partition.

    Raises AnotherCluster, IdentityChanged and LogLost where not, and DependencyError.
    """
    topic = log.topic
    same_settings(topic, head, identity, source)
    recreated = head.source.recreated(source)
    for partition, offset in sorted(following.items()):
        if partition not in bounds and not recreated:
            # No topic loses partitions: whoever assigns them has not heard of one that was added.
            raise DependencyError(
                f"topic {topic}: partition {partition}, which was learned, is not given to us yet", "kafka"
            )
        begin, end = bounds.get(partition, (0, 0))
        if not begin <= offset <= end:
            raise LogLost(
                f"topic {topic}: partition {partition} holds offsets {begin} to {end}, but the snapshot goes on at "
                f"{offset}: the log was trimmed or the topic recreated. `perceptron reset -t {topic} --yes` forgets "
                "the model, so that it begins anew"
            )
    await _recognise(log, head, recreated, tell)


async def _recognise(log: Log, head: Head, recreated: bool, tell: Observer) -> None:
    """Check that the log is the one that was learned: the last record of each partition is still that record.

    Where compaction or retention took the record, it cannot be checked, which is said; unless the topic's id is
    another. One that was created again and has the record was given back what it had; where nothing was learned,
    nothing can say so.
    """
    topic, begin_anew = log.topic, f"begin anew with `perceptron reset -t {log.topic} --yes`"
    learned = {name: any(start < to for start, to in ranges) for name, ranges in head.covered.items()}
    if recreated and not any(learned.values()):
        raise LogLost(
            f"topic {topic}: the topic was created again since the model was begun, which has learned nothing: "
            f"{begin_anew}"
        )
    for name, position in head.next.items():
        partition, known = int(name), position.fingerprint
        record = await log.read(partition, known.offset) if known else None
        if record is None and recreated and learned[name]:
            raise LogLost(
                f"topic {topic}: the topic was created again since it was learned, and of partition {partition} it has "
                f"no record to compare with the last one learned{f', at offset {known.offset}' if known else ''}: give "
                f"it back its records, or {begin_anew}"
            )
        if known and record is None:
            tell.fingerprint_missing(partition, known.offset)
        elif known and record and fingerprint(record) != known:
            raise LogLost(
                f"topic {topic}: the record at offset {known.offset} of partition {partition} is not the one that was "
                f"learned, so the topic was recreated: give it back its records, or {begin_anew}"
            )


def fingerprint(record: KafkaRecord) -> Fingerprint:
    """What a record is recognised by."""
    crc = zlib.crc32(record.value or b"", zlib.crc32(record.key or b""))
    return Fingerprint(record.offset, record.timestamp, crc)
