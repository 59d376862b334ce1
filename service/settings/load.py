"""All settings, from flags, environment, `perceptron.toml` and defaults, in that order.

Only the composition root (`process/service.py`) and the commands read these. Serving gets `[http]` as it is, and
everything else takes plain arguments.
"""

import contextlib
import os
import re
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from service.errors import ConfigurationError, os_cause
from service.learning.records import PartitionId
from service.settings.connections import HttpSettings, KafkaSettings, RedisSettings
from service.settings.model import DURATION, TOPIC_NAME, ModelSettings, is_topic, milliseconds
from service.settings.section import Section, Texts, comma_separated
from service.text import did_you_mean, format_error, join_expected

_START = re.compile(r"((?:[\w.-]+-)?\d+):(\d+)", re.ASCII)
"""An offset of a partition, as in --start-at."""
_TYPE = re.compile(r"bool|int|float|str|(function|literal|list|tuple|dict|constrained).*\W.*|\[key\]")
"""The name of a type in the place of a pydantic error, if a value may be of several types."""
_SETTING = re.compile(r"(candidates\.[\w-]+|[a-z_]+): ")

REMOVED_SETTINGS: dict[tuple[str, ...], str] = {
    ("reader",): "each event is read by the fastest reader that can",
    ("kafka", "whole_batches"): "records are always read in whole batches",
}
"""Settings of earlier releases, and what holds now. Until 0.4 they are ignored with a warning."""


def _topics(topics: list[str]) -> list[str]:
    for topic in topics:
        if topic.startswith("^"):
            try:
                re.compile(topic)
            except re.error as error:
                raise ValueError(f"'{topic}' is not a regular expression: {error}") from None
        elif not is_topic(topic):
            raise ValueError(f"'{topic}' is not a {TOPIC_NAME}, nor a pattern (^…)")
    return list(dict.fromkeys(topics))


def _matching(patterns: Iterable[str], topic: str) -> str | None:
    """The first of these names that is a pattern and matches the topic."""
    for pattern in patterns:
        with contextlib.suppress(re.error):  # `_topics` reports it
            if pattern.startswith("^") and re.search(pattern, topic):
                return pattern
    return None


