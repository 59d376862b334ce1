"""The fuzzer of events finds nothing, and finds what is put there for it. EVENTS=1000000 for a long run."""

import os
from collections.abc import Iterator

import pytest

from service.learning import events, features, places, values
from service.learning.events import REASONS, Decoder, read_by
from service.learning.scanner import scan
from service.learning.values import UNSURE
from tests.fuzz.events import fuzz


@pytest.fixture(autouse=True)
def reading() -> Iterator[None]:
    """Which reader a stream was read by is forgotten: tests that come after in this process have their own."""
    yield
    read_by(compiled=False)


@pytest.mark.long
def test_mutated_events_are_read_as_the_judge_reads_them() -> None:
    counted = fuzz(int(os.environ.get("EVENTS", "12000")))
    # Worth something only where both happen, in every way.
    assert 0.3 < counted["accepted"] / counted.total() < 0.8
    assert set(counted) >= {*REASONS, "skipped"} - {"not-msgpack"}  # what is mutated is JSON


@pytest.mark.long
def test_the_careful_reader_reads_as_the_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not sure of any text reads the same events, for the same reasons."""
    quickly = fuzz(2500, 77)
    monkeypatch.setattr(places, "quick", lambda _: UNSURE)
    assert fuzz(2500, 77) == quickly


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (events, "certain"),
        (Decoder, "_each_once"),
        (events, "name_fits"),
        (events, "refuse_constants"),
        (events, "same"),
        (features, "name_fits"),
        (features, "remove"),
        (places, "_too_many"),
        (values, "distinct"),
        (values, "look"),
    ],
)
def test_a_fault_is_found(owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these tests of the decoder that lets everything through is noticed."""
    monkeypatch.setattr(owner, name, scan if name == "look" else lambda *_: True)
    with pytest.raises(AssertionError):
        fuzz(20_000)
