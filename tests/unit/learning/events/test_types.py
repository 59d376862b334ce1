"""Types: the same features from a record, from a request and from a file, and what they are good for."""

import datetime
import json
import random
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace

from service.errors import Rejected
from service.learning.events.flatten import Flattener
from service.learning.events.value_formats import JSON, MESSAGE_PACK, ValueBuffer, ValueFormat
from service.learning.identity import Identity, Places, ValueType
from service.serving.predictions import V1Request
from service.tools.files import Events, format_of
from tests.checks import decode, learner_of
from tests.fuzz.texts import Texts
from tests.unit.tools.test_suggest import Row, rows
from tests.unit.tools.test_suggest_values import price, store

pytestmark = pytest.mark.usefixtures("reading")

TYPES: tuple[tuple[str, ValueType], ...] = (("n*", "number"), ("*c", "category"), ("t*", "time"))
IDENTITY = Identity(event=Places(features="/x", types=TYPES, nan="absent"))
TIME = {".hour=5": 1, ".weekday=4": 1}


def read(identity: Identity, record: bytes, value_format: ValueFormat = JSON) -> dict[str, float] | Rejected:
    """The features of a record, or why it is rejected."""
    batch, events = decode(identity, ValueBuffer.from_values([record], [value_format]))
    if events.rejects:
        return Rejected(*events.rejects[0][1:])
    return dict(zip(batch.names, batch.values.tolist(), strict=True))


def value_of(name: str, value: str, identity: Identity = IDENTITY) -> dict[str, float] | str:
    """The features of a value by what follows its name, or the reason of its rejection."""
    features = read(identity, f'{{"x": {{"{name}": {value}}}, "label": 1}}'.encode())
    if isinstance(features, Rejected):
        assert f'feature "{name}' in features.detail
        assert "\n" not in features.detail
        return features.reason
    return {feature.removeprefix(name): number for feature, number in features.items()}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("n", '"-0"', {"": 0.0}),
        ("n", '"1e400"', "not-finite"),
        ("n", '"-1e31"', "out-of-range"),
        ("n", '"1e-400"', {"": 0.0}),
        ("n", '"5e-324"', {"": 5e-324}),
        ("n", '"9007199254740993"', {"": 9007199254740992.0}),
        ("n", '"' + "9" * 500 + '"', "out-of-range"),
        *(("n", f'"{text}"', "wrong-type") for text in (" 1", "1 ", "01", "+1", "1.", ".5", "0x1", "1_0", "١", "∞")),
        ("n", "true", "wrong-type"),
        ("n", '["1", [2]]', "wrong-type"),
        ("n", '[null, "NaN", 2]', {".2": 2.0}),
        ("c", "-0.0", {"=0": 1}),
        ("c", "12345678901234567891", {"=12345678901234567891": 1}),
        ("c", "1e3", {"=1000": 1}),
        ("c", "0.50", {"=0.5": 1}),
        ("c", "1e31", "out-of-range"),
        ("c", '["a", 1, true, "a", "", null]', {"=a": 2, "=1": 1, "=true": 1}),
        ("c", "[{}, 1]", "wrong-type"),
        ("t", '"2016-12-31T23:59:60-05:30"', {".hour=5": 1, ".weekday=7": 1}),
        ("t", '"0001-01-01T00:30+01:00"', {".hour=23": 1, ".weekday=7": 1}),
        ("t", '"9999-12-31T23:59-23:59"', {".hour=23": 1, ".weekday=6": 1}),
        ("t", '"1969-12-31"', {".weekday=3": 1}),
        ("t", "1787204704.9", TIME),
        ("t", "1787205599999999999", TIME),
        ("t", "99999999999", {".hour=9": 1, ".weekday=3": 1}),
        ("t", "100000000000", {".hour=9": 1, ".weekday=6": 1}),
        ("t", "9223372036854775807", {".hour=23": 1, ".weekday=5": 1}),
        ("t", "[2026, 8, 20, 5, 45, 4.5, 1]", TIME),
        ("t", "[]", {}),
        *(("t", text, "wrong-type") for text in ("9223372036854775808", "-1e9", "true", "[2026, 8]", "[2026, 2, 29]")),
        *(("t", f'"2026-08-20{text}"', "wrong-type") for text in ("T24:00", "T5:45", "T05:45:04.", "Z", "T05+24")),
        ("free", '"NaN"', {}),
    ],
)  # fmt: skip
def test_unusual_values(name: str, value: str, expected: Any) -> None:
    assert value_of(name, value) == expected


def test_the_first_pattern_that_matches_counts() -> None:
    for types, expected in ((TYPES, {"": 7.0}), (TYPES[::-1], {"=7": 1})):
        assert value_of("nc", "7", Identity(event=Places(features="/x", types=types))) == expected


