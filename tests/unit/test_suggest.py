"""What a sample is said to hold: kinds and marks of members, the records' form, the label; and which trial is best."""

import json
import math
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from service.errors import DataError
from service.learning.confidence import Paired
from service.learning.learner import Learner
from service.learning.records import Records
from service.settings.model import ModelSettings
from service.tools.choices import Suggested, suggested
from service.tools.in_vain import in_vain
from service.tools.labels import is_amount, rare
from service.tools.model_selection import Trial, best, compare
from service.tools.profile import MOST_VALUES, kind_of, member_at, profile
from service.tools.sample import Sample
from service.tools.suggest import _beats, _candidate, _verdict


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


def clicks(count: int = 400) -> list[dict[str, Any]]:
    rng = random.Random(5)
    return [click(i, rng) for i in range(count)]


def sample(records: Sequence[Any], *, cells: bool = False) -> Sample:
    return Sample("the test", "records of the test", [json.dumps(record).encode() for record in records], cells)


def settings(found: Suggested) -> dict[str, Any]:
    return {choice.setting: choice.value for choice in found.choices}


def test_the_members_of_clicks() -> None:
    members = {member.name: member for member in profile(clicks(), 400).values()}
    assert [*members] == ["user.country", "user.visits", "page", "is_member", "referrer", "clicked", "ts"]
    kinds = {name: member.kind for name, member in members.items()}
    assert kinds == {
        "user.country": "string", "user.visits": "number", "page": "string", "is_member": "boolean",
        "referrer": "string", "clicked": "boolean", "ts": "number",
    }  # fmt: skip
    assert members["user.country"].distinct == 3
    absent = sum(record["referrer"] is None for record in clicks())
    assert members["referrer"].present == 400 - absent < 400
    assert members["user.visits"].example == clicks()[0]["user"]["visits"]
    marks = {name: mark.name for name, member in members.items() if (mark := member.mark(400))}
    assert marks == {"ts": "timestamp"}


def some(value: Callable[[int], Any], count: int = 100) -> list[Any]:
    return [value(i) for i in range(count)]


MARKS: list[tuple[str, list[Any], str | None]] = [
    ("country", ["NL"] * 100, "constant"),
    ("flag", some(lambda i: None if i % 2 else "NL"), None),  # there or not is something to learn
    ("nothing", [None] * 100, "empty"),
    ("price", some(lambda i: 7.3 * (i * 37 % 100)), None),
    ("cents", some(lambda i: i * 3701 % 9973), None),  # whole numbers that differ are not yet names
    ("number", some(lambda i: 5000 + i), "identifier"),
    ("customer_id", some(lambda i: i % 7), "identifier"),  # the size of a number that names says nothing
    ("customerId", some(lambda i: i % 7), "identifier"),
    ("paid", some(lambda i: i % 7), None),
    ("session", some(lambda i: f"s{i}"), "identifier"),
    ("visitor", some(lambda i: f"v{i % 85}"), "identifier"),  # nearly
    ("visitor", some(lambda i: f"v{i % 70}"), None),
    ("customer_id", some(lambda i: f"c{i % 7}"), None),  # a category that comes back
    ("trace", some(lambda i: str(uuid.UUID(int=i % 40 << 64))), "identifier"),
    ("price", some(lambda i: f"{i * 37 % 60},{i % 10}"), "decimal comma"),
    ("price", some(lambda i: f"{i % 7},5" if i % 3 else i % 7), "decimal comma"),  # a whole number has none
    ("place", some(lambda i: f"{i % 7},5" if i % 3 else "none"), None),
    ("places", [["1,5", "2,5"]] * 100, None),
    ("comment", some(lambda i: f"it took {i} days"), "text"),
    ("n" * 257, some(lambda i: i % 3), "long"),
    ("agent", some(lambda i: "x" * (250 + i % 3)), "long"),
    ("at", some(lambda i: f"2026-03-{i % 28 + 1:02}T10:{i % 60:02}:00Z"), "timestamp"),
    ("day", some(lambda i: f"2026-03-{i % 28 + 1:02}"), "timestamp"),
    ("day", some(lambda i: f"{i % 28 + 1}/3/2026"), "timestamp"),
    ("day", some(lambda i: f"{i % 28 + 1:02}.03.2026 9:{i % 60:02}"), "timestamp"),
    ("page", some(lambda i: f"{i % 28 + 1}/3"), None),
    ("when", some(lambda i: 1_732_000_000 + 60 * i), "timestamp"),
    ("when", some(lambda i: 1_732_000_000.25 + 60 * i), "timestamp"),
    ("created_at", some(lambda i: (1_732_000_000 + i * 7919 % 997) * 1_000_000), "timestamp"),
    ("population", some(lambda i: 1_000_000_000 + i * 7919 % 997 * 1000), None),  # in range, and in no order
    ("tags", [["a", "b"]] * 100, None),
    ("items", some(lambda i: [{"sku": i}]), "list"),
    ("mixed", [[1, "a"]] * 100, "list"),
    ("few", some(lambda i: f"s{i}", 10), None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "mark"), MARKS, ids=[f"{name}-{mark}" for name, _, mark in MARKS])
