"""Writes the pages that are generated from code: `python -m docs.generate`; a test fails if one is stale.

api.md is generated from `/openapi.json`, configuration.md from the classes of the settings, cli.md from the command,
metrics.md from a scrape. Each row has a description from the code: to improve a page, change the description there.
"""

import ast
import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from inspect import cleandoc, getsource
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, cast

import typer
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

from service.cli.app import app as command
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.monitoring.metrics import Metrics, ModelFigures
from service.serving.http.app import Application
from service.serving.model_info import Description
from service.serving.models import Models, static_model
from service.serving.page.page import History
from service.settings.connections import HttpSettings, KafkaSettings, RedisSettings
from service.settings.load import Settings, SnapshotSettings
from service.settings.model import CandidateSettings, EventSettings, JoinSettings, ModelSettings, PredictionSettings
from service.settings.section import Section, TlsSection
from service.snapshots.ports import Store
from tests.partitions import P0

FOLDER = Path(__file__).parent
MADE = "<!-- Made by `python -m docs.generate`: change the code that it reads. -->"

API = f"""\
# The HTTP API

{MADE}

A running service has the same as a document for programs at `/openapi.json`, and as a page at `/docs`. For browsers
there is [the page at `/`](page.md). These generators make clients from the document that predict, post and read models:

| language | generator |
|---|---|
| Python | `openapi-generator` 7.26 (`python`), `openapi-python-client` 0.29 |
| TypeScript | `openapi-generator` (`typescript-fetch`), `openapi-typescript` 7.13, `@hey-api/openapi-ts` 0.95 |
| Go | `openapi-generator` (`go`), `oapi-codegen` 2.8 |

A later release may add members to answers. Go's `openapi-generator` refuses them, unless it is called with
`--additional-properties=disallowAdditionalPropertiesIfNotPresent=false`.

With `http.token_file` every request but `/livez` and `/readyz` needs the header `authorization: Bearer TOKEN`
([security.md](security.md#who-may-ask)). What features are stands in [events.md](events.md#over-http). Where GET is
answered, so is HEAD.

An error is a problem document (RFC 9457) of the type `application/problem+json`. Its `title` is what HTTP calls the
`status`, and its `detail` says what is wrong, as in the tables here. It never has values that were sent. Beside what
each route lists, any request may end with 500 (a defect; the log says why) or 503 (the service ends). A 503 has
`retry-after`.
"""

DETAILS = {
    "not gzip": "the body is not gzip, although its content-encoding says so",
    "token missing": "send a token, with the header authorization: Bearer TOKEN",
    "unknown model": "there is no model of this name; GET /v1/models lists them",
    "unknown candidate": "?candidate: the model has no such candidate; it has logistic",
    "body too slow": "the body did not arrive within 10 seconds",
    "body too large": "the body is larger than 16777216 bytes",
    "not JSON": "send the body as JSON, with the header content-type: application/json",
    "encoded": "the body's content-encoding is unknown: send it as gzip, or uncompressed",
    "bad body": 'feature "age" is not a finite number',
    "bad parameter": "?top: expected a number greater than or equal to 1",
    "unknown parameter": "?candidat: there is no such parameter; /docs lists them",
    "defect": "the service failed on this request; its log says why",
    "no snapshot yet": "the model has no snapshot yet",
    "not ready": "not every model can answer yet, or the service is shutting down",
    "no ingest tokens": "posts need http.ingest_token_file, since others reach this address",
    "unknown topic": "topic clicks does not exist",
    "no join": "this model has no labels that come later: set [models.NAME.join]",
    "bad record": "'label' must be one of 0, 1",
    "Kafka away": "Kafka at localhost:9092: Connection refused",
    "too busy": "too many requests at a time",
    "Redis away": "the snapshot store does not answer",
}
"""An example of the `detail` of each problem that a route names in `/openapi.json`, with the default settings."""

