"""What is an event and what is not: every rejection of the format, and what is accepted."""

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher

from service.errors import Rejected
from service.learning.columns import columns_for
from service.learning.events.batch import REASONS, Decoder
from service.learning.events.careful_reader import CarefulReader, text_values
from service.learning.identity import Identity, Places
from tests.fuzz import judge
from tests.fuzz.texts import Texts
from tests.kinds import BAD_NAMED, BAD_POSITIONAL, GOOD_NAMED

pytestmark = pytest.mark.usefixtures("reading")

NAMED = Identity()
POSITIONAL = Identity(features="positional", dimension=3)


def reason(reader: Callable[[bytes], Any], raw: bytes) -> str:
    """Why it is rejected, or nothing."""
    try:
        reader(raw)
    except Rejected as rejected:
        return rejected.reason
    return ""


def decode(identity: Identity, *records: bytes | None) -> Any:
    return Decoder(identity, columns_for(identity)).decode(records)


@pytest.mark.parametrize(("raw", "reason"), BAD_NAMED)
def test_bad_named_events_are_rejected_with_their_reason(raw: bytes | None, reason: str) -> None:
    batch, rejects = decode(NAMED, raw)
    assert len(batch.labels) == 0
    assert [r.reason for r in rejects] == [reason]
    assert "\n" not in rejects[0].detail


@pytest.mark.parametrize(("raw", "reason"), BAD_POSITIONAL)
def test_bad_positional_events_are_rejected_with_their_reason(raw: bytes | None, reason: str) -> None:
    _, rejects = decode(POSITIONAL, raw)
    assert [r.reason for r in rejects] == [reason]


def test_every_reason_is_shown() -> None:
    assert {reason for _, reason in [*BAD_NAMED, *BAD_POSITIONAL]} == {*REASONS} - {"not-msgpack"}  # test_forms has it


@pytest.mark.parametrize("raw", GOOD_NAMED)
def test_good_events_are_accepted(raw: bytes) -> None:
    batch, rejects = decode(NAMED, raw)
    assert not rejects
    assert len(batch.labels) == 1


def test_a_bad_event_leaves_its_neighbours_and_their_columns_alone() -> None:
    """A name that only a rejected event has gets no column, whichever test rejects it."""
    good = [b'{"features":{"a":1},"label":1}', b'{"features":{"b":2,"a":3},"label":0}']
    for raw, _ in BAD_NAMED:
        columns = columns_for(NAMED)
        batch, rejects = Decoder(NAMED, columns).decode([good[0], raw, good[1]])
        assert (batch.names, columns.names) == (["a", "b"], []), raw
        assert batch.columns.tolist() == [1, 2, 1]
        assert batch.values.tolist() == [1.0, 2.0, 3.0]
        assert batch.labels.tolist() == [1.0, -1.0]
        assert batch.records == [0, 2]
        assert [r.record for r in rejects] == [1]


def test_a_reason_does_not_depend_on_the_neighbours() -> None:
    """An event with two faults has one reason, also beside an event that makes the decoder look twice."""
    two = b'{"features":{"a":1e31},"label":7}'
    beyond = b'{"features":{"z":-1e31},"label":1}'
    assert [r.reason for r in decode(NAMED, two)[1]] == ["out-of-range"]
    assert [r.reason for r in decode(NAMED, beyond, two)[1]] == ["out-of-range", "out-of-range"]


@pytest.mark.parametrize(
    ("labels", "known", "unknown"),
    [
        (None, [-1, 0, False, 1, True, 1.0, -0.0], [2, "1", 0.5]),
        ((0, 1), [0, 1, 0.0], [-1, True, False, "0"]),
        ((False, True), [False, True], [0, 1, "true"]),
        (("no", "yes"), ["no", "yes"], ["No", 0, True]),
    ],
)
def test_labels(labels: Any, known: list[Any], unknown: list[Any]) -> None:
    identity = Identity(labels=labels)
    raws = [json.dumps({"features": {}, "label": label}).encode() for label in [*known, *unknown]]
    batch, rejects = decode(identity, *raws)
    assert batch.records == list(range(len(known)))
    assert {r.reason for r in rejects} == {"unknown-label"}


