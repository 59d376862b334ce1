"""A dead letter cut to what its topic takes, by the bytes of the wire."""

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from service.streaming.dead_letters import DeadLetter, own_headers
from service.streaming.records import Headers

CUT = {
    "truncated-from": "the value was {} bytes",
    "headers-omitted": "its {} headers are left out",
    "key-truncated-from": "the key was {} bytes",
}
"""What a letter says of what was cut of its record, so that it fits its topic; in such a header, with this number."""
VARINT = 5
"""The most bytes of a length."""


def wire_size(letter: DeadLetter) -> int:
    """The bytes that a letter takes at most as a batch of its own: what the client counts, and the broker allows."""
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(letter.key, letter.value, letter.headers))


def cut(letter: DeadLetter, limit: int) -> DeadLetter:
    """A letter that is larger than its topic's limit, cut until it fits: its value, then the record's own headers.

    The record's key keeps at most a tenth of the limit, and is gone last, with the end of the detail. Where the least
    that a letter is does not fit either it stays whole: it is refused as it is, until the topic takes more.
    """
    own = own_headers(letter.headers)
    ours = {name: content or b"" for name, content in letter.headers[: len(letter.headers) - len(own)]}
    ours.pop("headers", None)

    def made(value: bytes | None, headers: Headers, **shorter: bytes) -> DeadLetter:
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
    if (room := limit - wire_size(made(least, (), **key, detail=b""))) < 0:
        return letter
    return made(least, (), **key, detail=ours.get("detail", b"")[: max(0, room - VARINT)])
