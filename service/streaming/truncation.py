"""A dead letter cut to what its topic takes, by the bytes of the wire."""

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from service.streaming.dead_letters import HEADERS_OMITTED, DeadLetter, own_headers

TRUNCATION_HEADERS = {
    "truncated-from": "the value was {} bytes",
    HEADERS_OMITTED: "its {} headers are left out",
    "key-truncated-from": "the key was {} bytes",
}
"""What a letter says of what was cut of its record, so that it fits its topic; in such a header, with this number."""
MAX_LENGTH_BYTES = 5
"""The most bytes that the length of a value takes."""


def wire_size(letter: DeadLetter) -> int:
    """The bytes that a letter takes at most as a batch of its own: what the client counts, and the broker allows."""
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(letter.key, letter.value, letter.headers))


def truncate(letter: DeadLetter, limit: int) -> DeadLetter:
    """A letter that is larger than its topic's limit, cut until it fits: its value, then the record's own headers.

    The record's key keeps at most a tenth of the limit. Where the least that a letter is does not fit either it stays
    whole: it is refused as it is, until the topic takes more.
    """
    own = own_headers(letter.headers)
    about = dict(letter.headers[: len(letter.headers) - len(own) - 1])  # the last one counts the record's own
    if len(key := about.get("key") or b"") > limit // 10:
        about |= {"key": key[: limit // 10], "key-truncated-from": str(len(key)).encode()}
    value = letter.value or b""
    truncated = {"truncated-from": str(len(value)).encode()} if value else {}
    for headers in (own, ()):
        omitted = {HEADERS_OMITTED: str(len(own)).encode()} if own and not headers else {}
        count = "headers", str(len(headers)).encode()
        whole = DeadLetter(letter.key, letter.value, [*(about | omitted).items(), count, *headers])
        if wire_size(whole) <= limit:
            return whole
        least = letter.value and b"", [*(about | truncated | omitted).items(), count, *headers]
        room = limit - wire_size(DeadLetter(letter.key, *least)) - MAX_LENGTH_BYTES
        if room >= 0:
            return DeadLetter(letter.key, letter.value and value[:room], least[1])
    return letter
