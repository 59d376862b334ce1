"""Features whose kind changes, or that are missing: what a producer does that was changed."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from service.learning.evaluation.advice import advice
from service.learning.evaluation.feature_watch import FeatureFigures, KindChange
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import P0, PartitionId, Records
from service.serving.scoring import answer
from tests.conftest import event


def learn(values: Sequence[Any], slices: Sequence[int] = (), learner: Learner | None = None, **fields: Any) -> Learner:
    """A learner of events with these values as the feature `age`, next to others, in slices of these sizes."""
    learner = learner or Learner(Identity(**fields))
    learner.begin({P0: 0})
    first = learner.next[P0]
    own = [{} if value is None else {"age": value} for value in values]
    records = [event({"x": i % 7, "country": "AB"[i % 2], **each}, 1 - i % 2 * 2) for i, each in enumerate(own)]
    places = [0, *slices, len(records)]
    for begin, end in pairwise(places):
        learner.apply(Records.from_values(first + begin, records[begin:end]))
    return learner


NUMBERS, TEXTS = [*range(20, 80)] * 40, [*map(str, range(20, 80))] * 40


@pytest.mark.parametrize(("before", "after", "kind"), [(NUMBERS, TEXTS, "text"), (TEXTS, NUMBERS, "number")])
@pytest.mark.parametrize("size", [1, 64, 10_000])
def test_a_feature_that_changes_its_kind_is_named_with_the_record(
    before: list[Any], after: list[Any], kind: str, size: int
) -> None:
    values = before[:1258] + after[:400]
    learner = learn(values, [*range(size, len(values), size)])
    assert learner.watch.figures.changes == {"age": KindChange(kind, PartitionId(0), 1258)}
    said = "was a number until offset 1,258 of partition 0 and is text since"
    assert [said in line for line in advice(learner).values() if "age" in line] == (
        [True] if kind == "text" else [False]
    )


@pytest.mark.parametrize(
    "values",
    [
        NUMBERS[:800] + TEXTS[:2000],  # too few before
        NUMBERS[:1500] + TEXTS[:80],  # too few since
        [*map(str, NUMBERS[:2000])],  # always text
        [value if random.Random(i).random() < 0.7 else str(value) for i, value in enumerate(NUMBERS)],  # always mixed
        NUMBERS[:1500] + [None] * 500 + NUMBERS[:500],
    ],
)
def test_a_feature_without_a_clear_change_is_not_named(values: list[Any]) -> None:
    assert not learn(values).watch.figures.changes


def test_a_number_in_text_that_is_read_as_a_number_has_not_changed() -> None:
    assert not learn(NUMBERS[:1500] + TEXTS[:500], text="number").watch.figures.changes


def test_a_feature_that_most_events_lack_is_missing_in_events_and_predictions() -> None:
    learner = learn([*NUMBERS[:1000], *[None] * 450])
    assert set(learner.watch.figures.usual) == {"x", "country", "age"}
    assert not learner.watch.figures.missing
    learn([None] * 550, learner=learner)
    assert learner.watch.figures.missing == ("age",)
    assert advice(learner)["missing"] == "most recent events lack what was usual before: age"
    for features, missing in (({"x": 1.0}, 2), ({"country=new": 1, "age=31": 1}, 1), ({"x": 1.0, "y": 1.0}, 2)):
        assert answer(learner, learner.main, features, explain=False, top=1).missing_features == missing
        batch = learner.columns.assign_columns([{"x": 1.0}, features, {}])
        assert learner.watch.missing_by_event(batch, learner.columns).tolist() == [2, missing, 3]
    learn([value if i % 5 < 3 else None for i, value in enumerate(NUMBERS[:1000])], learner=learner)
    assert not learner.watch.figures.missing


def test_names_without_a_column_are_not_called_missing() -> None:
    learner = learn([f"v{i}" for i in range(4000)], max_columns=1500)
    assert advice(learner).keys() >= {"columns"}
    assert "missing" not in advice(learner)


def test_a_feature_that_half_of_the_events_have_is_not_usual() -> None:
    learner = learn([value if i % 2 else None for i, value in enumerate(NUMBERS[:2000])])
    assert set(learner.watch.figures.usual) == {"x", "country"}


def test_features_without_names_are_not_watched() -> None:
    learner = learn(NUMBERS[:1500] + TEXTS[:500], features="hashed")
    assert learner.watch.figures == FeatureFigures()
    assert answer(learner, learner.main, {"x": 1.0}, explain=False, top=1).missing_features == 0
