"""Options that several commands take, and the settings that they make."""

from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from service.errors import ConfigurationError

if TYPE_CHECKING:
    from service.settings.load import Settings

T = TypeVar("T")
Config = Annotated[str | None, typer.Option("-c", "--config", metavar="FILE", help="Settings, or perceptron.toml.")]
Topics = Annotated[list[str] | None, typer.Option("-t", "--topic", metavar="TOPIC", help="A topic; may be repeated.")]
Topic = Annotated[list[str] | None, typer.Option("-t", "--topic", metavar="TOPIC", help="The topic.")]
Model = Annotated[list[str] | None, typer.Option("-m", "--model", "-t", "--topic", metavar="MODEL", help="The model.")]
"""Lists, so that a second name can be refused: with a plain option the last one would win."""
Bootstrap = Annotated[str | None, typer.Option("-b", "--bootstrap-servers", metavar="HOST:PORT", help="Kafka.")]
Group = Annotated[str | None, typer.Option("-g", "--group", help="Consumer group.")]
RedisUrl = Annotated[str | None, typer.Option("--redis", metavar="URL", help="Redis, such as redis://localhost/0.")]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The service (default: as the settings say).")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="REASON", help="Only records with this reason.")]
Format = Annotated[Literal["jsonl", "csv"] | None, typer.Option("--format", help="Default: CSV for .csv and .tsv.")]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="Of CSV: the label (default: label).")
]
Output = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write weights that `start` reads.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


SETTINGS = {name: name for name in ("topics", "learn", "create_topics", "fail_fast", "start_at")} | {
    "bootstrap": "kafka.bootstrap_servers",
    "group": "kafka.group_id",
    "redis": "redis.url",
    "host": "http.host",
    "port": "http.port",
}
"""The setting that each of these parameters of a command overrides."""


def run_async(command: Coroutine[Any, Any, T]) -> T:
    """The result of a command that awaits Kafka or Redis."""
    import asyncio

    return asyncio.run(command)


def settings_of(ctx: typer.Context, models: Iterable[str] = ()) -> "Settings":
    """The settings, overridden by the options of this command that are settings; raises ConfigurationError.

    They have these models, which may have no table.
    """
    from service.settings.load import load

    flags: dict[str, Any] = {}
    for name, value in ctx.params.items():
        if name in SETTINGS and value is not None and value != ():
            section, _, key = SETTINGS[name].rpartition(".")
            table = flags.setdefault(section, {}) if section else flags
            table[key] = list(value) if isinstance(value, tuple) else value
    return load(ctx.obj, flags | {"models": {name: {} for name in models}})


def settings_and_model(ctx: typer.Context) -> "tuple[Settings, str]":
    """The settings, and the model that --model names, or the only one that they have; raises ConfigurationError."""
    settings = settings_of(ctx, ctx.params["model"] or ())
    names = ctx.params["model"] or [*settings.model_topics, *settings.patterns]
    return settings, _only_name(names, "model: name one with -m MODEL")


def one_topic(settings: "Settings") -> str:
    """The only topic of these settings; raises ConfigurationError if there is not exactly one."""
    return _only_name(settings.topics, "topics: name one topic with -t TOPIC")


def _only_name(names: Sequence[str], advice: str) -> str:
    if len(names) != 1 or names[0].startswith("^"):
        raise ConfigurationError(f"{advice}{'; there are ' * bool(names)}{', '.join(names)}")
    return names[0]
