"""What `suggest` makes of values as people have them: numbers, times and codes in any form, leaks, odd texts."""

import base64
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from service.errors import DataError
from service.settings.model import ModelSettings
from service.tools.check import value_notes
from service.tools.suggest.field_profile import member_at
from service.tools.suggest.model_selection import MIN_AUC_GAIN, Trial, best_trial
from service.tools.suggest.proposal import choose_event
from service.tools.suggest.suggest import suggest_settings
from tests.checks import learner_of
from tests.unit.tools.test_suggest import Row, hundred, rows, sample, suggested

STORES = random.Random(3).sample(range(101, 141), 20)
START = 1_787_204_704


def price(_: int, rng: random.Random) -> dict[str, Any]:
    amount = rng.uniform(1, 60)
    return {"amount": f"{amount:.2f}", "visits": str(rng.randint(0, 9)), "label": amount > 30}


def store(_: int, rng: random.Random) -> dict[str, Any]:
    store_id = rng.randint(101, 140)
    return {"store_id": store_id, "label": store_id in STORES}


def hour(_: int, rng: random.Random) -> dict[str, Any]:
    value = rng.randint(0, 23)
    return {"hour": value, "visits": rng.randint(0, 9), "label": value in (8, 9, 10, 17, 18, 19)}


def timed(form: Callable[[int], Any]) -> Row:
    def row(i: int, rng: random.Random) -> dict[str, Any]:
        at = START + i * 613 + rng.randint(0, 300)
        return {"at": form(at), "x": rng.gauss(0, 1), "label": (at // 3600 % 24 >= 12) ^ (rng.random() < 0.05)}

    return row


def plain(value: Callable[[int, random.Random], Any], name: str = "v") -> Row:
    """A value next to a number that tells the label."""

    def row(i: int, rng: random.Random) -> dict[str, Any]:
        return {name: value(i, rng), "x": (x := rng.gauss(0, 1)), "label": x + rng.gauss(0, 0.5) > 0}

    return row


def suggestion(capsys: pytest.CaptureFixture[str], row: Row, **options: Any) -> Any:
    suggest_settings(sample(rows(row, **options)), "t", None, label="/label", as_json=True)
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("row", "types", "accuracy"),
    [
        (price, {"amount": "number", "visits": "number"}, 0.95),
        (store, {"store_id": "category"}, 0.96),
        (hour, {"hour": "category"}, 0.99),
        *(
            (timed(form), {"at": "time"}, 0.9)
            for form in (
                lambda at: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
                lambda at: list(time.gmtime(at)[:6]),
                lambda at: at,
                lambda at: 10**9 * at,
                lambda at: str(1000 * at),
            )
        ),
    ],
)
def test_values_are_read_as_what_tells_the_label(
    row: Row, types: Any, accuracy: float, capsys: pytest.CaptureFixture[str]
) -> None:
    proposal = suggestion(capsys, row)
    assert {each["setting"]: each["value"] for each in proposal["choices"]}["event.types"] == types
    assert proposal["chosen"]["later"] >= accuracy


def test_a_time_that_does_not_tell_the_label_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    proposal = suggestion(capsys, plain(lambda i, _: START + 60 * i))
    assert {each["setting"]: each["value"] for each in proposal["choices"]}["event.without"] == ["v"]


READINGS: list[tuple[str, list[Any], str, list[str]]] = [
    ("acc", hundred(lambda i: random.Random(i).getrandbits(63)), "identifier", ["left out"]),
    ("order", hundred(lambda i: f"o{i // 2}", 2000), "identifier", ["left out"]),  # each is sent twice
    ("cents", hundred(lambda i: int(10 ** (i * 37 % 100 / 9))), "", ["as it is"]),
    ("movie_id", hundred(lambda i: i * 37 % 101 % 11), "category", ["category"]),
    ("zip", hundred(lambda i: f"{i % 20:05}"), "", ["as it is"]),
    ("code", hundred(lambda i: str(i % 20)), "number", ["number", "category"]),
    ("amount", hundred(lambda i: "" if i % 9 == 0 else f"{i * 37 % 100}.5"), "number", ["number"]),
    ("departs", hundred(lambda i: f"{i % 24:02}:{i % 60:02}"), "timestamp", ["left out"]),
    ("day", hundred(lambda i: f"202608{i % 28 + 1:02}"), "timestamp", ["left out", "time"]),
    ("size", hundred(lambda i: [i % 5, 1, 2]), "", ["as it is"]),
    ("__op", hundred(lambda i: "cu"[i % 2]), "metadata", ["left out"]),
]


@pytest.mark.parametrize(("name", "values", "note", "readings"), READINGS, ids=[name for name, *_ in READINGS])
def test_readings(name: str, values: list[Any], note: str, readings: list[str]) -> None:
    member = member_at([{name: value} for value in values], (name,))
    member.judge(len(values))
    assert (member.note, member.readings) == (note, readings)


def test_strings_of_which_some_are_no_numbers() -> None:
    records = rows(plain(lambda i, rng: "N/A" if i % 20 == 0 else f"{rng.uniform(0, 9):.3f}"))
    assert suggested(choose_event(sample(records), None))["text"] == "number"


def decimal(_: int, rng: random.Random) -> str:
    cents = rng.randint(100, 99_999)
    return base64.b64encode(cents.to_bytes(cents.bit_length() // 8 + 1, "big")).decode()


DEAD_LETTERS = "of 100 values of v make dead letters of their records"
NOTES: list[tuple[Callable[[int, random.Random], Any], str]] = [
    (decimal, "set decimal.handling.mode"),
    (lambda i, _: json.dumps({"a": i % 9}), "JSON inside a string"),
    (lambda i, _: f"{i % 9}.568,{i % 7}8", "numbers in text"),
    (lambda i, _: f"{i % 90}.0%", "numbers in text"),
    (lambda i, _: f"€ {i}.00", "numbers in text"),
    (lambda i, _: ("NL", "nl", "DE")[i % 3], "values of v differ by case, blanks or the form of Unicode alone"),
    (lambda i, _: ("Zo\u00eb", "Zoe\u0308")[i % 2], "such as 'Zo\\xeb' and 'Zoe\\u0308'"),
    (lambda i, _: [0.5] * (384 if i % 3 == 0 else 768), "several lengths: 768 (66 times), 384 (34 times)"),
    (lambda i, _: f"o{i // 2}", "v_id: 50 of 100 events repeat an id"),
    (lambda i, _: "xyz"[i % 3] * (300 if i % 50 == 0 else 1), f"2 {DEAD_LETTERS}"),
    (lambda i, rng: 1e38 if i == 3 else rng.gauss(0, 1), f"1 {DEAD_LETTERS}"),
    (lambda i, rng: 1e6 if i == 3 else rng.gauss(0, 1), "v is 1e+06 once, and half of its values are between -"),
    (lambda _, rng: f"{rng.gauss(0, 1):.3f}", 'event.types = { "v" = "number" } reads them'),
    (lambda _, rng: rng.gauss(0, 1), ""),
    (lambda i, _: ("NL", "DE")[i % 2], ""),
]


@pytest.mark.parametrize(("value", "note"), NOTES, ids=[note for _, note in NOTES])
def test_check_says_what_is_odd_about_values(value: Any, note: str) -> None:
    event, name = {"features": "", "label": "/label"}, "v_id" if "v_id" in note else "v"
    values = sample(rows(plain(value, name), 100)).values
    notes = [*value_notes(ModelSettings(event=event).identity(), values)]
    assert len(notes) == bool(note)
    assert note in "".join(notes)
    assert [*value_notes(ModelSettings(event=event | {"without": [name]}).identity(), values)] == []
    clipped = ModelSettings(event=event, scale="standard", clip=6).identity()
    assert [*value_notes(clipped, values)] == [line for line in notes if "without clip" not in line]


def test_suggest_keeps_a_member_with_few_bad_values_and_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    proposal = suggestion(capsys, plain(lambda i, _: "x" * 300 if i % 150 == 0 else f"a{i % 7}"), count=3000)
    assert "event.without" not in {each["setting"] for each in proposal["choices"]}
    assert proposal["notes"][0].startswith("20 of 3,000 values of v make dead letters of their records")
    assert proposal["rejected"] == {"name-too-long": 20}


def test_a_member_that_tells_the_label_alone_is_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    def flight(_: int, rng: random.Random) -> dict[str, Any]:
        departure = rng.gauss(5, 30)
        return {"dep_delay": departure, "arr_delay": (arrival := departure + rng.gauss(0, 12)), "label": arrival > 15}

    (note,) = suggestion(capsys, flight)["notes"]
    assert note.startswith("arr_delay alone tells the label for 99.")

    def ring(_: int, rng: random.Random) -> dict[str, Any]:
        """No linear model finds the middle of `x`, and 5 % of the labels are wrong."""
        x = rng.gauss(0, 1)
        return {"x": x, "z": rng.gauss(0, 1), "label": (abs(x) < 0.7) ^ (rng.random() < 0.05)}

    (note,) = suggestion(capsys, ring)["notes"]
    assert note.startswith("x alone tells the label for 9")
    assert "all others together for 5" in note
    assert suggestion(capsys, plain(lambda _, rng: rng.gauss(0, 1)))["notes"] == []


@pytest.mark.parametrize(
    ("labels", "setting"),
    [
        ((["f", False, 0, "no"], ["t", True, 1, "yes"]), '[[false, "f", 0, "no"], [true, "t", 1, "yes"]]'),
        ((["kept"], ["Churned", "churned "]), '[["Churned", "churned "], "kept"]'),
    ],
)
def test_a_label_in_several_spellings_is_refused(labels: Any, setting: str) -> None:
    """No other member is taken in its place. The message has the setting with which all records are events."""
    records = [{"paid": i % 3 == 0, "x": i, "label": labels[i % 2][i // 2 % len(labels[i % 2])]} for i in range(96)]
    with pytest.raises(DataError) as caught:
        choose_event(sample(records), None)
    assert "label has labels in several spellings (" in str(caught.value)
    assert str(caught.value).endswith(f"set labels = {setting}")
    own = ModelSettings(labels=json.loads(setting), event={"features": "", "label": "/label"})
    assert learner_of(own.identity(), sample(records).values).main.counts.events == 96


def test_rows_that_debezium_unwrapped() -> None:
    def row(i: int, rng: random.Random) -> dict[str, Any]:
        deleted = "true" if i % 9 == 0 else "false"
        return {"x": rng.gauss(0, 1), "churned": rng.random() < 0.5, "__op": "cu"[i % 2], "__deleted": deleted}

    for records, outer in ((rows(row), ""), ([{"schema": {}, "payload": each} for each in rows(row)], "/payload")):
        settings = suggested(choose_event(sample(records), None))
        assert (settings["event.features"], settings["event.label"]) == (outer, f"{outer}/churned")
        assert settings["event.where"] == {f"{outer}/__deleted": ["false", False]}
        assert settings["event.without"] == ["__op", "__deleted"]


def test_of_equal_trials_the_better_one_on_the_whole_sample_is_taken() -> None:
    simple = Trial("perceptron", "none", "last", accuracy=0.957, later=0.998, merit=0.998)
    scaled = Trial("perceptron", "standard", "last", accuracy=0.997, later=0.999, merit=0.999)
    assert best_trial([simple, scaled]) == scaled
    assert best_trial([simple._replace(accuracy=0.996), scaled]).scale == "none"
    ranks_better = scaled._replace(accuracy=0.85, later=0.85, merit=0.945)
    accurate = scaled._replace(rule="logistic-delta", accuracy=0.97, later=0.97, merit=0.94)
    assert best_trial([ranks_better, accurate], MIN_AUC_GAIN) == accurate
    assert best_trial([ranks_better._replace(merit=0.96), accurate], MIN_AUC_GAIN).accuracy == 0.85
