"""Files of events: each format as its reference writes it, and the messages about lines that are not events."""

import gzip
import json
import re
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.errors import DataError
from service.learning.events.event_reader import EventReader
from service.learning.identity import Identity, Places
from service.tools.files import Events, Line, format_of
from tests.checks import decode

NAMED = Identity()
POSITIONAL = Identity(features="positional", dimension=3)
STRICT = Identity(text="reject")
WHOLE = Identity(event=Places(features=""))
CSV: dict[str, Any] = {"name": "csv", "label": "y"}


def read(
    folder: Path, text: str | bytes, identity: Identity, *, file: str = "file", check: bool = True, **options: Any
) -> tuple[list[Line], list[str]]:
    """The good events of a file with this text, and the messages about the bad lines, without the file's name."""
    path, messages = folder / file, list[str]()
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    form = format_of(str(path), identity, **{"name": None, "label": None, "key": None} | options)
    lines = [*Events(str(path), form, identity, check=check).lines(messages.append)]
    return lines, [message.removeprefix(f"{path}, ") for message in messages]


def events(lines: list[Line]) -> list[Any]:
    return [json.loads(line.value) for line in lines]


@pytest.mark.parametrize(
    ("text", "identity", "options", "message"),
    [
        ("a,y\n1e31,1\n", NAMED, CSV, 'line 2: out-of-range: feature "a" is beyond ±1e+30'),
        ("1 1:2\n", NAMED, {}, "line 1: trailing-bytes: more bytes follow the event at byte 2; the lines"),
        ('{"features":{},"label":1,"id":""}\n', NAMED, {"key": "id"}, "line 1: --key id: the value is empty"),
        ('{"features":{},"label":1}\n', NAMED, {"key": "id"}, "line 1: --key id: the event has no member"),
        ('{"features":{},"label":1}\n', NAMED, {"key": "features"}, "line 1: --key features: expected a string or a"),
        ("{x\n", NAMED, {"key": "id", "check": False}, "line 1: --key id: the line is not JSON"),
        ("a,y\n1,2\n", NAMED, CSV, "line 2: unknown-label: column 'y' must be one of -1, 0, false, 1, true"),
        ("a,y\n1,1\n2\n", NAMED, CSV, "line 3: 1 cells, the header has 2"),
        ("a,b,y\n1,two,1\n", STRICT, CSV, "line 2: column 'b': expected a number, got 'two'"),
        ("a,b,c,y\n1,,3,1\n", POSITIONAL, CSV, "line 2: column 'b': expected a number, got ''"),
        ("b=c,b,y\n1,c,1\n", NAMED, CSV, 'line 2: duplicate-feature: feature "b=c" is given twice'),
        ("a,label,y\n1,2,1\n", WHOLE, CSV, "line 2: the label belongs at /label of the record, where a feature stands"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(
    tmp_path: Path, text: str, identity: Identity, options: dict[str, Any], message: str
) -> None:
    [error] = read(tmp_path, text, identity, **options)[1]
    assert error.startswith(message)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,y\n1,1\n", {**CSV, "key": "u"}, "line 1: there is no column 'u'; the columns are a, y"),
        ("a,a,y\n1,2,1\n", CSV, "line 1: two columns have the same name"),
        ('a,y\n"1,0\n2,1\n3,1\n', CSV, "line 2: unexpected end of data"),
        ('a,y\n\n"x\ny"z,0\n', CSV, "line 3: ',' expected after '\"'"),
        ('{"secret": 1}\n', {"name": "csv"}, "line 1: expected a header, got JSON; the file is read as CSV"),
        ("a|y\n1|0\n", CSV, "line 1: the header is one column: cells are separated by commas, semicolons or tabs"),
    ],
)
def test_an_unreadable_file_is_an_error(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as raised:
        read(tmp_path, text, NAMED, **options)
    assert str(raised.value).startswith(f"{tmp_path}/file, {message}")
    assert "secret" not in str(raised.value)


RECORDS = [{"features": {"a": 1.5, "b": [2]}, "label": 1}, {"features": {}, "label": 0}]
LINES = "".join(f"{json.dumps(one)}\n" for one in RECORDS)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (LINES.encode("utf-16"), "iconv -f UTF-16LE "), (LINES.encode("utf-16-be"), "iconv -f UTF-16BE "),
        ("a,y\n1,0\n".encode("utf-16"), "iconv"), (b"PAR1\x15\x04" + bytes(99) + b"PAR1", "read_parquet"),
        (json.dumps(RECORDS), "jq -c '.[]'"), (json.dumps(RECORDS, indent=4), "jq -c '.[]'"),
        (json.dumps(RECORDS[0], indent=4), "jq -c ."), ('{"label": 1,\n "features": {"a": 1}}\n', "jq -c ."),
        (gzip.compress(b"\xef\xbb\xbf" + json.dumps(RECORDS).encode(), mtime=0), "jq -c '.[]'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, CSV])
def test_another_format_is_named_with_the_way_out(
    tmp_path: Path, raw: str | bytes, words: str, options: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match=re.escape(words)) as raised:
        read(tmp_path, raw, NAMED, **options)
    assert str(raised.value).startswith(f"{tmp_path}/file is ")


@pytest.mark.parametrize("mark", [";", "\t"])
@pytest.mark.parametrize("file", ["x.csv", "x.tsv"])
def test_the_header_says_what_separates_cells(tmp_path: Path, mark: str, file: str) -> None:
    """A comma in a name or in a number is text then."""
    lines, bad = read(tmp_path, "a;label;price, EUR;b\n1.5;1;0,5;\n".replace(";", mark), NAMED, file=file)
    assert (events(lines), bad) == ([{"features": {"a": 1.5, "price, EUR": "0,5"}, "label": 1}], [])


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (" -.5e3 ", -500.0), ("True", True), (" New York ", "New York"), ('"a ""b"", c"', 'a "b", c'),
        ("1_0", "1_0"), ("0x1F", "0x1F"), ("null", "null"), ("-", "-"),
    ],
)  # fmt: skip
def test_a_cell_is_a_number_a_boolean_or_a_string(tmp_path: Path, cell: str, value: float | str) -> None:
    """Each cell is read by itself: the other rows of its column do not matter."""
    lines, bad = read(tmp_path, f"a, c ,label\n1,{cell},1\n2,3,0\n3,x,0\n", NAMED, file="x.csv")
    assert bad == []
    features = events(lines)[0]["features"]
    assert (features, type(features["c"])) == ({"a": 1.0, "c": value}, type(value))


@pytest.mark.parametrize("cell", ["", '""', " NAN "])
@pytest.mark.parametrize("identity", [NAMED, STRICT])
def test_a_cell_without_a_value_is_not_there(tmp_path: Path, identity: Identity, cell: str) -> None:
    lines, _ = read(tmp_path, f"a,b,label\n1,{cell},1\n", identity, file="x.csv")
    assert events(lines) == [{"features": {"a": 1.0}, "label": 1}]


CHANGES = Places(features="/after", label="/after/left/user", where={"/op": ("c", "u"), "/after/kind": ("b",)})


@pytest.mark.parametrize(
    ("places", "text", "record", "names"),
    [
        (Places(), "user.age,y\n3,1", {"features": {"user.age": 3.0}, "label": 1}, ["user.age"]),
        (Places(features="", label="/of/~1~0"), "2,y\n3,1", {"2": 3.0, "of": {"/~": 1}}, ["2"]),
        (CHANGES, "a,kind,y\nx,b,1", {"after": {"a": "x", "kind": "b", "left": {"user": 1}}, "op": "c"},
         ["a=x", "kind=b"]),
        # Nothing is added if a line has its own column for it: the model skips this record.
        (CHANGES, "a,kind,y\nx,,1", {"after": {"a": "x", "left": {"user": 1}}, "op": "c"}, None),
    ],
)  # fmt: skip
def test_a_line_becomes_a_record_that_the_model_reads(
    tmp_path: Path, places: Places, text: str, record: Any, names: list[str] | None
) -> None:
    identity = Identity(event=places)
    lines, bad = read(tmp_path, text, identity, **CSV)
    assert (events(lines), bad) == ([record], [])
    batch, read_events = decode(identity, [lines[0].value])
    assert read_events.rejects == []
    assert (list(batch.names), read_events.skipped) == (names or [], [] if names else [0])


@pytest.mark.parametrize(("form", "text"), [({}, '{"features":{"1":2},"label":1}\n'), (CSV, "1,y\n2,1\n")])
def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path: Path, form: Any, text: str) -> None:
    lines, bad = read(tmp_path, b"\xef\xbb\xbf" + text.encode(), NAMED, **form)
    assert (events(lines), bad) == ([{"features": {"1": 2}, "label": 1}], [])


