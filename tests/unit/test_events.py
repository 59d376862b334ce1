"""The event format: which records are events, and the reason for which each other one is rejected."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher

from service.learning.columns.columns import columns_for
from service.learning.events.batch import REASONS, Decoder
from service.learning.identity import Identity, Places
from tests.kinds import BAD_NAMED, BAD_POSITIONAL, GOOD_NAMED

pytestmark = pytest.mark.usefixtures("reading")

NAMED = Identity()
POSITIONAL = Identity(features="positional", dimension=3)


def decode(identity: Identity, *records: bytes | None) -> Any:
    return Decoder(identity, columns_for(identity)).decode(records)


@pytest.mark.parametrize(("identity", "kinds"), [(NAMED, BAD_NAMED), (POSITIONAL, BAD_POSITIONAL)])
def test_bad_events_are_rejected_with_their_reason(identity: Identity, kinds: Any) -> None:
    for raw, reason in kinds:
        batch, rejects = decode(identity, raw)
        assert len(batch.labels) == 0, raw
        assert [r.reason for r in rejects] == [reason], raw
        assert "\n" not in rejects[0].detail


def test_every_reason_is_shown() -> None:
    assert {reason for _, reason in [*BAD_NAMED, *BAD_POSITIONAL]} == {*REASONS} - {"not-msgpack"}  # test_forms has it


def test_good_events_are_accepted() -> None:
    for raw in GOOD_NAMED:
        batch, rejects = decode(NAMED, raw)
        assert (len(batch.labels), rejects) == (1, []), raw


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


@given(
    st.dictionaries(st.text(max_size=8), st.floats(-1e6, 1e6) | st.booleans() | st.text(max_size=4), max_size=12),
    st.integers(1, 6),
)
def test_hashing_is_scikit_learns(features: dict[str, Any], bits: int) -> None:
    """There are few bits, so that names collide and are merged."""
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


def test_a_pointer_finds_a_name_however_it_is_escaped() -> None:
    for name in ("é", "😀", 'q"uote', "back\\slash", "a/b", "\n\t\b\f\r", "plain"):
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