def test_marks(name: str, values: list[Any], mark: str | None) -> None:
    found = member_at([{name: value} for value in values], (name,)).mark(len(values))
    assert (found.name if found else None) == mark


def test_kinds_of_lists() -> None:
    values: list[Any] = [[1, 2.5], ["a"], [True], [], [1, "a"], [{}], [[1]], {}, None]
    kinds = [kind_of(value) for value in values]
    assert kinds == [
        "list of numbers", "list of strings", "list of booleans", "empty list", "list of mixed kinds",
        "list of objects", "list of mixed kinds", "object", "null",
    ]  # fmt: skip


def test_values_are_counted_up_to_a_limit() -> None:
    member = member_at(({"a": i} for i in range(MOST_VALUES + 500)), ("a",))
    assert (member.distinct, member.present) == (MOST_VALUES, MOST_VALUES + 500)


def test_a_click_topic() -> None:
    found = suggested(sample(clicks()), None)
    assert settings(found) == {
        "features": "named", "labels": [False, True], "event.features": "", "event.label": "/clicked",
        "event.weight": False, "event.id": False, "event.without": ["ts"],
    }  # fmt: skip
    assert found.others[0] == "/is_member"
    assert all(choice.why for choice in found.choices)
    assert suggested(sample(clicks()), "/is_member").choices[3].value == "/is_member"
    assert settings(suggested(sample(clicks()), "is_member"))["event.label"] == "/is_member"


LABELS: list[tuple[dict[str, Sequence[Any]], str, list[Any]]] = [
    ({"a": [1, 2, 3, 4], "spam": [1, 0, 0, 1]}, "/spam", [0, 1]),
    ({"vip": [True, False, True, True], "a": [1, 2, 3, 4], "y": [1, -1, -1, 1]}, "/y", [-1, 1]),
    ({"is_fraud": [0, 1, 0, 0], "is_new": [True, False, True, False], "a": [1, 2, 3, 4]}, "/is_fraud", [0, 1]),
    ({"sex": ["m", "f", "f", "m"], "over": [True, False, True, True], "a": [1, 2, 3, 4]}, "/over", [False, True]),
    ({"from": ["a", "b", "b", "b"], "n": [1, 2, 3, 4], "to": ["b", "a", "b", "b"]}, "/to", ["b", "a"]),  # the later
    ({"a": [1, 2, 3, 4], "outcome": ["lost", "kept", "kept", "kept"]}, "/outcome", ["kept", "lost"]),
    ({"a": [1, 2, 3, 4], "on": [True, False] * 2, "status": ["ok", "ok", "ok", "fail"]}, "/status", ["ok", "fail"]),
    ({"a": [1, 2, 3, 4], "outcome": ["win", "loss", "win", "win"]}, "/outcome", ["loss", "win"]),
    ({"a": [1, 2, 3, 4], "churn": ["Yes", "Yes", "No", "Yes"]}, "/churn", ["No", "Yes"]),
    ({"a": [1, 2, 3, 4], "cancelled": [2.0, 1.0, 1.0, 2.0]}, "/cancelled", [1, 2]),
    ({"a": range(9), "target": "xyzzyxxyz", "pixel": [0, 1, 1] * 3}, "/target", ["x", "y", "z"]),
    ({"a": range(9), "y": [10.0, 9.0, -1.0] * 3}, "/y", [-1, 9, 10]),
    ({"y": range(9), "spam": [0, 1, 1] * 3}, "/spam", [0, 1]),
    ({"x": range(9), "y": range(9), "inside": [0, 1, 1] * 3}, "/inside", [0, 1]),
    ({"kind": "abcabcabc", "n": range(9), "species": "pqrqrpqrp"}, "/species", ["p", "q", "r"]),  # the later
]


