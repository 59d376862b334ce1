"""A sample of records: the newest of a topic, or the first of a file."""

import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from service.errors import ConfigurationError, DataError, PerceptronError
from service.learning.events.value_buffer import ValueBuffer
from service.learning.events.value_formats import ValueFormat
from service.learning.identity import Identity
from service.learning.records import PartitionId
from service.streaming.kafka.cluster import Cluster
from service.streaming.records import KafkaRecords
from service.text import quantity
from service.tools.formats.formats import Events, FormatName, format_name, raise_bad_line
from service.tools.formats.readers import Csv, JsonLines


class Sample(NamedTuple):
    """Record values in the order in which they are learned."""

    name: str
    """The topic or file."""
    description: str
    """The number of records, and which records of it they are."""
    values: ValueBuffer
    is_table: bool = False
    """Whether each value is a row of a table, which has the label in one of its columns."""
    times: Sequence[int] = ()
    """The timestamps of records of a topic, in milliseconds."""

    def objects(self) -> Iterator[dict[str, Any]]:
        """The values that are objects, parsed."""
        return (value for value in parse_objects(self.values) if value is not None)

    def check(self) -> None:
        """Raise DataError if there is no object among the values."""
        if not self.values:
            raise DataError(f"{self.name}: there is no record to look at")
        if next(self.objects(), None) is None:
            count = quantity(len(self.values), "record")
            raise DataError(f"{self.name}: none of {count} is a JSON object; Avro and Protobuf cannot be read")


def parse_objects(values: ValueBuffer) -> Iterator[dict[str, Any] | None]:
    """The object that each value holds, in any format; None if it holds something else."""
    for i, raw in enumerate(values):
        try:
            value = values.format_at(i).load(raw or b"")
        except (ValueError, RecursionError, struct.error):
            value = None
        yield value if isinstance(value, dict) else None


def read_file(file: str, form: FormatName | None, count: int) -> Sample:
    """The first `count` records of a file; raises DataError and ConfigurationError."""
    is_table = format_name(file, form) == "csv"
    rows = Csv(Identity(), None, None) if is_table else JsonLines(Identity(), None)
    events = Events(file, rows, Identity(), check=False)
    values = ValueBuffer.from_values([line.value for line in islice(events.lines(raise_bad_line), count)])
    return Sample(events.name, f"the first {quantity(len(values), 'record')} of {events.name}", values, is_table)


async def read_topic(cluster: Cluster, topic: str, count: int) -> Sample:
    """The newest records of each partition, about `count` in all, in the order of their timestamps.

    Raises ConfigurationError if there is no such topic, DataError and DependencyError.
    """
    records = list[tuple[int, bytes | None, ValueFormat]]()
    missing = ConfigurationError(f"topic {topic} does not exist at {cluster.bootstrap}")
    async for _, newest in newest_of(cluster, topic, missing, count):
        formats = map(newest.values.format_at, range(len(newest)))
        records += zip(newest.timestamps.tolist(), newest.values, formats, strict=True)
    records.sort(key=itemgetter(0))
    values = ValueBuffer.from_values([value for _, value, _ in records], [each for *_, each in records])
    description = f"the newest {quantity(len(values), 'record')} of topic {topic}"
    return Sample(f"topic {topic}", description, values, times=[time for time, *_ in records])


async def newest_of(
    cluster: Cluster, topic: str, missing: PerceptronError, count: int
) -> AsyncIterator[tuple[PartitionId, KafkaRecords]]:
    """The newest `count` records of a topic by partition: equally many of each, or all that it has.

    Raises `missing` if there is no such topic, DependencyError, and DataError if a record cannot be read.
    """
    async with cluster.reader(topic, [topic], missing) as reader:
        bounds = {partition: pair for partition, pair in reader.bounds.items() if pair[0] < pair[1]}
        smallest_first = sorted(bounds.items(), key=lambda item: item[1][1] - item[1][0])
        for place, (partition, (begin, end)) in enumerate(smallest_first):
            share = min(end - begin, max(1, count // (len(bounds) - place)))
            count -= share
            async for records in reader.read(partition, end - share, end):
                yield partition, records
