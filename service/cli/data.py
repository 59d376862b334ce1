"""The commands on events: send them, fit them, and find settings for them."""

from typing import Annotated, Literal

import typer

from service.cli import options
from service.cli.options import AsJson, Bootstrap, Format, LabelColumn, Output, Topic, one_topic, run_async, settings_of
from service.errors import ConfigurationError

File = Annotated[str | None, typer.Argument(metavar="FILE|-", help="JSON lines or CSV; .gz too. Or a topic.")]


def produce(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="JSON lines or CSV; .gz too.")],
    topics: Topic = None,
    bootstrap: Bootstrap = None,
    form: Format = None,
    written: Annotated[Literal["json", "msgpack", "f8"], typer.Option("--as", help="The form of records.")] = "json",
    label: LabelColumn = None,
    key: Annotated[str | None, typer.Option(metavar="NAME", help="The member or column of record keys.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, metavar="N", help="Send N events a second.")] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N events.")] = None,
    skip: Annotated[int, typer.Option(min=0, metavar="N", help="Leave out the first N good events.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, and send nothing.")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Refuse lines that the model would reject.")] = True,
    labels: Annotated[bool, typer.Option("--labels", help="FILE has labels that come later.")] = False,
    model: Annotated[list[str] | None, typer.Option("-m", "--model", metavar="MODEL", help="Whose labels.")] = None,
) -> None:
    """Send the events of a file to a topic; or labels that come later, with the ids of their events."""
    from service.learning.events.value_formats import FORMATS
    from service.tools import files
    from service.tools import produce as tool

    if labels:
        if files.format_name(file, form) == "csv" or written != "json" or label or key or not check:
            raise ConfigurationError("--labels reads JSON lines, and takes no --as, --label, --key or --no-check")
        settings, name = options.settings_and_model(ctx)
        events: files.Events = tool.LabelFile(file, settings, name)
        name = settings.topics_of(name)[-1]
    else:
        settings = settings_of(ctx)
        name = one_topic(settings)
        identity = settings.model_settings(name).identity()
        reader = files.format_of(file, identity, name=form, label=label, key=key)
        value_format = next(each for each in FORMATS if each.name == written)
        events = files.Events(file, reader, identity, check=check or dry_run, value_format=value_format)
    if dry_run:
        return tool.dry_run(events, count, skip)
    return run_async(tool.produce_file(settings.kafka.cluster, name, events, rate=rate, count=count, skip=skip))


def fit(
    ctx: typer.Context,
    file: File = None,
    topics: Topic = None,
    bootstrap: Bootstrap = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Use the settings of this model for FILE.")] = None,
    form: Format = None,
    label: LabelColumn = None,
    rule: Annotated[str | None, typer.Option(metavar="RULE", help="Overrides a setting, as the next three do.")] = None,
    eta: Annotated[float | None, typer.Option(metavar="NUMBER", help="The learning rate.")] = None,
    tie: Annotated[str | None, typer.Option(metavar="negative|positive", help="What a score of 0 predicts.")] = None,
    start: Annotated[str | None, typer.Option(metavar="zero|random:SEED|FILE", help="The first weights.")] = None,
    tolerance: Annotated[int, typer.Option(min=0, metavar="N", help="End at a pass with at most N mistakes.")] = 0,
    max_passes: Annotated[int, typer.Option(min=1, metavar="N", help="Make at most N passes.")] = 100,
    batch: Annotated[bool, typer.Option("--batch", help="Least squares by batch gradient descent instead.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print the weights after each event.")] = False,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Learn a file, or all records of a topic, in many passes; print how it ended, with evidence and bounds."""
    from service.tools import fit as tool

    options = tool.FitOptions(tolerance, max_passes, batch, trace)
    flags = {"rule": rule, "eta": eta, "tie": tie, "start": start}
    settings = settings_of(ctx)
    name = one_topic(settings) if topics else None
    own = tool.fit_settings(settings, name or model, {k: v for k, v in flags.items() if v is not None}, options)
    if file and not name:
        source = tool.file_source(file, own.identity(), form, label)
    elif name and not file:
        source = run_async(tool.topic_source(settings.kafka.cluster, name))
    else:
        raise ConfigurationError("fit: name a FILE, or a topic with --topic TOPIC, and not both")
    tool.fit_events(source, own, options, output, json)


def suggest(
    ctx: typer.Context,
    file: File = None,
    topics: Topic = None,
    bootstrap: Bootstrap = None,
    form: Format = None,
    label: Annotated[str | None, typer.Option(metavar="POINTER", help="The label: /clicked, or a name.")] = None,
    labels: Annotated[str | None, typer.Option(metavar="TOPIC", help="The topic of labels that come later.")] = None,
    count: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N", help="Read N records.")] = 20_000,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the settings to this TOML file.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Overwrite an existing file.")] = False,
    json: AsJson = False,
) -> None:
    """Look at the records of a topic or a file, and suggest settings for them, with reasons."""
    from service.tools.files import check_output, write_atomically
    from service.tools.suggest.sample import read_file, read_topic
    from service.tools.suggest.suggest import suggest_settings, topic_for

    settings = settings_of(ctx)
    if not file and not settings.topics:
        raise ConfigurationError("suggest: name a FILE, or a topic with --topic TOPIC")
    check_output(output, overwrite=yes)
    name = one_topic(settings) if topics or not file else topic_for(file)
    if file and labels:
        raise ConfigurationError("suggest: --labels needs --topic: the records of files have no timestamps")
    sample = read_file(file, form, count) if file else run_async(read_topic(settings.kafka.cluster, name, count))
    kafka = None if file else settings.kafka.bootstrap_servers
    label_sample = run_async(read_topic(settings.kafka.cluster, labels, count)) if labels else None
    toml = suggest_settings(sample, name, kafka, label=label, as_json=json, labels=label_sample)
    if output is not None:
        write_atomically(output, toml.encode())
        typer.echo(f"{output} is written: `perceptron -c {output} check` says whether it can run", err=True)
