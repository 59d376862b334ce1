"""The commands on a stored model: inspect, export, rollback, amend, join, verify, reset, promote."""

from typing import Annotated, Literal

import typer

from service.cli.options import AsJson, Bootstrap, Model, Output, RedisUrl, run_async, settings_and_model, settings_of

Yes = Annotated[bool, typer.Option("--yes", help="Do it, instead of saying what would be done.")]


def inspect(
    ctx: typer.Context, model: Model = None, bootstrap: Bootstrap = None, redis: RedisUrl = None, json: AsJson = False
) -> None:
    """Show a model's newest snapshot: counts, offsets, lag, kept versions, largest weights."""
    from service.tools.stored.inspect import inspect_model

    run_async(inspect_model(*settings_and_model(ctx), json))


def export(
    ctx: typer.Context,
    model: Model = None,
    redis: RedisUrl = None,
    output: Output = None,
    sklearn: Annotated[str | None, typer.Option(metavar="FILE", help="Write a scikit-learn pipeline (skops).")] = None,
    onnx: Annotated[str | None, typer.Option(metavar="FILE", help="Write ONNX, in double precision.")] = None,
) -> None:
    """Write a model's newest snapshot for other programs: as JSON, as a scikit-learn pipeline, as ONNX."""
    from service.tools.stored.export import export_model

    run_async(export_model(*settings_and_model(ctx), output, sklearn, onnx))


def rollback(
    ctx: typer.Context,
    to: Annotated[int, typer.Option(metavar="VERSION", help="A kept version; `perceptron inspect` lists them.")],
    model: Model = None,
    bootstrap: Bootstrap = None,
    redis: RedisUrl = None,
    resume_at: Annotated[str | None, typer.Option(metavar="P:OFFSET,…", help="Go on there, after a gap.")] = None,
    yes: Yes = False,
) -> None:
    """Go back to a kept version. A running learner goes on from there, over the same records again."""
    from service.tools.stored.changes import rollback_model

    run_async(rollback_model(*settings_and_model(ctx), to, resume_at, yes))


def amend(ctx: typer.Context, model: Model = None, redis: RedisUrl = None, yes: Yes = False) -> None:
    """Change eta, outputs, slope, margin, tie or half_life of a stored model to what the settings say."""
    from service.tools.stored.changes import amend_model

    run_async(amend_model(*settings_and_model(ctx), yes))


def verify(
    ctx: typer.Context, model: Model = None, bootstrap: Bootstrap = None, redis: RedisUrl = None, json: AsJson = False
) -> None:
    """Learn the records of a model's newest snapshot again, and compare: exit 4 if the state differs."""
    from service.tools.stored.verify import verify_model

    raise typer.Exit(run_async(verify_model(*settings_and_model(ctx), json)))


def reset(
    ctx: typer.Context,
    model: Model = None,
    redis: RedisUrl = None,
    keep_answering: Annotated[
        bool, typer.Option("--keep-answering", help="Its last version answers until it has been learned again.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Forget a model: its snapshot and kept versions. A running learner starts it again from the log."""
    from service.tools.stored.changes import reset_model

    run_async(reset_model(*settings_and_model(ctx), yes, keep_answering))


def promote(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The model that answers.")],
    alias: Annotated[str, typer.Option("--as", metavar="NAME", help="The name that it answers for.")],
    redis: RedisUrl = None,
) -> None:
    """Let a model answer for another name, in every process; `promote NAME --as NAME` takes it back."""
    from service.tools.stored.changes import promote_model

    run_async(promote_model(settings_of(ctx), name, alias))


def join(
    ctx: typer.Context,
    action: Annotated[Literal["resume", "drop"], typer.Argument(help="What to do.")],
    model: Model = None,
    redis: RedisUrl = None,
    yes: Yes = False,
) -> None:
    """Let windows close without silent label partitions (resume), or forget what is held (drop)."""
    from service.tools.stored.changes import drop_held, resume_closing

    run_async((resume_closing if action == "resume" else drop_held)(*settings_and_model(ctx), yes))
