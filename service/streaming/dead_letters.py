"""A record that was set aside, as a dead letter: its own bytes, with the reason and where it stood."""

from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

CUT = {
    "truncated-from": "the value was {} bytes",
    "headers-omitted": "its {} headers are left out",
    "key-truncated-from": "the key was {} bytes",
}
"""What a letter says of what was cut of its record, so that it fits its topic; in such a header, with this number."""
VARINT = 5
"""The most bytes of a length."""
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


def wire_size(letter: DeadLetter) -> int:
    """The bytes that a letter takes at most as a batch of its own: what the client counts, and the broker allows."""
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(letter.key, letter.value, letter.headers))


def cut(letter: DeadLetter, limit: int) -> DeadLetter:
    """A letter that is larger than its topic's limit, cut until it fits: its value, then the record's own headers.

    The record's key keeps at most a tenth of the limit, and is gone last, with the end of the detail. What is left then
    is the least that a letter is, whatever the limit.
    """
    own = own_headers(letter.headers)
    ours = dict(letter.headers[: len(letter.headers) - len(own)])
    ours.pop("headers", None)

    def made(value: bytes | None, headers: Sequence[tuple[str, bytes]], **shorter: bytes) -> DeadLetter:
        pairs = [("truncated-from", letter.value, value), ("headers-omitted", own, headers)]
        pairs += [("key-truncated-from", ours[name], shorter[name]) for name in shorter if name == "key"]
        cuts = [(name, str(len(was)).encode()) for name, was, now in pairs if was and len(now or b"") < len(was)]
        count = ("headers", str(len(headers)).encode())
        return DeadLetter(letter.key, value, [*{**ours, **shorter}.items(), *cuts, count, *headers])

    least, key = letter.value and b"", {n: c[: limit // 10] for n, c in ours.items() if n == "key"}
    for headers in (own, ()):
        if (room := limit - wire_size(made(least, headers, **key)) - VARINT) >= 0:
            return made(letter.value and letter.value[:room], headers, **key)
    key = dict.fromkeys(key, b"")
    room = limit - wire_size(made(least, (), **key, detail=b"")) - VARINT
    return made(least, (), **key, detail=ours.get("detail", b"")[: max(0, room)])


def own_headers(headers: Sequence[tuple[str, bytes]]) -> Sequence[tuple[str, bytes]]:
    """The record's own headers, out of its letter's."""
    for i, (name, content) in enumerate(headers):
        if name == "headers" and content == str(len(headers) - i - 1).encode():
            return headers[i + 1 :]
    return ()
