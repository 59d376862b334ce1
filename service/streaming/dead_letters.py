"""A rejected record as a dead letter: its bytes, the reason and its place in the log, cut to what the topic takes."""

from collections.abc import Mapping

from service.streaming.records import Headers, KafkaRecords, Message

RETRIED_HEADER = "retried"
"""The header of a marker: the letter with the same key was sent again, as the record that this header names."""
HEADERS_OMITTED, NAMES_IN_HEX = "headers-omitted", "header-names-in-hex"
"""Headers that say how many of the record's headers are left out, and how many names are written in hex."""
TRUNCATION_HEADERS = {
    "truncated-from": "the value was {} bytes",
    HEADERS_OMITTED: "its {} headers are left out",
    "key-truncated-from": "the key was {} bytes",
}
"""Headers that say what was cut, so that the letter fits its topic, and the text for the number in each."""
MAX_HEADERS = 10_000
"""The letter of a record with more headers has none of them: a megabyte of headers takes half a second to write."""
MAX_DETAIL_CHARACTERS = 1000
"""A detail may quote a name of the record, which may be long."""
MAX_LENGTH_BYTES = 5
"""The most bytes that the length of a value takes."""


def dead_letter_topic(model: str) -> str:
    """The topic of a model's dead letters."""
    return f"{model}.dead-letters"


def dead_letter(topic: str, partition: int, records: KafkaRecords, i: int, reason: str, detail: str) -> Message:
    """The dead letter of the record at index `i`: our headers first, then the record's own.

    A letter that is written twice has the same key.
    Kafka's clients write header names only in UTF-8. A name that is not UTF-8 is written in hex.
    """
    count = records.header_count(i)
    record = records.record(i, with_headers=count <= MAX_HEADERS)
    ours: dict[str, bytes | None] = {
        "reason": reason.encode(),
        "detail": detail[:MAX_DETAIL_CHARACTERS].encode(errors="replace"),
        "topic": topic.encode(),
        "partition": b"%d" % partition,
        "offset": b"%d" % record.offset,
    }
    if record.key is not None:
        ours["key"] = record.key
    if count > MAX_HEADERS:
        ours[HEADERS_OMITTED] = b"%d" % count
    own = [(_utf8_name(name), value) for name, value in record.headers]
    if in_hex := sum(name != original for (name, _), (original, _) in zip(own, record.headers, strict=True)):
        ours[NAMES_IN_HEX] = b"%d" % in_hex
    key = f"{topic}-{partition}-{record.offset}".encode()
    return Message(key, record.value, _headers(ours, own), record.timestamp)


def _utf8_name(name: str) -> str:
    """A header's name; in hex if it is not UTF-8."""
    raw = name.encode(errors="surrogateescape")
    return name if raw.decode(errors="replace") == name else raw.hex()


def _headers(ours: Mapping[str, bytes | None], own: Headers) -> list[tuple[str, bytes | None]]:
    """Our headers and the record's own. The last of ours says how many of the record's own follow."""
    return [*ours.items(), ("headers", b"%d" % len(own)), *own]


def own_headers(headers: Headers) -> Headers:
    """The record's own headers, taken from the headers of its letter."""
    for i, (name, content) in enumerate(headers):
        if name == "headers" and content == b"%d" % (len(headers) - i - 1):
            return headers[i + 1 :]
    return ()


def truncate(letter: Message, limit: int) -> Message:
    """Cut a letter that is larger than its topic's limit: first its value, then the record's own headers.

    The record's key keeps at most a tenth of the limit. A letter that cannot be cut enough stays as it is: the broker
    refuses it until the topic's limit is raised.
    """
    own, value = own_headers(letter.headers), letter.value or b""
    ours = dict(letter.headers[: len(letter.headers) - len(own) - 1])
    if len(key := ours.get("key") or b"") > limit // 10:
        ours |= {"key": key[: limit // 10], "key-truncated-from": b"%d" % len(key)}
    for headers in (own, ()):
        if own and not headers:
            ours[HEADERS_OMITTED] = b"%d" % len(own)
        whole = Message(letter.key, letter.value, _headers(ours, headers), letter.timestamp)
        if whole.wire_size <= limit:
            return whole
        shown = _headers(ours | {"truncated-from": b"%d" % len(value)}, headers)
        room = limit - Message(letter.key, b"", shown).wire_size - MAX_LENGTH_BYTES
        if room >= 0:
            return Message(letter.key, value[:room], shown, letter.timestamp)
    return letter
