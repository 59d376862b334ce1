"""Files of events: each format as its reference writes it, and what is said of lines that are none."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ConfigurationError, DataError
from service.learning.columns import columns_for
from service.learning.events.batch import Decoder
from service.learning.identity import Identity, Places
from service.tools.formats import Events, Line, format_of

pytestmark = pytest.mark.usefixtures("reading")

NAMED = Identity()
THREE = Identity(features="positional", dimension=3)
STRICT = Identity(text="reject")
CSV = {"name": "csv", "label": "y"}
OTHERS = "must be one of -1, 0, false, 1, true; for others set the model's `labels`, which `perceptron suggest` finds"


def read(path: Path, identity: Identity, *, check: bool = True, **how: Any) -> tuple[list[Line], list[str]]:
    """The good events of a file, and what was said of the bad lines without the file's name."""
    given = {"name": None, "label": None, "key": None} | how
    form = format_of(str(path), identity, **given)
    bad: list[str] = []
    events = Events(str(path), form, identity, keyed=given["key"] is not None, check=check)
    lines = list(events.lines(bad.append))
    return lines, [message.removeprefix(f"{path}, ") for message in bad]


def events(lines: list[Line]) -> list[Any]:
    return [json.loads(line.value) for line in lines]


@pytest.mark.parametrize(
    ("text", "identity", "how", "said"),
    [
        ("a,y\n1e31,1\n", NAMED, CSV, 'line 2: out-of-range: feature "a" is beyond ±1e+30'),
        ("1 1:2\n", NAMED, {}, "line 1: trailing-bytes: more bytes follow the event at byte 2; "
         "the lines are read as JSON, see --format for others"),
        ('{"features":{},"label":1,"id":""}\n', NAMED, {"key": "id"}, "line 1: --key id: the value is empty"),
        ('{"features":{},"label":1}\n', NAMED, {"key": "id"},
         "line 1: --key id: the event has no member and no feature of this name"),
        ('{"loan":{"id":1},"features":{"of":{"id":1}},"label":1}\n', NAMED, {"key": "loan.id"},
         "line 1: --key loan.id: the event has no member and no feature of this name (a member of an object in it "
         "cannot be the key)"),
        ("a,y\n1,2\n", NAMED, CSV, f"line 2: unknown-label: column 'y' {OTHERS}"),
        ("a,y\n1, must \n", Identity(labels=("no", "yes"), event=Places(label="/y must")), CSV,
         'line 2: unknown-label: column \'y\' must be one of "no", "yes"'),
        ("a,y\n2,-1\n", Identity(labels=(False, True)), CSV,
         "line 2: unknown-label: column 'y' must be one of false, true"),
        ('{"features":{},"label":1}\n', NAMED, {"key": "features"},
         "line 1: --key features: expected a string or a number"),
        ("\n7\n", NAMED, {"key": "id", "check": False},
         "line 2: --key id: the event has no member and no feature of this name"),
        ("{\n", NAMED, {"key": "id", "check": False},
         "line 1: --key id: no JSON to look for it in: Input data was truncated"),
        ("a,y,u\n1,1,\n", NAMED, {**CSV, "key": "u"}, "line 2: --key u: the value is empty"),
        ("a,y\n1,1\n2\n", NAMED, CSV, "line 3: 1 cells, the header has 2"),
        ("a,b,y\n1,two,1\n", STRICT, CSV, "line 2: column 'b': expected a number, got 'two'"),
        ("a,b,y\n1,-inf,1\n", NAMED, CSV, "line 2: column 'b': expected a finite number, got '-inf'"),
        ("a,b,y\n1,1e999,1\n", STRICT, CSV, "line 2: column 'b': expected a finite number, got '1e999'"),
        ("a,b,c,y\n1,,3,1\n", THREE, CSV, "line 2: column 'b': expected a number, got ''"),
        ("a,b,c,y\n1,two,3,1\n", THREE, CSV, "line 2: column 'b': expected a number, got 'two'"),
        ("a,b,c,y\n1,nan,3,1\n", THREE, CSV, "line 2: column 'b': expected a finite number, got 'nan'"),
        ("a,b,c,y\n1,true,3,1\n", THREE, CSV, "line 2: column 'b': expected a number, got 'true'"),
        ("b,y\n" + "x" * 300 + ",1\n", NAMED, CSV,
         'line 2: name-too-long: feature "b": a name is longer than 256 bytes'),
        ("b=c,b,y\n1,c,1\n", NAMED, CSV, 'line 2: duplicate-feature: feature "b=c" is given twice'),
        ("a,label,y\n1,2,1\n", Identity(event=Places(features="")), CSV,
         "line 2: the label belongs at /label of the record, where a feature stands"),
        ("a,y\n1,1\n", Identity(event=Places(features="", label="/a/b")), CSV,
         "line 2: the label belongs at /a/b of the record, where a feature stands"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_what_was_expected(
    tmp_path: Path, text: str, identity: Identity, how: dict[str, Any], said: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode("latin-1") if "\xff" in text else text.encode())
    assert read(path, identity, **how)[1] == [said]


@pytest.mark.parametrize(
    ("text", "how", "said"),
    [
        ("a,y\n1,1\n", {**CSV, "key": "u"}, "line 1: there is no column 'u'; the columns are a, y"),
        ("a,y\n1,1\n", {"name": "csv"},
         "line 1: there is no column 'label'; the columns are a, y; --label COLUMN says which is the label"),
        ("a,a,y\n1,2,1\n", CSV, "line 1: two columns have the same name"),
        ('a,y\n1,1\n"1,0\n', CSV, "line 3: a cell begins with a quote that nothing closes"),
        ('a,y\n"1,0\n2,1\n3,1\n', CSV, "line 2: a cell begins with a quote that nothing closes"),
        ('"a,y\n1,0\n', CSV, "line 1: a cell begins with a quote that nothing closes"),
        ('a,y\n\n"x\ny"z,0\n', CSV, "line 3: a quote is followed by more of its cell: within one it is written twice"),
        ('{"secret":1,"more":2}\n', CSV,
         "line 1: expected a header, got JSON; the file is read as CSV; JSON lines take no --label, event.label says "
         "where theirs is"),
        ('{"secret": 1}\n', {"name": "csv"}, "line 1: expected a header, got JSON; the file is read as CSV"),
        ("a;y\n1;0\n", CSV, 'line 1: the header is one column: cells are separated by commas, not by ";"'),
        ("a\ty\n1\t0\n", CSV, 'line 1: the header is one column: cells are separated by commas, not by "\\t"'),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_on_is_an_error(tmp_path: Path, text: str, how: dict[str, Any], said: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(DataError) as raised:
        read(path, NAMED, **how)
    assert str(raised.value) == f"{path}, {said}"


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1", 1.0), (" -.5e3 ", -500.0), ("+7", 7.0), ("true", True), ("False", False), ("TRUE", True),
        ("NL", "NL"), (" New York ", "New York"), ('"a ""b"", c"', 'a "b", c'), ("1_0", "1_0"), ('"1,0"', "1,0"),
        ("0x1F", "0x1F"), ("2024-01-01", "2024-01-01"), ("null", "null"), ("é", "é"), ("yes", "yes"), ("-", "-"),
    ],
)  # fmt: skip
def test_a_cell_is_a_number_a_boolean_or_a_string(tmp_path: Path, cell: str, value: Any) -> None:
    """By itself: what other rows have in its column says nothing."""
    path = tmp_path / "x.csv"
    path.write_text(f"a, c ,label\n1,{cell},1\n2,3,0\n3,x,0\n")
    lines, bad = read(path, NAMED)
    assert bad == []
    features = events(lines)[0]["features"]
    assert (features, type(features["c"])) == ({"a": 1.0, "c": value}, type(value))


@pytest.mark.parametrize("cell", ["", "  ", '""', "nan", "NaN", "-nan", " NAN "])
@pytest.mark.parametrize("identity", [NAMED, STRICT, Identity(features="hashed", bits=4)])
def test_a_cell_without_a_value_is_not_there(tmp_path: Path, identity: Identity, cell: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"a,b,label\n1,{cell},1\n")
    assert events(read(path, identity)[0]) == [{"features": {"a": 1.0}, "label": 1}]


AFTER = Places(features="/after", label="/after/left/user", where={"/op": ("c", "u"), "/after/kind": ("b",)})


@pytest.mark.parametrize(
    ("places", "form", "text", "record", "names"),
    [
        (Places(), CSV, "user.age,y\n3,1", {"features": {"user.age": 3.0}, "label": 1}, ["user.age"]),
        (Places(features=""), CSV, "user.age,y\n3,1", {"user.age": 3.0, "label": 1}, ["user.age"]),
        (Places(features="", label="/of/~1~0"), CSV, "2,y\n3,1", {"2": 3.0, "of": {"/~": 1}}, ["2"]),
        (Places(features="/a/b", label="/a/y"), CSV, "2,y\n3,1", {"a": {"b": {"2": 3.0}, "y": 1}}, ["2"]),
        (AFTER, CSV, "a,kind,y\nx,b,1", {"after": {"a": "x", "kind": "b", "left": {"user": 1}}, "op": "c"},
         ["a=x", "kind=b"]),
        # Of a line's own columns nothing is made up: the model passes these two over.
        (AFTER, CSV, "a,kind,y\nx,,1", {"after": {"a": "x", "left": {"user": 1}}, "op": "c"}, None),
        (Places(features="", where={"/op": ("c",)}), CSV, "a,y\n1,1", {"a": 1.0, "label": 1}, None),
    ],
)  # fmt: skip
def test_a_line_becomes_a_record_that_the_model_reads(
    tmp_path: Path, places: Places, form: Any, text: str, record: Any, names: list[str] | None
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    identity = Identity(event=places)
    lines, bad = read(path, identity, **form)
    assert (events(lines), bad) == ([record], [])
    batch, rejects = Decoder(identity, columns_for(identity)).decode([lines[0].value])
    assert rejects == []
    assert (list(batch.names), list(batch.skipped)) == (names or [], [] if names else [0])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({}, '{"features":{"1":2},"label":1}\n'),
        (CSV, "1,y\n2,1\n"),
        ({}, ""),
    ],
)
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, packed: bool, form: Any, text: str) -> None:
    path = tmp_path / "file"
    marked = b"\xef\xbb\xbf" + text.encode()
    path.write_bytes(gzip.compress(marked) if packed else marked)
    lines, bad = read(path, NAMED, **form)
    assert bad == []
    assert events(lines) == [{"features": {"1": 2}, "label": 1}] * bool(text)


def test_good_lines_beside_bad_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"1,2,label\n1,,+1\nfoo\n.5,-2E-3,0\r\n,,-1\n"))
    lines, bad = read(path, NAMED)
    assert [(line.number, line.key) for line in lines] == [(2, None), (4, None), (5, None)]
    assert events(lines) == [
        {"features": {"1": 1.0}, "label": 1},
        {"features": {"1": 0.5, "2": -0.002}, "label": 0},
        {"features": {}, "label": -1},
    ]
    assert len(bad) == 1


