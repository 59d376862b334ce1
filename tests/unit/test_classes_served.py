"""Three labels and more, as they are served: scores, whose weights, how well each label is found."""

import asyncio
import json
import math
import random
from typing import Any, cast
from unittest.mock import Mock
from urllib.parse import quote

import mmh3
import numpy as np
import pytest
from sklearn import metrics as judged

from service.learning.classifier import Counts
from service.learning.identity import Identity, Label
from service.learning.learner import Learner
from service.learning.options import DEFAULT, Options
from service.learning.records import Records
from service.monitoring.metrics import MAX_LABELS, Figures, Metrics
from service.serving import predictor
from service.serving.http.app import create_app
from service.serving.http.limits import Limits
from service.serving.models import Models, given
from service.serving.predictor import IN_A_TURN, MAX_SCORES
from service.serving.report import Description, Share
from service.snapshots.store import RedisStore
from tests.checks import restored
from tests.conftest import event
from tests.fuzz.requests import Asked, ask

LABELS: tuple[Label, ...] = ("red", "3", 3, True, 2.5)
NAMES = [f"n{i}" for i in range(8)]


def row(rng: random.Random) -> dict[str, float]:
    return {name: rng.gauss(0, 3) for name in rng.sample(NAMES, 5)}


def learned(events: int = 60, options: Options = DEFAULT, **identity: Any) -> Learner:
    rng, labels = random.Random(5), identity.setdefault("labels", LABELS)
    learner = Learner(Identity(**identity), options=options)
    learner.begin({0: 0})
    learner.apply(
        0,
        Records.of(
            0, [json.dumps({"features": row(rng), "label": rng.choice(labels)}).encode() for _ in range(events)]
        ),
    )
    return learner


class Served:
    """An application of one model, m."""

    def __init__(self, learner: Learner) -> None:
        self.metrics = Metrics("0", lambda: [], lambda: True, lambda: {})
        models, store = Models([given("m", learner, 0.0)]), cast(RedisStore, None)
        self.app = create_app(models, self.metrics, lambda: True, lambda: False, store, Limits(), version="0")

    def ask(self, method: str, path: str, query: str, body: Any, status: int = 200) -> Any:
        raw = json.dumps(body).encode()
        answered = asyncio.run(ask(self.app, Asked(method, f"/v1/models/m{path}", query, b"application/json", raw)))
        assert answered.status == status, answered
        return json.loads(answered.body)

    def predict(self, body: Any, query: str = "", status: int = 200) -> Any:
        return self.ask("POST", "/predict", query, body, status)

    def weights(self, query: str, status: int = 200) -> Any:
        return self.ask("GET", "/weights", query, None, status)

    def shown(self) -> str:
        return asyncio.run(self.metrics.render()).decode()


def same(ours: Any, theirs: Any) -> bool:
    """As JSON, where true is not 1."""
    return json.dumps(ours) == json.dumps(theirs)


def test_an_answer_has_the_scores_of_the_labels_largest_first() -> None:
    learner = learned()
    served, features = Served(learner), {**row(random.Random(1)), "never seen": 1.0}
    w, columns = learner.weights.tolist(), learner.columns.names
    scores = list(w[0])
    for name, value in features.items():
        if name in columns:
            scores = [s + v * value for s, v in zip(scores, w[1 + columns.index(name)], strict=True)]
    order = sorted(range(len(LABELS)), key=lambda k: -scores[k])
    answer = served.predict({"features": features})
    assert same(answer["scores"], [{"label": LABELS[k], "score": scores[k]} for k in order])
    assert same([answer["label"], answer["score"]], [LABELS[order[0]], scores[order[0]]])
    assert answer["unknown_features"] == 1
    assert not {"probability", "runner_up", "contributions"} & answer.keys()
    for top in (1, 2, 1000):
        cut = served.predict({"features": features}, f"top={top}")
        assert same({**cut, "scores": answer["scores"]}, answer)
        assert same(cut["scores"], answer["scores"][:top])
    for wrong in ("0", "1001", "x"):
        problem = served.predict({"features": features}, f"top={wrong}", 422)
        assert problem["errors"][0]["pointer"] == "?top"


