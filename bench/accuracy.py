"""Prequential accuracy of models on real streams, against River's: `python -m bench.accuracy [STREAM…]`.

Each event is predicted before it is learned, by this service and by River, in the same order. Prints the tables of
docs/model.md: of streams with two labels, with three labels or more (`classes`), and of a stream with few positives
with and without margins (`rare`).
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
from tests.partitions import P0

Stream = list[tuple[dict[str, Any], Any]]
SLICE = 1000
MARGINS = ((0.0, 0.0), (0.0, 10.0), (0.0, 100.0), (10.0, 100.0), (30.0, 30.0))


class Row(NamedTuple):
    """Shares of correct predictions, by model."""

    baseline: float
    rivers: dict[str, float]
    ours: dict[str, float]


def streams() -> Iterator[tuple[str, Callable[[], Stream]]]:
    """The names of the streams, and functions that return their events."""
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
    """A table of scikit-learn in a fixed random order: all its classes, or one against the rest."""
    names = [str(name) for name in getattr(bunch, "feature_names", range(bunch.data.shape[1]))]
    rows = [
        (dict(zip(names, x, strict=True)), y if positive is None else y == positive)
        for x, y in zip(bunch.data.tolist(), bunch.target.tolist(), strict=True)
    ]
    random.Random(0).shuffle(rows)
    return rows


def class_streams() -> Iterator[tuple[str, Callable[[], Stream]]]:
    """The names of the streams of three labels or more, and functions that return their events."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from river import datasets as rivers
    yield "digits", lambda: _table(datasets.load_digits())
    yield "iris", lambda: _table(datasets.load_iris())
    yield "wine", lambda: _table(datasets.load_wine())
    yield "ImageSegments", lambda: [(dict(x), y) for x, y in rivers.ImageSegments()]  # type: ignore[no-untyped-call]


def mixed(count: int = 20_000) -> Stream:
    """Clicks: categories, booleans, numbers of any size, and a feature that may be missing."""
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
    """Two clouds that overlap, one of them rare: ten numbers, three of which are shifted if the label is positive."""
    rng = random.Random(0)
    rows: Stream = []
    for _ in range(count):
        y = rng.random() < positives
        rows.append(({f"n{i}": round(rng.gauss(1.2 * (y and i < 3), 1), 3) for i in range(10)}, y))
    return rows


def learn(stream: Stream, **identity: Any) -> Learner:
    """A learner of this service that has learned the stream, with all of it in its window."""
    learner = Learner(Identity(**{"labels": (False, True), **identity}), options=Options(window=len(stream)))
    learner.begin({P0: 0})
    records = [json.dumps({"features": x, "label": y}).encode() for x, y in stream]
    for offset in range(0, len(records), SLICE):
        outcome = learner.apply(Records.from_values(offset, records[offset : offset + SLICE]))
        if outcome.diverged or outcome.rejects:
            raise ValueError(outcome)
    return learner


def prequential(stream: Stream, **identity: Any) -> dict[str, float]:
    """Shares of correct predictions of a learner of this service: by its last weights, and by an average."""
    learner = learn(stream, **identity)
    averaged = learner.main.observations.recent.averaged
    shares = {"last": 1.0 - learner.main.counts.wrong_predictions / len(stream)}
    return shares | ({"average": 1.0 - averaged.wrong / averaged.events} if averaged.events else {})


def river_accuracy(stream: Stream, model: Any) -> float:
    """The share of correct predictions of a model of River."""
    right = 0
    for x, y in stream:
        prediction = model.predict_one(x)
        right += (bool(prediction) if isinstance(y, bool) else prediction) == y
        model.learn_one(x, y)
    return right / len(stream)


def _pipeline(scaled: bool, classifier: Any) -> Any:
    """A pipeline of River: numbers unchanged or scaled, booleans unchanged, strings one-hot."""

    def select(*kinds: type) -> Any:
        return compose.FuncTransformer(lambda x: {name: value for name, value in x.items() if type(value) in kinds})

    numbers = select(int, float) | preprocessing.StandardScaler() if scaled else select(int, float)
    return (numbers + select(bool) + (select(str) | preprocessing.OneHotEncoder())) | classifier


def max_weight_difference(stream: Stream) -> float:
    """The largest difference of this scaled perceptron's weights from River's, relative to those, after any event."""
    classifier, largest = linear_model.Perceptron(), 0.0
    pipeline = _pipeline(True, classifier)
    learner = Learner(Identity(labels=(False, True), scale="standard"))
    learner.begin({P0: 0})
    for offset, (x, y) in enumerate(stream):
        learner.apply(Records.from_values(offset, [json.dumps({"features": x, "label": y}).encode()]))
        pipeline.learn_one(x, y)
        named = classifier.weights.items()
        weights = {name.replace("_/", "=/").replace("country_", "country="): w for name, w in named}
        ours = [weights.pop(name, 0.0) for name in learner.columns.names]
        expected = np.array([classifier.intercept, *ours])
        difference = np.linalg.norm(learner.main.weights - expected) / max(float(np.linalg.norm(expected)), 1.0)
        largest = max(largest, float(difference), *map(abs, weights.values()))
    return largest


