"""The figures of a model, as the API, `/openapi.json`, metrics, `inspect` and `export` show them.

The docstring of a member is its description in `/openapi.json`. This module knows no web framework.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from service.learning.best import Takeover
from service.learning.classifier import Classifier
from service.learning.evaluation.advice import advice
from service.learning.evaluation.confidence_sequences import PairedComparison, interval
from service.learning.evaluation.confusion import Confusion, share
from service.learning.evaluation.prequential import ALL, QUANTILES
from service.learning.identity import OF_A_CANDIDATE, Identity, Label
from service.learning.join.memory import LABEL_OUTCOMES, NEVER
from service.learning.learner import Learner
from service.learning.options import BEST
from service.learning.records import by_text
from service.monitoring.metrics import MAX_LABELS
from service.serving.models import Model, ServedModel, read_all
from service.snapshots.head import Head
from service.streaming.resume_check import lost_topic_message

Name = Annotated[str, Meta(examples=["churn"])]
Saved = Annotated[str, Meta(examples=["2030-01-01T12:00:00.000+00:00"])]
Offsets = Annotated[dict[str, int], Meta(examples=[{"0": 1234}], description="the next offset, by partition")]
Digest = Annotated[str, Meta(examples=["9d55c0e5…"])]
Interval = tuple[float, float]
COUNTS = "events", "mistakes", "wrong_predictions", "updates"
"""The counts that models and candidates show."""


class Share(msgspec.Struct, forbid_unknown_fields=True):
    """A share of all events, and of the recent ones. Null if it is not defined, as before the first event."""

    all: Annotated[float | None, Meta(examples=[0.969])]
    recent: Annotated[float | None, Meta(examples=[0.98])]


class Accuracy(Share, forbid_unknown_fields=True):
    """The share of right predictions, and how sure it is."""

    all_interval: Annotated[Interval | None, Meta(examples=[(0.951, 0.983)])]
    """An interval that contains the mean chance to be right over all events, with 95 % for all times together."""

    @classmethod
    def from_classifier(cls, classifier: Classifier, averaged: bool) -> Self:
        """The accuracy of the last weights or, if `averaged`, of their average."""
        counts, recent = classifier.counts, classifier.observations.recent
        events, wrong = recent.averaged if averaged else (counts.events, counts.wrong_predictions)
        recent_share = recent.average_accuracy if averaged else recent.accuracy
        return cls(share(events - wrong, events), recent_share, interval(events, events - wrong) if events else None)

    @classmethod
    def from_answers(cls, learner: Learner, given_by: str) -> Self | None:
        """The accuracy of the answers that were given, in all or by a candidate; None if there are none."""
        if (tally := learner.answers.tallies.get(given_by)) is None or not tally.events:
            return None
        last, bounds = tally.last.values, interval(tally.events, tally.right)
        return cls(share(tally.right, tally.events), share(int(last.sum()), len(last)), bounds)

    @classmethod
    def from_predictors(cls, learner: Learner) -> dict[str, Self]:
        """The accuracy of each predictor, by its name in comparisons."""
        average = {"average": cls.from_classifier(learner.main, averaged=True)} if learner.identity.average else {}
        candidates = {name: cls.from_classifier(c, c.averaged) for name, c in learner.candidates.items()}
        return {"last": cls.from_classifier(learner.main, averaged=False), **average, **candidates}

    @classmethod
    def from_answering(cls, learner: Learner) -> Self:
        """The accuracy of the weights that answer; the recent one is of the answers that `positive_above` makes.

        With `serve = "best"` it is that of the predictors that answered, each while it did.
        """
        if learner.options.serve == BEST:
            overall, recent = learner.main.answers, learner.main.observations.recent_answers
            return cls(overall.accuracy, recent.accuracy, interval(*map(sum, overall)) if any(overall.events) else None)
        accuracy, seen = cls.from_classifier(learner.serving, learner.serving.averaged), learner.serving.observations
        if seen.options.positive_above is not None:
            accuracy.recent = seen.recent_answers.accuracy
        return accuracy


class Comparison(msgspec.Struct, forbid_unknown_fields=True):
    """Two predictors on the same events: `last`, `average`, `baseline`, `previous` or the name of a candidate.

    `baseline` predicts the most frequent label so far, `previous` the label of the event before. A candidate predicts
    with the weights that it would answer with.
    """

    first: Annotated[str, Meta(examples=["average"])]
    second: Annotated[str, Meta(examples=["last"])]
    events: Annotated[int, Meta(examples=[1230])]
    first_only: Annotated[int, Meta(examples=[40])]
    """Events that only the first predicted rightly."""
    second_only: Annotated[int, Meta(examples=[11])]
    difference: Annotated[float | None, Meta(examples=[0.024])]
    """The accuracy of the first less that of the second."""
    interval: Annotated[Interval | None, Meta(examples=[(0.007, 0.036)])]
    """An interval that holds the mean difference, in the sense of `all_interval`."""
    better: Annotated[str | None, Meta(examples=["average"])]
    """The better one; null if no difference is shown (95 %)."""

    @classmethod
    def from_pair(cls, pair: PairedComparison) -> Self:
        """The comparison of a pair."""
        interval = pair.interval() if pair.events else None
        return cls(**asdict(pair), difference=pair.difference, interval=interval, better=pair.better())


class LabelRecall(msgspec.Struct, forbid_unknown_fields=True):
    """A label, and how well its events were found."""

    label: Annotated[Label, Meta(examples=[1])]
    events: Annotated[int, Meta(examples=[614])]
    recall: Share
    """The share of its events that was predicted rightly."""


class CandidateInfo(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A candidate, and how it predicts with the weights that it would answer with."""

    name: Annotated[str, Meta(examples=["logistic"])]
    settings: Annotated[dict[str, Any], Meta(examples=[{"rule": "logistic-delta", "eta": 0.1}])]
    """The settings that differ from the model's."""
    serve: Annotated[str, Meta(examples=["last"])]
    """Which of its weights answer: last or average."""
    answers: bool
    """Whether it answers for the model."""
    since: Annotated[dict[str, int], Meta(examples=[{"0": 1000}])]
    """The next offset when it began."""
    events: Annotated[int, Meta(examples=[230])]
    mistakes: Annotated[int, Meta(examples=[5])]
    wrong_predictions: Annotated[int, Meta(examples=[5])]
    updates: Annotated[int, Meta(examples=[230])]
    accuracy: Accuracy
    """Its accuracy since it began, each event predicted before it was learned."""
    answered_accuracy: Accuracy | None
    """How often the answers that it gave were right, as the model's."""
    precision: Share
    """The share of its positive predictions that was right; null with three labels and more."""
    recall: Share
    f1: Share
    auc: Annotated[float | None, Meta(examples=[0.9])]
    """As the model's, as are the next two."""
    average_precision: Annotated[float | None, Meta(examples=[0.8])]
    log_loss: Annotated[float | None, Meta(examples=[0.3])]
    against_the_model: Comparison | None
    """The candidate and the model's own weights on the same events; null before the first event."""
    diverged: str | None
    """Why it stopped learning, while the model and other candidates continue; null if it learns."""

    @property
    def verdict(self) -> str:
        """Whether it is better than the model, in a few words."""
        if self.diverged:
            return "diverged"
        better = self.against_the_model and self.against_the_model.better
        return "no difference" if not better else "better" if better == self.name else "worse"

    @classmethod
    def from_learner(cls, learner: Learner, name: str) -> Self:
        """The candidate of this name."""
        candidate, model = learner.candidates[name], _weights(learner.main)
        pair = next((p for p in learner.main.observations.recent.pairs if {p.first, p.second} == {name, model}), None)
        own, shared = msgspec.to_builtins(candidate.identity), msgspec.to_builtins(learner.identity)
        return cls(
            name=name,
            settings={m: own.get(m) for m in OF_A_CANDIDATE if own.get(m) != shared.get(m)},
            serve=_weights(candidate),
            answers=name == learner.answering,
            since=by_text(candidate.since),
            accuracy=Accuracy.from_classifier(candidate, candidate.averaged),
            answered_accuracy=Accuracy.from_answers(learner, name),
            against_the_model=Comparison.from_pair(pair) if pair else None,
            diverged=candidate.diverged,
            **_members(candidate.counts, *COUNTS),
            **_shares(candidate.answers, candidate.observations.recent_answers),
            **candidate.observations.ranking._asdict(),
        )


