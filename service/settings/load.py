"""Settings: one source of truth, from flags, environment, `perceptron.toml` and defaults, in that order.

The composition root (`process/service.py`) and the commands alone read these; everything else takes plain arguments.
"""

import codecs
import contextlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from service.errors import ConfigurationError, os_cause
from service.settings.http import HttpSettings
from service.settings.kafka import KafkaSettings
from service.settings.model import CandidateSettings, ModelSettings
from service.settings.origin import Origins
from service.settings.redis import RedisSettings
from service.settings.section import Section
from service.settings.words import either, perhaps, worded

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,236}")  # with .dead-letters it has Kafka's 249
_TYPE = re.compile(r"bool|int|float|str|(function|literal|list|dict|constrained).*\W.*|\[key\]")
"""What pydantic names in a place for one of several types."""
_SETTING = re.compile(r"(candidates\.[\w-]+|[a-z_]+): ")
_OF_KUBERNETES = re.compile("PERCEPTRON_(.*_)?(SERVICE_(HOST|PORT)|PORT_[0-9]).*|.*=(tcp|udp|sctp)://.*", re.DOTALL)
"""Variables that it gives every pod beside a Service whose name begins so, each with its value."""
REMOVED: dict[tuple[str, ...], str] = {
    ("reader",): "each event is read by the fastest reader that can",
    ("kafka", "whole_batches"): "records are always read in whole batches",
}
"""Settings of earlier releases, with what holds now. Until 0.4 they are ignored with a warning."""


def is_topic(name: str) -> bool:
    """Whether a topic, and so a model, can have this name."""
    return bool(_TOPIC.fullmatch(name)) and name not in {".", ".."}


def _matching(patterns: Iterable[str], topic: str) -> str | None:
    """The first of these names that is a pattern, and finds the topic."""
    for pattern in patterns:
        with contextlib.suppress(re.error):  # reported where topics are checked
            if pattern.startswith("^") and re.search(pattern, topic):
                return pattern
    return None


class SnapshotSettings(Section):
    """`[snapshots]`: which versions are kept for rollback."""

    keep_every: float = Field(300.0, gt=0, description="seconds between two versions that are kept for rollback")
    keep: int = Field(12, ge=0, description="so many are kept; the oldest goes first")


