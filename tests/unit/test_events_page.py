"""docs/events.md, run: what it shows of settings, records and requests is what happens.

A section is read from its beginning, with the default settings. A `toml` block sets its last model. A `json` block has
records, and the `text` block after it what becomes of each, with an empty line between. An `http` block is a request
and its answer, by a model that has learned the section's records since its settings. A block of a file is followed by
the events that `perceptron produce` makes of it.
"""

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from service.learning import identity
from service.learning.columns.columns import columns_for
from service.learning.events import flatten, json_values
from service.learning.events.batch import REASONS, Decoder
from service.learning.events.content_types import MessagePack
from service.learning.identity import Identity, Text
from service.settings.load import load
from service.settings.model import EventSettings, ModelSettings
from service.tools.formats.formats import Events, format_of
from tests.checks import learner_of
from tests.fuzz import judge
from tests.fuzz.requests import HttpRequest, ask
from tests.unit.applications import application

pytestmark = pytest.mark.usefixtures("reading")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "events.md").read_text()

Becomes = tuple[str, list[tuple[str, float]]]
"""The outcome of a record: its first line, and its features."""


class Block(NamedTuple):
    language: str
    text: str


def _sections(page: str) -> dict[str, list[Block]]:
    """The blocks of each section, by its title."""
    found: dict[str, list[Block]] = {}
    title = ""
    for match in re.finditer(r"^#+ ([^\n]+)$|^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if match[1]:
            title = match[1]
        else:
            found.setdefault(title, []).append(Block(match[2], match[3]))
    return found


SECTIONS = _sections(PAGE)


def _table(*header: str) -> list[list[str]]:
    """The rows of the page's table with this header."""
    first = f"| {' | '.join(header)} |\n"
    assert PAGE.count(first) == 1, first
    lines = PAGE.partition(first)[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _models(toml: str, tmp_path: Path) -> dict[str, ModelSettings]:
    file = tmp_path / "perceptron.toml"
    file.write_text(toml)
    return load(str(file), {}).models


def _values(text: str) -> list[str]:
    """The JSON values of a block, each as it is written."""
    found, at = [], 0
    while at < len(text):
        end = json.JSONDecoder().raw_decode(text, at)[1]
        found.append(text[at:end])
        at = end + len(text[end:]) - len(text[end:].lstrip())
    return found


def _becomes(of: Identity, raw: bytes | None) -> Becomes:
    """The outcome of a record as the first of a model."""
    batch, rejects = Decoder(of, columns_for(of)).decode([raw])
    if rejects:
        return f"rejected: {rejects[0].reason}", []
    if batch.skipped:
        return "skipped", []
    sign, weight = ("positive" if batch.labels[0] > 0 else "negative"), batch.weights[0]
    names = batch.names if of.features == "named" else [str(column - 1) for column in batch.columns.tolist()]
    return (
        sign if weight == 1 else f"{sign}, weight {weight:g}",
        list(zip(names, batch.values.tolist(), strict=True)),
    )


def _shown(lines: list[str]) -> list[tuple[str, float]]:
    """Features as they are written: name and value."""
    return [(name, float(value)) for name, value in (line.rsplit(None, 1) for line in lines)]


def _answer(name: str, of: Identity, records: list[str], request: str) -> tuple[str, Any]:
    """Status line and body of the answer to `POST path`, and a body."""
    learner = learner_of(of, [record.encode() for record in records])
    first, _, body = request.partition("\n")
    method, path = first.split()
    post = HttpRequest(method, path, "", b"application/json", body.encode())
    found = asyncio.run(ask(application(learner, name), post))
    return str(found.status), json.loads(found.body)


def _events(text: str, of: Identity, tmp_path: Path) -> list[Any]:
    """The events that `perceptron produce` makes of a CSV file with this text."""
    file = tmp_path / "events.csv"
    file.write_text(text)
    form = format_of(str(file), of, name=None, label=None, key=None)
    bad: list[str] = []
    lines = Events(str(file), form, of, keyed=False, check=True).lines(bad.append)
    found = [json.loads(line.value) for line in lines]
    assert bad == []
    return found


def _agrees(of: Identity, raw: bytes | None, becomes: Becomes) -> None:
    """The fuzzers' judge, which has the page's rules in its own few lines, says the same."""
    event, faults = judge.event(raw, of)
    reason = becomes[0].removeprefix("rejected: ")
    if reason != becomes[0]:
        assert reason in faults
    else:
        assert faults == set()
        assert (event is None) == (becomes[0] == "skipped")
        assert event is None or not becomes[1] or of.features != "named" or event.features == becomes[1]


@pytest.mark.parametrize("title", SECTIONS)
def test_what_is_shown_is_what_happens(title: str, tmp_path: Path) -> None:
    name, of = "model", Identity()
    learned, waiting, produced = list[str](), list[str](), list[Any]()
    for language, text in SECTIONS[title]:
        if language == "python":
            continue  # run by test_produce
        assert language in {"text", "http"} or not waiting, "records without what becomes of them"
        assert language == "json" or not produced, "a file without its events"
        if language == "toml":
            models = _models(text, tmp_path)
            name, of, learned = list(models)[-1], list(models.values())[-1].identity(), []
        elif language == "json":
            waiting = _values(text)
            assert not produced or [json.loads(value) for value in waiting] == produced
            produced = []
        elif language == "text":
            outcomes = [(first, _shown(rest)) for first, *rest in map(str.splitlines, text.strip().split("\n\n"))]
            assert [_becomes(of, record.encode()) for record in waiting] == outcomes
            for record, outcome in zip(waiting, outcomes, strict=True):
                _agrees(of, record.encode(), outcome)
            learned, waiting = learned + waiting, []
        elif language == "http":
            request, answer = text.split("\n\n")
            first, _, body = answer.partition("\n")
            assert _answer(name, of, learned, request) == (first.split()[0], json.loads(body))
        else:
            assert language == "csv"
            produced = _events(text, of, tmp_path)
    assert not waiting
    assert not produced


def test_no_block_is_passed_over() -> None:
    languages = [block.language for blocks in SECTIONS.values() for block in blocks]
    assert set(languages) == {"toml", "json", "text", "http", "python", "csv"}
    assert len(languages) == PAGE.count("```") / 2


@pytest.mark.parametrize(
    ("row", "of"),
    [
        *((row, Identity()) for row in _table("a value", "in a record", "becomes")),
        *(
            (row, Identity(text=cast(Text, json.loads(_quoted(row[0])[0]))))
            for row in _table("`text`", "in a record", "becomes")
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_a_value_becomes(row: list[str], of: Identity) -> None:
    _, members, said = row
    first, found = _becomes(of, f'{{"features": {{{members.strip("`")}}}, "label": 1}}'.encode())
    if said.startswith("rejected: "):
        assert first == f"rejected: {_quoted(said)[0]}"
    else:
        assert (said == "nothing") == (not found)
        assert (first, found) == ("positive", _shown(_quoted(said)))


def test_each_example_is_rejected_for_its_reason(tmp_path: Path) -> None:
    (toml,) = (block.text for block in SECTIONS["Rejected records"])
    models = _models(toml, tmp_path)
    rows = _table("reason", "what is wrong", "a record")
    assert [_quoted(reason)[0] for reason, _, _ in rows] == list(REASONS)
    for reason, _, example in rows:
        record, of = [*_quoted(example), "small"][:2] if example else [None, "small"]
        raw = None if record is None else record.encode()
        if example.endswith("in MessagePack"):
            raw = MessagePack(bytes.fromhex(record or ""))
        assert _becomes(models[of or ""].identity(), raw)[0] == f"rejected: {_quoted(reason)[0]}", record


def test_a_record_without_a_value_is_passed_over_where_there_is_a_where(tmp_path: Path) -> None:
    shown = [text for blocks in SECTIONS.values() for language, text in blocks if language == "toml"]
    identities = [one.identity() for text in shown for one in _models(text, tmp_path).values()]
    assert {bool(of.event.where) for of in identities} == {True, False}
    for of in identities:
        assert {_becomes(of, raw)[0] for raw in (None, b"")} == {"skipped" if of.event.where else "rejected: empty"}


def test_the_limits_are_the_defaults() -> None:
    rows = _table("what", "at most", "setting", "beyond")
    settings = {_quoted(name)[0]: float(most.replace(",", "")) for _, most, name, _ in rows if name}
    assert settings == {
        name: getattr(ModelSettings(), name) for name in ModelSettings.model_fields if name.startswith("max_")
    }
    fixed = [float(most) for _, most, name, _ in rows if not name]
    assert fixed == [identity.MAX_VALUE, identity.MAX_WEIGHT, flatten.MAX_OBJECT_DEPTH, json_values.MAX_DEPTH]
    assert {_quoted(beyond)[0] for *_, beyond in rows if "`" in beyond} < set(REASONS)


def test_the_default_places_are_shown(tmp_path: Path) -> None:
    (model,) = _models(SECTIONS["Where things stand"][0].text, tmp_path).values()
    assert model.event == EventSettings()