def test_the_first_events_alone() -> None:
    """With the names that they are the first to have, and none of those that come later."""
    identity = Identity(max_columns=3)
    columns = columns_for(identity)
    columns.extend(["a"])
    values = [b'{"features":{"a":1,"b":2},"label":1}', b"", b'{"features":{"c":3,"d":4},"label":0,"weight":2}', b"{}"]
    batch, _ = Decoder(identity, columns).decode([*values, b'{"features":{"b":5,"e":6},"label":0}'])
    assert (batch.names, batch.ignored, batch.records) == (["b", "c"], [1, 2], [0, 2, 4])
    for count, names, ignored in ((0, [], []), (1, ["b"], []), (2, ["b", "c"], [1]), (3, ["b", "c"], [1, 2])):
        first = batch.first(count)
        read, _ = Decoder(identity, columns).decode([values[0], values[2], values[3]][:count])
        assert (first.names, first.ignored) == (names, ignored)
        assert len(first.starts) - 1 == len(first.labels) == len(first.weights) == len(first.records) == count
        arrays: list[tuple[Any, Any]] = [*zip(first[:5], read[:5], strict=True)]
        for ours, whole in arrays:
            assert count == 3 or ours.tolist() == whole.tolist()


def test_names_beyond_the_cap_are_ignored_and_counted() -> None:
    identity = Identity(max_columns=2)
    columns = columns_for(identity)
    batch, rejects = Decoder(identity, columns).decode(
        [b'{"features":{"a":1,"b":2,"c":3},"label":1}', b'{"features":{"d":1,"a":5},"label":1}']
    )
    assert (batch.names, batch.ignored, rejects) == (["a", "b"], [0, 1], [])
    assert batch.starts.tolist() == [0, 2, 3]
    assert batch.values.tolist() == [1.0, 2.0, 5.0]


@given(
    st.dictionaries(st.text(max_size=8), st.floats(-1e6, 1e6) | st.booleans() | st.text(max_size=4), max_size=12),
    st.integers(1, 6),
)
def test_hashing_is_scikit_learns(features: dict[str, Any], bits: int) -> None:
    """Few bits, so that names collide and are merged."""
    identity = Identity(features="hashed", bits=bits)
    raw = json.dumps({"features": features, "label": 1}).encode()
    batch, rejects = decode(identity, raw)
    if rejects:  # an unpaired surrogate is no JSON text; a number may have the name of a category
        assert rejects[0].reason in ("not-json", "duplicate-feature")
        return
    ours = np.zeros(1 << bits)
    ours[batch.columns.astype(int) - 1] = batch.values
    assert len(set(batch.columns.tolist())) == len(batch.columns)
    theirs = FeatureHasher(1 << bits).transform([features]).toarray()[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-9)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["features", "label", "weight", "id", "a"]), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(
    json_values
    | st.fixed_dictionaries(
        {"features": json_values, "label": json_values}, optional={"weight": json_values, "id": json_values}
    )
)
def test_the_careful_reader_agrees_with_the_decoder(value: Any) -> None:
    """Any JSON is an event for both or for neither, for the same reason, and that is of the list."""
    raw = json.dumps(value).encode()
    for identity in (NAMED, POSITIONAL, Identity(features="hashed", bits=4)):
        reasons = [r.reason for r in decode(identity, raw)[1]]
        found = reason(CarefulReader(identity).read, raw)
        assert reasons == ([found] if found else [])
        assert found in ("", *REASONS)


