"""Records in MessagePack and as vectors mean what the same JSON means: batch, rejections, learned weights."""

import json
import math
import random
import struct
from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest

from service.learning.columns.columns import Batch
from service.learning.events import value_formats
from service.learning.events.read_events import ReadEvents
from service.learning.events.value_formats import DOUBLE_VECTOR, JSON, MESSAGE_PACK, ValueBuffer, encode_vector
from service.learning.identity import Identity, Places
from tests.checks import decode, learner_of

pytestmark = pytest.mark.usefixtures("reading")

VALUES: tuple[Any, ...] = (0, -0.0, 1, 2.5, -3, 1e300, 2**60, True, False, None, "", "NL", "ü", [], {}, [1, 2.5])
NAMED, HASHED = Identity(), Identity(features="hashed", bits=4, labels=("no", "yes"), max_features=8)
RAW = Identity(event=Places(features="", label="/to/label", weight=None, where={"/op": ("c", 1)}), max_name_bytes=9)
SCALED = Identity(scale="standard", labels=(-5, 5))
POINTS = Identity(features="positional", dimension=3, labels=(7, 0.5, -4, "x"))


def assert_same(first: tuple[Batch, ReadEvents], second: tuple[Batch, ReadEvents]) -> None:
    for name in Batch._fields:
        actual, expected = (getattr(batch, name) for batch, _ in (first, second))
        if isinstance(actual, np.ndarray):
            assert actual.tobytes() == expected.tobytes(), name
        else:
            assert list(actual) == list(expected), name
    (ids, rejects), (other_ids, other_rejects) = (([*e.ids], [r[:2] for r in e.rejects]) for _, e in (first, second))
    assert (ids, rejects) == (other_ids, other_rejects)


def choose(source: random.Random, *records: tuple[Sequence[bytes | None], value_formats.ValueFormat]) -> ValueBuffer:
    """Each value in one of several formats."""
    chosen = [source.choice(records) for _ in records[0][0]]
    return ValueBuffer.from_values([values[i] for i, (values, _) in enumerate(chosen)], [each for _, each in chosen])


def event(random: random.Random) -> dict[str, Any]:
    """An event, or nearly one."""
    features: Any = {random.choice("abcd") + "x" * random.randrange(9): random.choice(VALUES) for _ in range(4)}
    if random.random() < 0.2:
        features["in"] = {"deep": random.choice(VALUES), "er": {"b": random.choice(VALUES)}}
    record = {"features": features, "label": random.choice((0, 1, -5, 5, "yes", "no", True, None, 2)), "op": "c"}
    record["id"] = random.choice(("a", "ü", "7", 7, -1, 1.5, 1e300))
    if random.random() < 0.3:
        record["weight"] = random.choice((0.5, 0, 2, "1"))
    record["to"] = {"label": random.choice((0, 1))}
    for member in random.sample(sorted(record), random.choice((0, 0, 0, 1))):
        del record[member]
    return record