class SettingSources(NamedTuple):
    """The values of each source, as tables within tables. The first source that has a value wins."""

    flags: Mapping[str, Any] = {}
    environment: Mapping[str, Any] = {}
    file: Mapping[str, Any] = {}
    path: Path = Path()

    def merged(self) -> dict[str, Any]:
        """The settings of all sources."""
        return _merge(self.file, _merge(self.environment, self.flags))

    def find_source(self, where: Sequence[str]) -> tuple[Sequence[str], str]:
        """The place of a setting or table, and its source. A model's may be in `[model]`, which is for all models."""
        for place in (where, ("model", *where[2:])) if len(where) > 1 and where[0] == "models" else (where,):
            environment = f"environment {_variable(place)}"
            for source, values in (("flag", self.flags), (environment, self.environment), (str(self.path), self.file)):
                if _within(values, place) is not None:
                    return place, source
        return where, "default"


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both; a name that both have is a merged table if both values are tables, else the value of `over`."""
    shared = [name for name, value in over.items() if isinstance(value, dict) and isinstance(under.get(name), dict)]
    return {**under, **over, **{name: _merge(under[name], over[name]) for name in shared}}


def _variable(place: Sequence[str]) -> str:
    """The variable that a setting is read from: its own, or that of a table around it, which is JSON."""
    names = ["PERCEPTRON_" + "__".join(place[:depth]).upper() for depth in range(len(place), 0, -1)]
    variables = {name.upper() for name in os.environ}
    return next((name for name in names if name in variables), f"{names[0]}__…")


def _within(values: Any, place: Sequence[str]) -> Any:
    for name in place:
        values = values.get(name) if isinstance(values, dict) else None
    return values


class SnapshotSettings(Section):
    """`[snapshots]`: which versions are kept for rollback."""

    keep_every: float = Field(300.0, gt=0)
    """Seconds between two versions that are kept for rollback."""
    keep: int = Field(12, ge=0)
    """The number of versions that are kept; the oldest goes first."""


class Settings(BaseSettings):
    """Everything that can be set. `models` holds an entry for each model and pattern, `[model]` merged in."""

    model_config = SettingsConfigDict(env_prefix="PERCEPTRON_", env_nested_delimiter="__", allow_inf_nan=False)
    topics: Annotated[Texts, AfterValidator(_topics)] = []
    """The topics to learn; each is a model of the same name. `^…` is a pattern that finds topics."""
    learn: bool = True
    """Whether to learn. If false, the process only follows snapshots and answers, and needs no Kafka."""
    create_topics: bool = False
    """Whether to create topics that are missing, the dead letters' topics too."""
    fail_fast: bool = False
    """Whether to exit with 3 if Kafka or Redis is missing at the start."""
    start_at: Annotated[str | None, AfterValidator(lambda text: (parse_start_at(text), text)[1])] = None
    """Where a new model begins: `earliest`, `latest`, `P:OFFSET,…`, a time in ISO 8601, or an age such as `7d`."""
    log: Literal["text", "json"] = "text"
    """The format of the log's lines."""
    kafka: KafkaSettings = KafkaSettings()
    redis: RedisSettings = RedisSettings()
    http: HttpSettings = HttpSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    # Without types the library reads a variable's value as JSON if it is JSON.
    model: dict = {}  # type: ignore[type-arg]
    models: dict[str, ModelSettings] = {}
    _origins: SettingSources = PrivateAttr(default_factory=SettingSources)

    @model_validator(mode="after")
    def _topics_fit(self) -> "Settings":
        for name in self.topics:
            if self.models[name].rule == "threshold-unit":
                raise ValueError(f"topics: '{name}' is a threshold-unit, which never learns: it needs no topic")
            if self.models[name].topic not in {None, name}:
                raise ValueError(f"topics: model '{name}' learns topic '{self.models[name].topic}': take it out here")
        for name, topics in self.model_topics.items():
            own = self.models[name]
            if not is_topic(name):
                raise ValueError(f"models: '{name}' learns a topic, and its name is not a {TOPIC_NAME}")
            for topic in (*topics, own.predictions.topic if own.predictions else ""):
                if (base := topic.removesuffix(".dead-letters")) != topic:
                    raise ValueError(f"models: '{name}' cannot use topic '{topic}', which has dead letters of '{base}'")
            rejects = own.join is None and own.event.unlabelled == "reject"
            if own.predictions and own.predictions.topic == topics[0] and rejects:
                raise ValueError(f"models: '{name}' would reject its logged predictions, which have no label: set join")
        return self

    @model_validator(mode="before")
    @classmethod
    def _merge_models(cls, values: Any) -> Any:
        """Give each topic and each named model its settings, over the defaults of `[model]`; drop removed settings."""
        values = without_removed(values)
        defaults, named = values.get("model") or {}, values.get("models") or {}
        if isinstance(defaults, dict) and isinstance(named, dict):
            topics = comma_separated(values.get("topics") or [])
            listed = [topic for topic in topics if isinstance(topic, str)] if isinstance(topics, list) else []
            own = {name: named.get(name) or named.get(_matching(named, name), {}) for name in (*named, *listed)}
            for name, table in own.items():
                own[name] = {**defaults, **table} if isinstance(table, dict) else table
            values["models"] = own
        return values

    @property
    def model_topics(self) -> dict[str, list[str]]:
        """The topics of each model that is learned: it is named in `topics`, or its table has a `topic`."""
        named = [name for name, own in self.models.items() if own.topic]
        models = dict.fromkeys([*(name for name in self.topics if not name.startswith("^")), *named])
        return {model: self.topics_of(model) for model in models}

    @property
    def patterns(self) -> list[str]:
        """Regular expressions, each beginning with '^': every topic that one of them matches is learned."""
        return [topic for topic in self.topics if topic.startswith("^")]

    @property
    def threshold_units(self) -> list[str]:
        """The threshold units, which are never learned and need no topic."""
        return [name for name, model in self.models.items() if model.rule == "threshold-unit"]

    def check_work(self) -> None:
        """Raise ConfigurationError if there is nothing to learn and nothing to serve."""
        if not (self.topics or self.model_topics or self.threshold_units):
            raise ConfigurationError('topics: name at least one, with -t TOPIC or topics = ["…"] in perceptron.toml')

    @property
    def ignored_settings(self) -> list[str]:
        """A line for each setting that changes nothing: most often its name is misspelt."""
        used: set[str | None] = {*self.threshold_units, *self.model_topics, *self.topics}
        used |= {_matching(self.models, topic) for topic in self.topics}
        unused = [name for name in self.models if name not in used]
        lines = [f"models.{name}: no topic uses it: name it in topics, or take its table out" for name in unused]
        removed = [
            f"{'.'.join(place)} ({origin}): this setting is gone: it is ignored, and an error from 0.4 on; {now}"
            for place, now in REMOVED_SETTINGS.items()
            if (origin := self.origins.find_source(place)[1]) != "default"
        ]
        return [*lines, *removed, *_unknown_variables().values()]

    @property
    def warnings(self) -> list[str]:
        """A line for each setting that is most often a mistake."""
        return [*self.ignored_settings, *self.kafka.warnings, *self.redis.warnings, *self.http.warnings]

    def requests_topic(self, topic: str) -> bool:
        """Whether a pattern asks for this topic, and no model has it as its `topic`.

        Kafka's own topics and those of dead letters hold no events.
        """
        is_reserved = topic.startswith("__") or topic.endswith(".dead-letters") or not is_topic(topic)
        tables = ((own, own.join, own.predictions) for own in self.models.values())
        is_reserved |= any(table and topic == table.topic for own in tables for table in own)
        return not is_reserved and _matching(self.patterns, topic) is not None

    def model_settings(self, model: str) -> ModelSettings:
        """A model's settings: its own, those of the pattern that matches its topic, or those of all models."""
        name = model if model in self.models else _matching(self.models, model)
        return ModelSettings(**self.model) if name is None else self.models[name]

    def mentions(self, model: str) -> bool:
        """Whether the file or the environment names this model, or has settings of all models."""
        stated = self.origins._replace(flags={}).merged()
        names = {*stated.get("models", ()), *comma_separated(stated.get("topics", []))}
        return "model" in stated or model in names or _matching(names, model) is not None

    def topics_of(self, model: str) -> list[str]:
        """The topic of a model's events, and that of its labels if it is another one."""
        own = self.model_settings(model)
        return list(dict.fromkeys([own.topic or model, (own.join and own.join.topic) or own.topic or model]))

    @property
    def origins(self) -> SettingSources:
        """The source of each setting."""
        return self._origins


