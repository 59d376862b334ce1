"""The command `perceptron`. Heavy modules are imported inside the commands, so that `--help` is quick.

Results go to stdout, everything else to stderr. Every error is one line that says what to do.
"""

import inspect
import os
import sys
from typing import Annotated

import typer

from service import __version__
from service.cli import data, run, stored
from service.cli.options import Config
from service.errors import PerceptronError

app = typer.Typer(
    name="perceptron",
    help="A linear classifier that learns from a Kafka topic while it serves predictions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes twice as long to import as all else that `--help` needs
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_release(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    config: Config = None,
    version: Annotated[
        bool,
        # Eager: before a command is asked for.
        typer.Option("--version", is_eager=True, callback=_print_release, help="Print the release and exit."),
    ] = False,
) -> None:
    ctx.obj = config


for command in (
    run.run, data.suggest, data.produce, data.fit, data.predict, run.healthcheck, run.config, run.check,
    stored.inspect, stored.export, stored.rollback, stored.verify, stored.reset, run.demo,
):  # fmt: skip
    app.command()(command)
app.add_typer(data.dead_letters, name="dead-letters", short_help=data.dead_letters.info.help)
for listed in (*app.registered_commands, *data.dead_letters.registered_commands):
    listed.short_help = (inspect.getdoc(listed.callback) or "").partition("\n")[0]  # whole: else it would be cut


def _of_option(error: typer.TyperException) -> str | None:
    """What is wrong with an option's value, as it is said of a setting's."""
    if not isinstance(error, typer.BadParameter) or error.param is None or not error.message:
        return None
    from pydantic import ValidationError

    from service.text import format_error

    cause, name = error.__cause__, error.param.get_error_hint().replace("'", "").replace(" / ", "/")
    return f"{name}: {format_error(cause.errors()[0]) if isinstance(cause, ValidationError) else error.message}"


def main() -> None:
    """Run the command; turn every known error into one line and its exit code."""
    # Before numpy is loaded: a thread of BLAS that waits for the next sum spends a sixth of what learning takes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        sys.exit(app(standalone_mode=False, prog_name="perceptron"))
    except PerceptronError as error:
        typer.echo(f"perceptron: {error}", err=True)
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        said, ctx = error.format_message(), getattr(error, "ctx", None)
        if ctx is None or said != ctx.get_help():  # that is what a command without its arguments says
            said = " ".join((_of_option(error) or said).split()).rstrip(".")
            said = f"perceptron: {said}; see {ctx.command_path if ctx else 'perceptron'} --help"
        typer.echo(said, err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
