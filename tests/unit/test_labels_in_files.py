"""Three labels and more in a file: numbers by value, texts as they are, and what is none of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.errors import ConfigurationError
from service.learning.identity import Identity
from service.settings.load import load
from service.tools.formats import Events, format_of

NUMBERS: tuple[Any, ...] = (3, -1, 0.5, 10)
WORDS = ("setosa", "12", "New York")
MIXED: tuple[Any, ...] = (0, 1, "none")

FILES: list[tuple[str, tuple[Any, ...], str, str | None, list[Any]]] = [
    ("n.csv", NUMBERS, "a,y\n1,+3\n1,3.0\n1, -1 \n1,0.50\n1,1e1\n", "y", [3, 3, -1, 0.5, 10]),
    ("w.csv", WORDS, "a,y\n1,setosa\n1, 12\n1,New York\n", "y", ["setosa", "12", "New York"]),
    ("m.csv", MIXED, "a,y\n1,0\n1,none\n1,1.0\n", "y", [0, "none", 1]),
    ("n.jsonl", NUMBERS, '{"features":{},"label":3.0}\n{"features":{},"label":10}\n', None, [3, 10]),
    ("w.jsonl", WORDS, '{"features":{},"label":"12"}\n', None, ["12"]),
]
BAD: list[tuple[str, tuple[Any, ...], str, str | None, str]] = [
    ("n.csv", NUMBERS, "a,y\n1,3\n1,4\n", "y", "n.csv, line 3: unknown-label: "),
    ("n.csv", NUMBERS, "a,y\n1,\n", "y", "n.csv, line 2: unknown-label: "),
    ("w.csv", WORDS, "a,y\n1,Setosa\n", "y", "w.csv, line 2: unknown-label: "),
    ("n.csv", (0, 1, 2), "a,y\n1,true\n", "y", "n.csv, line 2: unknown-label: "),
    ("w.jsonl", WORDS, '{"features":{},"label":12}\n', None, "w.jsonl, line 1: unknown-label: "),
]


def labels_in(folder: Path, file: str, labels: tuple[Any, ...], text: str, column: str | None) -> tuple[Any, list[str]]:
    (folder / file).write_text(text)
    identity = Identity(labels=labels)
    form = format_of(file, identity, name=None, label=column, key=None)
    bad: list[str] = []
    events = Events(str(folder / file), form, identity, keyed=False, check=True).lines(bad.append)
    return [json.loads(line.value)["label"] for line in events], bad


@pytest.mark.parametrize(("file", "labels", "text", "column", "expected"), FILES, ids=[file for file, *_ in FILES])
def test_labels_are_read(
    tmp_path: Path, file: str, labels: tuple[Any, ...], text: str, column: str | None, expected: list[Any]
) -> None:
    assert labels_in(tmp_path, file, labels, text, column) == (expected, [])


@pytest.mark.parametrize(("file", "labels", "text", "column", "said"), BAD, ids=[text for _, _, text, *_ in BAD])
def test_what_is_no_label_is_one_line(
    tmp_path: Path, file: str, labels: tuple[Any, ...], text: str, column: str | None, said: str
) -> None:
    _, (line,) = labels_in(tmp_path, file, labels, text, column)
    assert line.startswith(str(tmp_path / said))
    assert "\n" not in line


def test_more_labels_than_may_be_are_one_line() -> None:
    with pytest.raises(ConfigurationError, match="expected from 2 to 1,000 labels, got 1,001") as caught:
        load(None, {"topics": ["a"], "model": {"labels": list(range(1001))}})
    assert "\n" not in str(caught.value)