class Description(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A model: counts and offsets of the state that answers; version and digests of its accepted head."""

    model: Name
    identity: Annotated[Identity, Meta(examples=[{"fold": 2, "rule": "perceptron", "eta": 1.0, "features": "named"}])]
    version: Annotated[int, Meta(examples=[42])]
    ahead: Annotated[int, Meta(examples=[0])]
    order: Annotated[str, Meta(examples=["log"])]
    next: Offsets
    covered: Annotated[dict[str, list[tuple[int, int]]], Meta(examples=[{"0": [[0, 1234]]}])]
    events: Annotated[int, Meta(examples=[1230])]
    mistakes: Annotated[int, Meta(examples=[31])]
    wrong_predictions: Annotated[int, Meta(examples=[29])]
    updates: Annotated[int, Meta(examples=[31])]
    confusion: Annotated[list[list[int]], Meta(examples=[[[600, 14], [15, 601]]])]
    """Events by `[truth][prediction]`; empty with more than 50 labels, whose recalls are in `labels`."""
    rejected: Annotated[dict[str, int], Meta(examples=[{"not-json": 4}])]
    ignored_features: Annotated[int, Meta(examples=[0])]
    missing_features: Annotated[int, Meta(examples=[0])]
    """Usual features that most recent events lack, in the last snapshot; `advice` has their names."""
    kind_changes: Annotated[int, Meta(examples=[0])]
    """Features whose kind has changed between number and text, in the last snapshot."""
    skipped: Annotated[int, Meta(examples=[0])]
    """Records that `where` passed over."""
    held: Annotated[int | None, Meta(examples=[1200])]
    """Events that wait for their label, at the last save; null without a join, as are the next members."""
    held_since: Annotated[str | None, Meta(examples=["2030-01-01T11:50:00.000+00:00"])]
    """The timestamp of the oldest held event."""
    label_outcomes: Annotated[dict[str, int] | None, Meta(examples=[{"joined": 900, "late": 3, "unknown": 1}])]
    """Label records by what became of them."""
    coverage: Annotated[float | None, Meta(examples=[0.98])]
    """The share of label records that were joined with an event."""
    expired: Annotated[int | None, Meta(examples=[40])]
    """Events whose window ended without a label, or before they came."""
    dropped: Annotated[int | None, Meta(examples=[0])]
    """Events that were dropped for want of room (`max_held`)."""
    repeated: Annotated[int | None, Meta(examples=[7])]
    """Events whose id was there already; null without `join` and `once`."""
    set_aside: Annotated[int | None, Meta(examples=[0])]
    """Records whose timestamp was far ahead of the others when they came."""
    stream_time: Annotated[str | None, Meta(examples=["2030-01-01T12:00:00.000+00:00"])]
    """How far the timestamps of the log had come at the last save."""
    join_waits: str | None
    """Why learning waits, while it does: for records of a partition, or for labels."""
    accuracy: Accuracy
    """The accuracy of the last weights, each event predicted before it was learned."""
    average_accuracy: Accuracy | None
    """The accuracy of the average weights; null if no average is kept."""
    baseline: Share
    """The accuracy of always answering with the most frequent label."""
    previous_label_baseline: Share
    """The accuracy of always answering with the label of the event before."""
    comparisons: list[Comparison]
    """A comparison of each two predictors, on the same events."""
    balanced_accuracy: Share
    """The mean recall of the labels that had events, by the weights that answer."""
    labels: list[LabelRecall]
    """How well the weights that answer find each label, in the order of the confusion."""
    precision: Share
    """The share of positive predictions that was right; null with three labels and more."""
    recall: Share
    """The share of positive events that was predicted rightly; null with three labels and more."""
    f1: Share
    """The harmonic mean of precision and recall; null with three labels and more."""
    auc: Annotated[float | None, Meta(examples=[0.91])]
    """The area under the ROC curve of the served scores of recent events: the chance that a positive event has a higher
    score than a negative one. Null while a label has fewer than 50 recent events since a restart, and with three labels
    and more."""
    average_precision: Annotated[float | None, Meta(examples=[0.83])]
    """The mean precision over the recent positive events, each at its own score; null where `auc` is."""
    log_loss: Annotated[float | None, Meta(examples=[0.31])]
    """The mean of -log(probability of the label) over recent events; null where `auc` is, and for other rules than
    logistic-delta."""
    advice: Annotated[list[str], Meta(examples=[[]])]
    """Advice on what to change if the model predicts poorly."""
    columns: Annotated[int, Meta(examples=[21])]
    scaled_columns: int | None
    """Columns with scaled numbers; null if the model does not scale."""
    squared_norm: Annotated[float | None, Meta(examples=[88.5])]
    """The squared norm of the weights; null if it is beyond what a number can hold."""
    squared_norm_limit: Annotated[float | None, Meta(examples=[310.25])]
    loss: Annotated[float | None, Meta(examples=[0.02])]
    """Mean perceptron loss max(0, -y*s) of recent events."""
    margins: Annotated[dict[str, float] | None, Meta(examples=[{"0.1": 0.2, "0.5": 1.1, "0.9": 2.5}])]
    """Quantiles of y*s/|x| of recent events."""
    serve: Annotated[str, Meta(examples=["last"])]
    """The weights that answer: last, average, or a candidate's name."""
    takeovers: int | None
    """With `serve = "best"`, how often another predictor took over since the candidates or `window` changed; else
    null."""
    takeover: Takeover | None
    """The last takeover."""
    served_accuracy: Accuracy
    """The accuracy of the weights that answer; `recent` is that of the answers if `positive_above` is set. With
    `serve = "best"`, as all figures of answers: of those that answered each event, since best was set."""
    answered_accuracy: Accuracy | None
    """How often the answers that the service gave were right, as far as it logged them; null if it logged none."""
    candidates: Annotated[list[CandidateInfo], Meta(examples=[[]])]
    """The candidates: models with other settings that learn side by side with it."""
    bound: Annotated[int | None, Meta(examples=[112])]
    """The most updates that the perceptron theorem allows."""
    bound_reason: str | None
    digest: Digest
    state_digest: Annotated[str, Meta(examples=["f7f41c9b…"])]
    """The digest of the state, which `inspect` and `verify` print."""
    saved_at: Saved
    learning_here: bool
    stopped: str | None

    @classmethod
    def from_model(cls, model: Model, served: ServedModel, array_figures: dict[str, Any] | None = None) -> Self:
        """The description of a model at this moment. A thread may have made the `array_figures`."""
        learner, head = served.learner, served.head
        identity, observations = learner.identity, learner.main.observations
        margins, (bound, bound_reason) = observations.recent.margins, observations.bound
        lost = (topic := model.status.missing_topic()) and lost_topic_message(model.name, topic)
        best, serving, accuracy = learner.best, answering_classifier(learner), Accuracy.from_predictors(learner)
        overall, recent = serving.answers, serving.observations.recent_answers
        recalls = zip(identity.labels or (-1, 1), serving.counts.by_label, overall.recalls, recent.recalls, strict=True)
        return cls(
            model=model.name,
            identity=identity,
            next=by_text(learner.next),
            covered=by_text(learner.covered),
            accuracy=accuracy["last"],
            average_accuracy=accuracy["average"] if identity.average else None,
            baseline=baseline(learner),
            previous_label_baseline=previous_label_baseline(learner),
            comparisons=[Comparison.from_pair(pair) for pair in observations.recent.pairs],
            labels=[LabelRecall(label, events, Share(*recall)) for label, events, *recall in recalls],
            missing_features=len(head.observations.features.missing),
            kind_changes=len(head.observations.features.changes),
            advice=[*([model.status.waits] if model.status.waits else []), *advice(learner).values()],
            columns=len(learner.columns),
            squared_norm_limit=observations.squared_norm_limit,
            loss=margins and margins.loss,
            margins=margins and dict(zip(map(str, QUANTILES), margins.quantiles, strict=True)),
            serve=learner.answering_name,
            takeovers=best.takeovers if best else None,
            takeover=best.takeover if best else None,
            served_accuracy=Accuracy.from_answering(learner),
            answered_accuracy=Accuracy.from_answers(learner, ALL),
            candidates=[CandidateInfo.from_learner(learner, name) for name in learner.candidates],
            bound=bound,
            bound_reason=bound_reason,
            saved_at=iso(head.saved_at),
            learning_here=model.learning_here,
            stopped=model.status.stopped or model.status.unusable or lost or None,
            **_join_figures(learner, head),
            join_waits=model.status.waits if learner.join else None,
            confusion=learner.main.counts.confusion if identity.classes <= MAX_LABELS else [],
            **(array_figures or _array_figures(learner)),
            **_members(served, "ahead", "digest"),
            **_members(head, "version", "order", "state_digest"),
            **_members(learner.main.counts, *COUNTS, "rejected", "ignored_features", "skipped"),
            **_shares(overall, recent, "balanced_accuracy"),
            **serving.observations.ranking._asdict(),
        )


async def describe(model: Model, served: ServedModel) -> Description:
    """The description of a model at this moment; a thread reads the arrays of a large one."""
    array_figures = await read_all(served.learner, partial(_array_figures, served.learner))
    return Description.from_model(model, served, array_figures)


class Version(msgspec.Struct, forbid_unknown_fields=True):
    """A kept version."""

    version: Annotated[int, Meta(examples=[40])]
    saved_at: Saved
    next: Offsets
    events: Annotated[int, Meta(examples=[1196])]
    mistakes: Annotated[int, Meta(examples=[30])]
    digest: Digest

    @classmethod
    def from_head(cls, digest: str, head: Head) -> Self:
        """The version that is stored as this head, which has this digest."""
        following = by_text({partition: position.offset for partition, position in head.next.items()})
        return cls(head.version, iso(head.saved_at), following, head.counts.events, head.counts.mistakes, digest)


class Summary(msgspec.Struct, forbid_unknown_fields=True):
    """A model in a list. Figures of a snapshot are null before there is one."""

    model: Name
    rule: Annotated[str | None, Meta(examples=["perceptron"])]
    features: Annotated[str | None, Meta(examples=["named"])]
    version: Annotated[int | None, Meta(examples=[42])]
    events: Annotated[int | None, Meta(examples=[1000])]
    mistakes: Annotated[int | None, Meta(examples=[31])]
    learning_here: bool
    alias_of: Annotated[str, Meta(examples=["churn-v2"])] | UnsetType = UNSET
    """The model that answers for this name; left out if it is this model."""

    @classmethod
    def from_model(cls, model: Model, alias_of: str | UnsetType) -> Self:
        """The summary of this model as it is now."""
        name, here = model.name, model.learning_here
        if (served := model.answering) is None:
            return cls(name, None, None, None, None, None, here, alias_of)
        identity, counts = served.learner.identity, served.learner.main.counts
        version, rule, features = served.head.version, identity.rule, identity.features
        return cls(name, rule, features, version, counts.events, counts.mistakes, here, alias_of)


def _weights(classifier: Classifier) -> str:
    """Which weights of a model or a candidate answer: average or last."""
    return "average" if classifier.averaged else "last"


def answering_classifier(learner: Learner) -> Classifier:
    """The classifier that has the figures of the answers: with `serve = "best"` always the model's own."""
    return learner.main if learner.options.serve == BEST else learner.serving


def baseline(learner: Learner) -> Share:
    """The share of the most frequent label."""
    counts = learner.main.counts
    return Share(share(max(counts.by_label), counts.events), learner.main.observations.recent.baseline)


def previous_label_baseline(learner: Learner) -> Share:
    """The share of the events whose label is that of the event before."""
    recent = learner.main.observations.recent
    (events, wrong), (same, changed) = recent.previous, recent.by_change(averaged=False).events
    return Share(share(events - wrong, events), share(same, same + changed))


def _array_figures(learner: Learner) -> dict[str, Any]:
    """The figures for which all weights are read, by name."""
    return {"squared_norm": learner.main.squared_norm, "scaled_columns": learner.scaler and learner.scaler.used}


def _join_figures(learner: Learner, head: Head) -> dict[str, Any]:
    """What a model with a join holds and has counted, by name; None for other models."""
    state, outcomes = head.join or None, learner.main.counts.join or {}
    labels = {name: outcomes[name] for name in LABEL_OUTCOMES} if state else None
    return {
        "held": state and state.held,
        "held_since": state and state.held_since and iso(state.held_since / 1000),
        "label_outcomes": labels,
        "coverage": labels and share(labels["joined"], sum(labels.values())),
        "stream_time": iso(state.stream_time / 1000) if state and state.stream_time > NEVER else None,
        **{name: outcomes.get(name) for name in ("expired", "dropped", "repeated", "set_aside")},
    }


def _members(source: object, *names: str) -> dict[str, Any]:
    """These members of an object, by name."""
    return {name: getattr(source, name) for name in names}


def _shares(overall: Confusion, recent: Confusion, *more: str) -> dict[str, Any]:
    """How well positive events are found, and `more` shares of the confusions, by name."""
    names = "precision", "recall", "f1", *more
    return {name: Share(getattr(overall, name), getattr(recent, name)) for name in names}


def served_confusion(classifier: Classifier) -> list[list[int]]:
    """Events by `[truth][prediction]`, as the classifier's answering weights predicted them; empty if not known."""
    if not classifier.averaged and classifier.observations.options.serve != BEST:
        return classifier.counts.confusion
    events, right = classifier.answers
    if classifier.identity.multiclass or sum(events) != classifier.counts.events:
        return []
    return [[right[0], events[0] - right[0]], [events[1] - right[1], right[1]]]


def iso(seconds: float) -> str:
    """A time in ISO 8601, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
