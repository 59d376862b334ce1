"""What is an event and what is not: every rejection of the format, and what is accepted."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher

from service.learning.columns import columns_for
from service.learning.events import REASONS, Decoder
from service.learning.identity import Identity
from tests.kinds import BAD_NAMED, BAD_POSITIONAL, GOOD_NAMED

NAMED = Identity()
POSITIONAL = Identity(features="positional", dimension=3)


def decode(identity: Identity, *records: bytes | None) -> Any:
    return Decoder(identity, columns_for(identity)).decode(records)


@pytest.mark.parametrize(("raw", "reason"), BAD_NAMED)
def test_bad_named_events_are_rejected_with_their_reason(raw: bytes | None, reason: str) -> None:
    batch, rejects, _ = decode(NAMED, raw)
    assert len(batch.labels) == 0
    assert [r.reason for r in rejects] == [reason]
    assert "\n" not in rejects[0].detail


@pytest.mark.parametrize(("raw", "reason"), BAD_POSITIONAL)
def test_bad_positional_events_are_rejected_with_their_reason(raw: bytes | None, reason: str) -> None:
    _, rejects, _ = decode(POSITIONAL, raw)
    assert [r.reason for r in rejects] == [reason]


def test_every_reason_is_shown() -> None:
    assert {reason for _, reason in [*BAD_NAMED, *BAD_POSITIONAL]} == set(REASONS)


@pytest.mark.parametrize("raw", GOOD_NAMED)
def test_good_events_are_accepted(raw: bytes) -> None:
    batch, rejects, _ = decode(NAMED, raw)
    assert not rejects
    assert len(batch.labels) == 1


def test_a_bad_event_leaves_its_neighbours_and_their_columns_alone() -> None:
    """A name that only a rejected event has gets no column, whichever test rejects it."""
    good = [b'{"features":{"a":1},"label":1}', b'{"features":{"b":2,"a":3},"label":0}']
    for raw, _ in BAD_NAMED:
        columns = columns_for(NAMED)
        batch, rejects, _ = Decoder(NAMED, columns).decode([good[0], raw, good[1]])
        assert columns.names == ["a", "b"], raw
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
    batch, rejects, _ = decode(identity, *raws)
    assert batch.records == list(range(len(known)))
    assert {r.reason for r in rejects} == {"unknown-label"}


def test_names_beyond_the_cap_are_ignored_and_counted() -> None:
    identity = Identity(max_columns=2)
    columns = columns_for(identity)
    batch, rejects, ignored = Decoder(identity, columns).decode(
        [b'{"features":{"a":1,"b":2,"c":3},"label":1}', b'{"features":{"d":1,"a":5},"label":1}']
    )
    assert (columns.names, ignored, rejects) == (["a", "b"], 2, [])
    assert batch.starts.tolist() == [0, 2, 3]
    assert batch.values.tolist() == [1.0, 2.0, 5.0]


@given(st.dictionaries(st.text(max_size=8), st.floats(-1e6, 1e6), max_size=12), st.integers(1, 6))
def test_hashing_is_scikit_learns(features: dict[str, float], bits: int) -> None:
    """Few bits, so that names collide and are merged."""
    identity = Identity(features="hashed", bits=bits)
    raw = json.dumps({"features": features, "label": 1}).encode()
    batch, rejects, _ = decode(identity, raw)
    if rejects:  # an unpaired surrogate is no JSON text
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
def test_the_careful_reader_agrees_with_the_fast_one(value: Any) -> None:
    """Any JSON is an event for both or for neither, and a reject has a reason of the list."""
    raw = json.dumps(value).encode()
    for identity in (NAMED, POSITIONAL, Identity(features="hashed", bits=4)):
        decoder = Decoder(identity, columns_for(identity))
        fast, careful = decoder._decode([raw], careful=False), decoder._decode([raw], careful=True)
        assert fast[1] == careful[1]
        assert all(r.reason in REASONS for r in fast[1])
        assert fast[0].values.tolist() == careful[0].values.tolist()
