"""docs/model.md says what is there: all sixteen rows of the texts, each with its test; pictures that are up to date."""

import ast
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
DOCS = TESTS.parents[1] / "docs"
SIXTEEN = list(range(1, 17))


def _rows() -> list[tuple[int, str, str]]:
    """Number, file and test of each row of the table."""
    text = (DOCS / "model.md").read_text()
    found = re.findall(r"^\| (\d+) \|.*\| `(test_\w+\.py)::(test_row_(\d+)_\w+)` \|", text, re.MULTILINE)
    assert all(number == row for number, _, _, row in found)
    return [(int(number), file, test) for number, file, test, _ in found]


def test_all_sixteen_rows_are_there_and_no_other() -> None:
    assert [number for number, _, _ in _rows()] == SIXTEEN


def test_every_rows_test_exists() -> None:
    for _, file, test in _rows():
        defined = {n.name for n in ast.parse((TESTS / file).read_text()).body if isinstance(n, ast.FunctionDef)}
        assert test in defined, f"{file}::{test}"


def test_the_pictures_are_what_their_command_draws(tmp_path: Path) -> None:
    """Drawn again, they show the same numbers: texts and coordinates may differ by what fonts and versions do."""
    code = f"import sys; sys.path.insert(0, {str(DOCS)!r}); import pictures, pathlib; " + (
        f"pictures.FOLDER = pathlib.Path({str(tmp_path)!r}); pictures.draw()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=DOCS.parent)
    for theme in ("light", "dark"):
        drawn, committed = ((folder / f"model-{theme}.svg").read_text() for folder in (tmp_path, DOCS))
        # A point of a line for each mistake, a marker for each event: their number is what the learner did.
        for mark in ('id="line2d_', "<use ", 'id="text_'):
            assert drawn.count(mark) == committed.count(mark) > 0