def test_ten_scores_are_shown_where_nobody_says_how_many() -> None:
    answer = Served(learned(labels=tuple(range(12)))).predict({"features": {}})
    assert len(answer["scores"]) == 10


def test_of_equal_scores_the_first_label_is_first() -> None:
    answer = Served(learned(events=0)).predict({"features": {"a": 1}}, "explain=true")
    assert same([score["label"] for score in answer["scores"]], list(LABELS))
    assert same([answer["label"], answer["runner_up"]], list(LABELS[:2]))


@pytest.mark.parametrize("more", [{}, {"scale": "standard", "average": True}], ids=["plain", "scaled average"])
def test_an_explanation_is_of_the_label_against_the_runner_up(more: Any) -> None:
    learner = learned(options=Options(serve="average" if more else "last"), **more)
    answer = Served(learner).predict({"features": {**row(random.Random(2)), "never seen": 1.0}}, "explain=true")
    first, second = answer["scores"][:2]
    assert same([answer["label"], answer["runner_up"]], [first["label"], second["label"]])
    terms = answer["contributions"]
    assert sum(term["product"] for term in terms) == pytest.approx(first["score"] - second["score"])
    assert [abs(term["product"]) for term in terms] == sorted((abs(term["product"]) for term in terms), reverse=True)
    one, other = (next(k for k, label in enumerate(LABELS) if same(label, s["label"])) for s in (first, second))
    for term in terms:
        column = 0 if term["name"] == "bias" else 1 + learner.columns.names.index(term["name"])
        assert term["weight"] == learner.served[column, one] - learner.served[column, other]
        assert ("scaled" in term) == bool(more)


@pytest.mark.parametrize("scale", ["none", "standard"])
@pytest.mark.parametrize("labels", [(-1, 1), LABELS])
def test_a_hashed_feature_is_explained_by_the_value_that_was_sent(labels: Any, scale: Any) -> None:
    """And by the weight with the hash's sign, which is where some names have one."""
    learner, features = learned(labels=labels, features="hashed", bits=9, scale=scale), row(random.Random(2))
    answer = Served(learner).predict({"features": features}, "explain=true")
    first, second = (s["score"] for s in answer.get("scores", [answer, {"score": 0}])[:2])
    terms = {term["name"]: term for term in answer["contributions"]}
    assert sum(term["product"] for term in terms.values()) == pytest.approx(first - second)
    assert {name: terms[name]["value"] for name in features} == features
    assert {mmh3.hash(name) < 0 for name in features} == {False, True}
    for term in terms.values():
        assert term["product"] == term["weight"] * term.get("scaled", term["value"])
    if len(labels) == 2:
        hashes = {name: mmh3.hash(name) for name in features}
        signed = {name: learner.weights[1 + abs(h) % 512] * (-1) ** (h < 0) for name, h in hashes.items()}
        assert {name: terms[name]["weight"] for name in features} == signed


