"""Events read by compiled code: what it accepts the careful reader accepts too, bit for bit; it declines the rest."""

import itertools
import json
import random
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from service.learning.columns.columns import Batch, Named, columns_for
from service.learning.events.batch import Decoder, Reject
from service.learning.events.careful_reader import CarefulReader
from service.learning.events.value_buffer import ValueBuffer
from service.learning.identity import Identity, Places
from tests.kinds import BAD_NAMED

IDENTITIES = {
    "named": Identity(),
    "hashed": Identity(features="hashed", bits=3),
    "scaled": Identity(scale="standard"),
    "hashed, scaled": Identity(features="hashed", bits=3, scale="standard"),
    "positional": Identity(features="positional", dimension=3),
    "few columns": Identity(max_columns=3, max_features=4, max_name_bytes=6, max_record_bytes=150),
    "whole": Identity(event=Places(features="", label="/y", where={"/op": ("c", "u", True, 2)}, id=None)),
    "within": Identity(
        labels=("no", "yes", 2),
        event=Places(features="/after/x", label="/after/y", weight=None, without=("ts*", "*.id")),
    ),
    "texts ignored": Identity(text="ignore", labels=(False, True)),
    "texts refused": Identity(text="reject", event=Places(only=("a*",))),
}


def both(identity: Identity, records: Sequence[bytes | None]) -> tuple[list[Reject], Batch]:
    """What both make of these, in slices, with columns that grow: the same, or the test fails."""
    ways = [(Decoder(identity, columns), columns) for columns in (columns_for(identity), columns_for(identity))]
    (typed, a), (compiled_, b) = ways
    found, batch = list[Reject](), Batch(*(np.zeros(0),) * 5)  # type: ignore[arg-type]
    for start in range(0, len(records), 7):
        some = records[start : start + 7]
        batch, rejects = typed.decode(some)
        other, others = compiled_.decode_rows(ValueBuffer.of(some))
        assert rejects == others
        for one, two in zip(batch, other, strict=True):
            assert plain(one) == plain(two)
        for columns in (a, b):
            columns.extend(batch.names)
        found += rejects
    return found, batch


def plain(part: Any) -> Any:
    return (part.dtype.kind, part.tobytes()) if isinstance(part, np.ndarray) else list(part)


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_bad_events_among_good_ones(identity: Identity) -> None:
    good = [b'{"features":{"a":1},"label":1}', b'{"features":[1,2,3],"label":0}', b'{"y":1,"op":"c","a":{"b":true}}']
    rejects, _ = both(identity, [raw for bad, _ in BAD_NAMED for raw in (bad, *good)])
    assert rejects


def test_usual_events_are_not_left_to_the_careful_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or all of this would hold, and nothing be faster."""
    raws = {
        "named": b'{"features": {"a": 1.5, "b.c": -2e-3, "d": {"e": "f", "g": true, "h": null}}, "label": 1, "": [{}]}',
        "hashed": b'{"features": {"a": 0.1234567890123456, "\xc3\xa9": "x"}, "label": 0, "weight": 2, "m": "\\n"}',
        "positional": b'{"features":[1, 2.5 ,-3E2],"label":true}',
        "whole": b'{"op":"c","a":{"b":"c"},"y":-1}',
        "within": b'{"after":{"x":{"a":1,"ts":5,"u":{"id":"q"}},"y":"yes"},"before":null}',
    }
    monkeypatch.setattr(CarefulReader, "read", None)
    for name, raw in raws.items():
        decoder = Decoder(IDENTITIES[name], columns_for(IDENTITIES[name]))
        batch, rejects = decoder.decode_rows(ValueBuffer.of([raw]))
        assert (len(batch.labels), rejects) == (1, []), name


def test_events_after_others_of_nearly_the_same_names() -> None:
    """Names that the event before had in their places are not looked at again: here many are, up to some place."""
    members = '"a":1', '"b":-0.5', '"ab":2', '"a":"t"', '"c":{"a":1}', '"a" : true', '"\\u0061":3', '"b":[4]', '"":5'
    events = [
        f'{{"label":1,"features":{{{",".join(some)}}}}}'.encode()
        for size in range(4)
        for some in itertools.product(members, repeat=size)
    ]
    random.Random(5).shuffle(events)
    # One more is alike in its names up to a value that is no number, and has one of them twice.
    events += [b'{"features":{"b":1,"a":1},"label":1}', b'{"features":{"b":1,"a":"t","b":1},"label":1}']
    rejects, _ = both(IDENTITIES["named"], events)
    assert rejects[-1].record == (len(events) - 1) % 7
    assert {reject.reason for reject in rejects} == {"duplicate-feature"}


def read(texts: Sequence[str]) -> list[float]:
    """These numbers, as an event has them."""
    identity = Identity(features="positional", dimension=len(texts))
    record = f'{{"features":[{",".join(texts)}],"label":1}}'.encode()
    batch, rejects = Decoder(identity, columns_for(identity)).decode_rows(ValueBuffer.of([record]))
    assert rejects == []
    values: list[float] = batch.values.tolist()
    return values


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
    assert struct.pack("d", *read([text])) == struct.pack("d", float(json.loads(text)))


def test_halfway_between_two_doubles() -> None:
    rng, texts = random.Random(3), list[str]()
    while len(texts) < 3000:
        q = rng.randint(-3, 23)
        halfway = Fraction(2 * (rng.getrandbits(53) | 1 << 53) + 1) / (Fraction(10) ** q)
        near = int(halfway) + rng.randint(-1, 1)
        if 0 < near < 1 << 64:
            texts.append(f"{near}e{q}")
    assert read(texts) == list(map(float, texts))


def test_names_that_find_no_slot_are_known_beside_the_table() -> None:
    columns = columns_for(Identity())
    assert isinstance(columns, Named)
    columns.names.table.slots[:] = 1  # as where more names collide than are looked at
    columns.extend(["a", "b"])
    assert columns.names.table.slotless == {"a": 1, "b": 2}
    raw = b'{"features":{"b":1,"c":2,"a":3},"label":1}'
    batch, _ = Decoder(Identity(), columns).decode_rows(ValueBuffer.of([raw] * 2))
    assert (batch.columns.tolist(), batch.names) == ([2, 3, 1, 2, 3, 1], ["c"])
    assert columns.find({"b": 1.0, "c": 2.0, "a": 3.0}) == ([(2, 1.0), (1, 3.0)], 1)
    columns.names.table.slots[:] = 0
    columns.extend([f"more{i}" for i in range(40)])  # a larger table, with slots for all
    assert (columns.names.table.slotless, columns.names.numbers_of(["a", "more39"]).tolist()) == ({}, [1, 42])