@pytest.mark.parametrize(("columns", "label", "labels"), LABELS, ids=[label for _, label, _ in LABELS])
def test_the_likely_label(columns: dict[str, Sequence[Any]], label: str, labels: list[Any]) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    found = settings(suggested(sample(rows), None))
    assert (found["event.label"], found["labels"]) == (label, labels)
    assert [type(one) for one in found["labels"]] == [type(one) for one in labels]


def test_a_label_is_named_by_its_pointer_or_its_name_or_the_last_part_of_it() -> None:
    rows = [{"a": i, "user": {"fraud": i % 2, "id": i}, "shop": {"id": i % 3}} for i in range(9)]
    for name in ("/user/fraud", "user.fraud", "fraud"):
        assert settings(suggested(sample(rows), name))["event.label"] == "/user/fraud"
    with pytest.raises(DataError, match="--label: no record of the test has 'id'"):
        suggested(sample(rows), "id")  # which of the two?


def test_a_label_of_a_few_values_is_named_beside_one_of_two() -> None:
    """Where it is called as labels are: before others of two values, and never in place of the first."""
    rows = [
        {
            "member": {"student": i % 2 == 0, "grade": "abc"[i % 3]},
            "rich": i % 5 == 0,
            "result": {"status": ["paid", "late", "lost"][i % 3], "code": i % 4, "decision": i % 40 + 0.5},
        }
        for i in range(200)
    ]
    found = suggested(sample(rows), None)
    assert settings(found)["event.label"] == "/rich"
    assert found.others == ["/result/status", "/member/student", "/member/grade"]
    (why,) = [choice.why for choice in found.choices if choice.setting == "event.label"]
    assert why.endswith("; else perhaps /result/status, /member/student, /member/grade (--label)")


def test_what_is_always_there_is_the_likelier_label() -> None:
    """Records without a label would be dead letters. A text of a few values may be the label too."""
    rows = [
        {"queue": ["bug", "bill", "else"][i % 3], "prio": i % 2 + 1, "lang": ["nl", "en", None][i * 7 % 3], "n": i % 99}
        for i in range(300)
    ]
    found = suggested(sample(rows), None)
    assert settings(found)["event.label"] == "/prio"
    assert found.others == ["/lang", "/queue"]


def test_changes_of_rows() -> None:
    """Debezium's, also wrapped with their schema: deleted rows are passed over."""
    changes = [{"before": None, "after": {**record, "id": i}, "op": "cu"[i % 2]} for i, record in enumerate(clicks())]
    changes += [{"before": {}, "after": None, "op": "d"}] * 3
    for records, outer in ((changes, ""), ([{"schema": {}, "payload": change} for change in changes], "/payload")):
        found = suggested(sample(records), None)
        assert settings(found) | {"labels": 0} == {
            "features": "named", "labels": 0, "event.features": f"{outer}/after",
            "event.label": f"{outer}/after/clicked", "event.where": {f"{outer}/op": ["c", "u", "r"]},
            "event.weight": False, "event.id": f"{outer}/after/id", "event.without": ["ts"],
        }  # fmt: skip
        assert (found.events, learned(found).counts.skipped) == (400, 3)


def test_cloud_events() -> None:
    """Only the types that have the label are learned."""
    events: list[dict[str, Any]] = [
        {"specversion": "1.0", "id": f"e{i}", "type": "click", "data": record} for i, record in enumerate(clicks())
    ]
    events[::3] = [event | {"type": "view", "data": {"page": event["data"]["page"]}} for event in events[::3]]
    found = suggested(sample(events), None)
    chosen = settings(found)
    assert (chosen["event.features"], chosen["event.label"]) == ("/data", "/data/clicked")
    assert (chosen["event.where"], chosen["event.id"]) == ({"/type": ["click"]}, "/id")
    counts = learned(found).counts
    assert (counts.events, counts.skipped, counts.rejected) == (266, 134, {})


