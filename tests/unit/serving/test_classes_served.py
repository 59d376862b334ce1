"""Models of three labels and more over HTTP: scores, explanations, weights and figures by label."""

import asyncio
import json
import math
import random
from typing import Any
from urllib.parse import quote

import mmh3
import pytest

from service.learning.identity import Identity, Label
from service.learning.learner import Learner
from service.learning.options import DEFAULT, Options
from service.monitoring.metrics import MAX_LABELS, Metrics, ModelFigures
from service.serving.model_info import Description
from service.serving.scoring import MAX_SCORES
from tests.checks import learner_of
from tests.conftest import event
from tests.fuzz.requests import HttpRequest, ask
from tests.unit.applications import application, describe

LABELS: tuple[Label, ...] = ("red", "3", 3, True, 2.5)
NAMES = [f"n{i}" for i in range(8)]


def row(rng: random.Random) -> dict[str, float]:
    return {name: rng.gauss(0, 3) for name in rng.sample(NAMES, 5)}


def train(events: int = 60, options: Options = DEFAULT, **identity: Any) -> Learner:
    rng, labels = random.Random(5), identity.setdefault("labels", LABELS)
    return learner_of(Identity(**identity), [event(row(rng), rng.choice(labels)) for _ in range(events)], options)


class ModelClient:
    """An application of one model, m."""

    def __init__(self, learner: Learner) -> None:
        self.metrics = Metrics("0", list, lambda: True, dict)
        self.app = application(learner, metrics=self.metrics)

    def ask(self, method: str, path: str, query: str, body: Any, status: int = 200) -> Any:
        raw = json.dumps(body).encode()
        answer = asyncio.run(ask(self.app, HttpRequest(method, f"/v1/models/m{path}", query, b"application/json", raw)))
        assert answer.status == status, answer
        return json.loads(answer.body)

    def predict(self, body: Any, query: str = "", status: int = 200) -> Any:
        return self.ask("POST", "/predict", query, body, status)

    def weights(self, query: str, status: int = 200) -> Any:
        return self.ask("GET", "/weights", query, None, status)

    def metrics_text(self) -> str:
        return asyncio.run(self.metrics.render()).decode()


def scrape(learner: Learner, description: Description, metric: str) -> dict[str, float]:
    """The values of a metric's series, by their labels as they are written."""
    figures = asyncio.sleep(0, ModelFigures(description, learner.main.counts, 0.0, {}, {}, 0))
    lines = asyncio.run(Metrics("0", lambda: [figures], lambda: True, dict).render()).decode().splitlines()
    series = dict(line.rsplit(" ", 1) for line in lines if line.startswith(f"{metric}{{"))
    return {name.removeprefix(metric): float(value) for name, value in series.items()}


