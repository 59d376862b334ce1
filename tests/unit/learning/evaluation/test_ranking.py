"""AUC, average precision and log loss of recent scores, compared with scikit-learn; ties, restarts, a large window."""

import math
import random
from typing import Any

import pytest
from sklearn import metrics

from service.learning.evaluation.prequential import MIN_LABEL_EVENTS
from service.learning.identity import Identity
from service.learning.options import CandidateOptions, Options
from service.learning.records import Records
from tests.checks import learner_of, restored
from tests.conftest import event
from tests.unit.applications import describe

WINDOW, EVENTS = 250, 600
LOGISTIC: dict[str, Any] = {"rule": "logistic-delta", "eta": 0.1, "slope": 2.0}
FIGURES = "auc", "average_precision", "log_loss"


def shown(about: Any) -> tuple[float | None, ...]:
    return tuple(getattr(about, name) for name in FIGURES)


def expected(truth: list[int], scores: list[float], logistic: bool) -> Any:
    chances = [1.0 / (1.0 + math.exp(-2.0 * s)) for s in scores]
    loss = pytest.approx(metrics.log_loss(truth, chances)) if logistic else None
    ranks = metrics.roc_auc_score(truth, scores), metrics.average_precision_score(truth, scores)
    return (*map(pytest.approx, ranks), loss)


@pytest.mark.parametrize("serve", ["last", "average", "other"])
@pytest.mark.parametrize("rule", [{}, LOGISTIC], ids=["perceptron", "logistic"])
def test_recent_scores_are_ranked_as_scikit_learn_does(rule: dict[str, Any], serve: str) -> None:
    """Features of 0 and 1 make many equal scores. After a restart only scores since then count."""
    other = CandidateOptions(Identity(rule="perceptron", eta=0.5), "last")
    options = Options(WINDOW, serve=serve, candidates={"other": other})
    learner, rng = learner_of(Identity(average=True, **rule), (), options), random.Random(1)
    truth, scores, others = list[int](), list[float](), list[float]()
    for offset in range(EVENTS):
        label = int(rng.random() < 0.3)
        features = {f"x{i}": int(rng.random() < 0.3 + 0.2 * label) for i in range(3)}
        truth.append(label)
        scores.append(float(learner.score(features, learner.main)[0]))
        others.append(float(learner.score(features, learner.candidates["other"])[0]))
        learner.apply(Records.from_values(offset, [event(features, label)]))
    assert len(set(others[-WINDOW:])) < WINDOW / 2
    about, recent = describe(learner), truth[-WINDOW:]
    model, candidate = expected(recent, scores[-WINDOW:], bool(rule)), expected(recent, others[-WINDOW:], False)
    assert shown(about) == (candidate if serve == "other" else model)
    assert shown(about.candidates[0]) == candidate

    learner = restored(learner, options)
    assert shown(describe(learner)) == shown(about), "those of the snapshot, until events come"
    learner.apply(Records.from_values(EVENTS, [event({"x0": 1}, k) for k in (0, 1)] * (MIN_LABEL_EVENTS - 1)))
    assert shown(describe(learner)) == (None, None, None)
    learner.apply(Records.from_values(2 * EVENTS, [event({"x0": 1}, k) for k in (0, 1)]))
    assert None not in shown(describe(learner))[:2]


def test_many_labels_have_no_ranking() -> None:
    learner = learner_of(Identity(labels=(0, 1, 2)), [event({"a": 1}, i % 3) for i in range(300)])
    assert shown(describe(learner)) == (None, None, None)