def test_types_in_a_record_of_no_known_form() -> None:
    records = [{"type": "click", **record} for record in clicks()]
    records[::4] = [{"type": "seen", "page": record["page"]} for record in records[::4]]
    assert settings(suggested(sample(records), None))["event.where"] == {"/type": ["click"]}
    both = [{"type": "ab"[i % 2], **record} for i, record in enumerate(clicks())]
    assert "event.where" not in settings(suggested(sample(both), None))


def test_our_own_form() -> None:
    events = [{"features": record, "label": int(record.pop("clicked")), "weight": 2} for record in clicks()]
    chosen = settings(suggested(sample(events), None))
    assert (chosen["event.features"], chosen["event.label"], chosen["labels"]) == ("/features", "/label", [0, 1])
    assert (chosen["event.weight"], chosen["event.id"], chosen["event.without"]) == ("/weight", "/id", ["ts"])
    heavy = [event | {"weight": "2 kg", "id": [1]} for event in events]
    chosen = settings(suggested(sample(heavy), None))
    assert (chosen["event.weight"], chosen["event.id"]) == (False, False)


def test_a_label_that_stands_where_another_part_would() -> None:
    events = [{"features": {"a": i % 5}, "weight": i % 2, "id": i % 2} for i in range(50)]
    assert settings(suggested(sample(events), "/id"))["event.id"] is False
    assert settings(suggested(sample(events), "/weight"))["event.weight"] is False


def test_lists_are_positions() -> None:
    events = [{"features": [i % 5, 1, i % 3], "label": bool(i % 2)} for i in range(50)]
    found = suggested(sample([*events, {"features": [1], "label": True}]), None)
    assert (settings(found)["features"], settings(found)["dimension"]) == ("positional", 3)
    assert "event.without" not in settings(found)
    assert learned(found).counts.rejected == {"wrong-length": 1}


def test_the_rows_of_a_table() -> None:
    rows = [{"country": "NL", "age": i % 50, "customer_id": i, "default": i % 2} for i in range(100)]
    found = suggested(sample(rows, cells=True), None)
    chosen = settings(found)
    assert (chosen["event.features"], chosen["event.label"], chosen["labels"]) == ("/features", "/label", [0, 1])
    assert chosen["event.without"] == ["country", "customer_id"]
    assert found.label.name == "default"
    assert json.loads(found.sample.values[0] or b"") == {
        "features": {"country": "NL", "age": 0, "customer_id": 0},
        "label": 0,
    }


def test_what_is_left_out_is_not_learned_whatever_its_name() -> None:
    rows = [{"a": i % 3, "x[0]*": "same", "x0": i % 5, "b.c": {"id?": i}, "y": i % 2} for i in range(100)]
    found = suggested(sample(rows), None)
    assert settings(found)["event.without"] == ["x[[]0][*]", "b.c.id[?]"]
    assert learned(found).columns.names == ["a", "x0"]


def test_categories_that_go_on_coming_are_hashed() -> None:
    """At a pace that names would use up the columns; those that all came soon are named."""
    rng = random.Random(1)
    pages = [{"page": f"/p{rng.randint(0, 3000)}", "seen": rng.randint(0, 9), "y": i % 2} for i in range(3000)]
    chosen = settings(suggested(sample(pages), None))
    assert (chosen["features"], chosen["bits"]) == ("hashed", 20)
    few = [record | {"page": f"/p{i % 30}"} for i, record in enumerate(pages)]
    assert settings(suggested(sample(few), None))["features"] == "named"


