"""The commands on events: send them, fit them, ask for predictions, and what was set aside of them."""

import re
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from service.cli.options import (
    AsJson,
    Bootstrap,
    Format,
    LabelColumn,
    Output,
    Reason,
    Topic,
    Url,
    one_topic,
    settings_of,
)

if TYPE_CHECKING:
    from service.streaming.kafka.cluster import Cluster


def produce(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="JSON lines or CSV; .gz too.")],
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    form: Format = None,
    written: Annotated[
        Literal["json", "msgpack", "f8"],
        typer.Option("--as", help="The records' form, said in their content-type; f8 is of positional features."),
    ] = "json",
    label: LabelColumn = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The record's key: an outermost member (as id) or feature, or a CSV's column.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="Send so many events a second, evenly.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many events.")] = None,
    skip: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave out the first events, such as those sent before Ctrl-C.")
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything, send nothing; needs no Kafka.")
    ] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Refuse lines that the model would reject.")] = True,
) -> None:
    """Send the events of a file to a topic."""
    from service.errors import ConfigurationError
    from service.tools.formats import formats

    settings = settings_of(ctx)
    to = one_topic(settings)
    if dry_run and not check:
        raise ConfigurationError("--dry-run checks the events: it does not go with --no-check")
    identity = settings.of(to).identity()
    how = formats.format_of(file, identity, name=form, label=label, key=key)
    record = formats.writer(identity, written)
    events = formats.Events(file, how, identity, keyed=key is not None, check=check, written=record)
    from service.tools.produce import dry_run as try_out
    from service.tools.produce import produce_file, sending_result

    if dry_run:
        typer.echo(sending_result(try_out(events, count, skip), events, skip, "good; nothing was sent"))
    else:
        with closing(events):
            sent = produce_file(settings.kafka.cluster, to, events, rate=rate, count=count, skip=skip)
        typer.echo(sending_result(sent, events, skip, f"sent to {to}"), err=True)


def fit(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="FILE|-", help="As for produce.")] = None,
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Whose settings are a file's.")] = None,
    form: Format = None,
    label: LabelColumn = None,
    rule: Annotated[str | None, typer.Option(metavar="RULE", help="As the setting; so the next three.")] = None,
    eta: Annotated[float | None, typer.Option(metavar="NUMBER", help="The learning rate.")] = None,
    tie: Annotated[str | None, typer.Option(metavar="negative|positive", help="What a score of 0 predicts.")] = None,
    start: Annotated[str | None, typer.Option(metavar="zero|random:SEED|FILE", help="Where weights begin.")] = None,
    tolerance: Annotated[int, typer.Option(min=0, metavar="N", help="Mistakes in a pass that are few enough.")] = 0,
    max_passes: Annotated[int, typer.Option(min=1, metavar="N", help="Passes at most.")] = 100,
    batch: Annotated[bool, typer.Option("--batch", help="Least squares by batch gradient descent instead.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print the weights after each event; small data.")] = False,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Learn a file, or all that a topic holds, in many passes: how it ended, with evidence and bounds."""
    from service.tools import fit as tool

    options = tool.FitOptions(tolerance, max_passes, batch, trace)
    flags = {"rule": rule, "eta": eta, "tie": tie, "start": start}
    settings = settings_of(ctx)
    one = topic[0] if topic else None
    own = tool.fit_settings(settings, one or model, {k: v for k, v in flags.items() if v is not None}, options)
    source = tool.source_of(settings, own, file, one, name=form, label=label)
    raise typer.Exit(tool.fit_events(source, own, options, output, json))


def suggest(
    ctx: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE|-", help="JSON lines or CSV; .gz too. Else a topic."),
    ] = None,
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    form: Format = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="POINTER", help="The label, such as /clicked; or a member's name.")
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="The newest of a topic, the first of a file.")
    ] = 20_000,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="For the settings, such as perceptron.toml.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write over a file that is there.")] = False,
    json: AsJson = False,
) -> None:
    """Look at a topic or a file, and suggest settings with reasons: what it holds, the label, what learns it best."""
    from service.tools.suggest.suggest import suggest_settings as look

    one = topic[0] if topic else None
    look(settings_of(ctx), file, one, form=form, label=label, count=count, output=output, yes=yes, as_json=json)


def predict(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help='JSON lines: features or {"features": …}, or records.')
    ] = "-",
    topic: Topic = None,
    url: Url = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each feature contributes.")] = False,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of three labels and more: show the N largest scores.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Ask a running service for predictions: label, score and, where the rule has one, probability, a line each.

    Lines are whole records of the topic where the model's settings have event.features, and features where they do not.
    """
    from service.tools.predict import predict_lines as ask

    settings = settings_of(ctx)
    ask(settings, one_topic(settings), file, url, explain, top, json)


dead_letters = typer.Typer(help="The records that were set aside: look at them, send them again.", no_args_is_help=True)


@dead_letters.command("list")
def list_letters(
    ctx: typer.Context,
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
    json: AsJson = False,
) -> None:
    """List dead letters, a line each."""
    from service.tools.dead_letters import show_list

    cluster, name = _kafka_and_topic(ctx)
    show_list(cluster, name, reason, limit, json)


@dead_letters.command("show")
def show_letter(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION-OFFSET", help="Its key, as `list` shows it.")],
    topic: Topic = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Show one dead letter whole."""
    from service.tools.dead_letters import show_one

    show_one(*_kafka_and_topic(ctx, key), key)


@dead_letters.command("retry")
def retry_letters(
    ctx: typer.Context,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC-PARTITION-OFFSET]...", help="These; or --all.")
    ] = None,
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    every: Annotated[bool, typer.Option("--all", help="All that were not sent again yet.")] = False,
    reason: Reason = None,
) -> None:
    """Send dead letters to their topic again, as they were, once each: after a fix of what reads them."""
    from service.tools.dead_letters import retry

    retry(*_kafka_and_topic(ctx, *keys or ()), keys or [], every, reason)


def _kafka_and_topic(ctx: typer.Context, *keys: str) -> tuple["Cluster", str]:
    """Where letters are; without --topic the first key names their topic."""
    settings = settings_of(ctx)
    named = re.fullmatch(r"([A-Za-z0-9._-]+)-\d+-\d+", keys[0]) if keys and not ctx.params["topic"] else None
    return settings.kafka.cluster, named[1] if named else one_topic(settings)