def measure(stream: Stream) -> Row:
    """Measure River's models and this service's on one stream."""
    positive = sum(y for _, y in stream)
    rivers = {
        "Perceptron": river_accuracy(stream, _pipeline(False, linear_model.Perceptron())),
        "scaled Perceptron": river_accuracy(stream, _pipeline(True, linear_model.Perceptron())),
        "scaled LogisticRegression": river_accuracy(stream, _pipeline(True, linear_model.LogisticRegression())),
    }
    ours: dict[str, float] = {"last": prequential(stream)["last"]}
    for rule, eta in (("perceptron", 1.0), ("logistic-delta", 0.1)):
        options = {"slope": 1.0} if rule == "logistic-delta" else {}
        name = "logistic " if options else ""
        averages: dict[str, dict[str, Any]] = {
            "mean": {"average": True},
            "recent": {"average": "recent", "half_life": 1000},
        }
        for kind, average in averages.items():
            shares = prequential(stream, scale="standard", rule=rule, eta=eta, **options, **average)
            ours |= {f"{name}scaled last": shares["last"], f"{name}scaled {kind}": shares["average"]}
    return Row(max(positive, len(stream) - positive) / len(stream), rivers, ours)


def margins() -> None:
    """Print the effect of margins on a stream with few positives, by the last weights and by their mean."""
    stream = rare()
    print("\n| margin | updates | accuracy | precision | recall | F1 | balanced | mean: accuracy | F1 | balanced |")
    print("|---|---|" + "---|" * 8)
    for margin in MARGINS:
        learner = learn(stream, margin=margin, average=True)
        last, mean = (learner.main.observations.recent.confusion(averaged) for averaged in (False, True))
        last_share, mean_share = (sum(c.right) / len(stream) for c in (last, mean))
        mean_figures = (mean_share, mean.f1, mean.balanced_accuracy)
        figures = (last_share, last.precision, last.recall, last.f1, last.balanced_accuracy, *mean_figures)
        cells = " | ".join("-" if f is None else f"{100 * f:.1f}" for f in figures)
        print(f"| {margin[0]:g}, {margin[1]:g} | {learner.main.counts.updates:,} | {cells} |", flush=True)


def classes(names_only: Sequence[str]) -> None:
    """Print the table of streams of three labels or more, of all or of the named ones."""
    names, has_head = ("perceptron", "scaled", "scaled, mean", "scaled lms", "scaled logistic"), False
    settings: tuple[dict[str, Any], ...] = (
        {}, {"scale": "standard", "average": True}, {"scale": "standard", "rule": "lms", "eta": 0.001},
        {"scale": "standard", "rule": "logistic-delta", "eta": 0.1, "slope": 1.0},
    )  # fmt: skip
    for name, make in class_streams():
        if names_only and name not in names_only:
            continue
        if not has_head:
            has_head = True
            rivers = ("River OneVsRest(Perceptron)", "River scaled OneVsRest(Perceptron)")
            print("\n| stream | events | labels | baseline | " + " | ".join((*rivers, *names)) + " |")
            print("|---|---|---|" + "---|" * (3 + len(names)))
        stream = make()
        labels = sorted({y for _, y in stream})
        last, scaled, *gradient = (prequential(stream, labels=tuple(labels), **figure_) for figure_ in settings)
        one_vs_rest = multiclass.OneVsRestClassifier(linear_model.Perceptron())
        figures = (
            max(sum(y == label for _, y in stream) for label in labels) / len(stream),
            *(river_accuracy(stream, _pipeline(scales, one_vs_rest.clone())) for scales in (False, True)),
            last["last"], scaled["last"], scaled["average"], *(figure_["last"] for figure_ in gradient),
        )  # fmt: skip
        best = f"{100 * max(figures):.1f}"
        cells = " | ".join(f"**{cell}**" if cell == best else cell for cell in (f"{100 * f:.1f}" for f in figures))
        print(f"| {name} | {len(stream):,} | {len(labels)} | {cells} |", flush=True)


def main(selection: Iterable[str]) -> None:
    """Print the tables, of all streams or of the named ones."""
    selection, has_head = list(selection), False
    for name, make in streams():
        if selection and name not in selection:
            continue
        try:
            stream = make()
        except OSError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        row = measure(stream)
        figures = {"baseline": row.baseline} | {f"River {k}": v for k, v in row.rivers.items()} | row.ours
        if not has_head:
            has_head = True
            print("| stream | events | " + " | ".join(figures) + " |")
            print("|---|---|" + "---|" * len(figures))
        best = f"{100 * max(figures.values()):.1f}"
        texts = (f"{100 * f:.1f}" for f in figures.values())
        cells = " | ".join(f"**{text}**" if text == best else text for text in texts)
        print(f"| {name} | {len(stream):,} | {cells} |", flush=True)
        difference = max_weight_difference(stream)
        print(f"{name}: weights differ from River's by at most {difference:.1g} of their length", file=sys.stderr)
    classes([] if "classes" in selection else selection)
    if not selection or "rare" in selection:
        margins()


if __name__ == "__main__":
    main(sys.argv[1:])
