"""`[model]` and `[models.NAME]`: how a model learns, and how it is watched and served."""

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from service.errors import ConfigurationError
from service.learning.events.careful_reader import label_signs
from service.learning.identity import MAX_CLASSES, MAX_CLIP, MAX_HALF_LIFE, MAX_VALUE, Identity, JoinRules, Places, Text
from service.learning.options import BEST, MODEL_ITSELF, CandidateOptions, Options
from service.learning.rules import RULES, RuleName
from service.learning.weights_file import WeightsFile, read_weights
from service.settings.section import Section
from service.text import format_error, short_json

MAX_COLUMNS = 1 << 28
"""The most features in any mode: their weights take two gigabytes."""
HALF_LIFE_EVENTS = 1000
"""The default of `half_life`."""
RULE_SETTINGS = ("eta", "outputs", "slope", "margin", "tie")
"""Settings of the model that a candidate with another rule does not take over."""
_CANDIDATE_NAME = re.compile("(?!(last|average|best|baseline|previous)$)[A-Za-z0-9_-]{1,64}")
"""The reserved names are those of the model's own weights and of the baselines, and `best`."""
TOPIC_NAME = "topic name (at most 236 of A-Z a-z 0-9 . _ -)"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,236}")  # with .dead-letters it has Kafka's 249
_RANDOM_START = re.compile("random:[0-9]{1,19}")
_POINTER = re.compile("(/([^~\0]|~[01])*)?")
DURATION = re.compile("([0-9]{1,9})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def is_topic(name: str) -> bool:
    """Whether a topic, and so a model, can have this name."""
    return bool(_TOPIC.fullmatch(name)) and name not in {".", ".."}


def _topic(name: str) -> str:
    if not is_topic(name):
        raise ValueError(f"'{name}' is not a {TOPIC_NAME}")
    return name


def _pointer(text: str) -> str:
    if not _POINTER.fullmatch(text):
        meant = "/" + text.strip("./").replace(".", "/")  # a feature's name has dots
        raise ValueError(f"expected a JSON Pointer, got {short_json(text)}: perhaps {short_json(meant)}")
    return text


def _duration(text: str) -> str:
    if not (match := DURATION.fullmatch(text)) or not int(match[1]):
        raise ValueError(f'expected a number with s, m, h or d, such as "10m", got {short_json(text)}')
    return text


def milliseconds(duration: str) -> int:
    """The length of a duration.

    >>> milliseconds("10m")
    600000
    """
    return int(duration[:-1]) * _UNIT_MS[duration[-1]]


def canonical_label(label: Any) -> Any:
    """The label with 1.0 written as 1: equal numbers are one label."""
    return int(label) if isinstance(label, float) and label.is_integer() else label


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, bool | int | float | str) else value


Duration = Annotated[str, AfterValidator(_duration)]
"""A length of time: a number with `s`, `m`, `h` or `d`."""
Pointer = Annotated[str, Field(min_length=1), AfterValidator(_pointer)]
LabelSetting = Annotated[bool | int | float | str, AfterValidator(canonical_label)]
LabelSpellings = Annotated[tuple[LabelSetting, ...], Field(min_length=1)]
"""Values that mean one label, which the first of them names."""
OneMargin = Annotated[float, Field(ge=0, le=MAX_VALUE)]
Average = bool | Literal["recent"]
Where = dict[Pointer, Annotated[tuple[LabelSetting, ...], Field(min_length=1), BeforeValidator(_as_list)]]
"""For each JSON Pointer the allowed values; a single one needs no list."""


