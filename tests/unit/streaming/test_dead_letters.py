"""A dead letter has what is needed to find and repair its record, and always fits its topic."""

from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from service.streaming.dead_letters import MAX_HEADERS, dead_letter, own_headers, truncate
from service.streaming.records import Headers, KafkaRecord, Message
from tests.batches import join_records


def letter_of(
    key: bytes | None, value: bytes | None, headers: Headers, reason: str, detail: str, topic: str = "t"
) -> Message:
    """The letter of one record at offset 41 of partition 3."""
    return dead_letter(topic, 3, join_records([KafkaRecord(41, 0, key, value, headers)]), 0, reason, detail)


def test_a_letter_has_the_record_and_its_place() -> None:
    letter = letter_of(b"k", b"value", [("trace", b"1")], "not-json", "why")
    assert letter.key == b"t-3-41"
    assert letter.value == b"value"
    assert letter.headers == [
        ("reason", b"not-json"), ("detail", b"why"), ("topic", b"t"), ("partition", b"3"), ("offset", b"41"),
        ("key", b"k"), ("headers", b"1"), ("trace", b"1"),
    ]  # fmt: skip


def test_more_headers_than_a_letter_has_are_left_out_and_counted() -> None:
    letter = letter_of(None, b"value", [("", b"")] * (MAX_HEADERS + 1), "not-json", "why")
    assert dict(letter.headers)["headers-omitted"] == b"%d" % (MAX_HEADERS + 1)
    assert not own_headers(letter.headers)


def on_the_wire(letter: Message) -> int:
    """The bytes of the batch that a producer sends."""
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=16_384
    )
    assert builder.append(0, 1_700_000_000_000, letter.key, letter.value, list(letter.headers))
    return len(builder.build())


MIN_LETTER_BYTES = 400
"""A limit within which any letter fits."""
texts, contents = st.text(max_size=40), st.binary(max_size=300)
sometimes_large = contents | st.integers(0, 4000).map(bytes)


@given(
    st.none() | sometimes_large,
    st.none() | sometimes_large,
    st.lists(st.tuples(texts | st.sampled_from(["headers", "key", "truncated-from", ""]), st.none() | contents)),
    texts,
    st.floats(0, 1),
)
def test_any_letter_fits_and_says_what_was_cut(
    key: bytes | None, value: bytes | None, headers: Any, detail: str, share: float
) -> None:
    letter = letter_of(key, value, headers, "too-many-features", detail, "t" * 20)
    limit = MIN_LETTER_BYTES + int(share * max(0, letter.wire_size - MIN_LETTER_BYTES))
    short = truncate(letter, limit)
    assert on_the_wire(short) <= short.wire_size <= limit
    record_headers = own_headers(short.headers)
    fields = {name: content or b"" for name, content in short.headers[: len(short.headers) - len(record_headers)]}
    assert short.key == letter.key
    assert list(record_headers) == ([] if "headers-omitted" in fields else headers)
    for original, remainder, header in (
        (value, short.value, "truncated-from"),
        (key, fields.get("key"), "key-truncated-from"),
    ):
        if header in fields:
            assert original is not None
            assert remainder is not None
            assert (original.startswith(remainder), len(remainder) < len(original)) == (True, True)
            assert fields[header] == str(len(original)).encode()
        else:
            assert remainder == original
    assert fields.get("headers-omitted", b"%d" % len(headers)) == b"%d" % len(headers)
    assert detail.encode().startswith(fields["detail"])
    assert not short.value or short.value == value or limit - short.wire_size < 10, "no more is cut than needed"
    assert all(fields[name] == dict(letter.headers[:5])[name] for name in ("reason", "topic", "partition", "offset"))


def test_a_letter_whose_smallest_form_does_not_fit_stays_whole() -> None:
    """Kafka refuses both forms, unless the topic's limit is raised by then."""
    letter = letter_of(b"k" * 300, b"v" * 300, [("ü", None)], "not-json", "d" * 3000)
    assert dict(letter.headers)["detail"] == b"d" * 1000
    limit = next(n for n in range(2000) if truncate(letter, n) != letter)
    assert truncate(letter, limit - 1) is truncate(letter, -1) is letter
    smallest = truncate(letter, limit)
    assert (smallest.value, dict(smallest.headers)["key"]) == (b"", b"k" * (limit // 10))
