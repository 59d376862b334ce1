"""The description of a sample: kinds and marks of members, the records' form, the label; and which trial is best."""

import json
import random
import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from service.errors import DataError
from service.learning.events.value_formats import ValueBuffer
from service.learning.learner import Learner
from service.settings.model import ModelSettings
from service.tools.check import unmatched_settings
from service.tools.suggest.field_profile import member_at
from service.tools.suggest.label_inference import is_amount
from service.tools.suggest.model_selection import MIN_GAIN, best_trial, compare_settings
from service.tools.suggest.proposal import EventChoices, choose_event
from service.tools.suggest.sample import Sample
from service.tools.suggest.suggest import suggest_settings
from tests.checks import learner_of
from tests.conftest import event
from tests.oracle import Classes

Row = Callable[[int, random.Random], dict[str, Any]]


def click(i: int, rng: random.Random) -> dict[str, Any]:
    country, visits = rng.choice(["NL", "DE", "FR"]), rng.randint(0, 3)
    return {
        "user": {"country": country, "visits": visits},
        "page": rng.choice(["/home", "/cart"]),
        "is_member": rng.random() < 0.5,
        "referrer": rng.choice([None, None, "mail", "search"]),
        "clicked": (country == "NL") ^ (rng.random() < 0.1),
        "ts": 1_732_000_000_000 + 137 * i + rng.randint(0, 200),
    }


