"""`perceptron dead-letters list|show|retry`."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import AsJson, Bootstrap, Reason, Topic, one_topic, settings_of

if TYPE_CHECKING:
    from service.streaming.kafka.cluster import Cluster

app = typer.Typer(help="The records that were set aside: list them, show one, send them again.", no_args_is_help=True)


@app.command("list")
def list_letters(
    ctx: typer.Context,
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most the N newest.")] = 100,
    json: AsJson = False,
) -> None:
    """List dead letters, a line each."""
    from service.tools.dead_letters import show_list

    cluster, name = _kafka_and_topic(ctx)
    show_list(cluster, name, reason, limit, json)


@app.command("show")
def show_letter(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION-OFFSET", help="Its key, as `list` shows it.")],
    topic: Topic = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Show one dead letter whole."""
    from service.tools.dead_letters import show_one

    show_one(*_kafka_and_topic(ctx, key), key)


@app.command("retry")
def retry_letters(
    ctx: typer.Context,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC-PARTITION-OFFSET]...", help="Their keys; or --all.")
    ] = None,
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    every: Annotated[bool, typer.Option("--all", help="All that were not sent again yet.")] = False,
    reason: Reason = None,
) -> None:
    """Send dead letters to their topic again, unchanged, once each: for use after the cause is fixed."""
    from service.tools.dead_letters import retry

    retry(*_kafka_and_topic(ctx, *keys or ()), keys or [], every, reason)


def _kafka_and_topic(ctx: typer.Context, *keys: str) -> tuple["Cluster", str]:
    """The cluster, and the topic that --topic, the first key, or the settings name."""
    settings = settings_of(ctx)
    named = re.fullmatch(r"([A-Za-z0-9._-]+)-\d+-\d+", keys[0]) if keys and not ctx.params["topic"] else None
    return settings.kafka.cluster, named[1] if named else one_topic(settings)