def test_a_text_is_refused_as_the_standard_library_refuses_it() -> None:
    """What stands in objects and lists: what is wrong, broken, cut short or followed by more."""
    texts = Texts(Random(12))
    seen = Counter[str]()
    for _ in range(20_000):
        values = [texts.value() for _ in range(texts.random.randrange(3))]
        text = texts.list(values) if texts.chance(0.5) else texts.object([(texts.name(), v) for v in values])
        raw = texts.space().encode() + texts.broken(text.encode(errors="surrogatepass"))
        if not raw.lstrip(b" \t\n\r").startswith((b"[", b"{")):
            continue
        found = reason(lambda raw: text_values(raw, (("no such name",),)), raw)
        _, faults = judge.parsed(raw)
        nan = faults == {"not-json"} and found in ("", "wrong-type")  # a NaN: its member says what is wrong
        assert nan or found in faults or (found in ("", "wrong-type") and not faults), raw
        seen[found] += 1
    assert min(seen[""], seen["not-json"], seen["trailing-bytes"]) > 200


@pytest.mark.parametrize("identity", [NAMED, POSITIONAL, Identity(features="hashed", bits=4)], ids=lambda i: i.features)
def test_members_that_no_pointer_names_are_ignored(identity: Identity) -> None:
    """Of any value, before and after the others, given twice; and names with colons, quotes and escapes."""
    features: Any = [1, 2, 3] if identity.features == "positional" else {"a:b": 1, 'q"\\:': 2, "é{": 3, "ab": 4}
    decoder = Decoder(identity, columns_for(identity))
    for unknown in (
        '"12:00:01"',
        "null",
        "[]",
        "{}",
        '{"features":{"a":[1e999,"\\u00e9:"]},"label":[{}]}',
        '["}",{"":0}]',
    ):
        for ascii_ in (True, False):
            known = json.dumps({"features": features, "label": 1, "weight": 2, "id": "x:y"}, ensure_ascii=ascii_)
            text = f'{{"ts" : {unknown},"ts":{unknown},{known[1:-1]} , "more":{unknown}}}'
            batch, rejects = decoder.decode([text.encode()])
            assert (len(batch.labels), rejects) == (1, [])


def test_a_pointer_finds_a_name_however_it_is_escaped() -> None:
    names = ["é", "日本", "😀", 'q"uote', "back\\slash", "a/b", "\n\t\b\f\r", "\x7f", "plain"]
    for name in names:
        identity = Identity(event=Places(label="/" + name.replace("~", "~0").replace("/", "~1")))
        units = name.encode("utf-16-be").hex()
        escaped = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
        for text in (json.dumps(name, ensure_ascii=False), json.dumps(name), f'"{escaped}"'):
            raw = f'{{"features":{{}},{text}:1}}'.encode()
            assert not decode(identity, raw)[1], raw
            both = raw[:-1] + b"," + json.dumps(name).encode() + b":1}"
            assert [r.reason for r in decode(identity, both)[1]] == ["duplicate-feature"], both
            other = f'{{"features":{{}},{text[:-1]}x":1}}'.encode()
            assert [r.reason for r in decode(identity, other)[1]] == ["missing-field"], other


def test_a_known_member_given_twice_is_found_behind_others_and_escaped() -> None:
    once = b'{"ts":{"label":2},"features":{"a:":1},"label":1,"label2":1,"labe":1}'
    assert not decode(NAMED, once)[1]
    for more in (b'"label":1', b'"l\\u0061bel":1', b'"\\u006Cabe\\u006c":[]', b'"features":{}', b'"id":"x","id":"x"'):
        assert [r.reason for r in decode(NAMED, once[:-1] + b"," + more + b"}")[1]] == ["duplicate-feature"], more
    for less in (b'"label\\u0000":1', b'"\\u00461abel":1', b'"labe\\l":1', b'"\\u0049d":1'):
        reasons = [r.reason for r in decode(NAMED, once[:-1] + b"," + less + b"}")[1]]
        assert reasons == (["not-json"] if b"\\l" in less else []), less
