"""A sample of records: the newest of a topic, or the first of a file."""

import heapq
import struct
from collections import deque
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from service.errors import DataError, PerceptronError, Rejected
from service.learning.events.content_types import DoubleVector, MessagePack, doubles, unpack
from service.learning.events.json_values import parse, type_name
from service.learning.identity import Identity
from service.streaming.kafka.cluster import Cluster
from service.streaming.records import KafkaRecords, value_of
from service.tools.formats import SUFFIXES, Events, Name, format_of, raise_bad_line
from service.tools.readers import Cells

MOST_BYTES = 32 << 20
"""Of a sample: it is held in memory, and read several times."""


class Sample(NamedTuple):
    """Record values in the order in which they are learned."""

    name: str
    """What they are from."""
    said: str
    """The same, with which of it they are."""
    values: list[bytes | None]
    cells: bool = False
    """Whether each is a row of a table, of whose columns one is the label."""

    def objects(self) -> Iterator[dict[str, Any]]:
        """Those that are objects, parsed."""
        return (value for value in map(read, self.values) if value is not None)

    def check(self, hint: str) -> None:
        """Raise DataError where there is no object among them, which a hint may help."""
        if not self.values:
            raise DataError(f"{self.name}: there is no record to look at")
        if next(self.objects(), None) is None:
            first = _why_none(self.values[0]) + hint
            raise DataError(f"{self.name}: none of {records(len(self.values))} is a JSON object; the first: {first}")


def records(count: int) -> str:
    """`1 record`, `2,000 records`."""
    return f"{count:,} record{'s' * (count != 1)}"


def read(raw: bytes | None) -> dict[str, Any] | None:
    """A record's object; None where it is none."""
    try:
        value = msgspec.json.decode(raw or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _why_none(raw: bytes | None) -> str:
    if not raw:
        return "it has no value"
    try:
        return f"it is {type_name(parse(raw))}"
    except Rejected as rejected:
        schema = " (it begins with a zero byte, as Avro and Protobuf of a schema registry do)" if raw[0] == 0 else ""
        return f"not JSON: {rejected}{schema}"


def of_file(file: str, form: Name | None, count: int) -> Sample:
    """The first `count` records of a file; raises DataError and ConfigurationError."""
    suffix = "." + file.removesuffix(".gz").rpartition(".")[2].lower()
    cells = (form or SUFFIXES.get(suffix)) == "csv"
    how = Cells() if cells else format_of(file, Identity(), name=form, label=None, key=None)
    events = Events(file, how, Identity(), keyed=False, check=False)
    values, size = list[bytes | None](), 0
    for line in islice(events.lines(raise_bad_line), count):
        values.append(line.value)
        size += len(line.value)
        if size > MOST_BYTES:
            break
    which = "all" if len(values) < count and size <= MOST_BYTES else "the first"
    return Sample(events.name, f"{which} {records(len(values))} of {events.name}", values, cells)


async def of_topic(cluster: Cluster, topic: str, missing: PerceptronError, count: int) -> Sample:
    """The newest `count` records of a topic, its partitions' merged by time; raises DataError and DependencyError."""
    held: dict[int, deque[tuple[int, bytes | None]]] = {}
    sizes: dict[int, int] = {}
    async for partition, newest in newest_of(cluster, topic, missing, count):
        own = held.setdefault(partition, deque())
        for record in newest:
            own.append((record.timestamp, as_json(value_of(record))))
            sizes[partition] = sizes.get(partition, 0) + len(own[-1][1] or b"")
            while sizes[partition] > MOST_BYTES // (len(held) or 1) and len(own) > 1:
                sizes[partition] -= len(own.popleft()[1] or b"")
    merged = [value for _, value in heapq.merge(*held.values(), key=lambda record: record[0])]
    order = f", {len(held)} partitions by their records' times" if len(held) > 1 else ""
    return Sample(f"topic {topic}", f"the newest {records(len(merged))} of topic {topic}{order}", merged)


def as_json(value: bytes | None) -> bytes | None:
    """The JSON that a value in another form would be; what is damaged stays as it is."""
    try:
        if isinstance(value, MessagePack):
            unpack(value)  # which is stricter
            return msgspec.json.encode(msgspec.msgpack.decode(value))
        if isinstance(value, DoubleVector):
            *features, label = doubles(value)
            return msgspec.json.encode({"features": features, "label": label})
    except (Rejected, msgspec.MsgspecError, RecursionError, TypeError, ValueError, struct.error):
        pass
    return value


async def newest_of(
    cluster: Cluster, topic: str, missing: PerceptronError, count: int
) -> AsyncIterator[tuple[int, KafkaRecords]]:
    """The newest `count` records of a topic by partition, as many of each, or what it has.

    Raises `missing` if there is no such topic, DependencyError, and DataError if a record cannot be read.
    """
    async with cluster.reader(topic, missing) as reader:
        bounds = {p: pair for p, pair in (await reader.bounds()).items() if pair[0] < pair[1]}
        shares = _shares({p: end - begin for p, (begin, end) in bounds.items()}, count)
        for partition, (_, end) in bounds.items():
            async for records in reader.read(partition, end - shares[partition], end):
                yield partition, records


def _shares(sizes: dict[int, int], count: int) -> dict[int, int]:
    """How many records to take of each partition: as many of each, and what one does not have of the others.

    >>> _shares({0: 10, 1: 100, 2: 2}, 22)
    {2: 2, 0: 10, 1: 10}
    """
    shares: dict[int, int] = {}
    for place, (partition, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        shares[partition] = min(size, max(1, count // (len(sizes) - place)))
        count -= shares[partition]
    return shares
