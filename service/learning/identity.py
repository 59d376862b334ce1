"""The identity of a model: everything that changes the meaning of an event.

State is a fold of the log under an identity. Two models with equal identities and equal covered records have
equal bits, so a stored model is continued only under the identity it was learned with.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from service.learning.rules import RULES, RuleName, decide

FOLD = 2
"""Raised when decoding, hashing or the kernel change what the same record means."""

MAX_VALUE = 1e30
MAX_WEIGHT = 1e6
"""Of values and weights: larger ones are mistakes in the data, and would spend the range that sums of squares need."""
MAX_HALF_LIFE = 100_000
"""A number for each is kept at hand: a million of them would hold the event loop for 36 ms once."""
MAX_COLUMNS = 1 << 28
"""Of features in any mode: two gigabytes of weights."""
MAX_SQUARED_NORM = 1e30
"""What ‖w‖² may not exceed: a model that would go beyond diverges, or learns from values that should have been scaled.
Within it every score, step and sum is a finite number. An event that is learned means what it would without it."""

MAX_CLASSES = 1000
"""Labels of one model, each with weights of its own where there are more than two."""

Label = bool | int | float | str
LISTED = 10
"""Of the labels of a model, in a message that says which there are."""
Margin = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_VALUE)]


Mode = Literal["named", "positional", "hashed"]
"""What features are: see `columns`."""
Text = Literal["category", "ignore", "reject"]
"""What a string is, as a feature's value: the feature `name=value`, nothing, or a fault."""


SUMS = ("count", "mean", "m2")
"""What scaling keeps of each column, an array each: see `learning.scale`."""


OF_A_CANDIDATE = ("rule", "eta", "outputs", "slope", "margin", "tie", "start", "average", "half_life")
"""The members that of a candidate may be others than the model's: what an event is, all of them share."""


class Places(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """Where the parts of an event stand in a record, as JSON Pointers, and which records and features are meant."""

    features: str = "/features"
    label: str = "/label"
    weight: str | None = "/weight"
    id: str | None = "/id"
    """Of these two None where there is none."""
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Shell patterns over flattened names, before any `=value`: all features, where there are none."""
    where: dict[str, tuple[Label, ...]] = {}
    """What must stand at these pointers, one of each; other records are passed over."""


def as_json(label: Label) -> str:
    """A label as JSON."""
    return json.dumps(label, ensure_ascii=False)


def as_text(label: Label) -> str:
    """A label as text: a string as it is, anything else as JSON."""
    return label if isinstance(label, str) else as_json(label)


def listed(labels: Sequence[Label]) -> str:
    """Labels as JSON, of many the first of them."""
    more = f" and {len(labels) - LISTED:,} more" if len(labels) > LISTED else ""
    return ", ".join(map(as_json, labels[:LISTED])) + more


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """Rule, features, labels and acceptance limits of one model. Plain JSON values only."""

    fold: int = FOLD
    rule: RuleName = "perceptron"
    eta: float = 1.0
    outputs: Literal["bipolar", "binary"] | None = None
    """Of error-correction alone."""
    slope: float | None = None
    """Of logistic-delta alone: a."""
    margin: tuple[Margin, Margin] | msgspec.UnsetType = msgspec.UNSET
    """Of the perceptron alone, by label, negative first: an event with y·s <= its margin is an update too.

    Unset where both are 0, and then not written: such a model has the digest that it had before there were any."""
    tie: Literal["negative", "positive"] = "negative"
    """What s = 0 predicts."""
    start: str = "zero"
    """Where the weights begin: `zero`, `random:SEED` or `weights:DIGEST`; `learning.start` has what these are."""
    average: bool | Literal["recent"] = False
    """Which average is kept beside the weights: none, the mean, or one that forgets: see `learning.average`."""
    half_life: Annotated[int, msgspec.Meta(ge=1, le=MAX_HALF_LIFE)] | None = None
    """Of the recent average alone: after so many events a weight counts half in it."""
    features: Mode = "named"
    dimension: int | None = None
    bits: int | None = None
    text: Text = "category"
    event: Places = Places()
    scale: Literal["none", "standard"] = "none"
    """Whether numbers are learned as they are, or by their distance from the running mean: see `learning.scale`."""
    labels: Annotated[tuple[Label, ...], msgspec.Meta(min_length=2, max_length=MAX_CLASSES)] | None = None
    max_record_bytes: int = 1 << 20
    max_features: int = 10_000
    max_name_bytes: int = 256
    max_columns: int | None = 1 << 20

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of what a learner stores."""
        own = ["w", "late"] if self.average else ["w"]
        if self.multiclass:
            own = [f"{name}/{k}" for name in own for k in range(self.classes)]
        return (*own, *(SUMS if self.scale == "standard" else ()))

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return len(self.labels or (-1, 1))

    @property
    def multiclass(self) -> bool:
        """Whether each label has weights of its own, as of three and more it has: see `kernel`."""
        return self.labels is not None and len(self.labels) > 2

    @property
    def parameter(self) -> float:
        """What its rule's step is scaled by: see `rules.Rule`."""
        return RULES[self.rule].parameter(self)

    @property
    def margins(self) -> tuple[float, float]:
        """Up to which y·s events of the negative label, and of the positive one, are updates: 0 and 0 by default."""
        return (0.0, 0.0) if self.margin is msgspec.UNSET else self.margin

    def text_of(self, label: Label) -> str:
        """A label as text; as JSON if another label has the same text, as 1 and "1"."""
        text = as_text(label)
        return as_json(label) if [as_text(each) for each in self.labels or ()].count(text) > 1 else text

    def place(self, text: str) -> int | None:
        """Which label a text means: one that is this as JSON, or this string; None where there is none."""
        for form in (as_json, as_text):
            if text in (forms := [form(label) for label in self.labels or (-1, 1)]):
                return forms.index(text)
        return None

    def decide(self, s: Any) -> Any:
        """Whether a score, or each of an array, predicts the positive label."""
        return decide(s, self.tie == "positive")

    def differences(self, stored: "Identity") -> list[str]:
        """One `name: stored -> ours` for each member that differs, `event.name` within it; the margins may be unset."""
        # As JSON: Python takes true and 1 for equal, and they are different labels.
        ours, theirs = (
            {
                ".".join(name): msgspec.json.encode(v).decode()
                for member, own in msgspec.to_builtins(identity).items()
                for *name, v in ([(member, k, v) for k, v in own.items()] if isinstance(own, dict) else [(member, own)])
            }
            for identity in (self, stored)
        )
        every = {k: (theirs.get(k, "unset"), ours.get(k, "unset")) for k in ours | theirs}
        return [f"{k}: {there} -> {here}" for k, (there, here) in every.items() if here != there]
