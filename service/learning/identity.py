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
"""The largest values and weights: larger ones are mistakes in the data, and their squares could overflow in sums."""
MAX_HALF_LIFE = 100_000
"""Events. A table has a number for each: one of a million would hold the event loop for 36 ms once."""
MAX_COLUMNS = 1 << 28
"""The most features in any mode: two gigabytes of weights."""
MAX_SQUARED_NORM = 1e30
"""The limit of ‖w‖²: a model beyond it diverges, or learns from values that should have been scaled. Within it every
score, step and sum is finite, and it changes nothing about an event that is learned."""

MAX_CLASSES = 1000
"""Labels of one model; if there are more than two, each has weights of its own."""

Label = bool | int | float | str
LISTED = 10
"""Labels that a message lists at most."""
Margin = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_VALUE)]


Mode = Literal["named", "positional", "hashed"]
"""The kinds of features: see `columns`."""
Text = Literal["category", "ignore", "reject"]
"""What becomes of a string value: the feature `name=value`, nothing, or a rejection."""


SUMS = ("count", "mean", "m2")
"""The sums of each column that scaling keeps, an array each: see `learning.scale`."""


OF_A_CANDIDATE = ("rule", "eta", "outputs", "slope", "margin", "tie", "start", "average", "half_life")
"""The members in which a candidate may differ from the model: they share what an event is."""


class Places(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """Where the parts of an event stand in a record, as JSON Pointers, and which records and features are meant."""

    features: str = "/features"
    label: str = "/label"
    weight: str | None = "/weight"
    id: str | None = "/id"
    """`weight` and `id` are None if the events have none."""
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Shell patterns over flattened names, before any `=value`; without patterns all features are meant."""
    where: dict[str, tuple[Label, ...]] = {}
    """At each pointer one of these values must stand; other records are passed over."""


def identity_as_json(label: Label) -> str:
    """A label as JSON."""
    return json.dumps(label, ensure_ascii=False)


def as_text(label: Label) -> str:
    """A label as text: a string as it is, anything else as JSON."""
    return label if isinstance(label, str) else identity_as_json(label)


def listed(labels: Sequence[Label]) -> str:
    """Labels as JSON; of many, the first ones."""
    more = f" and {len(labels) - LISTED:,} more" if len(labels) > LISTED else ""
    return ", ".join(map(identity_as_json, labels[:LISTED])) + more


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False, forbid_unknown_fields=True):
    """Rule, features, labels and acceptance limits of one model. Plain JSON values only."""

    fold: int = FOLD
    rule: RuleName = "perceptron"
    eta: float = 1.0
    outputs: Literal["bipolar", "binary"] | None = None
    """Only for error-correction."""
    slope: float | None = None
    """Only for logistic-delta: a."""
    margin: tuple[Margin, Margin] | msgspec.UnsetType = msgspec.UNSET
    """Only for the perceptron, by label, negative first: an event with y·s <= its margin is an update too.

    Unset if both are 0, and then not written: such a model keeps the digest it had before margins existed."""
    tie: Literal["negative", "positive"] = "negative"
    """The label that s = 0 predicts."""
    start: str = "zero"
    """The first weights: `zero`, `random:SEED` or `weights:DIGEST`; see `learning.start`."""
    average: bool | Literal["recent"] = False
    """Which average is kept next to the weights: none, the mean, or one that forgets; see `learning.average`."""
    half_life: Annotated[int, msgspec.Meta(ge=1, le=MAX_HALF_LIFE)] | None = None
    """Only for the recent average: the events after which a weight counts half in it."""
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
        """The names of the arrays that a learner stores."""
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
        """Whether each label has weights of its own, which is so with three and more: see `kernel`."""
        return self.labels is not None and len(self.labels) > 2

    @property
    def parameter(self) -> float:
        """The factor of the rule's step: see `rules.Rule`."""
        return RULES[self.rule].parameter(self)

    @property
    def margins(self) -> tuple[float, float]:
        """The y·s up to which events of the negative and of the positive label are updates: 0 and 0 by default."""
        return (0.0, 0.0) if self.margin is msgspec.UNSET else self.margin

    def text_of(self, label: Label) -> str:
        """A label as text; as JSON if another label has the same text, as 1 and "1"."""
        text = as_text(label)
        return identity_as_json(label) if [as_text(each) for each in self.labels or ()].count(text) > 1 else text

    def place(self, text: str) -> int | None:
        """The place of the label that a text means, as JSON or as a string; None if there is no such label."""
        for form in (identity_as_json, as_text):
            if text in (forms := [form(label) for label in self.labels or (-1, 1)]):
                return forms.index(text)
        return None

    def decide(self, s: Any) -> Any:
        """Whether a score, or each of an array, predicts the positive label."""
        return decide(s, self.tie == "positive")

    def differences(self, stored: "Identity") -> list[str]:
        """One `name: stored -> ours` for each member that differs, `event.name` within it; the margins may be unset."""
        ours, theirs = self._as_text(), stored._as_text()
        names = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
        return [f"{name}: {theirs.get(name, 'unset')} -> {ours.get(name, 'unset')}" for name in names]

    def _as_text(self) -> dict[str, str]:
        """Each member as JSON: Python takes true and 1 for equal, and they are different labels."""
        members = msgspec.to_builtins(self)
        members |= {f"event.{name}": value for name, value in members.pop("event").items()}
        return {name: msgspec.json.encode(value).decode() for name, value in members.items()}