def test_good_lines_next_to_bad_ones_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"1,2,label\n1,,+1\nfoo\n.5,-2E-3,0\r\n,,-1\n")
    lines, bad = read(tmp_path, packed, NAMED, file="x.csv.gz")
    assert [(line.number, line.key) for line in lines] == [(2, None), (4, None), (5, None)]
    expected = [({"1": 1.0}, 1), ({"1": 0.5, "2": -0.002}, 0), ({}, -1)]
    assert events(lines) == [{"features": features, "label": label} for features, label in expected]
    assert len(bad) == 1


@pytest.mark.parametrize(
    ("labels", "texts", "expected", "unknown"),
    [
        (None, ["+1", "-1", "0", "1.0", "true", "False"], [1, -1, 0, 1, True, False], []),
        ((False, True), ["0", "1", "FALSE", "true"], [False, True, False, True], []),
        (("0", "+1"), ["0", "+1"], ["0", "+1"], []),
        ((3, -1, 0.5, 10), ["+3", "3.0", " -1 ", "0.50", "1e1", "4", ""], [3, 3, -1, 0.5, 10], [7, 8]),
        (("setosa", "12"), ["setosa", " 12", "Setosa"], ["setosa", "12"], [4]),
        ((0, 1, "none"), ["0", "none", "1.0", "true"], [0, "none", 1], [5]),
    ],
)
def test_a_label_is_read_as_the_model_knows_it(
    tmp_path: Path, labels: Any, texts: list[str], expected: Any, unknown: list[int]
) -> None:
    """Numbers are compared by value, strings as they are; unknown labels are reported by line."""
    text = "\n".join(["a,label", *(f"1,{cell}" for cell in texts)])
    lines, bad = read(tmp_path, text, Identity(labels=labels), file="x.csv")
    assert [line.partition(": unknown-label: ")[0] for line in bad] == [f"line {n}" for n in unknown]
    values = [e["label"] for e in events(lines)]
    assert (values, [type(x) is bool for x in values]) == (expected, [type(x) is bool for x in expected])


