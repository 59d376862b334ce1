"""A record that was set aside, as a dead letter: its own bytes, with the reason and where it stood."""

from typing import NamedTuple

from service.streaming.records import Headers, KafkaRecords

RETRIED_HEADER = "retried"
"""The header of a marker: the letter of the same key was sent again, as the record it names."""
HEADERS_OMITTED, NAMES_IN_HEX = "headers-omitted", "header-names-in-hex"
"""Headers that say how many of the record's headers are left out, and how many names are written in hex."""
MAX_HEADERS = 10_000
"""A record with more loses them in its letter: a megabyte of them takes half a second to write."""
MAX_DETAIL = 1000
"""The most characters of a detail: it may quote a name of the record, which may be long."""


class DeadLetter(NamedTuple):
    """What is published to `{topic}.dead-letters`. The key makes a letter written twice recognisable."""

    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def topic_of(topic: str) -> str:
    """The name of a topic's dead-letter topic."""
    return f"{topic}.dead-letters"


def dead_letter(topic: str, partition: int, records: KafkaRecords, i: int, reason: str, detail: str) -> DeadLetter:
    """The dead letter of the record at index `i`: our headers first, then the record's own.

    Kafka's clients write header names in UTF-8 alone. A name that is not UTF-8 is written in hex.
    """
    count = records.header_count(i)
    record = records.record(i, with_headers=count <= MAX_HEADERS)
    ours = [
        ("reason", reason.encode()),
        ("detail", detail[:MAX_DETAIL].encode(errors="replace")),
        ("topic", topic.encode()),
        ("partition", str(partition).encode()),
        ("offset", str(record.offset).encode()),
    ]
    if record.key is not None:
        ours.append(("key", record.key))
    if count > MAX_HEADERS:
        ours.append((HEADERS_OMITTED, str(count).encode()))
    headers = [(_in_utf8(name), value) for name, value in record.headers]
    if odd := sum(written != name for (written, _), (name, _) in zip(headers, record.headers, strict=True)):
        ours.append((NAMES_IN_HEX, str(odd).encode()))
    # The last of ours says how many of the record's own follow, whatever they are called.
    ours.append(("headers", str(len(headers)).encode()))
    return DeadLetter(f"{topic}-{partition}-{record.offset}".encode(), record.value, [*ours, *headers])


def _in_utf8(name: str) -> str:
    """A header's name; in hex if it is not UTF-8."""
    raw = name.encode(errors="surrogateescape")
    return name if raw.decode(errors="replace") == name else raw.hex()


def own_headers(headers: Headers) -> Headers:
    """The record's own headers, out of its letter's."""
    for i, (name, content) in enumerate(headers):
        if name == "headers" and content == str(len(headers) - i - 1).encode():
            return headers[i + 1 :]
    return ()
