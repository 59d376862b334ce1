"""The identity of a model: every setting that changes what an event means.

State is a fold of the log under an identity. Two models with equal identities and equal covered records have equal
bits, so a stored model continues only under the identity that it was learned with, or that `perceptron amend` gave it.
"""

import json
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

import msgspec

from service.learning.rules import RULES, RuleName, decide

FOLD = 2
"""The version of what a record means: it rises when decoding, hashing or the kernel change that."""

MAX_VALUE = 1e30
MAX_WEIGHT = 1e6
"""The largest value and weight of an event: a larger one is a mistake in the data, and its square could overflow."""
MAX_HALF_LIFE = 100_000
"""Events. A table has a number for each of them: for a million it would hold the event loop for 36 ms (measured)."""
MAX_SQUARED_NORM = 1e30
"""The limit of ‖w‖²: a model beyond it diverges, or its values should have been scaled. Within it every score, step and
sum is finite. It changes nothing about an event that is learned."""

MAX_CLIP = 1000
MAX_CLASSES = 1000
"""The most labels of one model. With more than two, each has its own weights."""

RANDOM, FROM_FILE = "random:", "weights:"
"""The beginnings of a `start` that is random or from a file."""

Label = bool | int | float | str
MAX_LISTED_LABELS = 10
"""The most labels that a message lists."""
Margin = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_VALUE)]


Mode = Literal["named", "positional", "hashed"]
"""The kinds of features: see `columns.columns`."""
Text = Literal["category", "ignore", "reject", "number"]
"""What a string value becomes: the feature `name=value`, nothing, a rejection, or a number if it is one."""
ValueType = Literal["number", "category", "time"]
"""How a value is read, whatever it is in the record: see `events.flatten`."""


SUMS = ("count", "mean", "m2")
"""The sums of each column that scaling keeps, an array each: see `kernel.scaling`."""
NEWEST_SUMS = ("newest_count", "newest_mean", "newest_m2")
"""Those that it keeps besides with `clip`."""

OF_A_CANDIDATE = ("rule", "eta", "outputs", "slope", "margin", "tie", "start", "average", "half_life")
"""The members in which a candidate may differ from its model: both read the same events."""
AMENDABLE = ("eta", "outputs", "slope", "margin", "tie", "half_life")
"""The members that may change while a model learns: see `learner.Amendment`."""


