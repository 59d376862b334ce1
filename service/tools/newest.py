"""The last records of a topic, and how many of them its model would accept."""

from collections import Counter

from aiokafka.errors import CorruptRecordException

from service.errors import DataError
from service.learning.columns import columns_for
from service.learning.events import Decoder
from service.learning.identity import Identity
from service.streaming.cluster import Cluster, bounds, more, unreadable

RECORDS = 100


async def judge_newest(cluster: Cluster, topic: str, identity: Identity) -> tuple[str, str]:
    """Whether the last RECORDS of a topic, as many of each partition, are events: ok, warn or fail, and what to say.

    Raises DependencyError, and DataError where a record cannot be read.
    """
    decoder, records, reasons = Decoder(identity, columns_for(identity)), 0, Counter[str]()
    example: dict[str, str] = {}
    async with cluster.reader(topic, DataError(f"topic {topic} does not exist")) as (consumer, partitions):
        held = {p: at for p, at in (await bounds(consumer, partitions)).items() if at[0] < at[1]}
        for tp in partitions:
            if tp.partition not in held:
                continue
            begin, end = held[tp.partition]
            consumer.assign([tp])
            consumer.seek(tp, max(begin, end - max(1, RECORDS // len(held))))
            while await consumer.position(tp) < end:
                try:
                    found = await more(consumer, tp, 1)
                except (CorruptRecordException, UnicodeDecodeError) as error:
                    raise unreadable(topic, tp.partition, await consumer.position(tp), error) from error
                for record in found[: found.find(end)]:
                    records += 1
                    for _, reason, detail in decoder.decode([record.value])[1]:
                        reasons[reason] += 1
                        example[reason] = f"{detail} (offset {record.offset} of partition {tp.partition})"
    if not records:
        return "ok", "no records yet"
    accepted = records - reasons.total()
    said = f"{accepted} of the last {records} records would be accepted"
    if not reasons:
        return "ok", said
    reason, count = reasons.most_common(1)[0]
    return "warn" if accepted else "fail", f"{said}; {count} are rejected as {reason}, such as: {example[reason]}"
