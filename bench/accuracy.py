"""How good models are: prequential accuracy on real streams, against River's: `python -m bench.accuracy [STREAM…]`.

Each event is predicted before it is learned, by us and by River alike, in the same order. Prints docs/model.md's table,
that of streams of three labels and more (`classes`), and that of a stream with few positives with and without margins
(`rare`).
"""

import json
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from river import compose, linear_model, multiclass, preprocessing
from sklearn import datasets

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.options import Options
from service.learning.records import Records

Stream = list[tuple[dict[str, Any], Any]]
SLICE = 1000
MARGINS = ((0.0, 0.0), (0.0, 10.0), (0.0, 100.0), (10.0, 100.0), (30.0, 30.0))


class Row(NamedTuple):
    """Shares of right predictions."""

    baseline: float
    rivers: dict[str, float]
    ours: dict[str, float]


def streams() -> Iterator[tuple[str, Callable[[], Stream]]]:
    """Names, and what makes the events."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from river import datasets as rivers
    for name in ("Phishing", "Bananas", "Shuttle", "CreditCard"):
        yield name, lambda name=name: [(dict(x), bool(y)) for x, y in getattr(rivers, name)()]  # type: ignore[misc]
    yield "breast cancer", lambda: _table(datasets.load_breast_cancer(), 1)
    yield "digits, 0", lambda: _table(datasets.load_digits(), 0)
    yield "iris, versicolor", lambda: _table(datasets.load_iris(), 1)
    yield "wine, 1", lambda: _table(datasets.load_wine(), 1)
    yield "mixed", mixed


def _table(bunch: Any, positive: int | None = None) -> Stream:
    """A table of scikit-learn's in an order of its own: all its classes, or one against the rest."""
    names = [str(name) for name in getattr(bunch, "feature_names", range(bunch.data.shape[1]))]
    rows = [
        (dict(zip(names, x, strict=True)), y if positive is None else y == positive)
        for x, y in zip(bunch.data.tolist(), bunch.target.tolist(), strict=True)
    ]
    random.Random(0).shuffle(rows)
    return rows


def of_classes() -> Iterator[tuple[str, Callable[[], Stream]]]:
    """The same of three labels and more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from river import datasets as rivers
    yield "digits", lambda: _table(datasets.load_digits())
    yield "iris", lambda: _table(datasets.load_iris())
    yield "wine", lambda: _table(datasets.load_wine())
    yield "ImageSegments", lambda: [(dict(x), y) for x, y in rivers.ImageSegments()]  # type: ignore[no-untyped-call]


def mixed(count: int = 20_000) -> Stream:
    """Clicks: categories, booleans, numbers of any size, and what is not always there."""
    rng = random.Random(0)
    pages = {f"/p{i}": rng.gauss(0, 1) for i in range(40)}
    countries = {c: rng.gauss(0, 0.7) for c in ("NL", "DE", "FR", "US", "IN", "BR")}
    rows: Stream = []
    for _ in range(count):
        page, country, age = rng.choice(list(pages)), rng.choice(list(countries)), rng.randint(16, 80)
        member, spent = rng.random() < 0.3, rng.lognormvariate(4, 1)
        x: dict[str, Any] = {"page": page, "country": country, "age": age, "member": member}
        s = pages[page] + countries[country] + (age - 45) / 20 + member - 0.5
        if rng.random() < 0.6:
            x["spent"] = round(spent, 2)
            s += min(spent / 100, 3.0) - 0.8
        rows.append((x, s + rng.gauss(0, 0.7) > 0))
    return rows


def rare(count: int = 20_000, positives: float = 0.05) -> Stream:
    """Two clouds that overlap, of which one is rare: ten numbers, three of them shifted where the label is positive."""
    rng = random.Random(0)
    rows: Stream = []
    for _ in range(count):
        y = rng.random() < positives
        rows.append(({f"n{i}": round(rng.gauss(1.2 * (y and i < 3), 1), 3) for i in range(10)}, y))
    return rows


def learned(stream: Stream, **identity: Any) -> Learner:
    """A model of ours that has learned the stream, with all of it in its window."""
    learner = Learner(Identity(**{"labels": (False, True), **identity}), options=Options(window=len(stream)))
    learner.begin({0: 0})
    records = [json.dumps({"features": x, "label": y}).encode() for x, y in stream]
    for at in range(0, len(records), SLICE):
        outcome = learner.apply(0, Records.of(at, records[at : at + SLICE]))
        if outcome.diverged or outcome.rejects:
            raise ValueError(outcome)
    return learner


def prequential(stream: Stream, **identity: Any) -> dict[str, float]:
    """Shares of right predictions of a model of ours: of its last weights, and of an average where one is kept."""
    learner = learned(stream, **identity)
    averaged = learner.observations.recent.averaged
    found = {"last": 1.0 - learner.counts.wrong_predictions / len(stream)}
    return found | ({"average": 1.0 - averaged.wrong / averaged.events} if averaged.events else {})


def theirs(stream: Stream, model: Any) -> float:
    """The share of right predictions of a model of River's."""
    right = 0
    for x, y in stream:
        said = model.predict_one(x)
        right += (bool(said) if isinstance(y, bool) else said) == y
        model.learn_one(x, y)
    return right / len(stream)