WRONG: list[tuple[list[Any], str | None, str]] = [
    ([{"a": 1, "b": 3.5}, {"a": 2, "b": 4.5}, {"a": 3, "b": 5}], None,
     "no member has two values, or is one of a few texts, so none can be the label: --label names it; the"),
    ([{"a": i, "target": i % 7 + 0.5, "pixel": i % 2} for i in range(13)], None,
     "/target has 7 values (0.5, 1.5, 2.5, 3.5, …) in 13 records: those of a label come back; perhaps /pixel"),
    ([{"features": {"a": i}, "label": i // 2} for i in range(2002)], None,
     "/label has 1,001 values (0, 1, 2, 3, …): a label has at most 1,000"),
    ([{"features": {"a": i}, "label": 1} for i in range(9)], None, "/label is always 1"),
    ([{"a": 1, "y": True}, {"a": 1, "y": False}], None,
     "no member beside the label is a feature: a (constant)"),
    ([{"y": True}, {"y": False}], None, "beside the label /y there is nothing to learn from"),
    (clicks(9), "/nope", "--label: no record of the test has '/nope'; the members are user.country"),
    (clicks(9), "/clickd", "--label: no record of the test has '/clickd': perhaps clicked; the"),
    (clicks(9), "/user/contry", "no record of the test has '/user/contry': perhaps user.country"),
    (clicks(9), "clickd",
     "has 'clickd': perhaps clicked; the members are user.country, user.visits, page, is_member, referrer"),
    ([{"a": i, "price": i * 1.5} for i in range(40)], "price",
     "/price has 40 values (0, 1.5, 3, 4.5, …) in 40 records: those of a label come back; a number to be predicted is"),
    (clicks(9), "/user", "/user has values of kind object: a label is a boolean, a number or a string"),
    ([{"a": i, "y": i % 2 if i % 3 else "1"} for i in range(9)], "y",
     "/y has values of kind number or string: a label is a boolean, a number or a string"),
    (clicks(9), "/user/~2", "--label: no record of the test has '/user/~2'"),
    (clicks(9), "nope", "--label: no record of the test has 'nope'; the members are"),
]  # fmt: skip


@pytest.mark.parametrize(("records", "label", "said"), WRONG, ids=[said[:24] for *_, said in WRONG])
def test_what_cannot_be_suggested(records: list[Any], label: str | None, said: str) -> None:
    with pytest.raises(DataError) as caught:
        suggested(sample(records), label)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("clickd", "--label: no record of the test has 'clickd': perhaps clicked; the members are a, clicked, price"),
        ("nope", "--label: no record of the test has 'nope'; the members are a, clicked, price"),
        ("price", "label: price has 40 values"),
    ],
)
def test_what_cannot_be_suggested_of_a_table_is_said_of_columns(label: str, said: str) -> None:
    rows = [{"a": i % 3, "clicked": i % 2, "price": i} for i in range(40)]
    with pytest.raises(DataError) as caught:
        suggested(sample(rows, cells=True), label)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (lambda i: i % 10, False),  # digits
        (lambda i: f"c{i % 150}", False),
        (lambda i: i % 40, False),  # each 50 times
        (lambda i: i % 15 + 0.5, False),
        (lambda i: i % 40 + 0.5, True),
        (lambda i: i % 435 * 1000, True),
    ],
)
def test_a_label_that_is_an_amount_is_warned_of(value: Callable[[int], Any], amount: bool) -> None:
    found = suggested(sample([{"a": i % 3, "y": value(i)} for i in range(2000)]), "/y")
    assert is_amount(found.label) == amount
    (why,) = [choice.why for choice in found.choices if choice.setting == "labels"]
    assert (f"/y has {found.label.distinct} different values of 2,000 records: a number to be predic" in why) == amount


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["no", "yes"], (1, '"yes" is in 4.0% of the events, where accuracy says little: its F1 decides, of recall ')),
        ([1, 0], (0, "0 is in 4.0% of the events, ")),
        ([False, True], (1, "true is in 4.0% of the events, ")),
    ],
)
def test_a_rare_label_is_said_to_be_one(values: list[Any], said: tuple[int, str]) -> None:
    for every, share in ((25, 0.04), (20, 0.05)):
        found = suggested(sample([{"a": i % 3, "y": values[i % every == 0]} for i in range(2000)]), "/y")
        place, why = rare(settings(found)["labels"], found.label)
        assert (place, why[: len(said[1])]) == (said if share < 0.05 else (None, ""))
    three = suggested(sample([{"a": i % 3, "y": "pqr"[i % 50 if i % 50 < 3 else 0]} for i in range(2000)]), "/y")
    assert rare(settings(three)["labels"], three.label) == (None, "")


def model_of(found: Suggested) -> dict[str, Any]:
    chosen = settings(found)
    event = {name.removeprefix("event."): value for name, value in chosen.items() if name.startswith("event.")}
    return {name: value for name, value in chosen.items() if "." not in name} | {"event": event}