class Settings(BaseSettings):
    """Everything that can be set. `models` holds an entry for each topic, `[model]` merged in."""

    model_config = SettingsConfigDict(
        env_prefix="PERCEPTRON_", env_nested_delimiter="__", extra="forbid", allow_inf_nan=False
    )
    topics: Annotated[list[str], NoDecode] = Field(
        [], description="each is a model of the same name; `^…` is a pattern that finds topics"
    )
    learn: bool = Field(default=True, description="false: only follow snapshots and answer; needs no Kafka")
    create_topics: bool = Field(default=False, description="create topics that are missing, dead letters' too")
    fail_fast: bool = Field(default=False, description="exit 3 at the start when Kafka or Redis is not there")
    start_at: str | None = Field(None, description="where a new model begins: earliest, latest or P:OFFSET,…")
    log: Literal["text", "json"] = Field("text", description="the form of the log's lines")
    kafka: KafkaSettings = KafkaSettings()
    redis: RedisSettings = RedisSettings()
    http: HttpSettings = HttpSettings()
    snapshots: SnapshotSettings = SnapshotSettings()
    model: dict[str, Any] = {}
    models: dict[str, ModelSettings] = {}

    @field_validator("topics", mode="before")
    @classmethod
    def _comma_separated(cls, topics: Any) -> Any:
        return [t.strip() for t in topics.split(",") if t.strip()] if isinstance(topics, str) else topics

    @field_validator("topics", mode="after")
    @classmethod
    def _topic_names(cls, topics: list[str]) -> list[str]:
        for topic in topics:
            if topic.startswith("^"):
                try:
                    re.compile(topic)
                except re.error as error:
                    raise ValueError(f"'{topic}' is no regular expression: {error}") from None
            elif not is_topic(topic):
                raise ValueError(
                    f"'{topic}' is no topic name (letters, digits, '.', '_' and '-', at most 236) and no pattern, "
                    "which begins with '^'"
                )
        return list(dict.fromkeys(topics))

    @model_validator(mode="after")
    def _units_have_no_topic(self) -> "Settings":
        for name in self.topics:
            if self.models[name].rule == "threshold-unit":
                raise ValueError(f"topics: '{name}' is a threshold-unit, which never learns: it needs no topic")
        return self

    @field_validator("start_at", mode="after")
    @classmethod
    def _start_at_reads(cls, text: str | None) -> str | None:
        parse_start_at(text)
        return text

    @model_validator(mode="before")
    @classmethod
    def _merge_models(cls, values: Any) -> Any:
        """Give each topic and each named model its settings, over the defaults of `[model]`; drop removed settings."""
        values = without_removed(values)
        defaults, named = values.get("model") or {}, values.get("models") or {}
        if isinstance(defaults, dict) and isinstance(named, dict):
            topics = cls._comma_separated(values.get("topics") or [])
            listed = topics if isinstance(topics, list) else []
            names = [*named, *(t for t in listed if isinstance(t, str) and t not in named)]
            own = {name: named.get(name if name in named else _matching(named, name), {}) for name in names}
            values["models"] = {
                n: {**defaults, **given} if isinstance(given, dict) else given for n, given in own.items()
            }
        return values

    @property
    def listed(self) -> list[str]:
        """The topics that are named."""
        return [topic for topic in self.topics if not topic.startswith("^")]

    @property
    def patterns(self) -> list[str]:
        """Regular expressions, each beginning with '^': every topic that one of them finds is learned."""
        return [topic for topic in self.topics if topic.startswith("^")]

    @property
    def units(self) -> list[str]:
        """Models that are given, not learned: threshold units, which need no topic."""
        return [name for name, model in self.models.items() if model.rule == "threshold-unit"]

    def check_work(self) -> None:
        """Raise ConfigurationError where there is nothing to learn and nothing to serve."""
        if not self.topics and not self.units:
            raise ConfigurationError('topics: name at least one, with -t TOPIC or topics = ["…"] in perceptron.toml')

    @property
    def ignored(self) -> list[str]:
        """A line for each thing that is set and changes nothing: most often a misspelt name."""
        used = {*self.units, *self.topics, *(_matching(self.models, topic) for topic in self.topics)}
        unused = [
            f"models.{name}: no topic uses it: name it in topics, or take its table out"
            for name in self.models
            if name not in used
        ]
        removed = [
            f"{'.'.join(place)} ({origin}): this setting is gone: it is ignored, and an error from 0.4 on; {now}"
            for place, now in REMOVED.items()
            if (origin := self.origins.of(place)[1]) != "default"
        ]
        strange = [line for name, line in _strange().items() if not _OF_KUBERNETES.match(f"{name}={os.environ[name]}")]
        return [*unused, *removed, *strange]

    @property
    def warnings(self) -> list[str]:
        """A line for each thing that is set and is most often not meant."""
        return [*self.ignored, *self.kafka.warnings, *self.redis.warnings, *self.http.warnings]

    def wanted(self, topic: str) -> bool:
        """Whether a pattern asks for this topic. Kafka's own topics and dead letters are nobody's events."""
        aside = topic.startswith("__") or topic.endswith(".dead-letters") or not is_topic(topic)
        return not aside and _matching(self.patterns, topic) is not None

    def of(self, model: str) -> ModelSettings:
        """A model's settings: its own, or those of the pattern that its topic was found by."""
        return self.models[model if model in self.models else _matching(self.models, model) or model]

    origins: ClassVar[Origins] = Origins({}, {}, {}, Path())
    """Who said what of it."""


def load(file: str | None, flags: dict[str, Any]) -> Settings:
    """Read the settings; raises ConfigurationError with one line that names the setting and what was expected."""
    chosen = file or os.environ.get("PERCEPTRON_CONFIG")
    path = Path(chosen or "perceptron.toml")
    if chosen and not path.is_file():
        raise ConfigurationError(f"{chosen}: {'it is no file' if path.exists() else 'no such file'}")

    for name, line in _strange().items():
        if "__" in name:  # only who means us writes that: it is refused as it is in the file
            raise ConfigurationError(line)
    said = Origins(flags, os.environ, _read(path) if path.is_file() else {}, path)

    class FromAll(Settings):
        """The library asks the class for its sources."""

        origins: ClassVar[Origins] = said

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            *_: PydanticBaseSettingsSource,
            **__: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            """Flags over environment over file over defaults."""
            return init_settings, env_settings, InitSettingsSource(settings_cls, dict(said.file))

    try:
        settings = FromAll(**flags)
    except ValidationError as error:
        raise _refused(error.errors(), said) from None
    except SettingsError as error:  # it says which setting, and its cause why the text is not JSON
        name = "".join(re.findall(r'field "(\w+)"', str(error))).upper()
        raise ConfigurationError(f"environment PERCEPTRON_{name}: expected JSON: {error.__cause__}") from None
    try:
        if not settings.models:  # their defaults are looked at all the same
            ModelSettings(**settings.model)
    except ValidationError as error:
        raise _refused(({**one, "loc": ("model", *one["loc"])} for one in error.errors()), said) from None
    return settings


def without_removed(values: Mapping[str, Any], place: tuple[str, ...] = ()) -> dict[str, Any]:
    """Settings without those that are removed, in tables too.

    >>> without_removed({"reader": "decoder", "log": "json"})
    {'log': 'json'}
    """
    return {
        name: without_removed(value, (*place, name)) if isinstance(value, dict) and not place else value
        for name, value in values.items()
        if (*place, name) not in REMOVED
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().removeprefix(codecs.BOM_UTF8).decode())
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {os_cause(error)}") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: nested too deeply") from None
    except ValueError as error:  # not TOML
        raise ConfigurationError(f"{path}: {error}".replace("\n", " ")) from None


