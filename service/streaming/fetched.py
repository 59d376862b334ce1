"""What a broker answers to a fetch, read with few calls a partition.

The client's schemas take eleven microseconds for each: those of a hundred topics hold up everything else of the process
for a millisecond. Older versions of the answer are left to them.
"""

from struct import Struct
from typing import Any

from service.streaming.answers import Body

VERSION = 11
"""Of the answer, as Kafka counts: the newest that the client knows."""
_HEAD, _TEXT, _COUNT = Struct(">ihii"), Struct(">h"), Struct(">i")
"""Milliseconds of throttling, error, session, number of topics; bytes of a name; number of partitions."""
_PARTITION, _ABORTED, _RECORDS = Struct(">ihqqqi"), Struct(">qq"), Struct(">ii")
"""Partition, error, offsets of its end, its last stable one and its begin, number of aborted transactions; producer and
first offset of one; the replica to ask, bytes of records.
"""


def fetched(kind: Any, body: Body) -> Any:
    """The answer of this kind that a body has behind its head; raises an error where it is none."""
    if kind.API_VERSION != VERSION:
        return kind.decode(body)
    *about, topics = body.unpack(_HEAD)
    return kind(*about, [_topic(body) for _ in range(topics)])


def _topic(body: Body) -> tuple[str, list[tuple[Any, ...]]]:
    name = str(_sized(body, *body.unpack(_TEXT)), "utf-8")
    (partitions,) = body.unpack(_COUNT)
    return name, [_partition(body) for _ in range(partitions)]


def _partition(body: Body) -> tuple[Any, ...]:
    *about, count = body.unpack(_PARTITION)
    aborted = None if count < 0 else [body.unpack(_ABORTED) for _ in range(count)]
    replica, size = body.unpack(_RECORDS)
    return *about, aborted, replica, None if size < 0 else _sized(body, size)


def _sized(body: Body, size: int) -> bytes | memoryview:
    part = body.read(size)
    if len(part) != size:
        raise ValueError(f"an answer ends {size - len(part)} bytes too soon")
    return part
