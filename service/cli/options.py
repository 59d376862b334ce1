"""Options that several commands take, and the settings that they make."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.errors import ConfigurationError

if TYPE_CHECKING:
    from service.settings.load import Settings


def _only_one(topics: list[str] | None) -> list[str] | None:
    if len(topics or ()) > 1:
        raise typer.BadParameter(f"one topic at a time, got {', '.join(topics or ())}")
    return topics


Config = Annotated[
    str | None, typer.Option("-c", "--config", metavar="FILE", help="Settings (default: perceptron.toml).")
]
Topics = Annotated[
    list[str] | None,
    typer.Option("-t", "--topic", metavar="TOPIC", help="A topic; may be given again."),
]
Topic = Annotated[
    list[str] | None,
    typer.Option(
        "-t",
        "--topic",
        metavar="TOPIC",
        help="The topic, where settings name several.",
        callback=_only_one,
    ),
]
"""At most one, in a list: of a plain option the last would win, whoever was meant."""
Bootstrap = Annotated[str | None, typer.Option("-b", "--bootstrap-servers", metavar="HOST:PORT", help="Kafka.")]
Group = Annotated[str | None, typer.Option("-g", "--group", help="Consumer group.")]
RedisUrl = Annotated[
    str | None, typer.Option("--redis", metavar="URL", help="Redis, such as redis://localhost:6379/0.")
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The service (default: as its settings say).")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="REASON", help="Only those with this reason.")]
Format = Annotated[
    Literal["jsonl", "csv"] | None,
    typer.Option("--format", help="Default: CSV for .csv, else jsonl."),
]
LabelColumn = Annotated[
    str | None,
    typer.Option("--label", metavar="COLUMN", help="The file is CSV; this column is the label, not `label`."),
]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="For the weights' JSON, which `start` reads.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


SETTINGS = {
    "topics": "topics",
    "topic": "topics",
    "learn": "learn",
    "create_topics": "create_topics",
    "fail_fast": "fail_fast",
    "start_at": "start_at",
    "bootstrap": "kafka.bootstrap_servers",
    "group": "kafka.group_id",
    "redis": "redis.url",
    "host": "http.host",
    "port": "http.port",
}
"""Which setting an option of a command is, by its parameter's name."""


def settings_of(ctx: typer.Context) -> "Settings":
    """Settings, under those options of this command that are settings; raises ConfigurationError."""
    from service.settings.load import load

    given: dict[str, Any] = {}
    for name, value in ctx.params.items():
        if name in SETTINGS and value is not None and value != ():
            section, _, key = SETTINGS[name].rpartition(".")
            part = given.setdefault(section, {}) if section else given
            part[key] = list(value) if isinstance(value, tuple) else value
    return load(ctx.obj, given)


def one_topic(settings: "Settings") -> str:
    """The only topic of these settings; raises ConfigurationError where there is not one."""
    if len(settings.topics) != 1 or settings.patterns:
        known = f"; there are {', '.join(settings.topics)}" if settings.topics else ""
        raise ConfigurationError(f"topics: name one topic with -t TOPIC{known}")
    return settings.topics[0]