@pytest.mark.parametrize(
    ("labels", "texts", "expected"),
    [
        (None, ["+1", "-1", "0", "1.0", "true", "False"], [1, -1, 0, 1, True, False]),
        ((0, 1), ["0", "1.0"], [0, 1]),
        ((-1.5, 2.5), ["-1.5", "+2.5"], [-1.5, 2.5]),
        ((False, True), ["0", "1", "FALSE", "true"], [False, True, False, True]),
        (("0", "+1"), ["0", "+1"], ["0", "+1"]),
        (("no", 1), ["no", "1"], ["no", 1]),
    ],
)
def test_a_label_is_read_as_the_model_knows_it(tmp_path: Path, labels: Any, texts: list[str], expected: Any) -> None:
    path = tmp_path / "x.csv"
    path.write_text("".join(f"{line}\n" for line in ("a,label", *(f"1,{text}" for text in texts))))
    lines, bad = read(path, Identity(labels=labels))
    assert bad == []
    found = [e["label"] for e in events(lines)]
    assert (found, [type(x) is bool for x in found]) == (expected, [type(x) is bool for x in expected])


@pytest.mark.parametrize(
    ("text", "identity", "how", "keys"),
    [
        ('{"features":{"id":5,"a":1},"label":1,"id":"k"}', NAMED, {"key": "id"}, [b"k"]),
        ('{"features":{"a":7},"label":1}\n{"features":{"a":7.5},"label":1}', NAMED, {"key": "a"}, [b"7", b"7.5"]),
        ('{"features":[4,5,6],"label":1}', THREE, {"key": "1"}, [b"5"]),
        ('{"features":{},"label":true,"user":"\u00e9"}', NAMED, {"key": "user"}, ["\u00e9".encode()]),
        ('{"features":{},"label":true}', NAMED, {"key": "label"}, [b"true"]),
        (
            '{"id":"k","label":1,"after":{"id":5,"u":7}}',
            Identity(event=Places(features="/after")),
            {"key": "id"},
            [b"k"],
        ),
        ('{"label":1,"in":{"after":{"u":7}}}', Identity(event=Places(features="/in/after")), {"key": "u"}, [b"7"]),
        ('{"label":1,"u":"x"}', Identity(event=Places(features="")), {"key": "u"}, [b"x"]),
        ("u,a,b,c,y\nx7,1,2,3,1", THREE, {**CSV, "key": "u"}, [b"x7"]),
        ("u,a,y\n0.50,1,1", NAMED, {**CSV, "key": "u"}, [b"0.50"]),
    ],
)
def test_a_key_is_found_where_it_is_named(
    tmp_path: Path, text: str, identity: Identity, how: dict[str, Any], keys: list[bytes]
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    lines, bad = read(path, identity, **how)
    assert ([line.key for line in lines], bad) == (keys, [])
    assert all("u" not in e.get("features", ()) for e in events(lines))


@pytest.mark.parametrize(
    ("file", "how", "form"),
    [
        ("x.jsonl", {}, "JsonLines"),
        ("x.csv", {"name": "jsonl"}, "JsonLines"),
        ("x.jsonl", {"label": "y"}, "Csv"),
        ("x.csv.gz", {"label": "y"}, "Csv"),
        ("-", {}, "JsonLines"),
        ("-", {"name": "csv"}, "Csv"),
        ("x.CSV", {}, "Csv"),
        ("x", {"name": "jsonl", "label": "y"}, "--label names a column of CSV; the format is jsonl"),
    ],
)
def test_an_option_wins_then_the_suffix(file: str, how: dict[str, Any], form: str) -> None:
    given = {"name": None, "label": None, "key": None} | how
    try:
        found = type(format_of(file, NAMED, **given)).__name__
    except ConfigurationError as error:
        found = str(error)
    assert found.startswith(form)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_named(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    """No input ends in anything but events, bad lines and DataError, whatever the format."""
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(raw)
    hows: list[dict[str, Any]] = [{"key": "id"}, {"name": "csv", "label": "0"}, {**CSV, "key": "1"}]
    for how in hows:
        for identity in (NAMED, THREE, Identity(event=AFTER), Identity(event=Places(features=""))):
            try:
                lines, _ = read(path, identity, **how)
            except DataError:
                continue
            assert all({identity.event.features[1:] or "label"} <= set(e) for e in events(lines))
