"""The command `perceptron`. Heavy modules are imported inside the commands, so that `--help` is quick.

Results go to stdout, everything else to stderr. Every error is one line that says what to do.
"""

import inspect
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated

import typer

from service import __version__
from service.cli import data, dead_letters, run, stored
from service.cli.options import Config
from service.errors import ConfigurationError, PerceptronError, os_cause

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
    version: Annotated[  # eager: it needs no command
        bool, typer.Option("--version", is_eager=True, callback=_print_release, help="Print the release and exit.")
    ] = False,
) -> None:
    ctx.obj = config


for command in (
    run.run, data.suggest, data.produce, data.fit, run.predict, run.healthcheck, run.config, run.check,
    stored.inspect, stored.export, stored.rollback, stored.amend, stored.join, stored.verify, stored.reset,
    stored.promote, run.demo,
):  # fmt: skip
    app.command()(command)
app.add_typer(dead_letters.app, name="dead-letters", short_help=dead_letters.app.info.help)
for command_info in (*app.registered_commands, *dead_letters.app.registered_commands):
    command_info.short_help = (inspect.getdoc(command_info.callback) or "").partition("\n")[0]  # typer would cut it


def main() -> None:
    """Run the command; turn every known error into one line and its exit code."""
    # Set before numpy is loaded: an idle thread of BLAS takes a sixth of the CPU time of learning (measured).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _open_standard_streams()
    try:
        _check_encoding()
        sys.exit(app(standalone_mode=False, prog_name="perceptron"))
    except PerceptronError as error:
        _fail(f"perceptron: {error}", error.exit_code)
    except typer.TyperException as error:
        message, ctx = error.format_message(), getattr(error, "ctx", None)
        if ctx is None or message != ctx.get_help():  # a command without its arguments prints its help
            message = " ".join(message.split()).rstrip(".")
            message = f"perceptron: {message}; see {ctx.command_path if ctx else 'perceptron'} --help"
        _fail(message, error.exit_code)
    except OSError as error:  # all others are PerceptronErrors already
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter writes the rest when it ends
        _fail(f"perceptron: the output cannot be written: {os_cause(error)}", 1)
    except MemoryError:
        _fail("perceptron: out of memory", 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _open_standard_streams() -> None:
    """Open the null device where a standard stream is closed: a socket with its number would get what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is this one
            setattr(sys, name, open(null, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115 - for good
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # its encoding may lack characters of the data


def _check_encoding() -> None:
    """Raise ConfigurationError if an argument, or a variable of ours, is not UTF-8."""
    ours = [text for pair in os.environ.items() if pair[0].startswith("PERCEPTRON_") for text in pair]
    for text in (*sys.argv[1:], *ours):
        if not text.isascii() and text.encode(errors="surrogateescape").decode(errors="replace") != text:
            raise ConfigurationError(f"expected text in UTF-8, got {text!a}")


def _fail(message: str, code: int) -> None:
    """End with a line on stderr, if it can be written, and this code."""
    with suppress(OSError):
        typer.echo(message, err=True)
    sys.exit(code)
