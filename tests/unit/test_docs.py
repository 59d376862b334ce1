"""The docs are true: rows name tests that exist, links lead somewhere, generated pages are up to date."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.errors import ConfigurationError
from service.settings.connections import HttpSettings, KafkaSettings, RedisSettings
from service.settings.load import load

TESTS = Path(__file__).parent
DOCS = TESTS.parents[1] / "docs"
PAGES = sorted(page for pages in ("*.md", "docs/*.md", "examples/*/*.md") for page in DOCS.parent.glob(pages))
GENERATOR: Any = runpy.run_path(str(DOCS / "generate.py"))


def test_each_of_the_sixteen_rows_has_its_test() -> None:
    text = (DOCS / "model.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| `(test_\w+\.py)::(test_row_(\d+)_\w+)` \|", text, re.MULTILINE)
    assert [(int(number), int(row)) for number, _, _, row in rows] == [(n, n) for n in range(1, 17)]
    for _, name, test, _ in rows:
        assert any(test in _tests(file) for file in TESTS.rglob(name)), f"{name}::{test}"


def _tests(file: Path) -> set[str]:
    """The tests that a file has."""
    return {
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_fault_has_a_row_and_every_row_a_test() -> None:
    lines = _table_lines()
    rows = [row for line in lines for row in re.findall(r"^\| .* \| (`test_.*`) \|$", line)]
    tables = [line for line in lines if line.startswith(("| fault |", "| attack"))]
    assert len(rows) + 2 * len(tables) == len(lines)
    quoted_tests = {name for row in rows for name in re.findall(r"`(test_\w+\.py::test_\w+)`", row)}
    all_tests = {f"{file.name}::{test}" for file in TESTS.parent.rglob("test_*.py") for test in _tests(file)}
    assert not quoted_tests - all_tests
    faults = {f"{file.name}::{test}" for file in (TESTS.parent / "faults").glob("test_*.py") for test in _tests(file)}
    assert not faults - quoted_tests


def test_the_service_has_every_phrase_that_a_row_quotes() -> None:
    """Metrics, and phrases of a server, are left out."""
    texts = [
        node.value
        for file in (DOCS.parent / "service").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    cells = [line.split(" | ")[2] for line in _table_lines() if "`test_" in line]
    phrases = {
        part.strip(" ,")
        for cell in cells
        for quoted in re.findall(r"`([^`]+)`", cell)
        for part in quoted.split("…")
        if not re.search("perceptron_|=|/v1|used memory", part)
    }
    assert len(phrases) > 20
    assert [p for p in sorted(phrases) if not any(p.strip('"') in text for text in texts)] == []


def _table_lines() -> list[str]:
    """The lines of the tables of faults and attacks."""
    faults = (DOCS / "guarantees.md").read_text().split("## What stops a model")[0]
    text = faults + (DOCS / "security.md").read_text()
    return [line for line in text.splitlines() if line.startswith("|")]


def _anchors(page: Path) -> set[str]:
    """The anchors of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {"", *(re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not link.startswith("http"):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in _anchors(target), f"{page.name}: {link}"


def test_the_index_has_every_page() -> None:
    linked = set(re.findall(r"^\| \[([\w-]+\.md)\]", (DOCS / "README.md").read_text(), re.MULTILINE))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


def test_the_readmes_figures_are_those_that_were_measured() -> None:
    table = (DOCS.parent / "README.md").read_text().partition("| median |\n")[2].partition("\n\n")[0]
    figures = re.findall(r"\| ([^|]+) \|$", table, re.MULTILINE)
    assert len(figures) == 6
    for figure in figures:
        assert figure in (DOCS / "performance.md").read_text(), f"{figure}: docs/performance.md has no such figure"


@pytest.mark.parametrize("page", GENERATOR["PAGES"])
def test_a_generated_page_is_up_to_date(page: str) -> None:
    text = GENERATOR["PAGES"][page]()
    assert text == (DOCS / f"{page}.md").read_text(), "stale: run python -m docs.generate"
    for line in text.splitlines():
        assert not line.endswith("|  |"), f"without a description: {line}"


def test_the_settings_file_that_is_shown_is_valid(tmp_path: Path) -> None:
    """The file has the defaults, except for the labels of its model."""
    file = tmp_path / "perceptron.toml"
    file.write_text((DOCS / "configuration.md").read_text().partition("```toml\n")[2].partition("```")[0])
    settings = load(str(file), {})
    defaults = load(str(file), {"models": {"churn": {"labels": None}}})
    assert settings.models["churn"].labels == (0, 1)
    assert defaults.kafka == settings.kafka == KafkaSettings()
    assert settings.http == HttpSettings()
    assert settings.redis == RedisSettings()


def test_each_variable_of_the_environment_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader may refuse the value of a documented variable, but knows the setting."""
    names = re.findall(r"`(PERCEPTRON_\w+__\w+|PERCEPTRON_[A-Z_]+)` \|", (DOCS / "configuration.md").read_text())
    assert len(names) > 70
    assert [name for name in names if _is_unknown(name, monkeypatch)] == []
    assert _is_unknown("PERCEPTRON_KAFKA__GROUP", monkeypatch)


def _is_unknown(variable: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the settings' loader says that there is no such setting."""
    with monkeypatch.context() as patch:
        patch.setenv(variable, "none-of-it")
        try:
            return "no such setting" in "; ".join(load(None, {"topics": ["churn"]}).ignored_settings)
        except ConfigurationError as error:
            return "no such setting" in str(error)


@pytest.mark.nightly
def test_the_pictures_are_what_their_command_draws(tmp_path: Path) -> None:
    """New drawings show the same numbers; fonts and versions change texts and coordinates."""
    code = f"import sys; sys.path.insert(0, {str(DOCS)!r}); import pictures, pathlib; " + (
        f"pictures.FOLDER = pathlib.Path({str(tmp_path)!r}); pictures.draw()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=DOCS.parent)
    for theme in ("light", "dark"):
        new, committed = ((folder / f"model-{theme}.svg").read_text() for folder in (tmp_path, DOCS))
        # A line has a point for each mistake, and each event a marker.
        for mark in ('id="line2d_', "<use ", 'id="text_'):
            assert new.count(mark) == committed.count(mark) > 0
