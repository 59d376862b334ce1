"""The advice that a model gives: when it is of little use, and what to try."""

import json
import math
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from service.learning.classifier import Counts
from service.learning.columns.columns import Named
from service.learning.evaluation.advice import advice
from service.learning.evaluation.prequential import PrequentialWindow
from service.learning.identity import Identity, Places
from service.learning.learner import Learner
from service.learning.options import DEFAULT, CandidateOptions, Options
from service.learning.records import P0, Records
from tests.conftest import event


def advise(wrong: int, positive: int, averaged: int | None = None, events: int = 200, **fields: Any) -> dict[str, str]:
    """The advice of a model after `events` events: in each hundred, the first are positive, and the first are wrong.

    `earlier` is the number of wrong ones in a hundred since the start, if it is not that of the last hundred.
    """
    serve, earlier = fields.pop("serve", "last"), fields.pop("earlier", wrong)
    learner = Learner(Identity(**fields), options=Options(window=100, serve=serve))
    order = np.random.default_rng(1).permutation(100)  # labels in no runs
    average_wrong = order[: 0 if averaged is None else 100] < (averaged or 0)
    recent = PrequentialWindow(100, 2, order < positive, order < wrong, average_wrong)
    missed = min(earlier, positive)
    confusion = np.array([[100 - positive - earlier + missed, earlier - missed], [missed, positive - missed]])
    learner.main.counts = Counts((confusion * (events // 100)).tolist())
    recent.missed = None  # so that only the window knows of the average
    learner.main.observations.recent = recent
    return advice(learner)


def learn(events: Iterable[tuple[Any, Any]], options: Options = DEFAULT, weight: Any = None, **fields: Any) -> Learner:
    """A learner of (features, label) pairs; the last label has this weight."""
    learner = Learner(Identity(**fields), options=options)
    learner.begin({P0: 0})
    learner.reconcile()
    rare = (learner.identity.labels or (-1, 1))[-1]
    weights = {rare: {"weight": weight}} if weight else {}
    learner.apply(Records.from_values(0, [event(x, y, **weights.get(y, {})) for x, y in events]))
    return learner


def clouds(*shares: float, shift: float = 1.2) -> Iterator[tuple[dict[str, float], int]]:
    """40 events of the last label, in clouds that overlap; the shares are those of the labels after the first."""
    rng = random.Random(5)
    bounds = [1.0 - sum(shares[i:]) for i in range(len(shares))]
    for _ in range(round(40 / shares[-1])):
        u = rng.random()
        y = sum(u >= bound for bound in bounds)
        yield {f"n{i}": rng.gauss(shift * (i // 2 == y - 1), 1) for i in range(2 * len(shares) + 2)}, y


def test_a_model_as_good_as_its_baseline_is_not_below_it() -> None:
    for share in range(51):
        assert "accuracy" not in advise(wrong=share, positive=share)
        assert "accuracy" not in advise(wrong=share, positive=100 - share)
        assert share == 50 or "accuracy" in advise(wrong=share + 1, positive=share)


def test_the_first_window_does_not_count() -> None:
    assert not advise(wrong=30, positive=10, events=100)
    assert advise(wrong=30, positive=10, events=200).keys() == {"accuracy", "recall"}


def test_a_rare_positive_label_that_is_never_predicted_is_reported() -> None:
    """The label has at least ten events, fewer than half of all, and the served weights predicted none."""
    assert [positive for positive in range(101) if "recall" in advise(wrong=positive, positive=positive)] == [
        *range(5, 50)
    ]
    assert "recall" not in advise(wrong=19, positive=20)
    assert "recall" in advise(wrong=19, positive=20, averaged=20, average=True, serve="average")
    assert "recall" not in advise(wrong=20, positive=20, averaged=19, average=True, serve="average")


POOR, RARE = {"wrong": 30, "positive": 10}, {"wrong": 20, "positive": 20, "labels": ("no", "yes")}
AVERAGED = {"rule": "logistic-delta", "average": True}


@pytest.mark.parametrize(
    ("kind", "model", "suggestion"),
    [
        ("accuracy", POOR, 'scale = "standard" or average = "recent" with serve = "average" or rule ='),
        ("accuracy", POOR | {"rule": "lms", "scale": "standard"}, 'rule = "logistic-delta"'),
        ("accuracy", POOR | AVERAGED | {"averaged": 20}, 'serve = "average", which was right in 80.0%'),
        ("accuracy", POOR | AVERAGED | {"averaged": 40, "serve": "average", "scale": "standard"}, "other features"),
        ("recall", RARE, "margin = [0, 100]"),
        ("recall", RARE | {"margin": (0.0, 30.0), "scale": "standard"}, "margin = [0, 300]"),
        ("recall", RARE | {"rule": "logistic-delta", "scale": "standard"}, "positive_above below 0"),
        ("recall", RARE | {"labels": None, "tie": "positive", "margin": (0.0, 5.0)}, "margin = [0, 50]"),
        ("recall", RARE | {"wrong": 6, "averaged": 20, "average": True, "serve": "average"}, "found 70.0% of them"),
    ],
)
def test_a_poor_model_is_told_what_to_try(kind: str, model: dict[str, Any], suggestion: str) -> None:
    """One model is below its baseline, and one misses a rare label."""
    assert suggestion in advise(**model)[kind]


AVERAGE = {"average": True}
SERVED_AVERAGE = Options(serve="average")


@pytest.mark.parametrize(
    ("shares", "options", "fields"),
    [
        ((1 / 500,), SERVED_AVERAGE, AVERAGE),
        ((1 / 500,), DEFAULT, {"rule": "logistic-delta", "eta": 0.1, "slope": 1.0}),
        ((1 / 1000,), SERVED_AVERAGE, AVERAGE),
        ((0.49, 0.01), DEFAULT, {"rule": "logistic-delta", "eta": 0.1, "slope": 1.0}),
        ((0.49, 0.01), DEFAULT, {"rule": "lms", "eta": 0.001}),
    ],
    ids=["one in 500", "one in 500, logistic", "one in 1,000", "third label", "third label, lms"],
)
def test_the_weight_that_is_advised_finds_the_rare_label(
    shares: tuple[float, ...], options: Options, fields: dict[str, Any]
) -> None:
    """Each label counts since the start. The F1, or the recall of three labels, is well above that of chance."""
    events, labels = [*clouds(*shares)], tuple(range(len(shares) + 1))
    learner = learn(events, options, labels=labels, **fields)
    assert "accuracy" not in advice(learner)
    line = advice(learner)["recall"]
    count = sum(y == labels[-1] for _, y in events)
    assert line.startswith(f"events of label {labels[-1]} are not found (")
    assert f" of {count} since the start" in line
    assert "serve" not in line
    assert "margin" not in line
    (weight,) = re.findall(r"a weight of (\d+) for each of its events", line)
    assert int(weight) == round(2 / math.sqrt(count / len(events)))
    weighted = learn(events, options, int(weight), labels=labels, **fields)
    found = weighted.serving.confusion(weighted.serving.averaged)
    p = count / len(events)
    assert (found.recalls[2] or 0) > 30 * p if len(labels) > 2 else (found.f1 or 0) > 5 * 2 * p / (1 + p)
    assert "recall" not in advice(weighted)


def test_only_a_predictor_that_finds_the_rare_label_is_named() -> None:
    """The candidate finds it and is right less often than the average, which serves and never finds it."""
    identity = Identity(labels=(0, 1), average=True)
    candidates = {
        "finds": CandidateOptions(msgspec.structs.replace(identity, margin=(0.0, 100.0), average=False)),
        "mean": CandidateOptions(msgspec.structs.replace(identity, eta=0.5), "average"),
    }
    events, fields = [*clouds(1 / 200, shift=2.0)], {"labels": (0, 1), "average": True}
    lines = advice(learn(events, Options(serve="average", candidates=candidates), **fields))
    assert 'serve = "finds", which found 25.6% of them' in lines["recall"]
    assert 'serve = "mean"' not in lines["recall"]
    learner = learn(events, Options(serve="finds", candidates=candidates), **fields)
    pairs = {(pair.first, pair.second): pair.better() for pair in learner.main.observations.recent.pairs}
    assert pairs["finds", "mean"] == "mean"
    assert advice(learner).keys() & {"recall", "candidate"} == set()


def test_the_window_decides_about_a_label_with_enough_events_in_it() -> None:
    line = advise(wrong=20, positive=20, earlier=0)["recall"]
    assert line.startswith("events of label 1 are not found (40 of 40 since the start, none of 20 among the last 100)")
    assert "recall" not in advise(wrong=0, positive=20, earlier=20)
    assert "recall" not in advise(wrong=9, positive=9, earlier=0, events=1000)
    line = advise(wrong=0, positive=9, earlier=9, events=1000)["recall"]
    assert line.startswith("events of label 1 are not found (none of 90 since the start)")


def test_each_of_many_labels_counts() -> None:
    """Ten of a hundred labels have the same features. One of them, the most frequent, is named."""
    events = [({f"n{max(i % 100, 9)}": 1.0}, i % 100) for i in range(4000)]
    line = advice(learn([*events, ({"n9": 1.0}, 4)], labels=tuple(range(100)), average=True))["recall"]
    assert line.startswith(
        "events of label 4 are not found (none of 41 since the start, none of 11 among the last 1,000);"
    )
    assert re.search(r"; other labels that are not found: [3-9]: try ", line)


def test_the_best_candidate_that_is_better_is_named_with_its_gain() -> None:
    identity, rng = Identity(labels=(0, 1)), random.Random(3)
    labels = [int(rng.random() < 0.5) for _ in range(1500)]
    events = [({f"n{i}": rng.gauss(1.2 * (y and i < 2), 1) for i in range(4)}, y) for y in labels]
    candidates = {
        "logistic": CandidateOptions(msgspec.structs.replace(identity, rule="logistic-delta", eta=0.1, slope=1.0)),
        "mean": CandidateOptions(msgspec.structs.replace(identity, average=True), "average"),
        "same": CandidateOptions(msgspec.structs.replace(identity, eta=2.0)),
    }
    lines = {}
    for serve in ("mean", "logistic", "same", "last"):
        learner = learn(events, Options(serve=serve, candidates=candidates), labels=(0, 1))
        lines[serve] = advice(learner).get("candidate")
    better = 'candidate logistic is better by 8.4 points: serve = "logistic"'
    assert lines == {"last": better, "same": better, "logistic": None, "mean": None}
    learner.candidates["logistic"].diverged = "too large"
    assert advice(learner)["candidate"].startswith("candidate mean is better by")


@pytest.mark.parametrize(
    ("members", "identity", "cure"),
    [
        ({"session": "{}"}, {}, 'event.without = ["session"]'),
        ({"user": {"id": "{}", "plan": "free"}}, {}, 'event.without = ["user.id"]'),
        ({"by": {"{}": {"a": 1, "b": 2}}}, {}, 'event.without = ["by.*"]'),
        ({"a[1]": "{}"}, {"event": Places(without=("x*",))}, 'event.without = ["x*", "a[[]1]"]'),
        ({"{}": 1}, {}, None),
    ],
)
def test_what_takes_all_columns_is_named_before_the_accuracy(
    members: dict[str, Any], identity: dict[str, Any], cure: str | None
) -> None:
    """The label is a feature that comes too late to have a column. With the advised setting it has one."""
    rng = random.Random(4)
    fixed = {f"fixed{i}": 0.5 for i in range(40)}
    events = [
        (json.loads(json.dumps(members).replace("{}", str(i))) | fixed | ({"offer": y} if i > 500 else {}), y)
        for i, y in enumerate(int(rng.random() < 0.7) for _ in range(1000))
    ]
    fields: dict[str, Any] = {"labels": (0, 1), "max_columns": 100}
    lines = advice(learn(events, Options(window=400), **fields, **identity))
    assert "accuracy" in lines
    assert next(iter(lines)) == "columns"
    assert lines["columns"].startswith("all 100 columns are taken, so new names are ignored (")
    if cure is None:
        assert "each column is another name: features = " in lines["columns"]
        return
    assert f'{cure}, or features = "hashed" (for which' in lines["columns"]
    without = tuple(json.loads(cure.partition(" = ")[2]))
    cured = learn(events, Options(window=400), **fields, event=Places(without=without))
    assert "columns" not in advice(cured)
    assert (cured.main.observations.recent.accuracy or 0) > 0.95


def test_the_share_of_the_columns_is_counted_or_estimated_from_a_sample() -> None:
    """A million columns are not read one by one while requests wait."""
    line = advice(learn([({"session": str(i)}, 1) for i in range(1100)], max_columns=1000))["columns"]
    assert "1,000 of 1,000 columns are session=…: event.without" in line
    columns = Named(cap=50_000)
    columns.extend([f"s{i % 2}={i}" if i % 4 else f"n{i}" for i in range(50_000)])
    prefix, size = columns.largest_group
    assert prefix == "s1="
    assert abs(size - 25_000) < 1000