def _strange() -> dict[str, str]:
    """A line for each variable that begins as ours and says nothing that can be set.

    Those within a table say so when it is read.
    """
    fields = Settings.model_fields
    known = {"CONFIG": None} | {name.upper(): field.default for name, field in fields.items()}
    tables = {name: default for name, default in known.items() if isinstance(default, Section | dict)}
    of_tables = {f"{name}__{part.upper()}" for name, table in tables.items() for part in dict(table)}
    found = {}
    for name in sorted(os.environ):
        prefix, ours, own = name.upper().partition("PERCEPTRON_")
        first, within, _ = own.partition("__")
        removed = tuple(own.lower().split("__")) in REMOVED
        if ours and not prefix and not removed and first not in (tables if within else known):
            near = perhaps(own, {*known, *of_tables}).replace(": perhaps ", ": perhaps PERCEPTRON_")
            found[name] = f"environment {name}: there is no such setting{near}"
    return found


def model_settings(settings: Settings, model: str | None, flags: dict[str, Any]) -> ModelSettings:
    """A model's settings under these flags. Where none is named: the only one's, or the defaults of all.

    Raises ConfigurationError.
    """
    if model is None and len(settings.models) > 1:
        raise ConfigurationError(f"--model: the settings have several models: name one of {', '.join(settings.models)}")
    name = model or next(iter(settings.models), None)
    try:
        own = settings.model if name is None else settings.of(name).model_dump(exclude_unset=True)
        # Without what learns beside it and who answers: under other settings it may be one of them.
        alone = {key: value for key, value in own.items() if key not in {"candidates", "serve"}}
        return ModelSettings(**{**alone, **flags})
    except KeyError:
        raise ConfigurationError(f"the settings have no model {name}{perhaps(name or '', settings.models)}") from None
    except ValidationError as error:
        raise _refused(error.errors(), Origins(flags, {}, {}, settings.origins.path)) from None


def _refused(errors: Iterable[Any], origins: Origins) -> ConfigurationError:
    """One line. What is wrong in `[model]` is wrong with each model, and is said once."""
    said: dict[str, list[str]] = {}
    for error in errors:
        named, message = _parts(error, origins)
        said.setdefault(named, []).append(message)
    return ConfigurationError("; ".join(f"{name}: {either(of)}" if name else either(of) for name, of in said.items()))


def _parts(error: Any, origins: Origins) -> tuple[str, str]:
    """The setting that an error is about, with the variable that says it, and what is wrong."""
    where = [str(part) for part in error["loc"] if not _TYPE.fullmatch(str(part))]
    message = worded(error, secretive=where[:1] in [["kafka"], ["redis"], ["http"]])
    # A check of a whole table begins with the setting that it is about.
    if len(where) == (2 if where[:1] == ["models"] else 1) and (of := _SETTING.match(message)):
        where, message = [*where, *of[1].split(".")], message[of.end() :]
    place, origin = origins.of(where)
    if error["type"] == "extra_forbidden":
        message = f"there is no such setting{_meant(error, place)}"
    return f"{'.'.join(place)}{f' ({origin})' if origin.startswith('environment') else ''}" if where else "", message


def _meant(error: Any, place: Sequence[str]) -> str:
    """What a setting that is none was perhaps to be: a table is none but a table."""
    section: type[BaseModel] = Settings
    for part in error["loc"][:-1]:
        section = _table_of(section, str(part)) or section  # else it is a model's, or a candidate's, name
    if section is CandidateSettings and place[-1] in ModelSettings.model_fields:
        return ": it is the model's, and the same for all its candidates"
    if not isinstance(error["input"], dict):
        return perhaps(place[-1], section.model_fields)
    near = perhaps(place[-1], [name for name in section.model_fields if _table_of(section, name)])
    return near or (f": perhaps [models.{place[1]}]" if len(place) == 2 and place[0] == "model" else "")


def _table_of(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """What the table of this name holds, or each table in it; None if it is a value."""
    if name == "model":
        return ModelSettings
    kind = section.model_fields[name].annotation if name in section.model_fields else None
    inner = get_args(kind)[1] if get_origin(kind) is dict else kind
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def parse_start_at(text: str | None) -> str | dict[int, int] | None:
    """`earliest`, `latest`, or `P:OFFSET,…` as {partition: offset}."""
    if text is None or text in {"earliest", "latest"}:
        return text
    pairs = [part.split(":") for part in text.split(",")]
    if not all(len(pair) == 2 and all(p.isascii() and p.isdigit() for p in pair) for pair in pairs):
        raise ValueError(f"expected earliest, latest or PARTITION:OFFSET,…, got '{text[:40]}'")
    return {int(partition): int(offset) for partition, offset in pairs}