def equal(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON, in which true is not 1."""
    return json.dumps(a) == json.dumps(b)


def test_an_answer_has_the_scores_of_the_labels_largest_first() -> None:
    learner = train()
    client, features = ModelClient(learner), {**row(random.Random(1)), "never seen": 1.0}
    w, columns = learner.main.weights.tolist(), learner.columns.names
    scores = list(w[0])
    for name, value in features.items():
        if name in columns:
            scores = [s + v * value for s, v in zip(scores, w[1 + columns.index(name)], strict=True)]
    order = sorted(range(len(LABELS)), key=lambda k: -scores[k])
    answer = client.predict({"features": features})
    assert equal(answer["scores"], [{"label": LABELS[k], "score": scores[k]} for k in order])
    assert equal([answer["label"], answer["score"]], [LABELS[order[0]], scores[order[0]]])
    assert answer["unknown_features"] == 1
    assert not {"probability", "runner_up", "contributions"} & answer.keys()
    for top in (1, 2, 1000):
        shorter = client.predict({"features": features}, f"top={top}")
        assert equal({**shorter, "scores": answer["scores"]}, answer)
        assert equal(shorter["scores"], answer["scores"][:top])
    for invalid in ("0", "1001", "x"):
        problem = client.predict({"features": features}, f"top={invalid}", 422)
        assert problem["errors"][0]["pointer"] == "?top"


@pytest.mark.parametrize(
    "fields", [{}, {"scale": "standard", "clip": 1.0, "average": True}], ids=["plain", "scaled average"]
)
def test_an_explanation_is_of_the_label_against_the_runner_up(fields: dict[str, Any]) -> None:
    learner = train(options=Options(serve="average" if fields else "last"), **fields)
    answer = ModelClient(learner).predict({"features": {**row(random.Random(2)), "never seen": 1.0}}, "explain=true")
    first, second = answer["scores"][:2]
    assert equal([answer["label"], answer["runner_up"]], [first["label"], second["label"]])
    terms = answer["contributions"]
    assert sum(term["product"] for term in terms) == pytest.approx(first["score"] - second["score"])
    assert [abs(term["product"]) for term in terms] == sorted((abs(term["product"]) for term in terms), reverse=True)
    best, rival = (next(k for k, label in enumerate(LABELS) if equal(label, s["label"])) for s in (first, second))
    for term in terms:
        column = 0 if term["name"] == "bias" else 1 + learner.columns.names.index(term["name"])
        assert term["weight"] == learner.main.served[column, best] - learner.main.served[column, rival]
        assert ("scaled" in term) == bool(fields)


@pytest.mark.parametrize("labels", [(-1, 1), LABELS])
def test_a_hashed_feature_is_explained_by_the_value_that_was_sent(labels: tuple[Label, ...]) -> None:
    """The term's weight has the sign of the feature's hash."""
    learner, features = train(labels=labels, features="hashed", bits=9, scale="standard"), row(random.Random(2))
    assert {mmh3.hash(name) < 0 for name in features} == {False, True}
    answer = ModelClient(learner).predict({"features": features}, "explain=true")
    first, second = (s["score"] for s in answer.get("scores", [answer, {"score": 0}])[:2])
    terms = {term["name"]: term for term in answer["contributions"]}
    assert sum(term["product"] for term in terms.values()) == pytest.approx(first - second)
    assert {name: terms[name]["value"] for name in features} == features
    for term in terms.values():
        assert term["product"] == term["weight"] * term.get("scaled", term["value"])


def test_scores_that_are_too_many_for_an_answer_are_refused() -> None:
    client = ModelClient(train(labels=tuple(range(1000))))
    body: Any = {"instances": [{"features": {}}] * (MAX_SCORES // 1000 + 1)}
    problem = client.predict(body, "top=1000", 422)
    assert problem["errors"] == [{"pointer": "/instances", "reason": "too-large"}]
    assert "?top=" in problem["detail"]
    assert len(client.predict(body, "top=1")["predictions"]) == len(body["instances"])
    assert len(client.predict({"features": {}})["scores"]) == 10, "unless the request says how many"


@pytest.mark.parametrize(("value", "label"), [(math.inf, 0), (math.nan, 4)])
def test_a_score_that_is_not_finite_is_refused(value: float, label: int) -> None:
    """The request is refused even if the answer would not show the score of this label."""
    learner = train()
    learner.main.weights[0, label] = value
    client = ModelClient(learner)
    for body, pointer in (({"features": {}}, "/features"), ({"instances": [{"features": {}}] * 3000}, "/instances/0")):
        problem = client.predict(body, "top=1", 422)
        assert problem["errors"][0]["reason"] == "not-finite"
        assert problem["errors"][0]["pointer"].startswith(pointer)


def test_weights_are_those_of_a_label() -> None:
    """`?label=` is JSON, or the string itself unless a label has this JSON value: 3 is the number, "3" the string."""
    learner = train(average=True, options=Options(serve="average"))
    client = ModelClient(learner)
    texts = ["red", '"3"', "3", "true", "2.5"]
    for k, (label, text) in enumerate(zip(LABELS, texts, strict=True)):
        weights = learner.main.served[:, k].tolist()
        answer = client.weights(f"label={quote(text)}")
        assert equal(answer["label"], label)
        assert [answer["bias"], *(weight["weight"] for weight in answer["weights"])] == weights
        largest = sorted(weights[1:], key=lambda v: -abs(v))[:3]
        assert [w["weight"] for w in client.weights(f"label={quote(text)}&top=3")["weights"]] == largest
        assert len(client.weights(f"label={quote(text)}&names=n1,n2&top=1")["weights"]) == 1
    for query, reason in (("", "missing-field"), ("label=blue", "unknown-label"), ("label=", "unknown-label")):
        assert client.weights(query, 422)["errors"] == [{"pointer": "?label", "reason": reason}]


def test_two_labels_have_no_weights_of_their_own() -> None:
    client = ModelClient(train(labels=("a", "b")))
    assert "label" not in client.weights("")
    assert "leave ?label= out" in client.weights("label=a", 422)["detail"]
    answer = client.predict({"features": {}}, "top=1&explain=true")
    assert not {"scores", "runner_up"} & answer.keys()


@pytest.mark.parametrize("count", [2, MAX_LABELS, MAX_LABELS + 1])
def test_metrics_have_series_by_label_up_to_fifty(count: int) -> None:
    learner = train(labels=tuple(range(count)), events=400)
    description, client = describe(learner), ModelClient(learner)
    answer = client.predict({"features": {}})
    label = answer["label"] if count <= MAX_LABELS else ""
    assert f'perceptron_predictions_total{{label="{label}",model="m"}} 1.0' in client.metrics_text()
    for suffix, period in (("", "recent"), ("_overall", "all")):
        expected = {f'{{label="{row.label}",model="m"}}': getattr(row.recall, period) for row in description.labels}
        series = scrape(learner, description, f"perceptron_label_recall{suffix}")
        assert series == ({} if count > MAX_LABELS else expected)


@pytest.mark.parametrize(("count", "size"), [(MAX_LABELS, 40_000), (MAX_LABELS + 1, 15_000), (1000, 150_000)])
def test_a_description_has_a_confusion_of_up_to_fifty_labels(count: int, size: int) -> None:
    """A thousand labels have a million cells; the recall of each label is there for any number."""
    learner = train(labels=tuple(range(count)))
    about = ModelClient(learner).ask("GET", "", "", None)
    assert about["confusion"] == (learner.main.counts.confusion if count <= MAX_LABELS else [])
    assert len(about["labels"]) == count
    assert len(json.dumps(about)) < size


def test_labels_with_the_same_text_have_a_series_each() -> None:
    learner = train(labels=(1, "1", 2), events=400)
    series = scrape(learner, describe(learner), "perceptron_label_recall_overall")
    assert series.keys() == {rf'{{label="{label}",model="m"}}' for label in ("1", r"\"1\"", "2")}
