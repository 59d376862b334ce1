"""docs/events.md is run: settings, records and requests have the outcomes that the page shows.

A section is read from its beginning, with the default settings. A `toml` block sets its last model. A `json` block has
records, and the `text` block after it has the outcome of each, with empty lines between. An `http` block is a request
and its answer, by a model that has learned the section's records since its settings. A block of a file is followed by
the events that `perceptron produce` makes of it.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from service.learning.events import flatten, json_values
from service.learning.events.read_events import REASONS
from service.learning.events.value_formats import JSON, MESSAGE_PACK, ValueBuffer, ValueFormat
from service.learning.identity import MAX_VALUE, MAX_WEIGHT, Identity, Places, Text
from service.settings.load import load
from service.settings.model import EventSettings, ModelSettings
from service.tools.files import Events, format_of
from tests.checks import decode, learner_of
from tests.fuzz import judge
from tests.fuzz.requests import HttpRequest, ask
from tests.unit.applications import application

pytestmark = pytest.mark.usefixtures("reading")

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "events.md").read_text()

Outcome = tuple[str, list[tuple[str, float]]]
"""The outcome of a record: its first line, and its features."""


class Block(NamedTuple):
    language: str
    text: str


def _sections(page: str) -> dict[str, list[Block]]:
    """The blocks of each section, by its title."""
    blocks, title = dict[str, list[Block]](), ""
    for match in re.finditer(r"^#+ ([^\n]+)$|^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if match[1]:
            title = match[1]
        else:
            blocks.setdefault(title, []).append(Block(match[2], match[3]))
    return blocks


SECTIONS = _sections(PAGE)


def _table(*header: str) -> list[list[str]]:
    """The rows of the page's table with this header."""
    heading = f"| {' | '.join(header)} |\n"
    assert PAGE.count(heading) == 1, heading
    lines = PAGE.partition(heading)[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def _codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


TYPED = Places(types=(("amount*", "number"), ("zip*", "category"), ("at*", "time")))
"""The types that the page's table of types has."""


def _models(toml: str, tmp_path: Path) -> dict[str, ModelSettings]:
    file = tmp_path / "perceptron.toml"
    file.write_text(toml)
    return load(str(file), {}).models


def _values(text: str) -> list[str]:
    """The JSON values of a block, each as it is written."""
    values, position = [], 0
    while position < len(text):
        end = json.JSONDecoder().raw_decode(text, position)[1]
        values.append(text[position:end])
        position = end + len(text[end:]) - len(text[end:].lstrip())
    return values


def _outcome(identity: Identity, raw: bytes | None, value_format: ValueFormat = JSON) -> Outcome:
    """The outcome of a record that is the first of a model."""
    batch, events = decode(identity, ValueBuffer.from_values([raw], [value_format]))
    if events.rejects:
        return f"rejected: {events.rejects[0].reason}", []
    if events.skipped:
        return "skipped", []
    sign, weight = ("positive" if batch.labels[0] > 0 else "negative"), batch.weights[0]
    names = batch.names if identity.features == "named" else [str(column - 1) for column in batch.columns.tolist()]
    features = list(zip(names, batch.values.tolist(), strict=True))
    return sign if weight == 1 else f"{sign}, weight {weight:g}", features


def _features(lines: list[str]) -> list[tuple[str, float]]:
    """Features as they are written: name and value."""
    return [(name, float(value)) for name, value in (line.rsplit(None, 1) for line in lines)]


def _answer(name: str, identity: Identity, records: list[str], request: str) -> tuple[str, Any]:
    """The status and the body of the answer to a request, which is a line such as `POST path`, and a body."""
    learner = learner_of(identity, [record.encode() for record in records])
    request_line, _, body = request.partition("\n")
    method, path = request_line.split()
    posted = HttpRequest(method, path, "", b"application/json", body.encode())
    answer = asyncio.run(ask(application(learner, name), posted))
    return str(answer.status), json.loads(answer.body)


def _events(text: str, identity: Identity, tmp_path: Path) -> list[Any]:
    """The events that `perceptron produce` makes of a CSV file with this text."""
    file = tmp_path / "events.csv"
    file.write_text(text)
    form = format_of(str(file), identity, name=None, label=None, key=None)
    lines = Events(str(file), form, identity, check=True).lines(pytest.fail)
    return [json.loads(line.value) for line in lines]


def _agrees(identity: Identity, raw: bytes | None, outcome: Outcome) -> None:
    """Assert that the fuzzers' judge, which has the page's rules in its own few lines, says the same."""
    event, faults = judge.event(raw, identity)
    reason = outcome[0].removeprefix("rejected: ")
    if reason != outcome[0]:
        assert reason in {own for _, own in faults}
    else:
        assert faults == set()
        assert (event is None) == (outcome[0] == "skipped")
        assert event is None or not outcome[1] or identity.features != "named" or event.features == outcome[1]


@pytest.mark.parametrize("title", SECTIONS)
def test_blocks_have_the_outcomes_that_the_page_shows(title: str, tmp_path: Path) -> None:
    name, identity = "model", Identity()
    learned_records, records, produced = list[str](), list[str](), list[Any]()
    for language, text in SECTIONS[title]:
        if language == "python":
            continue  # run by test_produce
        assert language in {"text", "http"} or not records, "records without their outcomes"
        assert language == "json" or not produced, "a file without its events"
        if language == "toml":
            models = _models(text, tmp_path)
            name, identity, learned_records = list(models)[-1], list(models.values())[-1].identity(), []
        elif language == "json":
            records = _values(text)
            assert not produced or [json.loads(value) for value in records] == produced
            produced = []
        elif language == "text":
            outcomes = [(line, _features(rest)) for line, *rest in map(str.splitlines, text.strip().split("\n\n"))]
            assert [_outcome(identity, record.encode()) for record in records] == outcomes
            for record, outcome in zip(records, outcomes, strict=True):
                _agrees(identity, record.encode(), outcome)
            learned_records, records = learned_records + records, []
        elif language == "http":
            request, answer = text.split("\n\n")
            line, _, body = answer.partition("\n")
            assert _answer(name, identity, learned_records, request) == (line.split()[0], json.loads(body))
        else:
            assert language == "csv"
            produced = _events(text, identity, tmp_path)
    assert not records
    assert not produced


def test_no_block_is_passed_over() -> None:
    languages = [block.language for blocks in SECTIONS.values() for block in blocks]
    assert set(languages) == {"toml", "json", "text", "http", "python", "csv"}
    assert len(languages) == PAGE.count("```") / 2


TEXTS = _table("`text`", "in a record", "becomes")
ROWS = [(row, Identity()) for row in _table("a value", "in a record", "becomes")]
ROWS += [(row, Identity(text=cast(Text, json.loads(_codes(row[0])[0])))) for row in TEXTS]
ROWS += [(row, Identity(event=TYPED)) for row in _table("type", "in a record with types", "becomes")]


@pytest.mark.parametrize(("row", "identity"), ROWS, ids=[row[0] for row, _ in ROWS])
def test_a_value_becomes_the_features_that_the_table_shows(row: list[str], identity: Identity) -> None:
    _, members, outcome = row
    record = f'{{"features": {{{members.strip("`")}}}, "label": 1}}'.encode()
    kind, features = _outcome(identity, record)
    _agrees(identity, record, (kind, features))
    if outcome.startswith("rejected: "):
        assert kind == f"rejected: {_codes(outcome)[0]}"
    else:
        assert (outcome == "nothing") == (not features)
        assert (kind, features) == ("positive", _features(_codes(outcome)))


def test_each_example_is_rejected_for_its_reason(tmp_path: Path) -> None:
    (toml,) = (block.text for block in SECTIONS["Rejected records"])
    models = _models(toml, tmp_path)
    rows = _table("reason", "what is wrong", "a record")
    assert [_codes(reason)[0] for reason, _, _ in rows] == list(REASONS)
    for reason, _, example in rows:
        record, identity = [*_codes(example), "small"][:2] if example else [None, "small"]
        raw, value_format = None if record is None else record.encode(), JSON
        if example.endswith("in MessagePack"):
            raw, value_format = bytes.fromhex(record or ""), MESSAGE_PACK
        outcome, _ = _outcome(models[identity or ""].identity(), raw, value_format)
        assert outcome == f"rejected: {_codes(reason)[0]}", record


def test_a_record_without_a_value_is_skipped_if_the_model_has_a_where(tmp_path: Path) -> None:
    tables = [text for blocks in SECTIONS.values() for language, text in blocks if language == "toml"]
    identities = [settings.identity() for text in tables for settings in _models(text, tmp_path).values()]
    assert {bool(model.event.where) for model in identities} == {True, False}
    for model in identities:
        expected = "skipped" if model.event.where else "rejected: empty"
        assert {_outcome(model, raw)[0] for raw in (None, b"")} == {expected}


def test_the_limits_are_the_defaults() -> None:
    rows = _table("what", "at most", "setting", "beyond")
    settings = {_codes(name)[0]: float(limit.replace(",", "")) for _, limit, name, _ in rows if name}
    limits = [name for name in ModelSettings.model_fields if name.startswith("max_")]
    assert settings == {name: getattr(ModelSettings(), name) for name in limits}
    fixed = [float(limit) for _, limit, name, _ in rows if not name]
    assert fixed == [MAX_VALUE, MAX_WEIGHT, flatten.MAX_OBJECT_DEPTH, json_values.MAX_DEPTH]
    assert {_codes(reason)[0] for *_, reason in rows if "`" in reason} < set(REASONS)


def test_the_default_places_are_shown(tmp_path: Path) -> None:
    (model,) = _models(SECTIONS["Where things stand"][0].text, tmp_path).values()
    assert model.event == EventSettings()
