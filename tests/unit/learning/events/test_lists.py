"""Lists of objects as features, and byte order marks: in records, in requests, and in models of older releases."""

import json
from codecs import BOM_UTF8
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest

from service.errors import Rejected
from service.learning.events.event_reader import EventReader
from service.learning.events.flatten import Flattener
from service.learning.events.value_formats import JSON, MESSAGE_PACK, ValueBuffer
from service.learning.identity import Identity, Places
from service.serving.predictions import V1Request
from tests.fuzz.events import JOIN

pytestmark = pytest.mark.usefixtures("reading")

TYPED = Identity(event=Places(types=(("c*", "number"), ("*.zip", "category")), nan="absent"))
ONLY = Identity(event=Places(only=("c.a", "d"), without=("*.no", "w")))
CONTENT = '"c": [{"a": 1, "no": 2}, {"a": 2, "b": [[1]]}], "d": [{"e": {"f": 1}, "no": {}}], "w": [{"a": [[]]}, 1]'


@pytest.mark.parametrize(
    ("members", "identity", "expected"),
    [
        ('"c": [{"a": 1}, {"a": true}, {"a": true}]', Identity(), {"c.a": 3.0}),
        ('"c": [{"a": true}, {"a": true}]', Identity(), {"c.a": 2}),
        ('"c": [{"a": -0.0}]', Identity(), {"c.a": -0.0}),
        ('"c": [{"a": 1e30}, {"a": -1e30}, {"a": 1}]', Identity(), {"c.a": 1.0}),
        ('"c": [{"a": 1e30}, {"a": 1}]', Identity(), {"c.a": 1e30}),
        ('"c": [{"a": 1e30}, {"a": 1e29}]', Identity(), "out-of-range"),
        ('"c": [{"a": "x", "b": "x"}, {"a": "x"}]', Identity(), {"c.a=x": 2, "c.b=x": 1}),
        ('"c": [{"a": 1, "a": 2}]', Identity(), "duplicate-feature"),
        ('"c": [{"a.b": 1, "a": {"b": 2}}]', Identity(), "duplicate-feature"),
        ('"c.a": 2, "c": [{"a": 1}]', Identity(), "duplicate-feature"),
        ('"c": [{"a": [{"b": 1}, [2]]}]', Identity(), "wrong-type"),
        ('"c": [{"a": 1}, NaN]', Identity(), "wrong-type"),
        ('"c": [{"a": "x"}]', Identity(text="reject"), "wrong-type"),
        ('"c": [{"a": "x", "b": "2"}, {"b": "1.5"}]', Identity(text="number"), {"c.a=x": 1, "c.b": 3.5}),
        ('"c": [{"a": "x", "b": 1}]', Identity(text="ignore"), {"c.b": 1.0}),
        ('"c": [{"aaaaaaaa": 1}]', Identity(max_name_bytes=9), "name-too-long"),
        ('"c": [{"a": 1}, {"a": 2}]', Identity(max_features=4), "too-many-features"),
        ('"c": ' + '[{"a": ' * 15 + "1" + "}]" * 15, Identity(), {"c" + ".a" * 15: 1.0}),
        ('"c": ' + '[{"a": ' * 16 + "1" + "}]" * 16, Identity(), "wrong-type"),
        ('"c": [{"key": "", "value": 1}, {"value": "x", "name": "n.m"}]', Identity(), {"c.": 1.0, "c.n.m=x": 1}),
        ('"c": [{"key": "a", "value": [1]}, {"key": "a", "value": null}]', Identity(), {"c.a.0": 1.0}),
        ('"c": [{"key": 7, "value": 1}]', Identity(), {"c.key": 7.0, "c.value": 1.0}),
        ('"c": [{"key": "k", "name": "n"}]', Identity(), {"c.key=k": 1, "c.name=n": 1}),
        ('"c": [{"key": "k", "value": {"s": null}}]', Identity(), {}),
        ('"c": [{"key": "k", "value": {"s": null, "s": 1}}]', Identity(), "duplicate-feature"),
        ('"c": [{"key": "k", "value": {"arrayValue": {"values": [{"s": "x"}]}}}]', Identity(), {"c.k.values.s=x": 1}),
        ('"c": [{"a": "2", "zip": 7}, NaN, {"a": NaN, "zip": 8}]', TYPED, {"c.a": 2.0, "c.zip": 15.0}),
        ('"x": [{"zip": 7}, "NaN", {"zip": "7"}]', TYPED, {"x.zip=7": 2}),
        (CONTENT, ONLY, {"c.a": 3.0, "d.e.f": 1.0}),
    ],
)  # fmt: skip
def test_a_list_of_objects_has_the_same_features_everywhere(members: str, identity: Identity, expected: Any) -> None:
    record, requests = f'{{"features": {{{members}}}, "label": 1}}', [f'{{"features": {{{members}}}}}']
    values = ValueBuffer.from_values([record.encode()])
    if '"a": 1, "a"' not in members and '"s": null, "s"' not in members:
        values = ValueBuffer.from_values([record.encode(), msgpack.packb(json.loads(record))], [JSON, MESSAGE_PACK])
    requests += [f'{{"event": {record}}}', f'{{"instances": [{requests[0]}]}}']
    for i in range(len(values)):
        events = EventReader(identity).read(values[i : i + 1])
        actual = events.rejects[0].reason if events.rejects else features_of(events.features)
        assert repr(actual) == repr(expected)
    for request in map(str.encode, requests):
        try:
            features: Any = V1Request(request, 10).read(Flattener(identity)).features[0]
        except Rejected as rejected:
            features = rejected.reason
        assert repr(features) == repr(expected)


def features_of(features: Any) -> Any:
    """The features of the only event, by name."""
    if not hasattr(features, "names_of"):
        return features[0]
    numbers = zip(features.values.tolist(), features.is_number.tolist(), strict=True)
    names = [*features.names_of(slice(None))]
    return {name: value if is_number else int(value) for name, (value, is_number) in zip(names, numbers, strict=True)}


def test_a_byte_order_mark_is_passed_over_once_and_at_the_beginning() -> None:
    text = b'{"id": "7", "label": 1, "features": {"a": 1}}'
    for identity, labels in ((Identity(), False), (Identity(join=JOIN), True)):
        good, limit = [text, BOM_UTF8 + text, BOM_UTF8 + b" " + text], len(BOM_UTF8 + text)
        bad = [BOM_UTF8 * 2 + text, b" " + BOM_UTF8 + text, BOM_UTF8, BOM_UTF8[:2] + text]
        reader = EventReader(identity, labels=labels)
        events = reader.read([*good, None, *bad, *good])
        assert (events.records, [*events.ids]) == ([0, 1, 2, 8, 9, 10], ["7"] * 6)
        assert [reject.reason for reject in events.rejects] == ["empty", *["not-json"] * 4]
        assert reader.read(good, as_before=np.ones(3, bool)).records == [0]
        tight = EventReader(Identity(max_record_bytes=limit)).read([BOM_UTF8 + text, BOM_UTF8 + b" " + text])
        assert (tight.records, [reject.reason for reject in tight.rejects]) == ([0], ["too-large"])