class EventSettings(Section):
    """`[models.NAME.event]`: the places of an event's parts in a record, and which features and records are learned."""

    features: Annotated[str, AfterValidator(_pointer)] = "/features"
    """A JSON Pointer, such as `/after/x`, to the features; `""` is the whole record."""
    label: Pointer = "/label"
    """A JSON Pointer to the label, which every event has."""
    weight: Pointer | Literal[False] = "/weight"
    """A JSON Pointer to the event's weight; false if events have none."""
    id: Pointer | Literal[False] = "/id"
    """A JSON Pointer to the event's id; false if events have none."""
    only: tuple[str, ...] = ()
    """Patterns of the flattened names to learn, such as `"user.*"`; default: all."""
    without: tuple[str, ...] = ()
    """Patterns of features to leave out."""
    types: dict[str, Literal["number", "category", "time"]] = Field({})
    """How values are read: `{ "amount*" = "number", "zip" = "category", "at" = "time" }`; the first match counts."""
    nan: Literal["reject", "absent"] = "reject"
    """What a feature is that is NaN, or the string `"NaN"`: `"absent"` is as if it were missing."""
    where: Where = Field({})
    """For each JSON Pointer a value, or a list of values; records with other values are skipped."""
    unlabelled: Literal["reject", "skip"] = "reject"
    """What happens to an event whose label is null or absent; with a `join` table it is held."""
    once: Duration | None = None
    """The span of record timestamps within which an id is learned once, such as `"1h"`."""
    order: Literal["arrival", "time"] = "arrival"
    """`"time"` merges the partitions by timestamp, as `join` and `once` do."""

    @model_validator(mode="after")
    def _parts_differ(self) -> "EventSettings":
        parts = [self.features, *(part for part in (self.label, self.weight, self.id) if part)]
        for outer in parts[1:]:
            if sum(f"{part}/".startswith(f"{outer}/") for part in parts) > 1:  # it is one of them itself
                raise ValueError(f"{outer} is the place of two parts of the event, or contains another")
        if "*" in self.without or (self.only and set(self.only) <= set(self.without)):
            raise ValueError("without: it leaves out every feature: name those that do not matter")
        return self

    def places(self) -> Places:
        """These settings as a part of the identity."""
        own = {name: value for name, value in self if name in Places.__struct_fields__}
        changed = {"weight": self.weight or None, "id": self.id or None, "where": dict(sorted(self.where.items()))}
        types, nan = tuple(self.types.items()) or msgspec.UNSET, "absent" if self.nan == "absent" else msgspec.UNSET
        return Places(**own | changed | {"types": types, "nan": nan})


class JoinSettings(Section):
    """`[models.NAME.join]`: events wait for labels that come later, in records of their own."""

    topic: Annotated[str, AfterValidator(_topic)] | None = None
    """The topic of label records; default: the model's, where records without features are label records."""
    id: Pointer | None = None
    """A JSON Pointer to the id of the event; default: the event's."""
    label: Pointer | None = None
    """A JSON Pointer to the label; default: the event's."""
    label_value: LabelSetting | None = None
    """The label of each label record, instead of `label`."""
    where: Where = Field({})
    """Which records are label records, as for events."""
    window: Duration
    """How long after its event a label counts, by the timestamps of the records."""
    default_label: LabelSetting | None = None
    """The label of an event whose window ends without a label; default: such an event is not learned."""
    max_silence: Duration | None = None
    """With `default_label`: how far labels may lie behind before that is reported. Windows then wait for labels."""
    max_held: int = Field(1_000_000, ge=1, le=50_000_000)
    """The most held events and waiting labels; beyond it the oldest are dropped."""

    @model_validator(mode="after")
    def _fit(self) -> "JoinSettings":
        if self.label is not None and self.label_value is not None:
            raise ValueError("label_value: it stands for label: set one of them")
        if self.max_silence is not None and self.default_label is None:
            raise ValueError("max_silence: it needs a default_label, since silence means nothing without one")
        return self

    def rules(self, event: EventSettings) -> JoinRules:
        """These settings as a part of the identity."""
        own = {name: value for name, value in self if name in JoinRules.__struct_fields__}
        changed = {
            "id": self.id or event.id,
            "label": (self.label or event.label) if self.label_value is None else None,
            "where": dict(sorted(self.where.items())),
            "own_topic": self.topic is not None,
            "window": milliseconds(self.window),
            "waits_for_labels": self.max_silence is not None,
        }
        return JoinRules(**own | changed)