CONFIGURATION = f"""\
# Configuration

{MADE}

A setting comes from the first of these that has it: a flag of the command, an environment variable, the settings
file, the default. The file is `perceptron.toml` in the working folder, or `-c FILE`, or `PERCEPTRON_CONFIG`.
`perceptron config` shows each value and where it came from.

In the environment two underscores go one level down: `PERCEPTRON_KAFKA__GROUP_ID` is `group_id` in the table `[kafka]`.
Lists and tables are JSON there, but for `topics` and `redis.sentinels`, which take commas. A model's own settings are
`PERCEPTRON_MODELS__NAME__…`, where its name is in small letters. Names with capitals or dots need JSON:
`PERCEPTRON_MODELS='{{"Offers.v2": {{"eta": 2.0}}}}'`.

What is set and is no setting is refused, in the file as in a variable with `__` in its name. Another variable that
begins with `PERCEPTRON_` may be somebody else's, as those that Kubernetes gives a pod: it is warned of if its name is
like that of a setting.

A topic that begins with `^` is a regular expression: every topic it finds is learned, as it comes to exist, with the
settings of `[models."^clicks-"]`.

A secret can be the setting itself, or stand in a file of one line that the same name with `_file` says. Files are read
when a process starts; those of `[http]` again when they change.

A settings file, with what is set most often at its defaults:

```toml
topics = ["churn"]                     # each topic is a model of the same name; "^clicks-" is a pattern
learn = true                           # false: only follow snapshots and serve; needs no Kafka
create_topics = false
[kafka]
bootstrap_servers = "localhost:9092"
group_id = "perceptron"
max_batch_bytes = 16_777_216           # a compressed batch that is unpacked to more stops its topic, by name
[redis]
url = "redis://localhost:6379/0"
[http]
host = "127.0.0.1"
port = 8000
# token_file = "tokens"                # bearer tokens, one a line: then who asks needs one, but for probes
# ssl_certfile = "service.pem"         # HTTPS, with ssl_keyfile; files that change need no restart
max_in_flight = 100                    # requests at a time; more are refused with 503
reuse_port = false                     # true: several processes share the port; see scaling.md
max_connections = 1000                 # beyond them the longest idle ones end; see security.md
[models.churn]                         # [model] holds the defaults of all
features = "named"                     # "positional" with dimension = 20; "hashed" with bits = 20
rule = "perceptron"                    # or error-correction, half-step, lms, logistic-delta, threshold-unit
eta = 1.0                              # each rule has its own default
# margin = [0, 100]                    # of perceptron: finds more positives where they are rare
average = false                        # true keeps their mean too, "recent" one that forgets; serve = "average"
labels = [0, 1]                        # negative, positive; or up to 1,000, each with weights of its own
# serve = "logistic"                   # who answers: last, average, a candidate, or best
[models.churn.candidates.logistic]     # learned side by side, from the same events: model.md
rule = "logistic-delta"                # or another eta, margin, average
[models.churn.event]                   # where things stand in a record: events.md
label = "/label"
```
"""

CLI = f"""\
# The command

{MADE}

`perceptron` is one command with others in it. Results go to standard output; logs, progress and errors to standard
error.
An error is one line that says what to do. `NO_COLOR` has none of the colours.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | usage or settings |
| 3 | Kafka, Redis or the service cannot be reached |
| 4 | a check found a difference |
| 130 | Ctrl-C |

Options of `perceptron` itself stand before the command's name: `perceptron -c FILE run`.
"""

METRICS = f"""\
# Metrics

{MADE}

`GET /metrics` has them in Prometheus' text format. [dashboards.md](dashboards.md) shows them, and
[alerts.md](alerts.md) says when they are worth waking somebody. `process_…` and `python_info`, of the Prometheus
client, are there too.

| kept | what it means |
|---|---|
| durable | As of the last accepted snapshot: over restarts it goes on, and nothing counts twice. |
| now | Read at the scrape. |
| process | What the process itself did since it began. |

| by | who exports it |
|---|---|
| learner | The process that learns the model, alone. |
| all | Each process that answers for the model. |
"""