@pytest.mark.parametrize("identity", [HASHED, RAW, SCALED], ids=["hashed", "raw", "scaled"])
def test_messagepack_is_what_the_same_json_is(identity: Identity) -> None:
    source = random.Random(1)
    events = [event(source) for _ in range(2500)]
    as_json: list[bytes | None] = [json.dumps(e).encode() for e in events]
    packed = [msgpack.packb(e) for e in events]
    expected = decode(identity, as_json)
    assert len(expected[0].records) > 100
    assert len({reject.reason for reject in expected[1].rejects}) > 1
    assert_same(decode(identity, choose(source, (packed, MESSAGE_PACK))), expected)
    assert_same(decode(identity, choose(source, (as_json, JSON), (packed, MESSAGE_PACK))), expected)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty"),
        (b"\xc1", "not-msgpack"),
        (b"\xdf\xff\xff\xff\xff", "not-msgpack"),
        (msgpack.packb({"features": {"a": 1}, "label": 1}) + b"\x01", "trailing-bytes"),
        (msgpack.packb({"features": {1: 1}, "label": 1}), "not-msgpack"),
        (b"\x82\xa8features\x81\xa1\xff\x01\xa5label\x01", "not-msgpack"),
        (b"\x82\xa8features\x82\xa1a\x01\xa1a\x02\xa5label\x01", "duplicate-feature"),
        (msgpack.packb({"features": {"a": b"bytes"}, "label": 1}), "wrong-type"),
        (msgpack.packb({"features": {"a": msgpack.ExtType(5, b"x")}, "label": 1}), "wrong-type"),
        (msgpack.packb({"features": {"a": math.nan}, "label": 1}), "not-finite"),
        (b"\x82\xa5label\x01\xa8features\x81\xa1a" + b"\x91" * 900 + b"\x01", "not-msgpack"),
    ],
)
def test_messagepack_that_is_no_event_has_its_reason(value: bytes, reason: str) -> None:
    good = msgpack.packb({"features": {"a": 1.5}, "label": 1, "other": b"\xff", "more": math.nan})
    batch, events = decode(NAMED, ValueBuffer.from_values([good, value, good], [MESSAGE_PACK] * 3))
    assert [(reject.record, reject.reason) for reject in events.rejects] == [(1, reason)], events.rejects
    assert batch.records == [0, 2]
    assert batch.values.tolist() == [1.5, 1.5]


def test_a_vector_is_what_the_same_list_is() -> None:
    source = random.Random(2)
    numbers = (0.0, -0.0, 1.5, -1e30, 1e30, 1.1e30, math.nan, math.inf)
    good = [(source.choices(numbers[:5], k=3), source.choice((7, 0.5))) for _ in range(300)]
    for share in (0.0, 0.1):
        rows = [
            (source.choices(numbers, k=3), source.choice((7, -4.5, math.nan, 1))) if source.random() < share else pair
            for pair in good
        ]
        as_json: list[bytes | None] = [json.dumps({"features": x, "label": y}).encode() for x, y in rows]
        vectors: list[bytes | None] = [encode_vector(x, y) for x, y in rows]
        if share:
            for records in (as_json, vectors):
                records[5:5] = [None]
            as_json[9:9] = [b'{"features": [1, 2], "label": 7}', b'{"features": [1, 2, 3, 4], "label": 7}']
            vectors[9:9] = [encode_vector([1, 2], 7), encode_vector([1, 2, 3, 4], 7)]
        expected = decode(POINTS, as_json)
        buffer = choose(source, (vectors, DOUBLE_VECTOR))
        assert_same(decode(POINTS, buffer), expected)
        assert_same(decode(POINTS, choose(source, (as_json, JSON), (vectors, DOUBLE_VECTOR))), expected)
        assert learner_of(POINTS, as_json).main.weights.tobytes() == learner_of(POINTS, buffer).main.weights.tobytes()
    reasons = {"empty", "wrong-length", "not-finite", "out-of-range", "unknown-label"}
    assert {reject.reason for reject in expected[1].rejects} == reasons


def test_only_positional_features_may_be_a_vector() -> None:
    vectors = ValueBuffer.from_values([encode_vector([1.0], 1.0)] * 2, [DOUBLE_VECTOR] * 2)
    assert [reject.reason for reject in decode(NAMED, vectors)[1].rejects] == ["wrong-type"] * 2
    skipping = Identity(features="positional", dimension=1, event=Places(where={"/op": ("c",)}))
    assert decode(skipping, vectors)[1].skipped == [0, 1]
    for raw in (b"", bytes(15), bytes(17), struct.pack("<2d", 1, 1) * 2):
        vector = ValueBuffer.from_values([raw], [DOUBLE_VECTOR])
        [reject] = decode(Identity(features="positional", dimension=1), vector)[1].rejects
        assert reject.reason == ("wrong-length" if raw else "empty")