@pytest.mark.parametrize("more", [{}, {"scale": "standard", "average": True}], ids=["plain", "scaled average"])
def test_a_large_request_gets_the_answers_of_small_ones(more: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its bytes, and by the scores that it takes, which a thread makes: bit for bit."""
    options, rng = Options(serve="average" if more else "last"), random.Random(3)
    served = Served(learned(options=options, **more))
    rows = [row(rng) for _ in range(400)]
    many = served.predict({"instances": [{"features": features} for features in rows]}, "explain=true&top=3")
    assert len(json.dumps(rows)) > 32 << 10
    for i in (0, 1, 200, 399):
        alone = served.predict({"features": rows[i]}, "explain=true&top=3")
        assert same({**alone, **many["predictions"][i]}, alone)
    wide = Served(learned(options=options, labels=tuple(range(1000)), **more))
    count = IN_A_TURN // 1000 + 1
    large = Mock(side_effect=predictor.answer_large)
    monkeypatch.setattr(predictor, "answer_large", large)
    many = wide.predict({"instances": [{"features": features} for features in rows[:count]]})
    assert large.call_count == 1
    assert len(many["predictions"]) == count
    for features, prediction in zip(rows[:count], many["predictions"], strict=True):
        alone = wide.predict({"features": features})
        assert same({**alone, **prediction}, alone)


@pytest.mark.parametrize("count", [2, MAX_SCORES // 1000 + 1], ids=["small", "large"])
def test_scores_that_are_too_many_for_an_answer_are_refused(count: int) -> None:
    served = Served(learned(labels=tuple(range(1000))))
    body: Any = {"instances": [{"features": {}}] * count}
    if count == 2:
        assert len(served.predict(body, "top=1000")["predictions"][1]["scores"]) == 1000
        return
    problem = served.predict(body, "top=1000", 422)
    assert problem["errors"] == [{"pointer": "/instances", "reason": "too-large"}]
    assert "?top=" in problem["detail"]
    assert len(served.predict(body, "top=1")["predictions"]) == count


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("label", [0, 4])
def test_a_score_that_no_number_can_hold_is_refused(value: float, label: int) -> None:
    """Whichever label's it is, and where it would be shown or not."""
    learner = learned()
    learner.weights[0, label] = value
    served = Served(learner)
    for body, where in (({"features": {}}, "/features"), ({"instances": [{"features": {}}] * 3000}, "/instances/0")):
        problem = served.predict(body, "top=1", 422)
        assert problem["errors"][0]["reason"] == "not-finite"
        assert problem["errors"][0]["pointer"].startswith(where)


@pytest.mark.parametrize("serve", ["last", "average"])
def test_weights_are_those_of_a_label(serve: Any) -> None:
    """A label is said as JSON or, a string, as it is; "3" is the number, where there is one."""
    learner = learned(average=True, options=Options(serve=serve))
    served = Served(learner)
    texts = ["red", '"3"', "3", "true", "2.5"]
    for k, (label, text) in enumerate(zip(LABELS, texts, strict=True)):
        own = learner.served[:, k].tolist()
        answer = served.weights(f"label={quote(text)}")
        assert same(answer["label"], label)
        assert [answer["bias"], *(weight["weight"] for weight in answer["weights"])] == own
        largest = sorted(own[1:], key=lambda v: -abs(v))[:3]
        assert [w["weight"] for w in served.weights(f"label={quote(text)}&top=3")["weights"]] == largest
        assert len(served.weights(f"label={quote(text)}&names=n1,n2&top=1")["weights"]) == 1
    known = 'must be one of "red", "3", 3, true, 2.5'
    for query, reason in (("", "missing-field"), ("label=blue", "unknown-label"), ("label=", "unknown-label")):
        problem = served.weights(query, 422)
        assert problem["errors"] == [{"pointer": "?label", "reason": reason}]
        assert problem["detail"].endswith(known)


def test_two_labels_have_no_weights_of_their_own() -> None:
    served = Served(learned(labels=("a", "b")))
    assert "label" not in served.weights("")
    assert "leave ?label= out" in served.weights("label=a", 422)["detail"]
    answer = served.predict({"features": {}}, "top=1&explain=true")
    assert not {"scores", "runner_up"} & answer.keys()


def test_of_many_labels_a_message_has_the_first() -> None:
    """Over HTTP, and of an event that has none of them."""
    learner = learned(labels=tuple(range(1000)))
    listed = "must be one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 990 more"
    assert Served(learner).weights("label=1000", 422)["detail"] == f"?label= {listed}"
    (reject,) = learner.apply(0, Records.of(60, [b'{"features":{},"label":1000}'])).rejects
    assert (reject.reason, reject.detail) == ("unknown-label", f"'label' {listed}")


def about(learner: Learner) -> Description:
    model = given("m", learner, 0.0)
    assert model.answering is not None
    return Description.of(model, model.answering)


@pytest.mark.parametrize("serve", ["last", "average"])
def test_what_is_found_of_each_label_is_what_scikit_learn_says(serve: Any) -> None:
    """Each event predicted before it is learned; over the window, and over all events, through a restore."""
    rng, options = random.Random(1), Options(40, serve=serve)
    learner = Learner(Identity(average=True, labels=("a", "b", "c", "never")), options=options)
    learner.begin({0: 0})
    truth, predicted = list[int](), list[int]()
    for at in range(150):
        label = rng.choices((0, 1, 2), (6, 3, 1))[0]
        features = {f"x{k}": rng.gauss(k == label, 1) for k in range(3)}
        truth.append(label)
        predicted.append(int(np.argmax(learner.score(features)[0])))
        learner.apply(0, Records.of(at, [event(features, cast(Any, "abc"[label]))]))
        if at == 75:
            learner = restored(learner, options)
    said = about(learner)
    assert [row.label for row in said.labels] == ["a", "b", "c", "never"]
    assert [row.events for row in said.labels] == [truth.count(k) for k in range(4)]
    for over, length in (("all", 150), ("recent", 40)):
        pair = truth[-length:], predicted[-length:]
        recalls = judged.recall_score(*pair, labels=[0, 1, 2], average=None)
        assert [getattr(row.recall, over) for row in said.labels] == [*map(pytest.approx, recalls), None]
        assert getattr(said.balanced_accuracy, over) == pytest.approx(float(np.mean(recalls)))
    assert [said.precision, said.recall, said.f1] == [Share(None, None)] * 3
    assert said.baseline.all == max(map(truth.count, range(4))) / 150


@pytest.mark.parametrize("labels", [(False, True), tuple(range(MAX_LABELS)), tuple(range(MAX_LABELS + 1))], ids=len)
def test_metrics_have_series_by_label_up_to_fifty(labels: Any) -> None:
    learner = learned(labels=labels, events=400)
    model = given("m", learner, 0.0)
    model.learning_here = True
    assert model.answering is not None
    said = Description.of(model, model.answering)
    served = Served(learner)
    served.metrics = Metrics("0", lambda: [Figures(said, learner.counts, 0.0, {}, 0)], lambda: True, lambda: {})
    metrics = served.shown()
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    for suffix, over in (("", "recent"), ("_overall", "all")):
        found = {k: float(v) for k, v in lines.items() if k.startswith(f"perceptron_label_recall{suffix}{{")}
        expected = {
            f'perceptron_label_recall{suffix}{{label="{json.dumps(row.label)}",model="m"}}': getattr(row.recall, over)
            for row in said.labels
        }
        assert found == ({} if len(labels) > MAX_LABELS else expected)


def test_predictions_are_counted_by_label_up_to_fifty() -> None:
    for count, label in ((MAX_LABELS, "0"), (MAX_LABELS + 1, "")):
        served = Served(learned(labels=tuple(range(count)), events=0))
        served.predict({"features": {}})
        assert f'perceptron_predictions_total{{label="{label}",model="m"}} 1.0' in served.shown()


def test_sums_that_are_kept_are_those_of_the_confusion() -> None:
    """Also of what is restored; a copy has its own."""
    learner = learned(events=200)
    for counts in (learner.counts, restored(learner).counts, learner.counts.copy()):
        assert counts.by_label == [sum(row) for row in counts.confusion]
        assert counts.events == sum(counts.by_label) == 200
        assert counts.right == [counts.confusion[k][k] for k in range(5)]
    before = learner.counts.copy()
    learner.apply(0, Records.of(200, [b'{"features":{},"label":3}', b"{"]))
    assert (before.events, learner.counts.events, before.rejected) == (200, 201, {})
    assert sum(map(sum, before.confusion)) == sum(before.by_label) == 200
    assert before != learner.counts == Counts(learner.counts.confusion, *_rest(learner.counts))


def _rest(counts: Counts) -> list[Any]:
    return [getattr(counts, name) for name in counts.__struct_fields__[1:]]
