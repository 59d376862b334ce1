"""What a model has to say of itself, said once: the API, `/openapi.json`, metrics, `inspect` and `export` show it.

Knows no web framework.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from service.learning.advice import advice
from service.learning.classifier import Classifier
from service.learning.confidence import Paired, interval
from service.learning.confusion import Confusion, Found, share
from service.learning.identity import OF_A_CANDIDATE, Identity, Label
from service.learning.learner import Learner
from service.learning.recent import QUANTILES
from service.serving.models import Answering, Model
from service.snapshots.head import Head

Name = Annotated[str, Meta(examples=["churn"])]
Saved = Annotated[str, Meta(examples=["2030-01-01T12:00:00.000+00:00"])]
Offsets = Annotated[dict[str, int], Meta(examples=[{"0": 1234}], description="the next offset, by partition")]
Digest = Annotated[str, Meta(examples=["9d55c0e5…"])]


class Share(msgspec.Struct, forbid_unknown_fields=True):
    """Of all events, and of the recent ones. Null where it is not defined, as before the first event."""

    all: Annotated[float | None, Meta(examples=[0.969])]
    recent: Annotated[float | None, Meta(examples=[0.98])]


Interval = tuple[float, float]


class Accuracy(Share, forbid_unknown_fields=True):
    """Of right predictions; with what `all` is an estimate of, and how sure it is."""

    all_interval: Annotated[
        Interval | None,
        Meta(
            examples=[(0.951, 0.983)],
            description="holds the mean chance to be right over all events, at all times together with 95 %",
        ),
    ]

    @classmethod
    def of(cls, events: int, wrong: int, recent: float | None) -> Self:
        """Of so many events in all, so many of them wrong."""
        return cls(share(events - wrong, events), recent, interval(events, events - wrong) if events else None)

    @property
    def low(self) -> float | None:
        """The interval's lower end."""
        return self.all_interval and self.all_interval[0]

    @property
    def high(self) -> float | None:
        """Its upper end."""
        return self.all_interval and self.all_interval[1]

    @classmethod
    def served(cls, one: Classifier) -> Self:
        """Of the weights that answer, where this one is asked."""
        recent = one.watch.recent
        if one.averaged:
            return cls.of(*recent.averaged, recent.average_accuracy)
        return cls.of(one.counts.events, one.counts.wrong_predictions, recent.accuracy)


class Comparison(msgspec.Struct, forbid_unknown_fields=True):
    """Two predictors on the same events: `last` and `average` weights, `baseline`, candidates by name.

    `baseline` is the more frequent label so far; a candidate predicts as it would answer.
    """

    first: Annotated[str, Meta(examples=["average"])]
    second: Annotated[str, Meta(examples=["last"])]
    events: Annotated[int, Meta(examples=[1230])]
    first_only: Annotated[int, Meta(examples=[40], description="events that the first alone was right about")]
    second_only: Annotated[int, Meta(examples=[11])]
    difference: Annotated[float | None, Meta(examples=[0.024], description="of accuracy; above 0 the first has more")]
    interval: Annotated[
        Interval | None, Meta(examples=[(0.007, 0.036)], description="holds the mean difference like `all_interval`")
    ]
    better: Annotated[str | None, Meta(examples=["average"], description="null where no difference is shown (95 %)")]

    @classmethod
    def of(cls, pair: Paired) -> Self:
        """What is known of the two."""
        said = pair.first, pair.second, pair.events, pair.first_only, pair.second_only
        return cls(*said, pair.difference, pair.interval() if pair.events else None, pair.better())


class Recalled(msgspec.Struct, forbid_unknown_fields=True):
    """A label, and how well its events were found."""

    label: Annotated[Label, Meta(examples=[1])]
    events: Annotated[int, Meta(examples=[614])]
    recall: Annotated[Share, Meta(description="the share of its events that was predicted so")]