def learned(found: Suggested) -> Learner:
    """What a service learns of the sample, under what was suggested."""
    learner = Learner(ModelSettings(**model_of(found)).identity())
    learner.begin({0: 0})
    learner.apply(0, Records.of(0, found.sample.values))
    return learner


def test_a_trial_is_what_a_fold_by_hand_gives() -> None:
    """Last weights and their mean, each event predicted before it is learned."""
    rng = random.Random(3)
    rows = [{"a": rng.randint(-3, 3), "b": rng.randint(-3, 3)} for _ in range(300)]
    rows = [row | {"y": 2 * row["a"] - row["b"] + rng.choice([-2, 0, 2]) > 0} for row in rows]
    found = suggested(sample(rows), None)
    trials, baseline = compare(model_of(found), found.sample.values)
    done = {(t.rule, t.scale, str(t.weights)): t for t in trials}
    w, sums = [0, 0, 0], [0, 0, 0]
    last, mean = [], []
    for row in rows:
        x, y = [1, row["a"], row["b"]], 1 if row["y"] else -1
        s = sum(p * q for p, q in zip(w, x, strict=True))
        last.append((s > 0) == row["y"])
        mean.append((sum(p * q for p, q in zip(sums, x, strict=True)) > 0) == row["y"])
        if y * s <= 0:
            w = [p + y * q for p, q in zip(w, x, strict=True)]
        sums = [p + q for p, q in zip(sums, w, strict=True)]
    for weights, right in (("last", last), ("mean", mean)):
        trial = done["perceptron", "none", weights]
        assert trial.accuracy == pytest.approx(sum(right) / 300)
        assert trial.later == pytest.approx(sum(right[150:]) / 150)
    assert len(done) == 2 * 2 * 3
    later = sum(row["y"] for row in rows[150:]) / 150
    assert baseline.later == pytest.approx(max(later, 1 - later))


def test_of_equals_the_simpler_is_best() -> None:
    plain = Trial("perceptron", "none", "last", later=0.801)
    scaled = Trial("logistic-delta", "standard", "recent", later=0.8029)
    better = Trial("perceptron", "standard", "mean", later=0.8031)
    assert best([scaled, plain]) is plain
    assert best([scaled, plain, better]) is better
    assert best([Trial("perceptron", "none", "last"), scaled]) is scaled


@pytest.mark.parametrize(
    ("rare", "wrong", "verdict"),
    [(0.5, 0.0, "Best: "), (0.5, 0.47, "No difference to the baseline is shown: "), (0.3, 0.5, "Nothing beats ")],
)
def test_better_is_said_where_the_events_show_it(rare: float, wrong: float, verdict: str) -> None:
    """It is shown for all pairs together: a small difference in a few events shows nothing."""
    rng = random.Random(3)
    labels = [rng.random() < rare for _ in range(2000)]
    rows = [{"a": label ^ (rng.random() < wrong), "b": i % 3, "y": label} for i, label in enumerate(labels)]
    found = suggested(sample(rows), "/y")
    done, baseline = compare(model_of(found), found.sample.values)
    chosen = best(done)
    assert _verdict(chosen, baseline).startswith(verdict)
    assert _beats(chosen, baseline) is (wrong == 0.0)


def test_a_candidate_is_the_best_of_the_other_rule_that_is_not_shown_to_be_worse() -> None:
    chosen = Trial("perceptron", "standard", "recent", later=0.9, better_than=("baseline", "logistic-delta-last"))
    worse = Trial("logistic-delta", "standard", "last", later=0.8)
    near = Trial("logistic-delta", "standard", "mean", later=0.85)
    unscaled = Trial("logistic-delta", "none", "mean", later=0.89)
    assert _candidate(chosen, [chosen, worse, unscaled]) == []
    settings = {choice.setting: choice.value for choice in _candidate(chosen, [chosen, near, worse, unscaled])}
    name = "candidates.logistic-delta-mean"
    assert settings == {f"{name}.rule": "logistic-delta", f"{name}.average": True, f"{name}.serve": "average"}
    assert _candidate(chosen, [chosen, near._replace(later=None)]) == []
    assert _candidate(chosen._replace(f1=0.5), [chosen, near._replace(f1=0.4)]) == []


