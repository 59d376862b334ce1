"""A dead letter has what is needed to find and repair its record, and always fits its topic."""

from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from service.streaming.dead_letters import MAX_HEADERS, DeadLetter, dead_letter, own_headers, truncate, wire_size
from service.streaming.records import Headers, KafkaRecord
from tests.batches import join_records


def letter_of(
    key: bytes | None, value: bytes | None, headers: Headers, reason: str, detail: str, topic: str = "t"
) -> DeadLetter:
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


def on_the_wire(letter: DeadLetter) -> int:
    """The bytes of the batch that a producer sends."""
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=16_384
    )
    assert builder.append(0, 1_700_000_000_000, letter.key, letter.value, list(letter.headers))
    return len(builder.build())


LEAST = 400
"""Bytes that any letter fits in."""
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
    key: bytes | None, value: bytes | None, headers: Any, detail: str, room: float
) -> None:
    letter = letter_of(key, value, headers, "too-many-features", detail, "t" * 20)
    limit = LEAST + int(room * max(0, wire_size(letter) - LEAST))
    less = truncate(letter, limit)
    assert on_the_wire(less) <= wire_size(less) <= limit
    own = own_headers(less.headers)
    about = {name: content or b"" for name, content in less.headers[: len(less.headers) - len(own)]}
    assert less.key == letter.key
    assert list(own) == ([] if "headers-omitted" in about else headers)
    for before, after, mark in (
        (value, less.value, "truncated-from"),
        (key, about.get("key"), "key-truncated-from"),
    ):
        if mark in about:
            assert before is not None
            assert after is not None
            assert (before.startswith(after), len(after) < len(before)) == (True, True)
            assert about[mark] == str(len(before)).encode()
        else:
            assert after == before
    assert about.get("headers-omitted", b"%d" % len(headers)) == b"%d" % len(headers)
    assert detail.encode().startswith(about["detail"])
    assert not less.value or less.value == value or limit - wire_size(less) < 10, "no more than needed"
    assert all(about[name] == dict(letter.headers[:5])[name] for name in ("reason", "topic", "partition", "offset"))


def test_a_letter_whose_least_does_not_fit_stays_whole() -> None:
    """Kafka refuses it either way, unless its topic takes more by then."""
    letter = letter_of(b"k" * 300, b"v" * 300, [("ü", None)], "not-json", "d" * 3000)
    assert dict(letter.headers)["detail"] == b"d" * 1000
    limit = next(n for n in range(2000) if truncate(letter, n) != letter)
    assert truncate(letter, limit - 1) is truncate(letter, -1) is letter
    least = truncate(letter, limit)
    assert (least.value, dict(least.headers)["key"]) == (b"", b"k" * (limit // 10))