def _pipeline(scaled: bool, last: Any) -> Any:
    """A pipeline of River's: numbers as they are or scaled, booleans as they are, strings one-hot."""

    def of(*kinds: type) -> Any:
        return compose.FuncTransformer(lambda x: {name: value for name, value in x.items() if type(value) in kinds})

    numbers = of(int, float) | preprocessing.StandardScaler() if scaled else of(int, float)
    return (numbers + of(bool) + (of(str) | preprocessing.OneHotEncoder())) | last


def furthest(stream: Stream) -> float:
    """How far our scaled perceptron's weights are from River's at most, relative to them, after any event."""
    last, far = linear_model.Perceptron(), 0.0
    pipeline = _pipeline(True, last)
    learner = Learner(Identity(labels=(False, True), scale="standard"))
    learner.begin({0: 0})
    for at, (x, y) in enumerate(stream):
        learner.apply(0, Records.of(at, [json.dumps({"features": x, "label": y}).encode()]))
        pipeline.learn_one(x, y)
        weights = {name.replace("_/", "=/").replace("country_", "country="): w for name, w in last.weights.items()}
        ours = [weights.pop(name, 0.0) for name in learner.columns.names]
        there = np.array([last.intercept, *ours])
        apart = np.linalg.norm(learner.weights - there) / max(float(np.linalg.norm(there)), 1.0)
        far = max(far, float(apart), *map(abs, weights.values()))
    return far


def measured(stream: Stream) -> Row:
    """River's models and ours over one stream."""
    positive = sum(y for _, y in stream)
    rivers = {
        "Perceptron": theirs(stream, _pipeline(False, linear_model.Perceptron())),
        "scaled Perceptron": theirs(stream, _pipeline(True, linear_model.Perceptron())),
        "scaled LogisticRegression": theirs(stream, _pipeline(True, linear_model.LogisticRegression())),
    }
    ours: dict[str, float] = {"last": prequential(stream)["last"]}
    for rule, eta in (("perceptron", 1.0), ("logistic-delta", 0.1)):
        own = {"slope": 1.0} if rule == "logistic-delta" else {}
        name = "logistic " if own else ""
        kept: dict[str, dict[str, Any]] = {
            "mean": {"average": True},
            "recent": {"average": "recent", "half_life": 1000},
        }
        for kind, average in kept.items():
            found = prequential(stream, scale="standard", rule=rule, eta=eta, **own, **average)
            ours |= {f"{name}scaled last": found["last"], f"{name}scaled {kind}": found["average"]}
    return Row(max(positive, len(stream) - positive) / len(stream), rivers, ours)


