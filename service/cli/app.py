"""The command `perceptron`. Heavy modules are imported inside the commands, so that `--help` is quick.

Results go to stdout, everything else to stderr. Every error is one line that says what to do.
"""

import inspect
import os
import sys
from typing import Annotated

import typer

from service import __version__
from service.cli import data, dead_letters, run, stored
from service.cli.options import Config
from service.errors import PerceptronError

app = typer.Typer(
    name="perceptron",
    help="A linear classifier that learns from a Kafka topic while it serves predictions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes twice as long to import as everything else that `--help` needs
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_release(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    config: Config = None,
    version: Annotated[
        bool,
        # Eager: it needs no command.
        typer.Option("--version", is_eager=True, callback=_print_release, help="Print the release and exit."),
    ] = False,
) -> None:
    ctx.obj = config


for command in (
    run.run, data.suggest, data.produce, data.fit, run.predict, run.healthcheck, run.config, run.check,
    stored.inspect, stored.export, stored.rollback, stored.amend, stored.verify, stored.reset, stored.promote,
    run.demo,
):  # fmt: skip
    app.command()(command)
app.add_typer(dead_letters.app, name="dead-letters", short_help=dead_letters.app.info.help)
for command_info in (*app.registered_commands, *dead_letters.app.registered_commands):
    command_info.short_help = (inspect.getdoc(command_info.callback) or "").partition("\n")[0]  # typer would cut it


def main() -> None:
    """Run the command; turn every known error into one line and its exit code."""
    # Set before numpy is loaded: an idle thread of BLAS takes a sixth of the CPU time of learning (measured).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        sys.exit(app(standalone_mode=False, prog_name="perceptron"))
    except PerceptronError as error:
        typer.echo(f"perceptron: {error}", err=True)
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        message, ctx = error.format_message(), getattr(error, "ctx", None)
        if ctx is None or message != ctx.get_help():  # a command without its arguments prints its help
            message = " ".join(message.split()).rstrip(".")
            message = f"perceptron: {message}; see {ctx.command_path if ctx else 'perceptron'} --help"
        typer.echo(message, err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