def test_hours_and_days_are_those_of_the_calendar() -> None:
    rng, begin = random.Random(2), datetime.datetime(1, 1, 3)
    for _ in range(2000):
        local = begin + datetime.timedelta(minutes=rng.randrange(9990 * 365 * 24 * 60))
        zone = datetime.timezone(datetime.timedelta(minutes=rng.randrange(-1439, 1440)))
        utc = local - (zone.utcoffset(None) or datetime.timedelta())
        text = f'"{local.replace(tzinfo=zone).isoformat()}"'
        assert value_of("t", text) == {f".hour={utc.hour}": 1, f".weekday={utc.isoweekday()}": 1}
        parts = [local.year, local.month, local.day, local.hour]
        assert value_of("t", str(parts)) == {f".hour={local.hour}": 1, f".weekday={local.isoweekday()}": 1}


def requested(member: str, text: str) -> Any:
    """The features in a request with one instance."""
    request = V1Request(f'{{"{member}": {text}}}'.encode(), 10)
    return request.read(FLATTENER).features[0]


FLATTENER = Flattener(IDENTITY)


def test_a_request_has_the_features_of_a_record() -> None:
    texts, accepted = Texts(random.Random(3)), 0
    for _ in range(500):
        names = texts.random.sample(("n", "n2", "c", "b.c", "t", "t2", "free"), 3)
        features = texts.object([(name, texts.typed_value()) for name in names])
        record = f'{{"x": {features}, "label": 1}}'
        expected = read(IDENTITY, record.encode())
        for member, text in (("features", features), ("event", record), ("events", f"[{record}]")):
            if isinstance(expected, Rejected):
                with pytest.raises(Rejected) as caught:
                    requested(member, text)
                assert caught.value.reason == expected.reason
            else:
                assert repr({n: float(x) for n, x in requested(member, text).items()}) == repr(expected)
                accepted += 1
    assert accepted > 300


def test_message_pack_has_the_features_of_the_json() -> None:
    value = {"n": "1.5", "nan": float("nan"), "c": 2**63, "t": 1787204704, "free": "NaN"}
    packed = read(IDENTITY, msgpack.packb({"x": value, "label": 1, "other": float("nan")}), MESSAGE_PACK)
    assert packed == read(IDENTITY, json.dumps({"x": value, "label": 1, "other": float("nan")}).encode())
    assert packed == {"n": 1.5, "c=9223372036854775808": 1, "t.hour=5": 1, "t.weekday=4": 1}


def test_a_request_with_nan_is_logged_as_it_is_read() -> None:
    request = V1Request(b'{"instances": [{"features": {"a": NaN, "NaN": "a NaN \\"", "b": [NaN]}, "id": "1"}]}', 10)
    expected: Any = request.read(FLATTENER).features
    (asked,) = request.asked()
    assert bytes(asked.value) == b'{"a": "NaN", "NaN": "a NaN \\"", "b": ["NaN"]}'
    assert requested("features", bytes(asked.value).decode()) == expected[0]


def test_a_typed_column_of_a_file_keeps_its_text(tmp_path: Any) -> None:
    file = tmp_path / "events.csv"
    file.write_text("n,c,t,label\n1.50,02134,20260820,1\n")
    identity = replace(IDENTITY, labels=(0, 1))
    form = format_of(str(file), identity, name=None, label=None, key=None)
    (line,) = Events(str(file), form, identity, check=True).lines(print)
    assert read(identity, line.value) == {"n": 1.5, "c=02134": 1, "t.weekday=4": 1}


def share_right(identity: Identity, records: list[bytes]) -> float:
    """The share of the last 1,000 records that are predicted rightly before they are learned."""
    counts = [learner_of(identity, part).main.counts for part in (records[:-1000], records)]
    return 1 - (counts[1].wrong_predictions - counts[0].wrong_predictions) / 1000


def rush_hour(_: int, rng: random.Random) -> dict[str, Any]:
    seconds = rng.randrange(1_700_000_000, 1_790_000_000)
    return {"at": seconds * 1000, "label": seconds // 3600 % 24 in {8, 9, 17, 18, 19, 20}}


@pytest.mark.parametrize(
    ("row", "types"),
    [
        (price, (("amount*", "number"), ("visits", "number"))),
        (store, (("store_id", "category"),)),
        (rush_hour, (("at", "time"),)),
    ],
)
def test_types_make_such_values_learnable(row: Row, types: Any) -> None:
    events = [(each.pop("label"), each) for each in rows(row, 5000)]
    records = [json.dumps({"features": features, "label": label}).encode() for label, features in events]
    plain = Identity(scale="standard", average="recent", half_life=1000)
    positive = sum(label for label, _ in events[-1000:]) / 1000
    assert share_right(plain, records) < max(positive, 1 - positive) + 0.15
    assert share_right(replace(plain, event=Places(types=types)), records) > 0.95
