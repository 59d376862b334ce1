"""What a model has to say of itself, said once: the API, `/openapi.json`, metrics, `inspect` and `export` show it.

The docstring of a member is its description in `/openapi.json`. Knows no web framework.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from service.learning.classifier import Classifier
from service.learning.evaluation.advice import advice
from service.learning.evaluation.confidence_sequences import PairedComparison, interval
from service.learning.evaluation.confusion import Confusion, share
from service.learning.evaluation.prequential import QUANTILES
from service.learning.identity import OF_A_CANDIDATE, Identity, Label
from service.learning.learner import Learner
from service.serving.models import Model, ServedModel
from service.snapshots.head import Head

Name = Annotated[str, Meta(examples=["churn"])]
Saved = Annotated[str, Meta(examples=["2030-01-01T12:00:00.000+00:00"])]
Offsets = Annotated[dict[str, int], Meta(examples=[{"0": 1234}], description="the next offset, by partition")]
Digest = Annotated[str, Meta(examples=["9d55c0e5…"])]
Interval = tuple[float, float]


class Share(msgspec.Struct, forbid_unknown_fields=True):
    """A share of all events, and of the recent ones. Null if it is not defined, as before the first event."""

    all: Annotated[float | None, Meta(examples=[0.969])]
    recent: Annotated[float | None, Meta(examples=[0.98])]


class Accuracy(Share, forbid_unknown_fields=True):
    """The share of right predictions, and how sure it is."""

    all_interval: Annotated[Interval | None, Meta(examples=[(0.951, 0.983)])]
    """An interval that holds, at all times together with 95 %, the mean chance to be right over all events."""

    @classmethod
    def of(cls, events: int, wrong: int, recent: float | None) -> Self:
        """The accuracy of predictions that were `wrong` for so many of all events."""
        return cls(share(events - wrong, events), recent, interval(events, events - wrong) if events else None)

    @classmethod
    def last(cls, one: Classifier) -> Self:
        """The accuracy of the last weights."""
        return cls.of(one.counts.events, one.counts.wrong_predictions, one.observations.recent.accuracy)

    @classmethod
    def average(cls, one: Classifier) -> Self:
        """The accuracy of the average weights, if an average is kept."""
        return cls.of(*one.observations.recent.averaged, one.observations.recent.average_accuracy)

    @classmethod
    def served(cls, one: Classifier) -> Self:
        """The accuracy of the weights that answer if this classifier is asked."""
        return cls.average(one) if one.averaged else cls.last(one)

    @classmethod
    def of_each(cls, learner: Learner) -> dict[str, Self]:
        """The accuracy of each predictor, by its name in comparisons."""
        average = {"average": cls.average(learner)} if learner.identity.average else {}
        candidates = {name: cls.served(one) for name, one in learner.candidates.items()}
        return {"last": cls.last(learner), **average, **candidates}


class Comparison(msgspec.Struct, forbid_unknown_fields=True):
    """Two predictors on the same events: `last` and `average` weights, `baseline`, candidates by name.

    `baseline` is the more frequent label so far; a candidate predicts as it would answer.
    """

    first: Annotated[str, Meta(examples=["average"])]
    second: Annotated[str, Meta(examples=["last"])]
    events: Annotated[int, Meta(examples=[1230])]
    first_only: Annotated[int, Meta(examples=[40])]
    """Events that the first alone predicted rightly."""
    second_only: Annotated[int, Meta(examples=[11])]
    difference: Annotated[float | None, Meta(examples=[0.024])]
    """The accuracy of the first less that of the second."""
    interval: Annotated[Interval | None, Meta(examples=[(0.007, 0.036)])]
    """An interval that holds the mean difference, in the sense of `all_interval`."""
    better: Annotated[str | None, Meta(examples=["average"])]
    """Which one is better; null if no difference is shown (95 %)."""

    @classmethod
    def of(cls, pair: PairedComparison) -> Self:
        """What is known of the two."""
        said = pair.first, pair.second, pair.events, pair.first_only, pair.second_only
        return cls(*said, pair.difference, pair.interval() if pair.events else None, pair.better())


class LabelRecall(msgspec.Struct, forbid_unknown_fields=True):
    """A label, and how well its events were found."""

    label: Annotated[Label, Meta(examples=[1])]
    events: Annotated[int, Meta(examples=[614])]
    recall: Share
    """The share of its events that was predicted rightly."""


class CandidateInfo(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A candidate: how it predicts with the weights that it would answer with."""

    name: Annotated[str, Meta(examples=["logistic"])]
    settings: Annotated[dict[str, Any], Meta(examples=[{"rule": "logistic-delta", "eta": 0.1}])]
    """The settings that differ from the model's."""
    serve: Annotated[str, Meta(examples=["last"])]
    """Which of its weights: last or average."""
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
    precision: Share
    """The share of its positive predictions that was right; null with three labels and more."""
    recall: Share
    f1: Share
    against_the_model: Comparison | None
    """It and the model's own weights on the same events; null before the first."""
    diverged: str | None
    """Why it learns no more, while the model and others go on."""

    @property
    def verdict(self) -> str:
        """Whether it is better than the model, in a few words."""
        said = self.against_the_model
        if self.diverged or said is None or said.better is None:
            return "diverged" if self.diverged else "no difference"
        return "better" if said.better == self.name else "worse"

    @classmethod
    def of(cls, learner: Learner, name: str) -> Self:
        """The candidate of this name."""
        one, own = learner.candidates[name], _weights(learner)
        pair = next((p for p in learner.observations.recent.pairs if {p.first, p.second} == {name, own}), None)
        its, shared = msgspec.to_builtins(one.identity), msgspec.to_builtins(learner.identity)
        return cls(
            name=name,
            settings={m: its.get(m) for m in OF_A_CANDIDATE if its.get(m) != shared.get(m)},
            serve=_weights(one),
            answers=name == learner.answering,
            since={str(p): offset for p, offset in sorted(one.since.items())},
            accuracy=Accuracy.served(one),
            against_the_model=Comparison.of(pair) if pair else None,
            diverged=one.diverged,
            **_counted(one),
            **_found_positives(one),
        )

    @classmethod
    def all_of(cls, learner: Learner) -> list[Self]:
        """Those of this model, by name."""
        return [cls.of(learner, name) for name in learner.candidates]


