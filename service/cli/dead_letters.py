"""`perceptron dead-letters list|show|retry`."""

from typing import Annotated

import typer

from service.cli.options import AsJson, Bootstrap, Model, Reason, run_async, settings_and_model
from service.errors import ConfigurationError

app = typer.Typer(help="The records that were set aside: list them, show one, send them again.", no_args_is_help=True)


@app.command("list")
def list_letters(
    ctx: typer.Context,
    model: Model = None,
    bootstrap: Bootstrap = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most the N newest.")] = 100,
    json: AsJson = False,
) -> None:
    """List dead letters, a line each."""
    from service.tools.dead_letters import show_list

    run_async(show_list(*settings_and_model(ctx), reason, limit, json))


@app.command("show")
def show_letter(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION-OFFSET", help="Its key, as `list` shows it.")],
    model: Model = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Show one dead letter whole."""
    from service.tools.dead_letters import show_one

    run_async(show_one(*settings_and_model(ctx), key))


@app.command("retry")
def retry_letters(
    ctx: typer.Context,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC-PARTITION-OFFSET]...", help="Their keys; or --all.")
    ] = None,
    model: Model = None,
    bootstrap: Bootstrap = None,
    every: Annotated[bool, typer.Option("--all", help="All that were not sent again yet.")] = False,
    reason: Reason = None,
    yes: Annotated[bool, typer.Option("--yes", help="Also if other models learn the same topic.")] = False,
) -> None:
    """Send dead letters to their topic again, unchanged, once each: for use after the cause is fixed."""
    from service.tools.dead_letters import retry

    settings, name = settings_and_model(ctx)
    topics = set(settings.topics_of(name))
    sharing = [each for each, own in settings.model_topics.items() if each != name and topics.intersection(own)]
    if sharing and not yes:
        raise ConfigurationError(f"model {', '.join(sharing)} would learn these records twice: say --yes to do it")
    run_async(retry(settings, name, keys or [], every, reason))