def rows(row: Row, count: int = 2000, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [row(i, rng) for i in range(count)]


def clicks(count: int = 400) -> list[dict[str, Any]]:
    return rows(click, count, 5)


def sample(records: Sequence[Any], *, is_table: bool = False) -> Sample:
    values = ValueBuffer.from_values([json.dumps(record).encode() for record in records])
    return Sample("the test", "records of the test", values, is_table)


def suggested(choices: EventChoices) -> dict[str, Any]:
    return {choice.setting: choice.value for choice in choices.choices}


def hundred(value: Callable[[int], Any], count: int = 100) -> list[Any]:
    return [value(i) for i in range(count)]


MARKS: list[tuple[str, list[Any], str | None]] = [
    ("country", ["NL"] * 100, "constant"),
    ("price", hundred(lambda i: 7.3 * (i * 37 % 100)), None),
    ("customer_id", hundred(lambda i: i % 50 * 7919 % 50), "identifier"),
    ("customer_id", hundred(lambda i: i % 7), None),  # a category that comes back
    ("session", hundred(lambda i: f"s{i}"), "identifier"),
    ("visitor", hundred(lambda i: f"v{i % 70}"), None),
    ("customer_id", hundred(lambda i: f"c{i % 7}"), None),  # a category that comes back
    ("comment", hundred(lambda i: f"it took {i} days"), "text"),
    ("agent", hundred(lambda i: "x" * (250 + i % 3)), "rejected"),
    ("at", hundred(lambda i: f"2026-03-{i % 28 + 1:02}T10:{i % 60:02}:00Z"), "timestamp"),
    ("when", hundred(lambda i: 1_732_000_000 + 60 * i), "timestamp"),
    ("population", hundred(lambda i: 1_000_000_000 + i * 7919 % 997 * 1000), None),  # in range, and in no order
    ("row", hundred(lambda i: i * 37 % 100), "identifier"),  # counts the rows of a shuffled file
    ("row", hundred(lambda i: 5000 + 2 * (i * 37 % 100)), "identifier"),
    ("points", random.Random(1).choices(range(100), k=100), None),  # some of them recur
    ("items", hundred(lambda i: [{"sku": i}]), None),
    ("items", hundred(lambda i: [{"sku": i}, i]), "rejected"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "mark"), MARKS, ids=[f"{name}-{mark}" for name, _, mark in MARKS])
def test_marks(name: str, values: list[Any], mark: str | None) -> None:
    member_mark = member_at([{name: value} for value in values], (name,)).mark(len(values))
    assert (member_mark.name if member_mark else None) == mark


def test_a_click_topic() -> None:
    choices = choose_event(sample(clicks()), None)
    assert suggested(choices) == {
        "features": "named", "labels": [False, True], "event.features": "", "event.label": "/clicked",
        "event.weight": False, "event.id": False, "event.without": ["ts"],
    }  # fmt: skip
    assert "else perhaps /is_member, " in next(x.reason for x in choices.choices if x.setting == "event.label")
    assert all(choice.reason for choice in choices.choices)
    assert suggested(choose_event(sample(clicks()), "is_member"))["event.label"] == "/is_member"


LABELS: list[tuple[dict[str, Sequence[Any]], str, list[Any]]] = [
    ({"a": [1, 2, 3, 4], "spam": [1, 0, 0, 1]}, "/spam", [0, 1]),
    ({"a": [1, 2, 3, 4], "outcome": ["lost", "kept", "kept", "kept"]}, "/outcome", ["kept", "lost"]),
    ({"a": [1, 2, 3, 4], "on": [True, False] * 2, "status": ["ok", "ok", "ok", "fail"]}, "/status", ["ok", "fail"]),
    ({"a": range(9), "target": "xyzzyxxyz", "pixel": [0, 1, 1] * 3}, "/target", ["x", "y", "z"]),
    ({"kind": "abcabcabc", "n": range(9), "species": "pqrqrpqrp"}, "/species", ["p", "q", "r"]),  # the later column
]


@pytest.mark.parametrize(("columns", "label", "labels"), LABELS, ids=[label for _, label, _ in LABELS])
def test_the_likely_label(columns: dict[str, Sequence[Any]], label: str, labels: list[Any]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    settings = suggested(choose_event(sample(rows), None))
    assert (settings["event.label"], settings["labels"]) == (label, labels)
    assert [type(value) for value in settings["labels"]] == [type(value) for value in labels]


def test_a_label_is_named_by_its_pointer_or_its_name_or_the_last_part_of_it() -> None:
    rows = [{"a": i, "user": {"fraud": i % 2, "id": i}, "shop": {"id": i % 3}} for i in range(9)]
    for name in ("/user/fraud", "user.fraud", "fraud"):
        assert suggested(choose_event(sample(rows), name))["event.label"] == "/user/fraud"
    with pytest.raises(DataError, match="--label: no record of the test has 'id'"):
        choose_event(sample(rows), "id")  # two members have this name


def test_changes_of_rows() -> None:
    """Debezium's changes, bare or wrapped with their schema; deleted rows are skipped."""
    changes = [{"before": None, "after": {**record, "id": i}, "op": "cu"[i % 2]} for i, record in enumerate(clicks())]
    changes += [{"before": {}, "after": None, "op": "d"}] * 3
    for records, outer in ((changes, ""), ([{"schema": {}, "payload": change} for change in changes], "/payload")):
        choices = choose_event(sample(records), None)
        assert suggested(choices) | {"labels": 0} == {
            "features": "named", "labels": 0, "event.features": f"{outer}/after",
            "event.label": f"{outer}/after/clicked", "event.where": {f"{outer}/op": ["c", "u", "r"]},
            "event.weight": False, "event.id": False, "event.without": ["ts", "id"],
        }  # fmt: skip
        assert (len(choices.values), train(choices).main.counts.events) == (400, 400)


def test_cloud_events() -> None:
    """Only the types that have the label are learned."""
    events: list[dict[str, Any]] = [
        {"specversion": "1.0", "id": f"e{i}", "type": "click", "data": record} for i, record in enumerate(clicks())
    ]
    events[::3] = [event | {"type": "view", "data": {"page": event["data"]["page"]}} for event in events[::3]]
    choices = choose_event(sample(events), None)
    settings = suggested(choices)
    assert (settings["event.features"], settings["event.label"]) == ("/data", "/data/clicked")
    assert settings["event.where"] == {"/type": ["click"]}
    counts = train(choices).main.counts
    assert (counts.events, counts.rejected) == (266, {})


def test_our_own_form() -> None:
    events = [{"features": record, "label": int(record.pop("clicked")), "weight": 2} for record in clicks()]
    settings = suggested(choose_event(sample(events), None))
    assert (settings["event.features"], settings["event.label"], settings["labels"]) == ("/features", "/label", [0, 1])
    assert settings["event.without"] == ["ts"]
    assert "event.weight" not in settings  # it is in its default place


def test_lists_are_positions() -> None:
    events = [{"features": [i % 5, 1, i % 3], "label": bool(i % 2)} for i in range(50)]
    choices = choose_event(sample([*events, {"features": [1], "label": True}]), None)
    assert (suggested(choices)["features"], suggested(choices)["dimension"]) == ("positional", 3)
    assert "event.without" not in suggested(choices)
    assert train(choices).main.counts.rejected == {"wrong-length": 1}


def test_the_rows_of_a_table() -> None:
    rows = [{"country": "NL", "age": i % 50, "customer_id": i, "default": i % 2} for i in range(100)]
    choices = choose_event(sample(rows, is_table=True), None)
    settings = suggested(choices)
    assert (settings["event.features"], settings["event.label"], settings["labels"]) == ("/features", "/label", [0, 1])
    assert settings["event.without"] == ["country", "customer_id"]
    assert choices.label.name == "default"
    features = {"country": "NL", "age": 0, "customer_id": 0}
    assert json.loads(choices.values[0] or b"") == {"features": features, "label": 0}


def test_an_excluded_member_is_not_learned_whatever_its_name() -> None:
    rows = [{"a": i % 3, "x[0]*": "same", "x0": i % 5, "b.c": {"id?": i}, "y": i % 2} for i in range(100)]
    choices = choose_event(sample(rows), None)
    assert suggested(choices)["event.without"] == ["x[[]0][*]", "b.c.id[?]"]
    assert train(choices).columns.names == ["a", "x0"]


UNSUITABLE: list[tuple[list[Any], str | None, str]] = [
    ([{"a": 1, "b": 3.5}, {"a": 2, "b": 4.5}, {"a": 3, "b": 5}], None, "no member looks like a label"),
    ([{"features": {"a": i}, "label": i // 2} for i in range(2002)], None, "/label has 1,001 values"),
    ([{"features": {"a": i}, "label": 1} for i in range(9)], None, "/label is always 1"),
    ([{"a": 1, "y": True}, {"a": 1, "y": False}], None, "is a feature: a (constant: it is always 1)"),
    (
        [{"a": i, "label": i % 1500} for i in range(3001)],
        None,
        "; label has 1,500 values: a label has at most 1,000; the",
    ),
    (
        [{"a": i, "label": ["a", 1, 2][i % 3]} for i in range(9)],
        None,
        "labels are all booleans, all numbers or all strings",
    ),
    (clicks(9), "/user/contry", "no record of the test has '/user/contry': perhaps user.country"),
    (clicks(9), "/user", "/user has values of kind object"),
    ([{"a": i, "price": i * 1.5} for i in range(40)], "price", "/price has 40 values"),
]


@pytest.mark.parametrize(("records", "label", "message"), UNSUITABLE, ids=[message for *_, message in UNSUITABLE])
def test_an_error_says_why_nothing_can_be_suggested(records: list[Any], label: str | None, message: str) -> None:
    with pytest.raises(DataError) as caught:
        choose_event(sample(records), label)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "none of 0 records is a JSON object (a file has one a line; Avro and Protobuf cannot be read)"),
        ([b"[", b"1", b"]"], "cannot be read), such as the first: "),
        ([b'[{"a": 1}]'], ", such as the first: expected an object, got a list"),
        (["größe".encode("latin-1")], ", such as the first: not UTF-8 at byte 2"),
    ],
)
def test_records_that_are_no_objects_are_one_line(lines: list[bytes], message: str) -> None:
    records = Sample("the test", "records of the test", ValueBuffer.from_values(lines))
    with pytest.raises(DataError, match=re.escape(message)):
        suggest_settings(records, "t", None, label=None, as_json=False)


@pytest.mark.parametrize(
    ("names", "requested", "doubt"),
    [
        (("sex", "vote"), None, "label /sex is a guess; else perhaps /vote (--label)"),
        (("clicked", "bought"), None, "label /clicked is a guess; else perhaps /bought (--label)"),
        (("label", "bought"), None, ""),
        (("sex", "vote"), "sex", ""),
    ],
)
def test_a_label_that_no_name_decides_is_a_guess(names: tuple[str, str], requested: str | None, doubt: str) -> None:
    rows = [{"x": i % 7, names[0]: "mf"[i % 2], names[1]: "yna"[i % 3]} for i in range(60)]
    assert choose_event(sample(rows), requested).label_doubt == doubt


def test_a_margin_is_written_for_a_rare_label(capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(2)
    labels = [rng.random() < 0.04 for _ in range(4000)]
    rows = [{"a": rng.gauss(y, 1), "b": rng.gauss(1.5 * y, 1), "label": y} for y in labels]
    suggest_settings(sample(rows), "t", None, label=None, as_json=False)
    assert "\nmargin = [0.0, 100.0]\n" in capsys.readouterr().out


@pytest.mark.parametrize("events", [900, 3000])
def test_the_best_answers_where_no_setting_is_clearly_best(events: int) -> None:
    rng = random.Random(3)
    rows = [{"a": rng.gauss(2 * y - 1, 1), "b": rng.gauss(0, 1), "label": y} for y in rng.choices((0, 1), k=events)]
    model = tomllib.loads(suggest_settings(sample(rows), "t", None, label=None, as_json=False))["models"]["t"]
    assert (model["serve"] == "best") == (events == 3000)
    settings = ModelSettings(**model)
    assert 1 <= len(settings.candidates) <= 3 if events == 3000 else not settings.candidates
    others = [(each.rule, each.average) for each in settings.candidates.values()]
    assert len({(settings.rule, settings.average), *others}) == 1 + len(others), "they differ in rule or average"


@pytest.mark.parametrize(("values", "factor"), [(10, 1), (40, 1), (435, 1000)])
def test_a_label_that_is_an_amount_is_warned_of(values: int, factor: int) -> None:
    """Digits are not an amount, nor are forty values that come fifty times each."""
    choices = choose_event(sample([{"a": i % 3, "y": i % values * factor} for i in range(2000)]), "/y")
    assert is_amount(choices.label) == (values == 435)


@pytest.mark.parametrize(
    ("period", "figure", "baseline"), [(25, "F1", 0.08 / 1.04), (20, "AUC", 0.5), (4, "right", 0.75)]
)
def test_an_infrequent_label_is_judged_by_auc_and_a_rare_one_by_f1(period: int, figure: str, baseline: float) -> None:
    """The later half has 40 positives of a rare label, too few for AUC."""
    choices = choose_event(sample([{"a": i % 3, "y": i % period == 0} for i in range(2000)]), "/y")
    comparison = compare_settings(choices.settings, choices.values)
    assert comparison.figure == figure
    assert comparison.baseline.merit == pytest.approx(baseline)
    assert any(trial.margin for trial in comparison.trials) == (figure == "F1")


def train(choices: EventChoices) -> Learner:
    """The learner of a sample with the suggested settings."""
    return learner_of(ModelSettings(**choices.settings).identity(), choices.values)


def test_settings_that_match_nothing() -> None:
    values = sample(clicks()).values
    good = {"features": "", "label": "/clicked", "only": ["user.*", "page"]}
    assert unmatched_settings(ModelSettings(event=good), values) == []
    assert unmatched_settings(ModelSettings(), values) == []
    for setting, patterns in (("without", ["ts", "users.*"]), ("only", ["clicked"])):  # `clicked` is the label
        line = f'event.{setting}: "{patterns[-1]}" matches no feature of the records that were looked at'
        assert unmatched_settings(ModelSettings(event=good | {"only": []} | {setting: patterns}), values) == [line]
    tags = sample([{"features": {"size": [1, 2], "tags": ["a"]}, "label": 1}]).values
    assert unmatched_settings(ModelSettings(event={"only": ["size.1", "tags"]}), tags) == []
    assert len(unmatched_settings(ModelSettings(event={"only": ["size.2"]}), tags)) == 1


def test_trials_of_classes_are_what_a_fold_by_hand_gives() -> None:
    """Last weights of three labels, the largest score and the first of equals, and the most frequent label."""
    rng = random.Random(4)
    rows: list[dict[str, Any]] = [{"a": rng.randint(-3, 3), "b": rng.randint(-3, 3)} for _ in range(300)]
    rows = [row | {"y": "pqr"[(row["a"] > 0) + (row["b"] + rng.choice([-1, 0]) > 1)]} for row in rows]
    choices = choose_event(sample(rows), None)
    assert suggested(choices)["labels"] == ["p", "q", "r"]
    fold, correct = Classes("pqr"), list[bool]()
    for row in rows:
        wrong = fold.wrong
        fold.learn(event({"a": row["a"], "b": row["b"]}, row["y"]))
        correct.append(fold.wrong == wrong)
    comparison = compare_settings(choices.settings, choices.values)
    baseline, trials = comparison.baseline, {(t.rule, t.scale, t.weights): t for t in comparison.trials}
    trial = trials["perceptron", "none", "last"]
    assert best_trial(comparison.trials).merit >= max(t.merit for t in comparison.trials) - MIN_GAIN
    assert trial.later == pytest.approx(sum(correct[150:]) / 150)
    assert trial.accuracy == pytest.approx(sum(correct) / 300)
    assert len(comparison.trials) == 2 * (1 + 3) * 3
    labels = "".join(row["y"] for row in rows)
    assert baseline.accuracy == pytest.approx(max(map(labels.count, "pqr")) / 300)
    assert baseline.later == pytest.approx(max(map(labels[150:].count, "pqr")) / 150)


def test_a_scaled_model_is_clipped_and_a_wild_value_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(1)
    rows: list[Any] = [{"x": 1e6 if i == 7 else rng.gauss(50, 10)} for i in range(300)]
    rows = [row | {"y": row["x"] > 50} for row in rows]
    suggest_settings(sample(rows), "t", None, label="/y", as_json=False)
    output = capsys.readouterr()
    assert re.search(r'^scale = "standard"\n# .*\nclip = 6$', output.out, re.MULTILINE)
    assert re.search(r"note: x is 1e\+06 once, and half of its values are between 4\S+ and 5\S+: ", output.err)