class Beside(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A candidate: how it predicts with the weights that it would answer with."""

    name: Annotated[str, Meta(examples=["logistic"])]
    settings: Annotated[
        dict[str, Any],
        Meta(examples=[{"rule": "logistic-delta", "eta": 0.1}], description="what of its identity is not the model's"),
    ]
    serve: Annotated[str, Meta(examples=["last"], description="which of its weights: last or average")]
    answers: Annotated[bool, Meta(description="whether it answers for the model")]
    since: Annotated[dict[str, int], Meta(examples=[{"0": 1000}], description="the next offset when it began")]
    events: Annotated[int, Meta(examples=[230])]
    mistakes: Annotated[int, Meta(examples=[5])]
    wrong_predictions: Annotated[int, Meta(examples=[5])]
    updates: Annotated[int, Meta(examples=[230])]
    accuracy: Annotated[Accuracy, Meta(description="prequential, since it began")]
    precision: Annotated[Share, Meta(description="this and the next two as the model's")]
    recall: Share
    f1: Share
    against_the_model: Annotated[
        Comparison | None, Meta(description="on the same events, with the model's own weights; null before the first")
    ]
    diverged: Annotated[
        str | None, Meta(examples=[None], description="why it learns no more, while the model and others go on")
    ]

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
        one, own = learner.candidates[name], "average" if learner.averaged else "last"
        pairs = {frozenset((pair.first, pair.second)): pair for pair in learner.watch.recent.pairs}
        pair = pairs.get(frozenset((name, own)))
        its, shared = msgspec.to_builtins(one.identity), msgspec.to_builtins(learner.identity)
        overall, lately = _confusion(one), one.watch.recent.confusion(one.averaged)
        return cls(
            name=name,
            settings={m: its.get(m) for m in OF_A_CANDIDATE if its.get(m) != shared.get(m)},
            serve="average" if one.averaged else "last",
            answers=name == learner.answering,
            since={str(p): offset for p, offset in sorted(one.since.items())},
            events=one.counts.events,
            mistakes=one.counts.mistakes,
            wrong_predictions=one.counts.wrong_predictions,
            updates=one.counts.updates,
            accuracy=Accuracy.served(one),
            precision=Share(overall.precision, lately.precision),
            recall=Share(overall.recall, lately.recall),
            f1=Share(overall.f1, lately.f1),
            against_the_model=Comparison.of(pair) if pair else None,
            diverged=one.diverged,
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
    confusion: Annotated[list[list[int]], Meta(examples=[[[600, 14], [15, 601]]], description="[truth][prediction]")]
    rejected: Annotated[dict[str, int], Meta(examples=[{"not-json": 4}])]
    ignored_features: Annotated[int, Meta(examples=[0])]
    skipped: Annotated[int, Meta(examples=[0], description="records that `where` passed over")]
    accuracy: Annotated[
        Accuracy, Meta(description="prequential: the last weights predicted each event before it was learned")
    ]
    average_accuracy: Annotated[
        Accuracy | None, Meta(examples=[None], description="the same of the average; null where none is kept")
    ]
    baseline: Annotated[Share, Meta(description="the most frequent label: what who always answers with it is right in")]
    comparisons: Annotated[list[Comparison], Meta(description="each two of those that predict, on the same events")]
    balanced_accuracy: Annotated[
        Share,
        Meta(
            description="of the weights that answer, as the next four: mean over both labels of the share of those "
            "found; of three labels and more over those that came"
        ),
    ]
    labels: Annotated[list[Recalled], Meta(description="in the order of the confusion")]
    precision: Annotated[
        Share, Meta(description="the share of positive predictions that was right; two labels have it, and the next")
    ]
    recall: Annotated[Share, Meta(description="the share of positive events that was predicted so")]
    f1: Annotated[Share, Meta(description="the harmonic mean of precision and recall")]
    advice: Annotated[list[str], Meta(examples=[[]], description="what to try with a model that is of little use")]
    columns: Annotated[int, Meta(examples=[21])]
    scaled_columns: Annotated[
        int | None, Meta(examples=[None], description="those that have scaled numbers; null where none is scaled")
    ]
    squared_norm: Annotated[
        float | None, Meta(examples=[88.5], description="null where it is beyond what a number can hold")
    ]
    squared_norm_limit: Annotated[float | None, Meta(examples=[310.25])]
    loss: Annotated[
        float | None, Meta(examples=[0.02], description="mean perceptron loss max(0, -y*s) of recent events")
    ]
    margins: Annotated[
        dict[str, float] | None,
        Meta(examples=[{"0.1": 0.2, "0.5": 1.1, "0.9": 2.5}], description="quantiles of y*s/|x| of recent events"),
    ]
    serve: Annotated[
        str, Meta(examples=["last"], description="the weights that answer: last, average, or a candidate's name")
    ]
    served_accuracy: Annotated[Accuracy, Meta(description="`accuracy` of the weights that answer")]
    candidates: Annotated[list[Beside], Meta(examples=[[]], description="what learns side by side with it")]
    bound: Annotated[
        int | None, Meta(examples=[112], description="the most updates that the perceptron theorem allows")
    ]
    bound_reason: Annotated[str | None, Meta(examples=[None])]
    digest: Digest
    state_digest: Annotated[str, Meta(examples=["f7f41c9b…"], description="what `inspect` and `verify` print")]
    saved_at: Saved
    learning_here: bool
    stopped: str | None

    @classmethod
    def of(cls, model: Model, a: Answering) -> Self:
        """What there is to say of a model at this moment."""
        learner, head, counts = a.learner, a.head, a.learner.counts
        recent, averaged = learner.watch.recent, learner.watch.recent.averaged
        margins = recent.margins
        bound, bound_reason = learner.watch.bound
        serving = learner.by(learner.answering)
        overall, lately = _confusion(serving), serving.watch.recent.confusion(serving.averaged)
        found = _found(serving), serving.watch.recent.found(serving.averaged)
        binary, labels = not learner.identity.multiclass, learner.identity.labels or (-1, 1)
        recalls = zip(labels, serving.counts.by_label, *(of.recalls for of in found), strict=True)
        return cls(
            model=model.name,
            identity=learner.identity,
            version=head.version,
            ahead=a.ahead,
            order=head.order,
            next={str(p): o for p, o in sorted(learner.next.items())},
            covered={str(p): ranges for p, ranges in sorted(learner.covered.items())},
            events=counts.events,
            mistakes=counts.mistakes,
            wrong_predictions=counts.wrong_predictions,
            updates=counts.updates,
            confusion=counts.confusion,
            rejected=counts.rejected,
            ignored_features=counts.ignored_features,
            skipped=counts.skipped,
            accuracy=Accuracy.of(counts.events, counts.wrong_predictions, recent.accuracy),
            average_accuracy=Accuracy.of(*averaged, recent.average_accuracy) if learner.identity.average else None,
            baseline=Share(share(max(counts.by_label), counts.events), recent.baseline),
            comparisons=[Comparison.of(pair) for pair in recent.pairs],
            balanced_accuracy=Share(*(of.balanced_accuracy for of in ((overall, lately) if binary else found))),
            labels=[Recalled(label, events, Share(*both)) for label, events, *both in recalls],
            precision=Share(overall.precision, lately.precision),
            recall=Share(overall.recall, lately.recall),
            f1=Share(overall.f1, lately.f1),
            advice=list(advice(learner).values()),
            columns=len(learner.columns),
            scaled_columns=learner.scaler.used if learner.scaler else None,
            squared_norm=learner.squared_norm,
            squared_norm_limit=learner.watch.squared_norm_limit,
            loss=margins and margins.loss,
            margins=margins and dict(zip(map(str, QUANTILES), margins.quantiles, strict=True)),
            serve=learner.answering or ("average" if learner.averaged else "last"),
            served_accuracy=Accuracy.served(serving),
            candidates=Beside.all_of(learner),
            bound=bound,
            bound_reason=bound_reason,
            digest=a.digest,
            state_digest=head.state_digest,
            saved_at=iso(head.saved_at),
            learning_here=model.learning_here,
            stopped=model.stopped or model.unusable,
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


def _confusion(learner: Classifier) -> Confusion:
    """All events by label and by the prediction of the weights that answer; empty where that is not known of all."""
    recent = learner.watch.recent
    if learner.identity.multiclass:
        return Confusion()
    negatives, positives = learner.counts.confusion
    if not learner.averaged:
        return Confusion(*negatives, *positives)
    if not isinstance(recent.missed, int) or recent.averaged.events != learner.counts.events:
        return Confusion()
    missed, false = recent.missed, recent.averaged.wrong - recent.missed
    return Confusion(sum(negatives) - false, false, missed, sum(positives) - missed)


def served_confusion(learner: Classifier) -> list[list[int]]:
    """`[truth][prediction]` of the weights that answer, where this one is asked; empty where that is not known."""
    if learner.identity.multiclass:
        return [] if learner.averaged else learner.counts.confusion
    sound, caught, missed, found = _confusion(learner)
    return [[sound, caught], [missed, found]] if sound + caught + missed + found == learner.counts.events else []


def _found(learner: Classifier) -> Found:
    """All events by label, and how many the weights that answer predicted rightly; empty where that is not known."""
    counts, classes = learner.counts, learner.identity.classes
    if classes == 2:
        sound, caught, missed, found = _confusion(learner)
        return Found([sound + caught, missed + found], [sound, found])
    if not learner.averaged:
        return Found(counts.by_label, counts.right)
    recent = learner.watch.recent
    if not isinstance(recent.missed, list) or recent.averaged.events != counts.events:
        return Found([0] * classes, [0] * classes)
    return Found(counts.by_label, [n - missed for n, missed in zip(counts.by_label, recent.missed, strict=True)])


def iso(seconds: float) -> str:
    """A time, of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
