"""The event format: which records are events, and the reason for which any other record is rejected."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher

from service.learning.events.event_reader import EventReader
from service.learning.events.read_events import REASONS
from service.learning.identity import Identity
from tests.checks import decode
from tests.kinds import BAD_NAMED, BAD_POSITIONAL, GOOD_NAMED

pytestmark = pytest.mark.usefixtures("reading")

NAMED = Identity()
POSITIONAL = Identity(features="positional", dimension=3)


@pytest.mark.parametrize(("identity", "kinds"), [(NAMED, BAD_NAMED), (POSITIONAL, BAD_POSITIONAL)])
def test_bad_events_are_rejected_with_their_reason(identity: Identity, kinds: Any) -> None:
    for raw, reason in kinds:
        batch, events = decode(identity, [raw])
        assert len(batch.labels) == 0, raw
        assert [r.reason for r in events.rejects] == [reason], raw
        assert "\n" not in events.rejects[0].detail


def test_every_reason_is_shown() -> None:
    assert {reason for _, reason in [*BAD_NAMED, *BAD_POSITIONAL]} == {*REASONS} - {
        "not-msgpack"
    }  # test_formats has it


def test_good_events_are_accepted() -> None:
    for raw in GOOD_NAMED:
        batch, events = decode(NAMED, [raw])
        assert (len(batch.labels), events.rejects) == (1, []), raw


def test_ids_are_text_and_labels_may_be_absent() -> None:
    """A number's id is its text in the record."""
    ids = ('"7"', "7", "7.0", "-1e2", "12345678901234567890", '""', '"é"', '"\\u00e9"', None)
    labels = ("1", "0", "null", None, "2")
    records = [
        f'{{"features": {{}}{_member("label", label)}{_member("id", id_)}}}'.encode() for label in labels for id_ in ids
    ]
    events = EventReader(NAMED, labelled=False).read(records)
    assert [*events.ids] == ["7", "7", "7.0", "-1e2", "12345678901234567890", "", "é", "é", None] * 4
    assert [str(y) for y in events.labels.tolist()[:: len(ids)]] == ["1.0", "-1.0", "nan", "nan"]
    assert {reject.reason for reject in events.rejects} == {"unknown-label"}


def _member(name: str, text: str | None) -> str:
    return "" if text is None else f', "{name}": {text}'


@given(
    st.dictionaries(st.text(max_size=8), st.floats(-1e6, 1e6) | st.booleans() | st.text(max_size=4), max_size=12),
    st.integers(1, 6),
)
def test_hashing_is_scikit_learns(features: dict[str, Any], bits: int) -> None:
    """There are few bits, so that names collide and are merged."""
    identity = Identity(features="hashed", bits=bits)
    raw = json.dumps({"features": features, "label": 1}).encode()
    batch, events = decode(identity, [raw])
    if events.rejects:  # an unpaired surrogate is not JSON; a number may have the name of a category
        assert events.rejects[0].reason in ("not-json", "duplicate-feature")
        return
    actual = np.zeros(1 << bits)
    actual[batch.columns.astype(int) - 1] = batch.values
    assert len(set(batch.columns.tolist())) == len(batch.columns)
    expected = FeatureHasher(1 << bits).transform([features]).toarray()[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-9)