class PredictionSettings(Section):
    """`[models.NAME.predictions]`: what the model is asked becomes events, whose labels come later."""

    topic: Annotated[str, AfterValidator(_topic)]
    """The topic that predictions with an id are written to: most often the model's."""
    share: float = Field(1.0, gt=0, le=1)
    """The share of ids whose predictions are written."""


class LearningSettings(Section):
    """How weights are learned: settings of a model, and of each of its candidates."""

    rule: RuleName | None = None
    """How an event changes the weights."""
    eta: float | None = Field(None, gt=0, le=1000)
    """The learning rate; default: the rule's own."""
    outputs: Literal["bipolar", "binary"] | None = None
    """For error-correction: steps by 2η (bipolar) or by η (binary)."""
    slope: float | None = Field(None, gt=0, le=1000)
    """For logistic-delta: how steep the sigmoid is."""
    margin: OneMargin | tuple[OneMargin, OneMargin] | None = None
    """Update also if y·s <= margin: a number, or [negative, positive]; default: 0."""
    tie: Literal["negative", "positive"] | None = None
    """What a score of 0 predicts; default: the rule's own."""
    average: Average | None = None
    """Whether to keep the mean of the weights too; `"recent"` keeps a mean that forgets."""
    half_life: int | None = Field(None, ge=1, le=MAX_HALF_LIFE)
    """For the recent average: the number of events after which a weight counts half; default: 1,000."""


class CandidateSettings(LearningSettings):
    """`[models.NAME.candidates.NAME]`: learned side by side with the model, with other settings.

    A setting that is unset is the model's. With another rule, the settings that belong to a rule have its defaults.
    """

    serve: Literal["last", "average"] = "last"
    """Which of its weights it predicts with."""
    positive_above: float | None = Field(None, allow_inf_nan=False)
    """Its score above which it answers with the positive label; the model's is about the model's scores."""


