"""The compiled reader reads the usual events itself, and each number as the nearest double."""

import json
import random
import struct
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from service.learning.events.careful_reader import CarefulReader
from service.learning.identity import Identity, Places
from tests.checks import decode

pytestmark = pytest.mark.usefixtures("compiled_reader")


WITHIN = Places(features="/after/x", label="/after/y", weight=None, without=("ts*", "*.id"))
WHOLE = Places(features="", label="/y", where={"/op": ("c", "u", True, 2)}, id=None)
WHERE = Places(where={"/label": (1, "x"), "/weight": (0.5, 2), "/id": ("a",), "/op": (True,)})


@pytest.mark.parametrize(
    ("identity", "raw"),
    [
        (Identity(), b'{"features":{"a": 1.5, "b.c": -2e-3, "d":{"e":"f","g":true,"h":null}}, "label": 1, "": [{}]}'),
        (
            Identity(features="hashed", bits=3),
            b'{"features": {"a": 0.1234567890123456, "\xc3\xa9": "x"}, "label": 0, "weight": 2, "m": "\\n"}',
        ),
        (Identity(features="positional", dimension=3), b'{"features":[1, 2.5 ,-3E2],"label":true}'),
        (Identity(event=WHOLE), b'{"op":"c","a":{"b":"c"},"y":-1}'),
        (
            Identity(labels=("no", "yes", 2), event=WITHIN),
            b'{"after":{"x":{"a":1,"ts":5,"u":{"id":"q"}},"y":"yes"},"before":null}',
        ),
        (Identity(event=WHERE), b'{"features":{"a":1},"label":1,"weight":2,"id":"a","op":true}'),
        (
            Identity(event=Places(types=(("n*", "number"), ("*c", "category"), ("t*", "time")))),
            b'{"features":{"n":"31.50","n2":-2,"u":{"c":"x","bc":90210},"c":7.0,"ac":true,"t":"2026-08-20T05:45:04Z",'
            b'"t1":"2026-08-20 05:45:04.25-03:30","t2":1787204704123,"t3":"1787204704000000000","n3":"","t4":null},'
            b'"label":1}',
        ),
        (
            Identity(text="number", event=Places(nan="absent")),
            b'{"features":{"a":"1e3","b":"1e3x","c":NaN,"d":"NaN","e":"007 is a name","f":"-"},"label":1,"x":NaN}',
        ),
    ],
    ids=["named", "hashed", "positional", "whole", "within", "where on other parts", "types", "numbers in text"],
)
def test_usual_events_are_read_by_rows(identity: Identity, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the compiled reader would make nothing faster."""
    monkeypatch.setattr(CarefulReader, "read", None)
    batch, events = decode(identity, [raw])
    assert (len(batch.labels), events.rejects) == (1, [])


@pytest.mark.parametrize("label", ["0", "null", '"x"', "true"])
def test_a_record_without_the_label_that_where_asks_for_is_skipped_by_rows(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CarefulReader, "read", None)
    identity = Identity(event=Places(where={"/label": (1, 2)}))
    _, events = decode(identity, [b'{"features":{},"label":%b}' % label.encode()])
    assert events.skipped == [0]


def read_numbers(texts: Sequence[str]) -> list[float]:
    """The values that these numbers have in an event."""
    identity = Identity(features="positional", dimension=len(texts))
    record = f'{{"features":[{",".join(texts)}],"label":1}}'.encode()
    batch, events = decode(identity, [record])
    assert events.rejects == []
    return list(batch.values.tolist())


@given(
    st.one_of(
        st.floats(-1e30, 1e30).map(repr),
        st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    )
)
@example("9007199254740993")
@example("0.000000000000000000000000000000000000000000000000000000000001")
@example("-0")
@example("-0.0")
def test_a_number_is_the_nearest_double(text: str) -> None:
    assume(abs(float(text)) <= 1e30)
    assert struct.pack("d", *read_numbers([text])) == struct.pack("d", float(json.loads(text)))


def test_halfway_between_two_doubles() -> None:
    rng, texts = random.Random(3), list[str]()
    while len(texts) < 3000:
        q = rng.randint(-3, 23)
        halfway = Fraction(2 * (rng.getrandbits(53) | 1 << 53) + 1) / (Fraction(10) ** q)
        near = int(halfway) + rng.randint(-1, 1)
        if 0 < near < 1 << 64:
            texts.append(f"{near}e{q}")
    assert read_numbers(texts) == list(map(float, texts))
