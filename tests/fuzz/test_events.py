"""The fuzzer of events finds nothing, and finds what is put there for it. EVENTS=1000000 for a long run."""

import os

import pytest

from service.learning import events, features
from service.learning.events import REASONS, Decoder
from service.learning.scanner import scan
from tests.fuzz.events import fuzz


def test_mutated_events_are_read_as_the_judge_reads_them() -> None:
    counted = fuzz(int(os.environ.get("EVENTS", "20000")))
    # Worth something only where both happen, in every way.
    assert 0.3 < counted["accepted"] / counted.total() < 0.8
    assert set(counted) >= set(REASONS)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Decoder, "_examine"),
        (events, "certain"),
        (Decoder, "_each_once"),
        (events, "name_fits"),
        (features, "name_fits"),
        (features, "_in_range"),
        (features, "look"),
    ],
)
def test_a_fault_is_found(owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these tests of the decoder that lets everything through is noticed."""
    monkeypatch.setattr(owner, name, scan if name == "look" else lambda *_: True)
    with pytest.raises(AssertionError):
        fuzz(20_000)
