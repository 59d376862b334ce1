"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

SERVICE = Path(__file__).parents[2] / "service"
FILES = sorted(path for path in SERVICE.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples(path: Path) -> None:
    name = ".".join(path.relative_to(SERVICE.parent).with_suffix("").parts)
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted
    assert not results.failed
