"""A record that was set aside, as a dead letter: its own bytes, with the reason and where it stood."""

from collections.abc import Sequence
from typing import NamedTuple

RETRIED = "retried"
"""The header of a marker: the letter of the same key was sent again, as the record it names."""


class DeadLetter(NamedTuple):
    """What is published to `{topic}.dead-letters`. The key makes a letter written twice recognisable."""

    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]]


def topic_of(topic: str) -> str:
    """The name of a topic's dead-letter topic."""
    return f"{topic}.dead-letters"


def dead_letter(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    reason: str,
    detail: str,
) -> DeadLetter:
    """The dead letter of one record: our headers first, then the record's own."""
    ours = [
        ("reason", reason.encode()),
        ("detail", detail.encode(errors="replace")),
        ("topic", topic.encode()),
        ("partition", str(partition).encode()),
        ("offset", str(offset).encode()),
    ]
    if key is not None:
        ours.append(("key", key))
    # The last of ours says how many of the record's own follow, whatever they are called.
    ours.append(("headers", str(len(headers)).encode()))
    return DeadLetter(f"{topic}-{partition}-{offset}".encode(), value, [*ours, *headers])


def own_headers(headers: Sequence[tuple[str, bytes]]) -> Sequence[tuple[str, bytes]]:
    """The record's own headers, out of its letter's."""
    for i, (name, content) in enumerate(headers):
        if name == "headers" and content == str(len(headers) - i - 1).encode():
            return headers[i + 1 :]
    return ()