def without_removed(values: Mapping[str, Any], place: tuple[str, ...] = ()) -> dict[str, Any]:
    """Settings without those that are removed, also in tables.

    >>> without_removed({"reader": "decoder", "log": "json"})
    {'log': 'json'}
    """
    return {
        name: without_removed(value, (*place, name)) if isinstance(value, dict) and not place else value
        for name, value in values.items()
        if (*place, name) not in REMOVED_SETTINGS
    }


def load(file: str | None, flags: dict[str, Any]) -> Settings:
    """Read the settings; raises ConfigurationError with one line that names the setting and what was expected."""
    chosen = file or os.environ.get("PERCEPTRON_CONFIG")
    path = Path(chosen or "perceptron.toml")
    for name, line in _unknown_variables().items():
        if "__" in name:  # no other program uses such a name: it is refused, as in the file
            raise ConfigurationError(line)
    try:
        values = tomllib.loads(path.read_text("utf-8-sig")) if chosen or path.exists() else {}
    except OSError as error:
        raise ConfigurationError(f"{path}: {os_cause(error)}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise ConfigurationError(f"{path}: {error}".replace("\n", " ")) from None
    try:
        origins = SettingSources(flags, EnvSettingsSource(Settings)(), values, path)
        settings = Settings(**origins.merged())
        if not settings.models:  # the defaults of models are checked even without a model
            ModelSettings(**settings.model)
    except SettingsError as error:  # it names the setting, and its cause says why the text is not JSON
        name = "".join(re.findall(r'field "(\w+)"', str(error))).upper()
        raise ConfigurationError(f"environment PERCEPTRON_{name}: expected JSON: {error.__cause__}") from None
    except ValidationError as error:
        raise _refused(error, origins, *(["model"] if error.title == "ModelSettings" else [])) from None
    settings._origins = origins
    return settings


def _unknown_variables() -> dict[str, str]:
    """A line for each variable that begins with PERCEPTRON_ and is not read: misspelt, or in a table that is not there.

    Other names may be set for another program: Kubernetes gives a pod many. An unknown name within a table is an error
    of that table.
    """
    top = {"CONFIG": None} | {name.upper(): field.default for name, field in Settings.model_fields.items()}
    tables = {name: default for name, default in top.items() if isinstance(default, Section | dict)}
    names = [*top, *(f"{name}__{part.upper()}" for name, table in tables.items() for part in dict(table))]
    lines = {}
    for variable in sorted(os.environ):
        prefix, ours, name = variable.upper().partition("PERCEPTRON_")
        table, within, _ = name.partition("__")
        if ours and not prefix and table not in (tables if within else top):
            near = did_you_mean(name, names).replace(": perhaps ", ": perhaps PERCEPTRON_")
            if near or within:
                lines[variable] = f"environment {variable}: there is no such setting{near}"
    return lines


def override_model_settings(settings: Settings, model: str | None, flags: dict[str, Any]) -> ModelSettings:
    """A model's settings under these flags; with no name, those of the only model, or the defaults of all models.

    Raises ConfigurationError.
    """
    if model is None and len(settings.models) > 1:
        raise ConfigurationError(f"--model: the settings have several models: name one of {', '.join(settings.models)}")
    name = model or next(iter(settings.models), "")
    if name and name not in settings.models and not _matching(settings.models, name):
        raise ConfigurationError(f"there is no model {name}{did_you_mean(name, settings.models)}")
    try:
        # `candidates` and `serve` are left out: under these flags the model may be equal to a candidate.
        own = settings.model_settings(name).model_dump(exclude_unset=True, exclude={"candidates", "serve"})
        return ModelSettings(**own | flags)
    except ValidationError as error:
        raise _refused(error, SettingSources(flags)) from None


def _refused(error: ValidationError, origins: SettingSources, *within: str) -> ConfigurationError:
    """One line for all that is wrong. An error in `[model]` is one of each model, and is reported once."""
    lines: dict[str, list[str]] = {}
    for detail in error.errors():
        where = [*within, *(str(part) for part in detail["loc"] if not _TYPE.fullmatch(str(part)))]
        message = format_error(detail, secretive=where[:1] in [["kafka"], ["redis"], ["http"]])
        # A check of a whole table begins with the setting that it is about.
        if len(where) <= (2 if where[:1] == ["models"] else 1) and (setting := _SETTING.match(message)):
            where, message = [*where, *setting[1].split(".")], message[setting.end() :]
        place, origin = origins.find_source(where)
        if detail["type"] == "extra_forbidden":
            message = f"there is no such setting{_meant(where, place, isinstance(detail['input'], dict))}"
        name = f"{'.'.join(place)}{f' ({origin})' if origin.startswith('environment') else ''}: " if where else ""
        lines.setdefault(name, []).append(message)
    return ConfigurationError("; ".join(f"{name}{join_expected(messages)}" for name, messages in lines.items()))


def _meant(where: Sequence[str], place: Sequence[str], table: bool) -> str:
    """': perhaps …' for the unknown name of a setting or table, or ''."""
    section: type[BaseModel] = Settings
    for part in where[:-1]:
        section = _table_of(section, part) or section  # a part that is not a table is a name of a model or candidate
    near = did_you_mean(place[-1], [name for name in section.model_fields if not table or _table_of(section, name)])
    return near or (f": perhaps [models.{place[1]}]" if table and [*place[:-1]] == ["model"] else "")


def _table_of(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The type of the table with this name, or of each table in it; None if the name is that of a value."""
    if name == "model":
        return ModelSettings
    kind = section.model_fields[name].annotation if name in section.model_fields else None
    inner = get_args(kind)[1] if get_origin(kind) is dict else kind
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def parse_start_at(text: str | None) -> str | int | dict[PartitionId, int] | None:
    """`earliest`, `latest`, `P:OFFSET,…` as {partition: offset}, or the milliseconds since 1970 of a time or an age.

    Raises ValueError.
    """
    if text is None or text in {"earliest", "latest"}:
        return text
    pairs = [_START.fullmatch(part) for part in text.split(",")]
    if all(pairs):
        return {PartitionId.from_text(pair[1]): int(pair[2]) for pair in pairs if pair}
    if DURATION.fullmatch(text):
        return max(0, int(time.time() * 1000) - milliseconds(text))
    try:
        start = datetime.fromisoformat(text)
    except ValueError:
        accepted = "earliest, latest, a time such as 2026-11-01T00:00:00Z, an age such as 7d, or PARTITION:OFFSET,…"
        raise ValueError(f"expected {accepted}, got '{text[:40]}'") from None
    return max(0, int((start if start.tzinfo else start.replace(tzinfo=UTC)).timestamp() * 1000))