def test_what_is_set_in_vain() -> None:
    values = sample(clicks()).values
    good = {"features": "", "label": "/clicked", "only": ["user.*", "page"], "where": {"/is_member": True}}
    assert in_vain(ModelSettings(event=good), values) == []
    assert in_vain(ModelSettings(), values) == []
    of = "the 400 records that were looked at"
    for change, line in (
        ({"without": ["ts", "users.*"]}, f'event.without: "users.*" matches no feature of {of}, such as user.country'),
        ({"only": ["clicked"]}, f'event.only: "clicked" matches no feature of {of}'),  # it is the label
        ({"where": {"/type": "click"}}, f"event.where: /type is in none of {of}, so none is learned"),
        ({"where": {"/page": ["/x"]}}, f'event.where: none of {of} has /page = "/x"; there are "/'),
        ({"label": "/click"}, f"event.label: /click is in none of {of}"),
        ({"features": "/data"}, f"event.features: /data is in none of {of}"),
        ({"weight": "/w"}, f"event.weight: /w is in none of {of}"),
        ({"id": "/key"}, f"event.id: /key is in none of {of}"),
    ):
        lines = in_vain(ModelSettings(event=good | {"only": []} | change), values)
        assert len(lines) == 1, lines
        assert lines[0].startswith(line)
    tags = sample([{"features": {"size": [1, 2], "tags": ["a"]}, "label": 1}]).values
    assert in_vain(ModelSettings(event={"only": ["size.1", "tags"]}), tags) == []
    assert len(in_vain(ModelSettings(event={"only": ["size.2"]}), tags)) == 1


def test_trials_of_classes_are_what_a_fold_by_hand_gives() -> None:
    """Last weights of three labels, the largest score and the first of equals, and the most frequent label."""
    rng = random.Random(4)
    rows: list[dict[str, Any]] = [{"a": rng.randint(-3, 3), "b": rng.randint(-3, 3)} for _ in range(300)]
    rows = [row | {"y": "pqr"[(row["a"] > 0) + (row["b"] + rng.choice([-1, 0]) > 1)]} for row in rows]
    found = suggested(sample(rows), None)
    assert settings(found)["labels"] == ["p", "q", "r"]
    w = [[0, 0, 0] for _ in "pqr"]
    last, usual, seen = [], [], [0, 0, 0]
    for row in rows:
        x, own = [1, row["a"], row["b"]], "pqr".index(row["y"])
        s = [sum(p * q for p, q in zip(row, x, strict=True)) for row in w]
        last.append(s.index(max(s)) == own)
        usual.append(seen.index(max(seen)) == own)
        seen[own] += 1
        rival = max((k for k in range(3) if k != own), key=lambda k: (s[k], -k))
        if not s[own] > s[rival]:
            w[own] = [p + q for p, q in zip(w[own], x, strict=True)]
            w[rival] = [p - q for p, q in zip(w[rival], x, strict=True)]
    trials, baseline = compare(model_of(found), found.sample.values)
    done = {(t.rule, t.scale, str(t.weights)): t for t in trials}
    trial = done["perceptron", "none", "last"]
    assert trial.later == pytest.approx(sum(last[150:]) / 150)
    assert trial.accuracy == pytest.approx(sum(last) / 300)
    assert len(done) == 2 * 2 * 3
    pair = Paired("last", "baseline").then(np.array(last[150:]), np.array(usual[150:]))
    assert ("baseline" in trial.better_than) == (pair.better(0.05 / math.comb(13, 2)) == "last")
    assert baseline.accuracy == pytest.approx(max(seen) / 300)
    later = "".join(row["y"] for row in rows[150:])
    assert baseline.later == pytest.approx(max(map(later.count, "pqr")) / 150)
    assert "always the most frequent label " in _verdict(trial._replace(later=0.1), baseline)


def test_a_hashed_table_is_smaller_for_many_labels() -> None:
    rows = [{"page": f"/p{i % 2000}", "target": i % 300} for i in range(3000)]
    chosen = settings(suggested(sample(rows), None))
    assert (chosen["bits"], len(chosen["labels"])) == (15, 300)
