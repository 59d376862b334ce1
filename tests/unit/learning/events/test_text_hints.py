"""What a rejection says about a text that stands where it cannot be read; and labels in several spellings."""

import gzip
import json
from typing import Any

import pytest
from pydantic import ValidationError

from service.learning.events.event_reader import EventReader
from service.learning.events.value_formats import ValueBuffer
from service.learning.identity import Identity
from service.settings.model import ModelSettings
from service.tools.files import Csv, Events, raise_bad_line
from tests.checks import learner_of

SPELLED: list[Any] = [["f", False, 0, "no"], ["t", True, 1]]
NUMBER = {"event": {"types": {"a": "number"}}}
EVENT = '{"features": {"a": 1}, "label": 1}'


def rejection(record: bytes, settings: dict[str, Any]) -> tuple[str, str]:
    (reject,) = EventReader(ModelSettings(**settings).identity()).read(ValueBuffer.from_values([record])).rejects
    return reject.reason, reject.detail


@pytest.mark.parametrize(
    ("record", "settings", "reason", "hint"),
    [
        (json.dumps('{"features": {}, "label": 1}'), {}, "wrong-type", "JSON inside a string: send the JSON itself"),
        ({"features": '{"a": 1}', "label": 1}, {}, "wrong-type", "JSON inside a string"),
        ("31,NL,1", {}, "trailing-bytes", "CSV: send JSON"),
        ("NL;31;1", {}, "not-json", "CSV: send JSON"),
        *(
            ({"features": {"a": text}, "label": 1}, NUMBER, "wrong-type", "numbers in text: send JSON numbers")
            for text in ("3.568,48", "67.0%", "€ 12.00", "1 234 567", " 12 ", "-1,5", "CHF 1'000.50")
        ),
        ({"features": {"a": "AxA="}, "label": 1}, NUMBER, "wrong-type", "set decimal.handling.mode"),
        ({"features": {}, "label": "true"}, {}, "unknown-label", 'set labels, such as ["false", "true"]'),
        ({"features": {}, "label": "Kept "}, {"labels": ["kept", "lost"]}, "unknown-label", "another spelling"),
        (gzip.compress(EVENT.encode(), mtime=0), {}, "not-json", "compressed by gzip: send the JSON itself"),
        *((EVENT.encode(f"utf-16{form}"), {}, "not-json", "UTF-16: send JSON in UTF-8") for form in ("", "-le", "-be")),
    ],
)
def test_a_rejection_says_what_a_text_is_and_the_cure(record: Any, settings: Any, reason: str, hint: str) -> None:
    raw = record if isinstance(record, bytes) else (record if isinstance(record, str) else json.dumps(record)).encode()
    assert rejection(raw, settings)[0] == reason
    assert hint in rejection(raw, settings)[1]
    assert "\n" not in rejection(raw, settings)[1]


@pytest.mark.parametrize("text", ["NL", "1.2.3", "20.08.2026", "2026-08-20", "a, b, c", "{x", "AxA", "+49 30 123", ""])
def test_other_texts_have_no_hint(text: str) -> None:
    number = {"event": {"types": {"a*": "number"}, "nan": "absent"}}
    detail = rejection(json.dumps({"features": {"a": text or "-"}, "label": 1}).encode(), number)[1]
    assert detail == 'feature "a" must be a number, or a string that is a JSON number'


@pytest.mark.usefixtures("compiled_reader")
def test_several_spellings_are_one_label() -> None:
    """The first spelling answers. Without lists the identity, and so every digest, is as before."""
    identity = ModelSettings(labels=SPELLED).identity()
    records = [json.dumps({"features": {"a": 1}, "label": x}).encode() for x in (*SPELLED[0], *SPELLED[1], "true")]
    read = EventReader(identity).read(ValueBuffer.from_values(records))
    assert read.labels.tolist() == [-1.0] * 4 + [1.0] * 3
    (reject,) = read.rejects
    assert reject.detail.startswith('\'label\' must be one of "f", false, 0, "no", "t", true, 1, got another spelling')
    assert identity.labels == ("f", "t")
    assert learner_of(identity, records).main.counts.by_label == [4, 3]
    assert ModelSettings(labels=[["f"], ["t"]]).identity() == ModelSettings(labels=["f", "t"]).identity()
    assert ModelSettings(labels=["f", "t"]).identity() == Identity(labels=("f", "t"))


def test_a_table_has_labels_in_several_spellings(tmp_path: Any) -> None:
    identity = ModelSettings(labels=SPELLED).identity()
    (tmp_path / "a.csv").write_text("a,label\n1,0\n2,t\n3,TRUE\n4,no\n")
    lines = Events(str(tmp_path / "a.csv"), Csv(identity, "label", None), identity, check=False).lines(raise_bad_line)
    assert EventReader(identity).read([line.value for line in lines]).labels.tolist() == [-1.0, 1.0, 1.0, -1.0]


@pytest.mark.parametrize("labels", [[["f", 0], ["t", 0]], [["f"], []], [["f", 0]]])
def test_spellings_differ_and_are_of_two_labels(labels: list[Any]) -> None:
    with pytest.raises(ValidationError, match="labels"):
        ModelSettings(labels=labels)
