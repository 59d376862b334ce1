"""Three labels and more in a file: numbers are compared by value, strings as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.errors import ConfigurationError
from service.learning.identity import Identity
from service.settings.load import load
from service.tools.formats import Events, format_of

FILES: list[tuple[str, tuple[Any, ...], str, list[Any], list[int]]] = [
    ("n.csv", (3, -1, 0.5, 10), "a,y\n1,+3\n1,3.0\n1, -1 \n1,0.50\n1,1e1\n1,4\n1,\n", [3, 3, -1, 0.5, 10], [7, 8]),
    ("w.csv", ("setosa", "12"), "a,y\n1,setosa\n1, 12\n1,Setosa\n", ["setosa", "12"], [4]),
    ("m.csv", (0, 1, "none"), "a,y\n1,0\n1,none\n1,1.0\n1,true\n", [0, "none", 1], [5]),
    ("w.jsonl", ("3", 12), '{"features":{},"label":"3"}\n{"features":{},"label":3}\n', ["3"], [2]),
]
"""A file's name, the model's labels, the file's text, the labels that are read, and the lines of unknown ones."""


@pytest.mark.parametrize(("file", "labels", "text", "expected", "unknown"), FILES, ids=[file for file, *_ in FILES])
def test_labels_are_read_and_unknown_ones_are_named_by_line(
    tmp_path: Path, file: str, labels: tuple[Any, ...], text: str, expected: list[Any], unknown: list[int]
) -> None:
    (tmp_path / file).write_text(text)
    identity = Identity(labels=labels)
    form = format_of(file, identity, name=None, label="y" if file.endswith(".csv") else None, key=None)
    bad: list[str] = []
    events = Events(str(tmp_path / file), form, identity, keyed=False, check=True).lines(bad.append)
    assert [json.loads(line.value)["label"] for line in events] == expected
    assert [line.partition(": unknown-label: ")[0] for line in bad] == [f"{tmp_path / file}, line {n}" for n in unknown]


def test_more_labels_than_may_be_are_one_line() -> None:
    with pytest.raises(ConfigurationError, match="expected at most 1000 items") as caught:
        load(None, {"topics": ["a"], "model": {"labels": list(range(1001))}})
    assert "\n" not in str(caught.value)