class Places(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """The places of an event's parts in a record, as JSON Pointers, and which records and features are learned."""

    features: str = "/features"
    label: str = "/label"
    weight: str | None = "/weight"
    id: str | None = "/id"
    """`weight` and `id` are None if events have no such part."""
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Shell patterns for flattened names, before any `=value`. Without patterns all features are learned."""
    where: dict[str, tuple[Label, ...]] = {}
    """The values that a record must have at each pointer; other records are passed over."""
    types: tuple[tuple[str, ValueType], ...] | msgspec.UnsetType = msgspec.UNSET
    """Shell patterns, as above, and the type of the values that they match; the first match counts."""
    nan: Literal["absent"] | msgspec.UnsetType = msgspec.UNSET
    """Unset if a feature that is NaN is rejected."""


class JoinRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """How events are joined with labels that come later. Times are in milliseconds."""

    id: str
    label: str | None
    """The pointers in a label record; the label is None if `label_value` is the label of each."""
    label_value: Label | None
    where: dict[str, tuple[Label, ...]]
    own_topic: bool
    """Whether labels have a topic of their own. In a shared one a record without features is a label record."""
    window: int
    default_label: Label | None
    waits_for_labels: bool
    """Whether no window closes before labels have come that far."""
    max_held: int


def label_as_json(label: Label) -> str:
    """A label as JSON."""
    return json.dumps(label, ensure_ascii=False)


def as_text(label: Label) -> str:
    """A label as text: a string as it is, anything else as JSON."""
    return label if isinstance(label, str) else label_as_json(label)


def listed(labels: Sequence[Label]) -> str:
    """Labels as JSON, the first MAX_LISTED_LABELS of them."""
    more = f" and {len(labels) - MAX_LISTED_LABELS:,} more" if len(labels) > MAX_LISTED_LABELS else ""
    return ", ".join(map(label_as_json, labels[:MAX_LISTED_LABELS])) + more


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """Rule, features, labels and acceptance limits of one model. Plain JSON values only."""

    fold: int = FOLD
    rule: RuleName = "perceptron"
    eta: float = 1.0
    outputs: Literal["bipolar", "binary"] | None = None
    """Only for error-correction."""
    slope: float | None = None
    """Only for logistic-delta: the a of the logistic function of a·s."""
    margin: tuple[Margin, Margin] | msgspec.UnsetType = msgspec.UNSET
    """Only for the perceptron: the margin of each label, negative first. An event with y·s <= its margin is an update.

    If both are 0 it is unset and not written: such a model keeps the digest that it had before margins existed."""
    tie: Literal["negative", "positive"] = "negative"
    """The label that s = 0 predicts."""
    start: str = "zero"
    """The first weights: zero, random, or those of a file.

    `zero`            every column begins at 0
    `random:SEED`     column c begins at a number in [-1, 1) that depends on SEED and c alone
    `weights:DIGEST`  the weights of a file: see `weights_file.WeightsFile`
    """
    average: bool | Literal["recent"] = False
    """The average that is kept next to the weights: none, the mean, or one that forgets; see `kernel.kernel`."""
    half_life: Annotated[int, msgspec.Meta(ge=1, le=MAX_HALF_LIFE)] | None = None
    """Only for the recent average: the number of events after which a weight counts half."""
    features: Mode = "named"
    dimension: int | None = None
    bits: int | None = None
    text: Text = "category"
    event: Places = Places()
    scale: Literal["none", "standard"] = "none"
    """Whether numbers are learned as they are, or as distances from the running mean: see `kernel.scaling`."""
    clip: Annotated[float, msgspec.Meta(ge=1.0, le=MAX_CLIP)] | msgspec.UnsetType = msgspec.UNSET
    """Only for `standard`: the standard deviations from the mean that a number counts as at most."""
    labels: Annotated[tuple[Label, ...], msgspec.Meta(min_length=2, max_length=MAX_CLASSES)] | None = None
    spellings: tuple[tuple[Label, ...], ...] | msgspec.UnsetType = msgspec.UNSET
    """The other values that mean each of `labels`; unset if there are none."""
    max_record_bytes: int = 1 << 20
    max_features: int = 10_000
    max_name_bytes: int = 256
    max_columns: int | None = 1 << 20
    unlabelled: Literal["skip"] | msgspec.UnsetType = msgspec.UNSET
    """Unset if an event without a label is rejected or held."""
    once: int | msgspec.UnsetType = msgspec.UNSET
    """Milliseconds of stream time within which an id is learned once."""
    join: JoinRules | msgspec.UnsetType = msgspec.UNSET

    @property
    def needs_ids(self) -> bool:
        """Whether each event must have an id."""
        return self.once is not msgspec.UNSET or self.join is not msgspec.UNSET

    @property
    def reach_ms(self) -> int:
        """How far back records are remembered, in milliseconds of their timestamps; 0 without `join` and `once`."""
        window, once = self.join.window if self.join else 0, self.once or 0
        return max(2 * window, once) + window if self.join else 2 * once

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the arrays that a learner stores."""
        return (*self.weight_arrays, *self.sums)

    @property
    def sums(self) -> tuple[str, ...]:
        """The names of the arrays by which numbers are scaled, of columns each; empty if they are not scaled."""
        return () if self.scale == "none" else SUMS if self.clip is msgspec.UNSET else (*SUMS, *NEWEST_SUMS)

    @property
    def weight_arrays(self) -> list[str]:
        """The stored names of the arrays of weights: w, and `late`, the accumulator of an average if there is one.

        With three labels or more each label has its own.
        """
        names = ["w", "late"] if self.average else ["w"]
        return [f"{name}/{k}" for name in names for k in range(self.classes)] if self.multiclass else names

    @property
    def classes(self) -> int:
        """The number of labels."""
        return len(self.labels or (-1, 1))

    @property
    def spelled_labels(self) -> list[tuple[Label, ...]]:
        """The values that mean each of `labels`, the label itself first; empty if no labels are set."""
        labels = self.labels or ()
        return [(label, *others) for label, others in zip(labels, self.spellings or ((),) * len(labels), strict=True)]

    @property
    def multiclass(self) -> bool:
        """Whether there are three labels or more, so that each has its own weights: see `kernel`."""
        return self.labels is not None and len(self.labels) > 2

    @property
    def parameter(self) -> float:
        """The factor of the rule's step: see `rules.Rule`."""
        return RULES[self.rule].parameter(self)

    @property
    def margins(self) -> tuple[float, float]:
        """The largest y·s at which an event of the negative and of the positive label is an update; by default 0."""
        return (0.0, 0.0) if self.margin is msgspec.UNSET else self.margin

    def text_of(self, label: Label) -> str:
        """A label as text, or as JSON if another label has the same text, such as 1 and "1"."""
        text = as_text(label)
        return label_as_json(label) if [as_text(each) for each in self.labels or ()].count(text) > 1 else text

    def label_index(self, text: str) -> int | None:
        """The index of the label with this text, as JSON or as a string; None if there is no such label."""
        texts = [write(label) for write in (label_as_json, as_text) for label in self.labels or (-1, 1)]
        return texts.index(text) % self.classes if text in texts else None

    def decide(self, s: Any) -> Any:
        """Whether a score, or each of an array, predicts the positive label."""
        return decide(s, self.tie == "positive")

    def differences(self, stored: "Identity", without: Collection[str] = ()) -> list[str]:
        """`name: stored -> ours` for each member that differs; members of the event are named `event.name`.

        The members `without` are left out.
        """
        ours, theirs = self._as_text(), stored._as_text()
        names = [name for name in ours | theirs if ours.get(name) != theirs.get(name) and name not in without]
        return [f"{name}: {theirs.get(name, 'unset')} -> {ours.get(name, 'unset')}" for name in names]

    def _as_text(self) -> dict[str, str]:
        """Each member as JSON, since true and 1 are different labels but equal in Python."""
        members = msgspec.to_builtins(self)
        members |= {f"event.{name}": value for name, value in members.pop("event").items()}
        return {name: msgspec.json.encode(value).decode() for name, value in members.items()}
