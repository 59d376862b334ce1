"""What `suggest` proposes for a sample of events and one of labels that come later."""

import json
from typing import Any

import pytest

from service.errors import DataError
from service.learning.events.value_formats import ValueBuffer
from service.tools.suggest.proposal import propose_join
from service.tools.suggest.sample import Sample

SECOND, MINUTE = 1000, 60_000
EVENTS = [(i * SECOND, {"session": f"s{i}", "items": i % 3}) for i in range(40)]


def sample(name: str, records: list[tuple[int, dict[str, Any]]]) -> Sample:
    values = ValueBuffer.from_values([json.dumps(record).encode() for _, record in records])
    return Sample(f"topic {name}", name, values, times=[time for time, _ in records])


def labels_of(events: list[tuple[int, dict[str, Any]]], **members: Any) -> list[tuple[int, dict[str, Any]]]:
    """A label for each event, five minutes after it."""
    return [(time + 5 * MINUTE, {"of": {"id": event["session"]}} | members) for time, event in events]


def test_labels_that_say_only_1_mean_0_by_silence_and_a_repeated_event_counts_once() -> None:
    repeated = [(time + 1, event) for time, event in EVENTS[:10]]
    proposal = propose_join(sample("visits", [*EVENTS, *repeated]), sample("orders", labels_of(EVENTS[::2])))
    settings = {choice.setting: choice.value for choice in proposal.choices}
    assert settings == {
        "event.id": "/session", "join.topic": "orders", "join.id": "/of/id", "join.window": "10m",
        "join.label_value": 1, "join.default_label": 0,
    }  # fmt: skip
    assert proposal.shares == {"1m": 0.0, "10m": 1.0, "1h": 1.0, "1d": 1.0, "7d": 1.0}
    joined = [json.loads(value or b"") for value in proposal.sample.values]
    assert [(each["session"], each["label"]) for each in joined] == [(f"s{i}", int(i % 2 == 0)) for i in range(40)]


def test_a_member_of_the_labels_is_the_label_and_events_without_one_are_left_out() -> None:
    labels = labels_of(EVENTS[:15], bought=True) + labels_of(EVENTS[15:30], bought=False)
    proposal = propose_join(sample("visits", EVENTS), sample("orders", labels))
    settings = {choice.setting: choice.value for choice in proposal.choices}
    assert settings["join.label"] == "/bought"
    assert not settings.keys() & {"join.label_value", "join.default_label"}
    joined = [json.loads(value or b"") for value in proposal.sample.values]
    assert [each["label"] for each in joined] == [True] * 15 + [False] * 15


def test_labels_without_the_ids_of_the_events_are_refused() -> None:
    with pytest.raises(DataError, match="no member has the ids"):
        propose_join(sample("visits", EVENTS), sample("orders", [(0, {"id": "a"}), (1, {"id": "b"})]))