class ModelSettings(LearningSettings):
    """`[model]`, the defaults of all models, and `[models.NAME]`.

    Settings up to `max_columns` define the model: a stored model does not continue under other ones.
    """

    rule: RuleName = "perceptron"
    average: Average = False
    features: Literal["named", "positional", "hashed"] = "named"
    """How features become columns."""
    dimension: int | None = Field(None, ge=1, le=1 << 24)
    """The number of features of an event, for `features = "positional"`."""
    bits: int | None = Field(None, ge=1, le=24)
    """2^bits columns, for `features = "hashed"`."""
    start: str = "zero"
    """`"zero"`, `"random:SEED"`, or a file that `perceptron export` or `fit` wrote."""
    weights: dict[str, float] | list[float] | None = None
    """For threshold-unit: the weights, which are never learned."""
    threshold: float | None = None
    """For threshold-unit: the prediction is positive if w·x reaches it."""
    text: Text = "category"
    """What a string is: a feature `name=value`, ignored, a reason to reject the event, or a number if it is one."""
    event: EventSettings = EventSettings()
    join: JoinSettings | None = None
    predictions: PredictionSettings | None = None
    scale: Literal["none", "standard"] = "none"
    """`"standard"` learns numbers as (value - running mean) / running standard deviation."""
    clip: float | None = Field(None, ge=1, le=MAX_CLIP)
    """With `scale = "standard"`: the standard deviations that a number counts as at most; take 6."""
    labels: tuple[LabelSetting | LabelSpellings, ...] | None = Field(None, min_length=2, max_length=MAX_CLASSES)
    """Two labels, the negative one first; or up to 1,000, each with weights of its own. A list has spellings of one."""
    max_record_bytes: int = Field(1 << 20, ge=1, le=1 << 30)
    """A larger record is rejected."""
    max_features: int = Field(10_000, ge=1)
    """Values in an event's features; an event with more is rejected."""
    max_name_bytes: int = Field(256, ge=1)
    """Bytes of a feature's name; an event with a longer one is rejected."""
    max_columns: int = Field(1 << 20, ge=1, le=MAX_COLUMNS)
    """Columns of named features; further features are ignored."""
    max_model_bytes: int = Field(1 << 30, ge=1)
    """Bytes of positional or hashed weights; a larger model is refused."""
    topic: Annotated[str, AfterValidator(_topic)] | None = None
    """The topic to learn; default: the model's name. Several models may learn one topic."""
    window: int = Field(1000, ge=1, le=1_000_000)
    """The number of recent events that figures are about."""
    serve: str = "last"
    """Which weights answer: `"last"`, `"average"`, a candidate's name, or `"best"`: those that were best lately."""
    positive_above: float | None = Field(None, allow_inf_nan=False)
    """The score above which the positive label is answered; default: 0, and `tie` decides at 0."""
    bound: bool = True
    """Whether to keep the live mistake bound."""
    reference: str | None = None
    """A file of weights for the mistake bound, written as for `start`."""
    candidates: dict[str, CandidateSettings] = Field({}, max_length=16)
    """Other settings that learn from the same events, by name; at most 16."""

    @model_validator(mode="after")
    def _validate_mode(self) -> "ModelSettings":
        labels = [label for spellings in self._spelled_labels for label in spellings]
        if len({(isinstance(label, bool), label) for label in labels}) < len(labels):
            raise ValueError("labels: the labels must differ")
        for mode, name in (("positional", "dimension"), ("hashed", "bits")):
            if (self.features == mode) != (getattr(self, name) is not None):
                raise ValueError(f'{name}: set it with features = "{mode}", and only then')
        event, parts = self.event, (self.event.label, self.event.weight, self.event.id)
        inside = any(part and part.startswith(f"{event.features}/") for part in parts)
        if self.features == "positional" and (inside or event.only or event.without):
            raise ValueError('features = "positional" takes a list: it has no names and no other parts of the event')
        if self.features == "positional" and (event.types or event.nan == "absent" or self.text == "number"):
            name = "event.types" if event.types else "event.nan" if event.nan == "absent" else "text"
            raise ValueError(f'{name}: features = "positional" takes numbers alone: take it out, or name the features')
        if self.features == "positional" and (self.dimension or 0) > self.max_features:
            raise ValueError(f"dimension = {self.dimension} is more than max_features = {self.max_features}")
        return self

    @model_validator(mode="after")
    def _check_where(self) -> "ModelSettings":
        """Refuse a place of `where` that has no single value in any record that can be learned."""
        event, join = self.event, self.join
        parts: list[tuple[str, str | bool]] = [
            (place, part) for place in event.where for part in (event.label, event.weight, event.id)
        ]
        if join:
            label = join.label_value is None and (join.label or event.label)
            parts += [(place, part) for place in join.where for part in (label, join.id or event.id)]
        for place, part in parts:
            if part and place.startswith(f"{part}/"):
                raise ValueError(f"{place} of where is inside {part}, which must be a single value")
        required = (f"{event.features}/", "" if join else event.label)
        for place in event.where:
            if any(part.startswith(f"{place}/") for part in required):
                raise ValueError(f"{place} of where is not a single value: the features or the label are in it")
        return self

    @model_validator(mode="after")
    def _validate_join(self) -> "ModelSettings":
        event, join = self.event, self.join
        if (join or event.once or self.predictions) and not event.id:
            raise ValueError("event.id: join, once and predictions need the ids of events")
        if join is None:
            return self
        if event.unlabelled == "skip":
            raise ValueError('event.unlabelled: with a join, events without a label are held: take "skip" out')
        if join.topic is None and event.features == "":
            raise ValueError('join.topic: features = "" needs a topic of its own for labels')
        signs = label_signs(self.identity())
        for name in ("label_value", "default_label"):
            label = getattr(join, name)
            if label is not None and (isinstance(label, bool), label) not in signs:
                raise ValueError(f"join.{name}: {short_json(label)} is not a label of this model")
        return self

    @model_validator(mode="after")
    def _validate_rule(self) -> "ModelSettings":
        for other, rule in RULES.items():
            for name in rule.settings:
                if other != self.rule and getattr(self, name) is not None:
                    raise ValueError(f'rule = "{self.rule}" takes no {name} (it belongs to rule = "{other}")')
        if not self.rate < (below := RULES[self.rule].eta_below):
            raise ValueError(f'rule = "{self.rule}" needs 0 < eta < {below:g}')
        if self.rule == "threshold-unit":
            if self.weights is None or self.threshold is None:
                raise ValueError('rule = "threshold-unit" needs weights and a threshold')
            if self.features == "hashed" or (self.features == "positional") != isinstance(self.weights, list):
                raise ValueError(f'features = "{self.features}" does not fit weights: a table is for "named"')
            if self.average or self.start != "zero" or self.scale != "none" or self.topic:
                raise ValueError('rule = "threshold-unit" never learns: it takes no start, average, scale or topic')
        if self.labels and len(self.labels) > 2:
            if not RULES[self.rule].classes:
                able = " or ".join(f'"{name}"' for name, rule in RULES.items() if rule.classes)
                raise ValueError(f'rule = "{self.rule}" learns two labels: for {len(self.labels):,} take rule = {able}')
            for name in ("margin", "tie", "reference", "positive_above"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} needs two labels, and there are {len(self.labels):,}")
        start, _ = self.start_weights, self._reference  # files are read now, so that a bad file is a bad setting
        if self.clip is not None and self.scale != "standard":
            raise ValueError('clip: set it with scale = "standard", and only then')
        if start and (self.scale == "standard" or len(self.labels or ()) > 2):
            raise ValueError('start: a file needs two labels and no scale: take "zero" or "random:SEED"')
        if self.serve == "average" and not self.average:
            raise ValueError('serve = "average" needs average = true or "recent"')
        if self.half_life is not None and self.average != "recent":
            raise ValueError('half_life needs average = "recent"')
        return self

    @model_validator(mode="after")
    def _candidates_fit(self) -> "ModelSettings":
        identities = [self.identity()]
        for name, candidate in self.candidates.items():
            if not _CANDIDATE_NAME.fullmatch(name):
                raise ValueError(f"candidates: {name!r} cannot be a name: take at most 64 of A-Z a-z 0-9 - _")
            try:
                identities.append(self._identity_with(candidate))
            except ValidationError as error:
                raise ValueError(f"candidates.{name}: {format_error(error.errors()[0])}") from None
            if identities[-1] == identities[0]:
                raise ValueError(f"candidates.{name}: it is the model itself: give it another rule, eta, margin, …")
        answering = (*MODEL_ITSELF, BEST, *self.candidates)
        if self.serve not in answering:
            raise ValueError(f"serve: there is no candidate {self.serve!r}: expected one of {', '.join(answering)}")
        if self.serve == BEST and not (self.candidates or self.average):
            raise ValueError('serve = "best" chooses among the model and its candidates: add a candidate or an average')
        vectors = sum((each.classes if each.multiclass else 1) * (2 if each.average else 1) for each in identities)
        needed = 8 * self._columns * vectors
        if needed > self.max_model_bytes:
            raise ValueError(f"the weights need {needed:,} bytes: max_model_bytes is {self.max_model_bytes:,}")
        return self

    def _identity_with(self, candidate: CandidateSettings) -> Identity:
        """The identity of a candidate of this model: see CandidateSettings."""
        own = {name: value for name, value in candidate if value is not None}
        rule, average = own.get("rule", self.rule), own.get("average", self.average)
        if "threshold-unit" in (rule, self.rule):
            raise ValueError("candidates: a threshold-unit never learns: it cannot be a candidate or have candidates")
        left_out = {"candidates", "reference", "positive_above", *(RULE_SETTINGS if rule != self.rule else ())}
        left_out |= {"half_life"} if average != "recent" else set()
        left_out |= {"start"} if self.start_weights else set()
        return ModelSettings(**self.model_dump(exclude_unset=True, exclude=left_out) | own).identity()

    @property
    def rate(self) -> float:
        """η: the value that is set, or the rule's default."""
        return RULES[self.rule].eta if self.eta is None else self.eta

    @property
    def _spelled_labels(self) -> list[tuple[Any, ...]]:
        """The values that mean each label; empty if no labels are set."""
        return [each if isinstance(each, tuple) else (each,) for each in self.labels or ()]

    @property
    def _columns(self) -> int:
        """The number of columns from the start. Named features begin with one, since names come one by one."""
        return self.dimension or 1 << (self.bits or 0)

    @cached_property
    def start_weights(self) -> WeightsFile | None:
        """The weights that the model begins with, if they are given; raises ConfigurationError."""
        bias = -(self.threshold or 0.0)
        if isinstance(self.weights, dict):
            return WeightsFile(list(self.weights.values()), bias, list(self.weights))
        if self.weights is not None:
            return WeightsFile(self.weights, bias)
        if self.start == "zero" or _RANDOM_START.fullmatch(self.start):
            return None
        return self._read("start", self.start)

    @cached_property
    def _reference(self) -> WeightsFile | None:
        return self._read("reference", self.reference) if self.reference is not None else None

    def _read(self, name: str, file: str) -> WeightsFile:
        try:
            raw = Path(file).read_bytes()
        except OSError as error:
            expected = ': expected "zero", "random:SEED" or a file of weights' if name == "start" else ""
            raise ConfigurationError(f"{name}: {file}: {error.strerror}{expected}") from None
        weights = read_weights(raw, f"{name}: {file}", self.features, self.scale)
        if self.features == "named":
            if weights.names is None:
                raise ConfigurationError(f"{name}: {file}: named features need a name for each weight")
        elif weights.names is not None or len(weights.coef) != self._columns:
            needed = f"{self._columns:,} weights without names"
            raise ConfigurationError(f"{name}: {file}: {self.features} features need {needed}")
        return weights

    def options(self) -> Options:
        """How the model is watched and served."""
        own = self.candidates.items()
        candidates = {n: CandidateOptions(self._identity_with(c), c.serve, c.positive_above) for n, c in own}
        topic, silence = (self.join.topic, self.join.max_silence) if self.join else (None, None)
        max_silence = milliseconds(silence) if silence else 0
        watched = self.window, self.serve, self.bound, self._reference, candidates
        return Options(*watched, topic or "", max_silence, self.positive_above)

    def identity(self) -> Identity:
        """The identity that a stored model must have to be continued."""
        rule = RULES[self.rule]
        negative, positive = self.margin if isinstance(self.margin, tuple) else [self.margin or 0.0] * 2
        own = {name: value for name, value in self if name in Identity.__struct_fields__}
        others = tuple(spellings[1:] for spellings in self._spelled_labels)
        derived: dict[str, Any] = {
            "eta": self.rate,
            "outputs": self.outputs or rule.settings.get("outputs"),
            "slope": self.slope or rule.settings.get("slope"),
            "margin": (negative + 0.0, positive + 0.0) if negative or positive else msgspec.UNSET,  # no -0
            "tie": self.tie or rule.tie,
            "start": self.start_weights.identity if self.start_weights else self.start,
            "half_life": (self.half_life or HALF_LIFE_EVENTS) if self.average == "recent" else None,
            "event": self.event.places(),
            "labels": tuple(spellings[0] for spellings in self._spelled_labels) or None,
            "spellings": others if any(others) else msgspec.UNSET,
            "clip": msgspec.UNSET if self.clip is None else self.clip,
            "max_columns": self.max_columns if self.features == "named" else None,
            "unlabelled": "skip" if self.event.unlabelled == "skip" else msgspec.UNSET,
            "once": milliseconds(self.event.once) if self.event.once else msgspec.UNSET,
            "join": self.join.rules(self.event) if self.join else msgspec.UNSET,
        }
        return Identity(**own | derived)
