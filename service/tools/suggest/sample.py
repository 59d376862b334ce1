"""A sample of records: the newest of a topic, or the first of a file."""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from service.errors import ConfigurationError, DataError
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity
from service.streaming.kafka.cluster import Cluster
from service.streaming.records import KafkaRecords
from service.text import quantity
from service.tools.files import Csv, Events, FormatName, JsonLines, format_name, raise_bad_line


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
    parts, held_back = await newest_of(cluster, topic, count)
    if held_back and not parts:
        raise DataError(held_back[0])
    times = [*chain.from_iterable(part.timestamps.tolist() for part in parts)]
    order = np.argsort(times, kind="stable").tolist()
    values = join_values(parts)[order]
    description = f"the newest {quantity(len(values), 'record')} of topic {topic}"
    return Sample(f"topic {topic}", description, values, times=[times[i] for i in order])


async def newest_of(cluster: Cluster, topic: str, count: int) -> tuple[list[KafkaRecords], list[str]]:
    """The newest `count` records of a topic by partition: equally many of each, or all that it has.

    Also returns a line for each open transaction.

    Raises ConfigurationError if there is no such topic, DependencyError, and DataError if a record cannot be read.
    """
    parts, missing = list[KafkaRecords](), ConfigurationError(f"topic {topic} does not exist at {cluster.bootstrap}")
    async with cluster.reader(topic, [topic], missing) as reader:
        smallest_first = sorted(reader.bounds.items(), key=lambda item: item[1][1] - item[1][0])
        for place, (partition, (begin, end)) in enumerate(smallest_first):
            share = min(end - begin, max(1, count // (len(smallest_first) - place)))
            count -= share
            parts += [records async for records in reader.read(partition, end - share, end)]
        return parts, await reader.open_transactions()


def join_values(parts: Sequence[KafkaRecords]) -> ValueBuffer:
    """The values of all these records, with their formats."""
    formats = [part.values.format_at(i) for part in parts for i in range(len(part))]
    return ValueBuffer.from_values([*chain.from_iterable(part.values for part in parts)], formats)