def table(head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; empty if it has no rows."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines, "", ""]) if lines else ""


def block(title: str, value: Any) -> str:
    """A value as JSON, under its title: a long object has a line for each member."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict) and len(text) > 110:
        lines = (f"  {json.dumps(name)}: {json.dumps(member, ensure_ascii=False)}" for name, member in value.items())
        text = "{\n" + ",\n".join(lines) + "\n}"
    return f"{title}:\n\n```json\n{text}\n```\n\n"


def configuration() -> str:
    """Every setting, by its table in the file."""
    parts = [CONFIGURATION]
    for title, words, prefix, section in (
        ("At the top", "What the process does.", "", Settings),
        ("`[kafka]`", "Where events come from.", "KAFKA__", KafkaSettings),
        ("`[redis]`", "Where snapshots are kept.", "REDIS__", RedisSettings),
        ("`[http]`", "Where predictions are asked for.", "HTTP__", HttpSettings),
        ("`[snapshots]`", "Which versions are kept for rollback.", "SNAPSHOTS__", SnapshotSettings),
        (
            "`[model]` and `[models.NAME]`",
            "How a model learns and answers: the defaults of all, and a model's own. All but `window`, `serve`, "
            "`bound`, `reference` and `candidates` is the model's identity:\na stored model is not continued "
            "under another one.",
            "MODEL__",
            ModelSettings,
        ),
        (
            "`[models.NAME.event]`",
            "Where the parts of an event stand in a record: [events.md](events.md#where-things-stand). Identity too,\n"
            "but for `order`.",
            "MODEL__EVENT__",
            EventSettings,
        ),
        (
            "`[models.NAME.join]`",
            "Labels that come later: [late-labels.md](late-labels.md). Identity too, but for `topic` and the length\n"
            "of `max_silence`.",
            "MODEL__JOIN__",
            JoinSettings,
        ),
        (
            "`[models.NAME.predictions]`",
            "What the model is asked becomes events: [late-labels.md](late-labels.md#over-http).",
            "MODEL__PREDICTIONS__",
            PredictionSettings,
        ),
        (
            "`[models.NAME.candidates.CANDIDATE]`",
            "Candidates learn next to the model from the same events: [model.md](model.md#candidates). What is not\n"
            "set is as the model has it; what belongs to a rule is another rule's own default.",
            "MODEL__CANDIDATES__CANDIDATE__",
            CandidateSettings,
        ),
    ):
        head = ("setting", "default", "values", "environment", "what it does")
        parts.append(f"## {title}\n\n{words}\n\n" + table(head, _settings(section, prefix)).rstrip() + "\n")
    return "\n".join(parts)


def _settings(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, ...]]:
    schema = section.model_json_schema()
    # The settings of the base class, for TLS, come after its own.
    names = sorted(schema["properties"], key=lambda name: name in TlsSection.model_fields)
    for name in names:
        field = schema["properties"][name]
        is_table = any("$ref" in each for each in (field, *field.get("anyOf", ())))
        if is_table or name in {"model", "models"} or name.removesuffix("_file") in _secrets(schema) - {name}:
            continue  # a table of its own; the file of a secret
        description = {**_descriptions(ModelSettings), **_descriptions(section)}[name]
        if name in _secrets(schema):
            description += f" A secret: or `{name}_file`."
        default = "" if field.get("default") is None else f"`{json.dumps(field['default'], ensure_ascii=False)}`"
        yield f"`{name}`", default, _values(field, schema), f"`PERCEPTRON_{prefix}{name.upper()}`", description


def _descriptions(section: type[BaseModel]) -> dict[str, str]:
    """The docstring below each setting, in its class or in one that its class inherits from."""
    inherited = section.__mro__[1]
    descriptions = _descriptions(inherited) if issubclass(inherited, Section) else {}
    for setting, docstring in pairwise(ast.parse(getsource(section)).body[0].body):  # type: ignore[attr-defined]
        match setting, docstring:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                descriptions[name] = text
    return descriptions


def _secrets(schema: Any) -> set[str]:
    """The settings that may stand in a file."""
    return {name for name in schema["properties"] if f"{name}_file" in schema["properties"]}


def _values(field: Any, schema: Any) -> str:
    """The allowed values of a setting."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(filter(None, (_values(choice, schema) for choice in field["anyOf"]))))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in field.get("enum", [field.get("const")]))
    if "$ref" in field:
        return "table"
    low, high = (
        next((f"{word} {field[key]:,}" for key, word in bounds if key in field), "")
        for bounds in (
            (("minimum", "from"), ("exclusiveMinimum", "above")),
            (("maximum", "to"), ("exclusiveMaximum", "below")),
        )
    )
    kinds = {"integer": "whole number", "boolean": "`true`, `false`", "array": "list", "object": "table", "null": ""}
    kind = kinds.get(field.get("type", ""), field.get("type", ""))
    return " ".join(filter(None, (kind, low, high)))


def cli() -> str:
    """Each command and its options."""
    return "\n".join(
        [CLI, *(f"{text.rstrip()}\n" for text in _commands(typer.main.get_command(command), "perceptron", None))]
    )


def _commands(group: Any, name: str, parent: Any) -> Iterator[str]:
    ctx = group.make_context(name, [], parent=parent, resilient_parsing=True)
    usage = " ".join([ctx.command_path, *group.collect_usage_pieces(ctx)])
    options = (option.get_help_record(ctx) for option in group.get_params(ctx) if option.name != "help")
    rows = (
        (f"`{option}`", help_text.replace("  [", " [").replace("[default: -]", "")) for option, help_text in options
    )
    title = "Before a command" if parent is None else f"`{ctx.command_path}`"
    yield f"## {title}\n\n{group.help}\n\n```text\n{usage}\n```\n\n" + table(("option", "what it does"), rows)
    for inner, subcommand in getattr(group, "commands", {}).items():
        yield from _commands(subcommand, inner, ctx)


def metrics() -> str:
    """Each metric, as in a scrape."""
    follower = Learner(Identity(scale="standard"))
    follower.begin({P0: 0})
    model = static_model("m", follower, 1.0)
    assert model.answering is not None  # noqa: S101 - a static model has one
    figures = ModelFigures(Description.from_model(model, model.answering), follower.main.counts, 1.0, {}, {}, 0)
    registered = Metrics("0", lambda: [asyncio.sleep(0, figures)], lambda: True, lambda: {"redis": 0.0})
    asyncio.run(registered.render())
    rows: list[tuple[str, ...]] = []
    # The registry has no public way to metrics that are declared and have no series yet.
    for collector in registered.registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            rows.append(_metric(next(iter(collector.collect())), collector._labelnames, "process", "all"))
        elif type(collector).__module__ == Metrics.__module__:
            for family in collector.collect():
                durability = "durable" if isinstance(family, CounterMetricFamily) else "now"
                names = getattr(family, "_labelnames", ("model", "quantile"))  # a summary's
                rows.append(_metric(family, names, durability, "all" if family.samples else "learner"))
    order = ("durable", "now", "process")
    rows.sort(key=lambda row: order.index(row[4]))
    head = ("metric", "type", "labels", "what it is", "by")
    parts = []
    for title, group in groupby(rows, lambda row: row[4]):
        count = 4 if title == "process" else 5
        lines = ((*row[:4], row[5])[:count] for row in group)
        parts.append(f"## {title.capitalize()}\n\n" + table(head[:count], lines).rstrip() + "\n")
    return "\n".join([METRICS, *parts])


def _metric(family: Any, labels: Iterable[str], durability: str, exporter: str) -> tuple[str, ...]:
    name = f"`{family.name}{'_total' * (family.type == 'counter')}`"
    return name, family.type, ", ".join(f"`{label}`" for label in labels), family.documentation, durability, exporter


def api() -> str:
    """Each route: its parameters, an example of each answer, and its problems."""
    registered = Metrics("0", list, lambda: True, dict)
    models = Models([])
    history = History(models, lambda _: None)
    app = Application(models, registered, cast(Store, None), history, lambda: False, HttpSettings(), "0")
    document = app.api.openapi()
    shapes = document["components"]["schemas"]
    parts = [API]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            parts.append(
                f"## {method.upper()} {path}\n\n{route['description']}\n\n" + _route(route, shapes).rstrip() + "\n"
            )
    parts.append("## What requests and answers have\n\n" + "".join(_shapes(shapes)).rstrip() + "\n")
    return "\n".join(parts)


def _route(route: Any, shapes: Any) -> str:
    text = table(
        ("parameter", "default", "what it is"),
        (
            (
                f"`{item['name']}`",
                json.dumps(item["schema"].get("default", "")).strip('"'),
                item.get("description", ""),
            )
            for item in route.get("parameters", [])
            if item["in"] == "query"
        ),
    )
    for content in route.get("requestBody", {}).get("content", {}).values():
        text += "".join(block("A request", item["value"]) for item in content.get("examples", {}).values())
    problems: list[tuple[str, str, str]] = []
    for status, answer in sorted(route["responses"].items()):
        for kind, content in answer.get("content", {}).items():
            if kind == "application/json":
                examples = content.get("examples") or {"": {"value": example(content["schema"], shapes)}}
                text += "".join(block("An answer", item["value"]) for item in examples.values())
            elif kind == "application/problem+json" and status != "default":
                problems += ((status, name, DETAILS[name]) for name in answer["description"].split(", "))
    return text + table(("status", "what is wrong", "`detail`, for example"), problems)


def example(schema: Any, shapes: Any) -> Any:
    """An example of a schema, made of the examples of its parts, without optional members."""
    if schema.get("examples"):
        return schema["examples"][0]
    if "$ref" in schema:
        return example(shapes[schema["$ref"].rpartition("/")[2]], shapes)
    if "anyOf" in schema:
        return None if {"type": "null"} in schema["anyOf"] else example(schema["anyOf"][0], shapes)
    if schema.get("type") == "boolean":
        return True
    if schema.get("type") == "array":
        return [example(schema["items"], shapes)]
    parts, needed = schema.get("properties", {}), schema.get("required", [])
    return {name: example(part, shapes) for name, part in parts.items() if name in needed}


def _shapes(shapes: Any) -> Iterator[str]:
    """The members of requests and answers that have a description, once each."""
    for name, shape in shapes.items():
        members = shape.get("properties", {}).items()
        rows = [(f"`{member}`", schema["description"]) for member, schema in members if "description" in schema]
        if rows:
            yield f"### {name}\n\n{cleandoc(shape.get('description', ''))}\n\n" + table(("member", "what it is"), rows)


PAGES: dict[str, Callable[[], str]] = {"api": api, "configuration": configuration, "cli": cli, "metrics": metrics}

if __name__ == "__main__":
    for page, made in PAGES.items():
        (FOLDER / f"{page}.md").write_text(made())
