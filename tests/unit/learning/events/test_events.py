"""The event format: which records are events, and the reason for which any other record is rejected."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sklearn.feature_extraction import FeatureHasher

from service.learning.events.event_reader import EventReader
from service.learning.events.read_events import REASONS
from service.learning.identity import Identity
from tests.checks import decode
from tests.fuzz.events import JOIN
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
    shown = {reason for _, reason in [*BAD_NAMED, *BAD_POSITIONAL]}
    assert shown == {*REASONS} - {"not-msgpack"}  # test_formats has it


def test_good_events_are_accepted() -> None:
    for raw in GOOD_NAMED:
        batch, events = decode(NAMED, [raw])
        assert (len(batch.labels), events.rejects) == (1, []), raw


def test_ids_are_text_and_labels_may_be_absent() -> None:
    """A number's id is its text in the record."""
    ids = ('"7"', "7", "-12", "12345678901234567890", '""', '"é"', '"\\u00e9"')
    identity = replace(NAMED, join=JOIN)
    labels = (', "label": 1', ', "label": 0', ', "label": null', "", ', "label": 2')
    records = [f'{{"features": {{}}{label}, "id": {id_}}}'.encode() for label in labels for id_ in ids]
    events = EventReader(identity).read(records)
    assert [*events.ids] == ["7", "7", "-12", "12345678901234567890", "", "é", "é"] * 4
    assert [str(y) for y in events.labels.tolist()[:: len(ids)]] == ["1.0", "-1.0", "nan", "nan"]
    assert {reject.reason for reject in events.rejects} == {"unknown-label"}
    events = EventReader(identity).read([b'{"features":{},"id":7.0}', b'{"features":{}}', b'{"id":7,"label":1}'])
    assert [reject.reason for reject in events.rejects] == ["wrong-type", "missing-field", "missing-field"]


def test_label_records_have_an_id_and_a_label_whatever_else_they_have() -> None:
    records = [b'{"id":"a","label":1,"features":"odd"}', b'{"label":null,"id":7}', b'{"id":"a"}', b'{"label":1}', b""]
    events = EventReader(replace(NAMED, join=JOIN), labels=True).read(records)
    assert ([*events.ids], [str(y) for y in events.labels.tolist()]) == (["a", "7"], ["1.0", "nan"])
    assert [reject.reason for reject in events.rejects] == ["missing-field", "missing-field", "empty"]
    fixed = replace(JOIN, label=None, label_value=1, where={"/type": ("click",)})
    values = [b'{"id":"a","type":"click"}', b'{"id":"b","type":"view"}', b'{"id":"c","type":"click","label":"?"}']
    events = EventReader(replace(NAMED, join=fixed), labels=True).read(values)
    assert (events.labels.tolist(), events.records, events.skipped) == ([1.0, 1.0], [0, 2], [1])


def test_events_without_a_label_are_skipped_if_the_settings_say_so() -> None:
    values = [b'{"features":{"a":1},"label":null}', b'{"features":{"a":1}}', b'{"features":{"a":1},"label":0}']
    events = EventReader(replace(NAMED, unlabelled="skip")).read(values)
    assert (events.skipped, events.labels.tolist(), events.rejects) == ([0, 1], [-1.0], [])


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
