"""Options that several commands take, and what they make of the settings."""

from typing import Annotated, Any, Literal

import typer

from service.errors import PerceptronError


def _known_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics that settings name, for the shell to complete."""
    from service.settings import load

    try:
        models = load(ctx.find_root().params["config"], {}).models
    except PerceptronError:
        return []  # nobody reads an error while typing
    return [name for name in models if name.startswith(incomplete) and not name.startswith("^")]


Config = Annotated[
    str | None, typer.Option("-c", "--config", metavar="FILE", help="Settings (default: perceptron.toml).")
]
Topics = Annotated[
    list[str] | None,
    typer.Option("-t", "--topic", metavar="TOPIC", help="A topic; may be given again.", autocompletion=_known_topics),
]
Topic = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topic",
        metavar="TOPIC",
        help="The topic, where settings name several.",
        autocompletion=_known_topics,
    ),
]
Bootstrap = Annotated[str | None, typer.Option("-b", "--bootstrap-servers", metavar="HOST:PORT", help="Kafka.")]
Group = Annotated[str | None, typer.Option("-g", "--group", help="Consumer group.")]
RedisUrl = Annotated[
    str | None, typer.Option("--redis", metavar="URL", help="Redis, such as redis://localhost:6379/0.")
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The service (default: as its settings say).")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="REASON", help="Only those with this reason.")]
Format = Annotated[
    Literal["jsonl", "csv", "svmlight"] | None,
    typer.Option("--format", help="Default: CSV with --label, svmlight for .svm, .svmlight and .libsvm, else jsonl."),
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="The file is CSV; this column is the label.")
]
ZeroBased = Annotated[
    bool, typer.Option("--zero-based", help="svmlight for a positional model: indices begin at 0, not 1.")
]
Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="For the weights' JSON, which `start` reads.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_of(ctx: typer.Context, **flags: Any) -> Any:
    """Settings with the flags that were given; `kafka__group_id` is `kafka.group_id`."""
    from service.settings import load

    given: dict[str, Any] = {}
    for name, value in flags.items():
        if value is not None and value != []:
            section, _, key = name.rpartition("__")
            (given.setdefault(section, {}) if section else given)[key] = value
    settings = load(ctx.obj, given)
    if "max_batch_bytes" in settings.kafka.model_fields_set:
        from service.streaming.internals import limit

        limit(settings.kafka.max_batch_bytes)
    return settings


def one_topic(settings: Any) -> str:
    """The only topic of these settings; raises ConfigurationError where there is not one."""
    from service.errors import ConfigurationError

    if len(settings.topics) != 1 or settings.patterns:
        raise ConfigurationError("topics: name one topic with -t TOPIC")
    return str(settings.topics[0])
