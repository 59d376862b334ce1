"""What `make bench` says of figures, and that its loop in C does what the kernel does."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench import __main__ as bench
from bench import kernel
from bench.client import percentile
from bench.figure import BROKER, PARTS, REDIS, WHOLE, Figure, chosen
from service.learning.identity import Identity
from service.learning.kernel import learn


@pytest.mark.parametrize(
    ("values", "goal", "at_least", "verdict"),
    [
        ([0.9, 2.0, 1.0], 1.0, True, "reached"),
        ([2.0, 0.9, 0.9], 1.0, True, "missed"),
        ([9.0, 0.5, 1.0], 1.0, False, "reached"),
        ([1.1], 1.0, False, "missed"),
        ([], 1.0, True, "not measured"),
    ],
)
def test_the_median_decides(values: list[float], goal: float, at_least: bool, verdict: str) -> None:
    assert bench.verdict(Figure("P1", "what", values, goal, at_least, "×")) == verdict


def test_a_row_says_median_range_goal_and_verdict() -> None:
    cells = ["P7", "what", "2 %", "1.5 to 1,234", "≤ 2 %", "reached"]
    assert bench.row(Figure("P7", "what", [1.5, 1234.0, 2.0], 2.0, False, "%")) == cells


def test_a_row_is_chosen_with_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["P1", "P1b", "P2", "P10"]
    for only, found in (("", names), ("P1", ["P1", "P1b"]), ("P1b", ["P1b"]), ("P2,P10", ["P2", "P10"])):
        monkeypatch.setenv("ONLY", only)
        assert [name for name in names if chosen(name)] == found


def test_rows_that_were_measured_again_take_the_place_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "about", dict)
    monkeypatch.setattr(bench, "FILE", tmp_path / "bench.json")
    old = [Figure(name, "old", [1.0], 1.0, True, "×") for name in ("P1", "P2", "P10")]
    bench.FILE.write_text(json.dumps(bench.kept(old)))
    monkeypatch.setenv("ONLY", "P2")
    found = bench.figures_of(bench.kept([Figure("P2", "new", [1.0], 1.0, True, "×")]))
    assert [(figure.name, figure.what) for figure in found] == [("P1", "old"), ("P2", "new"), ("P10", "old")]


def test_the_page_has_all_tables() -> None:
    parts = [
        Figure(PARTS, f"a stream: {part}", [us], 0.0, False, "µs")
        for part, us in zip((WHOLE, BROKER, REDIS), (4.0, 0.5, 0.1), strict=True)
    ]
    stored = {name: name for name in ("date", "commit", "cpu", "versions")}
    figures = [figure._asdict() for figure in (Figure("P1", "learning", [1.3], 1.2, True, "×"), *parts)]
    text = bench.page(bench.PAGE.read_text(), {**stored, "figures": figures})
    for line in (
        "| P1 | learning | 1.3 × | 1.3 to 1.3 | ≥ 1.2 × | reached |",
        f"| a stream: {WHOLE} | 4 µs | 4 to 4 |",
        "| a stream | 250,000 | 8 | 40 |",
    ):
        assert text.count(line) == 1
    assert bench.page(text, {**stored, "figures": figures}) == text


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.5, 0.75, 0.99)] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_loop_in_c_has_the_kernels_bits() -> None:
    batch = kernel._dense(20, 500)
    theirs, ours = np.zeros(21), np.zeros((21, 1))
    kernel._loop(kernel._compiled(), batch, theirs)
    learned = learn(Identity(), ours, batch)
    assert np.count_nonzero(learned.steps) > 50
    assert (ours[:, 0] == theirs).all()