class Description(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A model: counts and offsets of the state that answers; version and digests of its accepted head."""

    model: Name
    identity: Annotated[
        Identity,
        Meta(examples=[{"fold": 2, "rule": "perceptron", "eta": 1.0, "features": "named"}]),
    ]
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
    """Events by `[truth][prediction]`."""
    rejected: Annotated[dict[str, int], Meta(examples=[{"not-json": 4}])]
    ignored_features: Annotated[int, Meta(examples=[0])]
    skipped: Annotated[int, Meta(examples=[0])]
    """Records that `where` passed over."""
    accuracy: Accuracy
    """The accuracy of the last weights, each event predicted before it was learned."""
    average_accuracy: Accuracy | None
    """The accuracy of the average weights; null if no average is kept."""
    baseline: Share
    """The accuracy of always answering with the most frequent label."""
    comparisons: list[Comparison]
    """Every two predictors, on the same events."""
    balanced_accuracy: Share
    """The mean over the labels that came of the share of their events that was predicted rightly, by the weights that
    answer."""
    labels: list[LabelRecall]
    """How well the weights that answer find each label, in the order of the confusion."""
    precision: Share
    """The share of positive predictions that was right; null with three labels and more."""
    recall: Share
    """The share of positive events that was predicted rightly; null with three labels and more."""
    f1: Share
    """The harmonic mean of precision and recall; null with three labels and more."""
    advice: Annotated[list[str], Meta(examples=[[]])]
    """What to try with a model that is of little use."""
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
    served_accuracy: Accuracy
    """The accuracy of the weights that answer."""
    candidates: Annotated[list[CandidateInfo], Meta(examples=[[]])]
    """The models with other settings that learn next to it."""
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
    def of(cls, model: Model, a: ServedModel) -> Self:
        """What there is to say of a model at this moment."""
        learner, head, counts = a.learner, a.head, a.learner.counts
        watch, identity = learner.observations, learner.identity
        margins, (bound, bound_reason) = watch.recent.margins, watch.bound
        serving, accuracy = learner.by(learner.answering), Accuracy.of_each(learner)
        overall, lately = _confusion(serving), serving.observations.recent.confusion(serving.averaged)
        recalls = zip(identity.labels or (-1, 1), serving.counts.by_label, overall.recalls, lately.recalls, strict=True)
        return cls(
            model=model.name,
            identity=identity,
            version=head.version,
            ahead=a.ahead,
            order=head.order,
            next={str(p): o for p, o in sorted(learner.next.items())},
            covered={str(p): ranges for p, ranges in sorted(learner.covered.items())},
            confusion=counts.confusion,
            rejected=counts.rejected,
            ignored_features=counts.ignored_features,
            skipped=counts.skipped,
            accuracy=accuracy["last"],
            average_accuracy=accuracy["average"] if identity.average else None,
            baseline=baseline(learner),
            comparisons=[Comparison.of(pair) for pair in watch.recent.pairs],
            balanced_accuracy=Share(overall.balanced_accuracy, lately.balanced_accuracy),
            labels=[LabelRecall(label, events, Share(*recall)) for label, events, *recall in recalls],
            advice=list(advice(learner).values()),
            columns=len(learner.columns),
            scaled_columns=learner.scaler.used if learner.scaler else None,
            squared_norm=learner.squared_norm,
            squared_norm_limit=watch.squared_norm_limit,
            loss=margins and margins.loss,
            margins=margins and dict(zip(map(str, QUANTILES), margins.quantiles, strict=True)),
            serve=answering_name(learner),
            served_accuracy=accuracy[answering_name(learner)],
            candidates=CandidateInfo.all_of(learner),
            bound=bound,
            bound_reason=bound_reason,
            digest=a.digest,
            state_digest=head.state_digest,
            saved_at=iso(head.saved_at),
            learning_here=model.learning_here,
            stopped=model.stopped or model.unusable,
            **_counted(learner),
            **_found_positives(serving),
        )


class Version(msgspec.Struct, forbid_unknown_fields=True):
    """A kept version."""

    version: Annotated[int, Meta(examples=[40])]
    saved_at: Saved
    next: Offsets
    events: Annotated[int, Meta(examples=[1196])]
    mistakes: Annotated[int, Meta(examples=[30])]
    digest: Digest

    @classmethod
    def of(cls, digest: str, head: Head) -> Self:
        """What there is to say of the version that a head of this digest is."""
        following = {partition: position.offset for partition, position in head.next.items()}
        return cls(head.version, iso(head.saved_at), following, head.counts.events, head.counts.mistakes, digest)


class Summary(msgspec.Struct, forbid_unknown_fields=True):
    """A model in a list; fields are null before its first snapshot is there."""

    model: Name
    rule: Annotated[str | None, Meta(examples=["perceptron"])]
    features: Annotated[str | None, Meta(examples=["named"])]
    version: Annotated[int | None, Meta(examples=[42])]
    events: Annotated[int | None, Meta(examples=[1000])]
    mistakes: Annotated[int | None, Meta(examples=[31])]
    learning_here: bool

    @classmethod
    def of(cls, model: Model) -> Self:
        """A line of the list."""
        if model.answering is None:
            return cls(model.name, None, None, None, None, None, model.learning_here)
        learner, head, _ = model.answering
        identity, counts = learner.identity, learner.counts
        said = identity.rule, identity.features, head.version, counts.events, counts.mistakes
        return cls(model.name, *said, model.learning_here)


def _weights(one: Classifier) -> str:
    """Which weights of a model or a candidate answer where it is asked."""
    return "average" if one.averaged else "last"


def answering_name(learner: Learner) -> str:
    """What answers for a model: last, average, or the name of a candidate."""
    return learner.answering or _weights(learner)


def baseline(learner: Learner) -> Share:
    """The share of the most frequent label."""
    counts = learner.counts
    return Share(share(max(counts.by_label), counts.events), learner.observations.recent.baseline)


def _counted(one: Classifier) -> dict[str, Any]:
    """The counts that a model and a candidate have alike."""
    return {name: getattr(one.counts, name) for name in ("events", "mistakes", "wrong_predictions", "updates")}


def _found_positives(one: Classifier) -> dict[str, Any]:
    """How well the weights that answer find positive events."""
    overall, lately = _confusion(one), one.observations.recent.confusion(one.averaged)
    return {name: Share(getattr(overall, name), getattr(lately, name)) for name in ("precision", "recall", "f1")}


def _confusion(one: Classifier) -> Confusion:
    """All events by label, and how many the weights that answer predicted rightly; zeros if that is not known."""
    counts, averaged, missed = one.counts, one.observations.recent.averaged, one.observations.recent.missed
    if not one.averaged:
        return Confusion(counts.by_label, counts.right)
    if missed is None or averaged.events != counts.events:
        return Confusion([0] * len(counts.by_label), [0] * len(counts.by_label))
    return Confusion(counts.by_label, [n - wrong for n, wrong in zip(counts.by_label, missed, strict=True)])


def served_confusion(one: Classifier) -> list[list[int]]:
    """`[truth][prediction]` of the weights that answer if this classifier is asked; empty if that is not known."""
    if not one.averaged:
        return one.counts.confusion
    events, right = _confusion(one)
    if one.identity.multiclass or sum(events) != one.counts.events:
        return []
    return [[right[0], events[0] - right[0]], [events[1] - right[1], right[1]]]


def iso(seconds: float) -> str:
    """A time, of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
