"""`[model]` and `[models.NAME]`: how a model learns, and how it is watched and served."""

import json
import re
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from service.errors import ConfigurationError
from service.learning.identity import (
    MAX_CLASSES,
    MAX_COLUMNS,
    MAX_HALF_LIFE,
    MAX_VALUE,
    OF_A_CANDIDATE,
    Identity,
    Places,
    Text,
)
from service.learning.options import OWN_WEIGHTS, Beside, Options
from service.learning.rules import RULES, RuleName
from service.learning.start import RANDOM
from service.learning.weights import Weights, read
from service.settings.pointers import Pointer, PointerOrRecord
from service.settings.section import Section
from service.settings.words import short

HALF_LIFE = 1000
"""The default, in events."""
OF_A_RULE = ("eta", "outputs", "slope", "margin", "tie")
"""What a candidate of another rule does not take over."""
TAKEN = (*OWN_WEIGHTS, "baseline")
"""What else predicts."""
_NAME = re.compile("[A-Za-z0-9_-]{1,64}")

Label = StrictBool | StrictInt | StrictFloat | StrictStr


def _json(value: Any, expected: str) -> Any:
    """What the environment has as text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(
            f"expected {expected}, got {short(value)} (a variable of the environment has it as JSON)"
        ) from None


def _of_each_label(value: Any) -> Any:
    value = _json(value, "a number, or [negative, positive]")
    given = value if isinstance(value, (list, tuple)) else [value, value]
    if len(given) != 2 or not all(type(one) in {int, float} and 0 <= one <= MAX_VALUE for one in given):
        raise ValueError(f"expected a number from 0 to {MAX_VALUE:g}, or [negative, positive], got {short(value)}")
    return given


def _spelt(value: Any) -> Any:
    with suppress(ValidationError):
        return TypeAdapter(bool).validate_python(value)
    return value


Margin = Annotated[
    tuple[float, float] | None,
    BeforeValidator(_of_each_label, json_schema_input_type=float | tuple[float, float] | None),
]
Average = Literal[False, True, "recent"]


class EventSettings(Section):
    """`[models.NAME.event]`: where the parts of an event stand in a record, and what of it is meant: identity."""

    features: PointerOrRecord = Field(
        "/features", description='a JSON Pointer, such as /after/x, as the next three; here alone "", the whole record'
    )
    label: Pointer = Field("/label", description="must be there")
    weight: Pointer | Literal[False] = Field("/weight", description="false where there is none")
    id: Pointer | Literal[False] = Field("/id", description="false where there is none")
    only: tuple[str, ...] = Field((), description='patterns over flattened names, such as "user.*"; none: all')
    without: tuple[str, ...] = Field((), description="patterns of features to leave out")
    where: dict[Pointer, Label | list[Label]] = Field(
        {}, description="a value, or one of a list, for each pointer; other records are passed over"
    )

    @model_validator(mode="after")
    def _parts_differ(self) -> "EventSettings":
        parts = [self.features, *(part for part in (self.label, self.weight, self.id) if part)]
        for outer in parts[1:]:
            if sum(f"{part}/".startswith(f"{outer}/") for part in parts) > 1:
                raise ValueError(f"{outer} stands for two parts of the event, or holds another")
        if empty := [at for at, value in self.where.items() if value == []]:
            raise ValueError(f"where {empty[0]}: expected a value, or some: of none every record is passed over")
        return self

    def places(self) -> Places:
        """What the identity says of it."""
        return Places(
            features=self.features,
            label=self.label,
            weight=self.weight or None,
            id=self.id or None,
            only=self.only,
            without=self.without,
            where={
                at: tuple(map(_by_value, value if isinstance(value, list) else [value]))
                for at, value in sorted(self.where.items())
            },
        )


class CandidateSettings(Section):
    """`[models.NAME.candidates.NAME]`: what is learned side by side with the model, with other settings.

    What is unset is what the model says; of another rule than the model's, what belongs to a rule is that one's own.
    """

    rule: RuleName | None = None
    eta: float | None = Field(None, gt=0, le=1000)
    outputs: Literal["bipolar", "binary"] | None = None
    slope: float | None = Field(None, gt=0, le=1000)
    margin: Margin = None
    tie: Literal["negative", "positive"] | None = None
    average: Annotated[Average | None, BeforeValidator(_spelt)] = None
    half_life: int | None = Field(None, ge=1, le=MAX_HALF_LIFE)
    serve: Literal["last", "average"] = Field("last", description="which of its weights it predicts with")


class ModelSettings(Section):
    """`[model]`, the defaults of all models, and `[models.NAME]`. All but the last six is identity."""

    features: Literal["named", "positional", "hashed"] = Field("named", description="how features become columns")
    dimension: int | None = Field(None, ge=1, le=1 << 24, description="how many numbers an event has, of positional")
    bits: int | None = Field(None, ge=1, le=24, description="of hashed: 2^bits columns")
    rule: RuleName = Field("perceptron", description="how an event changes the weights")
    eta: float | None = Field(None, gt=0, le=1000, description="the learning rate; none: the rule's own")
    outputs: Literal["bipolar", "binary"] | None = Field(None, description="of error-correction: steps by 2η, or by η")
    slope: float | None = Field(None, gt=0, le=1000, description="of logistic-delta: the sigmoid's steepness")
    margin: Margin = Field(None, description="an update also where y·s <= margin: a number, or [negative, positive]; 0")
    tie: Literal["negative", "positive"] | None = Field(
        None, description="what a score of 0 predicts; none: the rule's"
    )
    start: str = Field("zero", description='"zero", "random:SEED", or a file that `perceptron export` or `fit` wrote')
    average: Annotated[Average, BeforeValidator(_spelt)] = Field(
        default=False, description='true keeps the mean of the weights too, "recent" one that forgets'
    )
    half_life: int | None = Field(None, ge=1, le=MAX_HALF_LIFE, description="of the recent average, in events; 1,000")
    weights: dict[str, float] | list[float] | None = Field(None, description="of threshold-unit: given, never learned")
    threshold: float | None = Field(None, description="of threshold-unit: positive where w·x is beyond it")
    text: Text = Field("category", description="what strings are, as features: `name=value`, or not there, or a fault")
    event: EventSettings = EventSettings()
    scale: Literal["none", "standard"] = Field(
        "none", description='"standard": numbers are learned as (value - running mean) / running standard deviation'
    )
    labels: tuple[Label, ...] | None = Field(
        None, description="two, the negative one first, or up to 1,000; then each has weights of its own"
    )
    max_record_bytes: int = Field(1 << 20, ge=1, le=1 << 30, description="a larger record is rejected")
    max_features: int = Field(10_000, ge=1, description="values in an event's features; more are rejected")
    max_name_bytes: int = Field(256, ge=1, description="of a feature's name; a longer one is rejected")
    max_columns: int = Field(1 << 20, ge=1, le=MAX_COLUMNS, description="of named; features beyond are ignored")
    max_model_bytes: int = Field(1 << 30, ge=1, description="of positional and hashed weights; more are refused")
    window: int = Field(1000, ge=1, le=1_000_000, description="recent events that figures are taken over")
    serve: str = Field("last", description='which weights answer: "last", "average", or a candidate\'s name')
    bound: bool = Field(default=True, description="whether the live mistake bound is kept")
    reference: str | None = Field(None, description="a file of weights, as for `start`")
    candidates: dict[str, CandidateSettings] = Field(
        {}, max_length=16, description="learned side by side with the model, by name; at most 16"
    )

    @field_validator("labels", mode="before")
    @classmethod
    def _labels_as_text(cls, value: Any) -> Any:
        return _json(value, 'a list, such as ["no", "yes"]')

    @field_validator("weights", mode="before")
    @classmethod
    def _weights_as_text(cls, value: Any) -> Any:
        return _json(value, "a list, such as [1, -2], or a table, such as { age = 1 }")

    @field_validator("labels", mode="after")
    @classmethod
    def _labels_differ(cls, labels: tuple[Label, ...] | None) -> tuple[Label, ...] | None:
        if labels is not None and not 2 <= len(labels) <= MAX_CLASSES:
            raise ValueError(f"expected from 2 to {MAX_CLASSES:,} labels, got {len(labels):,}")
        seen = set[tuple[bool, Label]]()
        for label in labels or ():
            if (one := (isinstance(label, bool), label)) in seen:
                raise ValueError(f"the labels must differ: {short(label)} is there twice")
            seen.add(one)
        return labels

    @model_validator(mode="after")
    def _mode_fits(self) -> "ModelSettings":
        for mode, name in (("positional", "dimension"), ("hashed", "bits")):
            given = getattr(self, name) is not None
            if (self.features == mode) != given:
                raise ValueError(
                    f'features = "{self.features}" {"takes no" if given else "needs"} {name}'
                    + (f' (it belongs to features = "{mode}")' if given else f", such as {name} = 20")
                )
        places = self.event.places()
        inside = [
            one for one in (places.label, places.weight, places.id) if (one or "").startswith(f"{places.features}/")
        ]
        if self.features == "positional" and (places.features == "" or inside or places.only or places.without):
            raise ValueError(
                'features = "positional" takes a list: event.features cannot be "" or hold other parts, and it has no '
                "names for patterns"
            )
        if self.features == "positional" and (self.dimension or 0) > self.max_features:
            raise ValueError(f"dimension = {self.dimension} is more than max_features = {self.max_features}")
        return self

    @model_validator(mode="after")
    def _rule_fits(self) -> "ModelSettings":
        for other, its in RULES.items():
            for name in its.settings if other != self.rule else ():
                if getattr(self, name) is not None:
                    raise ValueError(f'rule = "{self.rule}" takes no {name} (it belongs to rule = "{other}")')
        if not self.rate < (below := RULES[self.rule].eta_below):
            raise ValueError(f'rule = "{self.rule}" needs 0 < eta < {below:g}')
        if self.rule == "threshold-unit":
            if self.weights is None or self.threshold is None:
                raise ValueError('rule = "threshold-unit" needs weights and a threshold')
            if self.features == "hashed" or (self.features == "positional") != isinstance(self.weights, list):
                raise ValueError(f'features = "{self.features}" does not fit weights: by name they are named features')
            if self.average or self.start != "zero" or self.scale != "none":
                raise ValueError('rule = "threshold-unit" never learns: it takes no start, no average and no scale')
        if self.labels and len(self.labels) > 2:
            if not RULES[self.rule].classes:
                able = " or ".join(f'"{name}"' for name, rule in RULES.items() if rule.classes)
                raise ValueError(f'rule = "{self.rule}" is of two labels: for {len(self.labels):,} take rule = {able}')
            for name in ("margin", "tie", "reference"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is of two labels: with {len(self.labels):,} there is none")
            if not (self.start == "zero" or _seeded(self.start)):
                raise ValueError(f'start: with {len(self.labels):,} labels it is "zero" or "random:SEED"')
        if self.scale == "standard" and not (self.start == "zero" or _seeded(self.start)):
            raise ValueError('scale = "standard" takes no given start: those weights are of other means and deviations')
        if self.serve == "average" and not self.average:
            raise ValueError('serve = "average" needs average = true or "recent"')
        if self.half_life is not None and self.average != "recent":
            raise ValueError('half_life needs average = "recent"')
        try:
            self._start, self._reference  # noqa: B018 - read now, so that a bad file is a bad setting
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _candidates_fit(self) -> "ModelSettings":
        own = self.identity()
        for name, candidate in self.candidates.items():
            if not _NAME.fullmatch(name) or name in TAKEN:
                raise ValueError(
                    f"candidates: {name!r} is no name of one: letters, digits, '-' and '_', at most 64, and none of "
                    f"{', '.join(TAKEN)}"
                )
            try:
                identity = self._of(candidate)
            except ValidationError as error:
                raise ValueError(
                    f"candidates.{name}: {error.errors()[0]['msg'].removeprefix('Value error, ')}"
                ) from None
            if identity == own:
                raise ValueError(f"candidates.{name}: it is the model itself: give it another rule, eta, margin, …")
        known = (*OWN_WEIGHTS, *self.candidates)
        if self.serve not in known:
            raise ValueError(f"serve: there is no candidate {self.serve!r}: expected one of {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> "ModelSettings":
        columns = self.dimension or 1 << (self.bits or 0)  # names come one by one
        identities = [self.identity(), *(self._of(candidate) for candidate in self.candidates.values())]
        vectors = sum((each.classes if each.multiclass else 1) * (2 if each.average else 1) for each in identities)
        needed = 8 * columns * vectors
        if needed > self.max_model_bytes:
            raise ValueError(
                f"the weights need {needed:,} bytes, and max_model_bytes is {self.max_model_bytes:,}: raise it, or "
                "take fewer columns, labels or candidates"
            )
        return self

    def _of(self, candidate: CandidateSettings) -> Identity:
        """The identity of a candidate: see CandidateSettings."""
        given = {name: value for name, value in candidate if value is not None}
        rule, average = given.get("rule", self.rule), given.get("average", self.average)
        if "threshold-unit" in (rule, self.rule):
            raise ValueError("candidates: a threshold-unit never learns: it is none and has none")
        left_out = {"candidates", "start", "reference", *(OF_A_RULE if rule != self.rule else ())}
        if average != "recent":
            left_out.add("half_life")
        own = self.model_dump(exclude_unset=True, exclude=left_out)
        start = {"start": self.start} if _seeded(self.start) else {}  # given weights are the model's alone
        identity = ModelSettings(**{**own, **start, **given}).identity()
        return msgspec.structs.replace(self.identity(), **{name: getattr(identity, name) for name in OF_A_CANDIDATE})

    @property
    def rate(self) -> float:
        """η: the one that is set, or the rule's default."""
        return RULES[self.rule].eta if self.eta is None else self.eta

    @property
    def _margins(self) -> tuple[float, float] | msgspec.UnsetType:
        """Of both labels, unset where there are none."""
        negative, positive = self.margin or (0.0, 0.0)
        return (negative + 0.0, positive + 0.0) if negative or positive else msgspec.UNSET  # no -0

    @cached_property
    def _start(self) -> Weights | None:
        if self.weights is not None:
            bias = -(self.threshold or 0.0)
            if isinstance(self.weights, dict):
                return Weights(list(self.weights.values()), bias, list(self.weights))
            return Weights(self.weights, bias)
        if self.start == "zero" or _seeded(self.start):
            return None
        if self.start.startswith(RANDOM):
            raise ConfigurationError("start: random:SEED needs a whole number below 2^64 for SEED")
        return self._read("start", self.start)

    @cached_property
    def _reference(self) -> Weights | None:
        return self._read("reference", self.reference) if self.reference is not None else None

    def _read(self, name: str, file: str) -> Weights:
        try:
            raw = Path(file).read_bytes()
        except OSError as error:
            others = ': expected "zero", "random:SEED" or a file of weights' if name == "start" else ""
            raise ConfigurationError(f"{name}: {file}: {error.strerror}{others}") from None
        weights = read(raw, f"{name}: {file}", self.features, self.scale)
        expected = {"positional": self.dimension, "hashed": 1 << (self.bits or 0)}.get(self.features)
        if (weights.names is None) == (self.features == "named") or expected not in {None, len(weights.coef)}:
            what = {"named": "a name for each weight", "positional": f"{self.dimension} weights without names"}
            needed = what.get(self.features, f"{1 << (self.bits or 0):,} weights without names")
            raise ConfigurationError(f"{name}: {file}: {self.features} features need {needed}")
        return weights

    def start_weights(self) -> Weights | None:
        """The weights that the model begins with, where they are given ones."""
        return self._start

    def options(self) -> Options:
        """How the model is watched and served."""
        beside = {name: Beside(self._of(one), one.serve) for name, one in self.candidates.items()}
        return Options(self.window, self.serve, self.bound, self._reference, beside)

    def identity(self) -> Identity:
        """What the stored model must have been learned with."""
        given, rule = self._start, RULES[self.rule]
        return Identity(
            rule=self.rule,
            eta=self.rate,
            outputs=self.outputs or rule.settings.get("outputs"),
            slope=self.slope or rule.settings.get("slope"),
            margin=self._margins,
            tie=self.tie or rule.tie,
            start=given.identity if given else self.start,
            average=self.average,
            half_life=(self.half_life or HALF_LIFE) if self.average == "recent" else None,
            features=self.features,
            dimension=self.dimension,
            bits=self.bits,
            text=self.text,
            event=self.event.places(),
            scale=self.scale,
            labels=self.labels and tuple(map(_by_value, self.labels)),
            max_record_bytes=self.max_record_bytes,
            max_features=self.max_features,
            max_name_bytes=self.max_name_bytes,
            max_columns=self.max_columns if self.features == "named" else None,
        )


def _seeded(text: str) -> bool:
    seed = text.removeprefix(RANDOM)
    return seed != text and seed.isascii() and seed.isdigit() and int(seed) < 1 << 64


def _by_value(label: Label) -> Label:
    """A label with 1.0 written as 1: numbers are the same by value."""
    return int(label) if isinstance(label, float) and label.is_integer() else label
