"""What a model has to say of itself, as the API, `perceptron inspect` and `export` show it. Knows no web framework."""

from datetime import UTC, datetime
from typing import Any

from service.learning.recent import QUANTILES
from service.serving.models import Answering, Model
from service.snapshots.head import Head


def describe(model: Model, a: Answering) -> dict[str, Any]:
    """A model as `GET /v1/models/{m}` and `perceptron inspect` show it."""
    learner, head, counts = a.learner, a.head, a.learner.counts
    overall, recent = learner.accuracy()
    margins = learner.watch.recent.margins
    bound, bound_reason = learner.watch.bound
    return {
        "model": model.name,
        "identity": learner.identity,
        "version": head.version,
        "ahead": a.ahead,
        "order": head.order,
        "next": {str(p): o for p, o in sorted(learner.next.items())},
        "covered": {str(p): ranges for p, ranges in sorted(learner.covered.items())},
        "events": counts.events,
        "mistakes": counts.mistakes,
        "wrong_predictions": counts.wrong_predictions,
        "updates": counts.updates,
        "confusion": counts.confusion,
        "rejected": counts.rejected,
        "ignored_features": counts.ignored_features,
        "accuracy": {"all": overall, "recent": recent},
        "columns": len(learner.columns),
        "squared_norm": learner.squared_norm,
        "squared_norm_limit": learner.watch.squared_norm_limit,
        "loss": margins and margins.loss,
        "margins": margins and dict(zip(map(str, QUANTILES), margins.quantiles, strict=True)),
        "serve": learner.watch.options.serve,
        "bound": bound,
        "bound_reason": bound_reason,
        "digest": a.digest,
        "state_digest": head.state_digest,
        "saved_at": _iso(head.saved_at),
        "learning_here": model.learning_here,
        "stopped": model.stopped or model.unusable,
    }


def describe_version(name: str, head: Head) -> dict[str, Any]:
    """A kept version as `GET /v1/models/{m}/versions` and `perceptron inspect` show it."""
    return {
        "version": head.version,
        "saved_at": _iso(head.saved_at),
        "next": {partition: position.offset for partition, position in head.next.items()},
        "events": head.counts.events,
        "mistakes": head.counts.mistakes,
        "digest": name,
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def summary(model: Model) -> dict[str, Any]:
    """A model in a list: null before its first snapshot is there."""
    a = model.answering
    return {
        "model": model.name,
        "rule": a and a.learner.identity.rule,
        "features": a and a.learner.identity.features,
        "version": a and a.head.version,
        "events": a and a.learner.counts.events,
        "mistakes": a and a.learner.counts.mistakes,
        "learning_here": model.learning_here,
    }