def margins() -> None:
    """Print what margins do to a stream with few positives: by the last weights and by their mean."""
    stream = rare()
    print("\n| margin | updates | accuracy | precision | recall | F1 | balanced | mean: accuracy | F1 | balanced |")
    print("|---|---|" + "---|" * 8)
    for margin in MARGINS:
        learner = learned(stream, margin=margin, average=True)
        last, mean = (learner.observations.recent.confusion(averaged) for averaged in (False, True))
        right, rightly = (sum(c.right) / len(stream) for c in (last, mean))
        of_mean = (rightly, mean.f1, mean.balanced_accuracy)
        figures = (right, last.precision, last.recall, last.f1, last.balanced_accuracy, *of_mean)
        shown = " | ".join("-" if f is None else f"{100 * f:.1f}" for f in figures)
        print(f"| {margin[0]:g}, {margin[1]:g} | {learner.counts.updates:,} | {shown} |", flush=True)


def classes(wanted: Sequence[str]) -> None:
    """Print the table of streams of three labels and more, of all or of those that are named."""
    names, head = ("perceptron", "scaled", "scaled, mean", "scaled lms", "scaled logistic"), False
    own: tuple[dict[str, Any], ...] = (
        {}, {"scale": "standard", "average": True}, {"scale": "standard", "rule": "lms", "eta": 0.001},
        {"scale": "standard", "rule": "logistic-delta", "eta": 0.1, "slope": 1.0},
    )  # fmt: skip
    for name, make in of_classes():
        if wanted and name not in wanted:
            continue
        if not head:
            head = True
            rivers = ("River OneVsRest(Perceptron)", "River scaled OneVsRest(Perceptron)")
            print("\n| stream | events | labels | baseline | " + " | ".join((*rivers, *names)) + " |")
            print("|---|---|---|" + "---|" * (3 + len(names)))
        stream = make()
        labels = sorted({y for _, y in stream})
        last, scaled, *gradient = (prequential(stream, labels=tuple(labels), **one) for one in own)
        one_vs_rest = multiclass.OneVsRestClassifier(linear_model.Perceptron())
        figures = (
            max(sum(y == label for _, y in stream) for label in labels) / len(stream),
            *(theirs(stream, _pipeline(scales, one_vs_rest.clone())) for scales in (False, True)),
            last["last"], scaled["last"], scaled["average"], *(one["last"] for one in gradient),
        )  # fmt: skip
        best = f"{100 * max(figures):.1f}"
        shown = " | ".join(f"**{one}**" if one == best else one for one in (f"{100 * f:.1f}" for f in figures))
        print(f"| {name} | {len(stream):,} | {len(labels)} | {shown} |", flush=True)


def main(wanted: Iterable[str]) -> None:
    """Print the tables, of all streams or of those that are named."""
    wanted, head = list(wanted), False
    for name, make in streams():
        if wanted and name not in wanted:
            continue
        try:
            stream = make()
        except OSError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        row = measured(stream)
        figures = {"baseline": row.baseline} | {f"River {k}": v for k, v in row.rivers.items()} | row.ours
        if not head:
            head = True
            print("| stream | events | " + " | ".join(figures) + " |")
            print("|---|---|" + "---|" * len(figures))
        best = f"{100 * max(figures.values()):.1f}"
        shown = " | ".join(f"**{one}**" if one == best else one for one in (f"{100 * f:.1f}" for f in figures.values()))
        print(f"| {name} | {len(stream):,} | {shown} |", flush=True)
        print(f"{name}: weights differ from River's by {furthest(stream):.1g} of their length at most", file=sys.stderr)
    classes([] if "classes" in wanted else wanted)
    if not wanted or "rare" in wanted:
        margins()


if __name__ == "__main__":
    main(sys.argv[1:])