@pytest.mark.parametrize(
    ("text", "identity", "options", "keys"),
    [
        ('{"features":{"id":5,"a":1},"label":1,"id":"k"}', NAMED, {"key": "id"}, [b"k"]),
        ('{"features":{"a":7},"label":1}\n{"features":{"a":7.5},"label":1}', NAMED, {"key": "a"}, [b"7", b"7.5"]),
        ('{"features":{},"label":true,"user":"\u00e9"}', NAMED, {"key": "user"}, ["\u00e9".encode()]),
        ('{"label":1,"u":"x"}', WHOLE, {"key": "u"}, [b"x"]),
        ("u,a,b,c,y\nx7,1,2,3,1", POSITIONAL, {**CSV, "key": "u"}, [b"x7"]),
    ],
)
def test_a_key_is_found_where_it_is_named(
    tmp_path: Path, text: str, identity: Identity, options: dict[str, Any], keys: list[bytes]
) -> None:
    lines, bad = read(tmp_path, text, identity, **options)
    assert ([line.key for line in lines], bad) == (keys, [])
    assert all("u" not in e.get("features", ()) for e in events(lines))


@given(st.binary(max_size=200))
@example(b'{"id":"a record that where skips"}')
def test_any_bytes_are_read_or_named(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    """No input ends in anything but events, bad lines and DataError, whatever the format."""
    folder = tmp_path_factory.mktemp("any")
    all_options: list[dict[str, Any]] = [{"key": "id"}, {"name": "csv", "label": "0"}, {**CSV, "key": "1"}]
    for options, identity in product(all_options, (NAMED, POSITIONAL, Identity(event=CHANGES), WHOLE)):
        with suppress(DataError):
            lines, _ = read(folder, raw, identity, **options)
            own = EventReader(identity).read([line.value for line in lines])
            assert not own.rejects
            assert all({identity.event.features[1:] or "label"} <= set(events(lines)[i]) for i in own.records)
