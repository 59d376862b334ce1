"""A dead letter carries what is needed to find and repair its record, and always fits."""

from service.streaming.dead_letters import MAX_BYTES, dead_letter


def test_a_letter_has_the_record_and_its_place() -> None:
    letter = dead_letter("t", 3, 41, b"k", b"value", [("trace", b"1")], "not-json", "why")
    assert letter.key == b"t-3-41"
    assert letter.value == b"value"
    assert letter.headers == [
        ("reason", b"not-json"), ("detail", b"why"), ("topic", b"t"), ("partition", b"3"), ("offset", b"41"),
        ("key", b"k"), ("headers", b"1"), ("trace", b"1"),
    ]  # fmt: skip


def test_a_record_without_key_or_value() -> None:
    letter = dead_letter("t", 0, 0, None, None, [], "empty", "")
    assert letter.value is None
    assert "key" not in dict(letter.headers)


def test_a_huge_record_is_cut_and_marked() -> None:
    letter = dead_letter("t", 0, 0, b"k" * 1000, b"v" * 2_000_000, [("h", b"x" * 1000)], "too-large", "")
    assert letter.value is not None
    assert len(letter.value) <= MAX_BYTES - 1000
    assert dict(letter.headers)["truncated-from"] == b"2000000"
    assert dict(letter.headers)["h"] == b"x" * 1000


def test_a_huge_key_is_cut_and_marked() -> None:
    letter = dead_letter("t", 0, 0, b"k" * 2_000_000, b"v" * 10, [("h", b"x")], "not-json", "")
    about = dict(letter.headers)
    assert letter.value == b"v" * 10
    assert len(about["key"]) == 100_000
    assert about["key-truncated-from"] == b"2000000"
    assert "headers-omitted" not in about


def test_huge_headers_are_left_out_and_marked() -> None:
    letter = dead_letter("t", 0, 0, None, b"v", [("h", b"x" * 500_000)], "not-json", "")
    assert letter.value == b"v"
    assert dict(letter.headers)["headers-omitted"] == b"1"
    assert "h" not in dict(letter.headers)
