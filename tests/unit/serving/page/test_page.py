"""The page's history, and the body that it polls, requested from the application without a browser."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from service.learning.evaluation.last_events import KEPT_EVENTS
from service.learning.events import value_formats
from service.learning.events.value_formats import DOUBLE_VECTOR, JSON, MESSAGE_PACK, ValueBuffer, ValueFormat
from service.learning.identity import Identity, Places
from service.learning.options import CandidateOptions, Options
from service.learning.records import Records
from service.monitoring.metrics import Metrics
from service.serving.models import Model, Models, static_model
from service.serving.page.page import MAX_EVENT_BYTES, MAX_POINTS, OPEN, History, Point, Points
from service.settings.connections import HttpSettings
from tests.checks import learner_of
from tests.conftest import event
from tests.partitions import P0, P1
from tests.unit.applications import serving


def client(
    *models: Model,
    history: History | None = None,
    tokens: str | None = None,
    missing: Callable[[], dict[str, float]] = dict,
) -> httpx.AsyncClient:
    """A client of an application over these models."""
    http, metrics = HttpSettings(token_file=tokens), Metrics("0", list, lambda: True, missing)
    app = serving(*models, metrics=metrics, http=http, history=history)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def model_of(*records: bytes, value_format: ValueFormat = JSON, **identity: Any) -> Model:
    """A model that has learned these records."""
    values = ValueBuffer.from_values(records, [value_format] * len(records))
    return static_model("m", learner_of(Identity(**identity), values), time.time())


async def page_body(model: Model) -> Any:
    """The JSON that the page polls."""
    history = History(Models([model]), lambda _: {P0: 3, P1: 4})
    history.take(model, time.time())
    async with client(model, history=history) as http:
        return (await http.get("/page/now", params={"model": model.name})).raise_for_status().json()


def point(second: float, events: int) -> Point:
    return Point(second, events, 0, None, None, {}, None)


def test_a_history_is_short_and_evenly_spaced_though_figures_or_the_clock_go_back() -> None:
    points, rolled_back = Points(), Points()
    for second in range(10_000):
        points.add(point(second, second))
        assert len(points.all) < MAX_POINTS
        assert points.all[-1].time == second
    assert points.all[0].time == 0
    steps = {b.time - a.time for a, b in zip(points.all, points.all[1:-1], strict=False)}
    assert steps == {points.step} == {128.0}
    for second, events in enumerate((10, 20, 30, 12, 13)):
        rolled_back.add(point(second, events))
    assert [p.events for p in rolled_back.all] == [10, 12, 13]
    assert points.rate == rolled_back.rate == 1.0
    set_back = Points()
    for events, second in enumerate((3600, 3601, 3602, 10, 11)):
        set_back.add(point(second, events))
    assert [p.time for p in set_back.all] == [10, 11]


async def test_the_body_has_what_the_page_shows() -> None:
    records = [event({"a": i % 3, "b": {"c": "x" if i % 2 else "y"}}, i % 2) for i in range(40)]
    body = await page_body(model_of(*records, b"nothing", average=True))
    assert (body["asked"], body["models"], body["release"]) == ("m", ["m"], "0")
    assert (body["model"]["events"], body["labels"], body["lag"]) == (40, ["-1", "1"], 7)
    assert body["event"] == {"a": 0, "b": {"c": "x"}}
    assert body["plane"] is None
    assert {name for name, _ in body["largest"][0]["weights"]} <= {"a", "b.c=x", "b.c=y"}
    ((_, events, *_, shares, (low, high)),) = body["points"]
    model, members = body["model"], {"last": "accuracy", "average": "average_accuracy", "baseline": "baseline"}
    members["previous"] = "previous_label_baseline"
    assert events == 40
    assert shares.keys() == members.keys()
    for name, member in members.items():
        assert shares[name] == pytest.approx([model[member]["recent"], model[member]["all"]], abs=1e-5)
    assert 0 <= low <= model["accuracy"]["all"] <= high <= 1


@pytest.mark.parametrize("serve", ["last", "average", "other"])
@pytest.mark.parametrize("labels", [None, ("a", "b", "c")])
async def test_the_confusion_is_that_of_the_weights_that_answer(labels: tuple[str, ...] | None, serve: str) -> None:
    """Each event is predicted before it is learned; with three labels the average's is that of the last weights."""
    identity, names = Identity(labels=labels, average=True), labels or (-1, 1)
    candidate = CandidateOptions(msgspec.structs.replace(identity, start="random:7", eta=0.1))
    learner = learner_of(identity, (), Options(serve=serve, candidates={"other": candidate}))
    expected = [[0] * len(names) for _ in names]
    for i in range(60):
        x, place = {"a": i % 5, "b": i % 7}, i * i % len(names)
        state = learner.serving
        expected[place][names.index(state.label(learner.score(x, state)[0]))] += 1
        learner.apply(Records.from_values(i, [event(x, names[place])]))
    body = await page_body(static_model("m", learner, 0.0))
    assert body["model"]["serve"] == serve
    is_last = bool(labels) and serve == "average"
    assert (body["confusion"], body["of_last"]) == (learner.main.counts.confusion if is_last else expected, is_last)
    if not labels:
        assert body["model"]["recall"]["all"] == expected[1][1] / sum(expected[1])
        assert 0 < expected[1][1] < sum(expected[1])


async def test_a_plane_is_in_the_events_own_units_scaled_or_not() -> None:
    """The plane has the scores of predictions, and all the last events in order."""
    records = [event([100 + i % 7, -5 * (i % 3)], int(i % 7 > 3)) for i in range(KEPT_EVENTS + 40)]
    for scale in ("none", "standard"):
        model = model_of(*records, features="positional", dimension=2, scale=scale)
        assert model.answering is not None
        learner, body = model.answering.learner, await page_body(model)
        expected = [[100 + i % 7, -5 * (i % 3), int(i % 7 > 3)] for i in range(40, KEPT_EVENTS + 40)]
        assert body["plane"]["events"] == expected
        ((bias, x, y),) = body["plane"]["scores"]
        for u, v in ((100.0, -5.0), (0.0, 3.0)):
            score, _ = learner.score([u, v], learner.serving)
            assert bias + x * u + y * v == pytest.approx(score)


async def test_the_form_has_the_members_that_the_model_reads() -> None:
    """A list stays whole, a null might be a value in another event, and an event may have any form."""
    features = {"at": "now", "user": {"id": 7, "age": 3, "from": None}, "tags": ["a", "b"], "odd": [1, 2], "e": [1, 2]}
    large = {f"n{i}": i for i in range(MAX_EVENT_BYTES // 8)}
    packed, vector = (
        b"\x82\xa8features\x82\xa1a\x03\xa1b\xa1z\xa5label\x01",
        value_formats.encode_vector([1.5, 2.0], 1.0),
    )
    for model, expected in (
        (model_of(vector, value_format=DOUBLE_VECTOR, features="positional", dimension=2), [1.5, 2.0]),
        (model_of(packed, value_format=MESSAGE_PACK), {"a": 3, "b": "z"}),
        (model_of(event(features, 1)), features),
        (model_of(event(features, 1), event=Places(only=("e.1", "user.*"))), {"user": features["user"], "e": [1, 2]}),
        (model_of(event(large, 1)), None),
        (model_of(), None),
    ):
        assert (await page_body(model))["event"] == expected


async def test_many_labels_do_not_make_a_large_body() -> None:
    model = model_of(*(event({"a": i}, i) for i in range(900)), labels=tuple(range(900)))
    body = await page_body(model)
    assert len(json.dumps(body)) < 50_000
    assert (body["confusion"], len(body["model"]["labels"]), len(body["largest"])) == ([], 12, 12)


async def test_a_missing_dependency_is_shown_at_once_also_for_an_idle_model() -> None:
    """Its return is shown at once too."""
    model, missing = model_of(event({"a": 1}, 1)), {"kafka": 0.0, "redis": 0.0}
    history, answers = History(Models([model]), lambda _: {}), list[Any]()
    async with client(model, Model("later"), history=history, missing=lambda: missing) as http:
        for second, since in enumerate((0.0, 0.0, 1795563962.34, 1795563962.34, 0.0)):
            missing["kafka"] = since
            history.take(model, 1795563962.0 + second)
            answers.append((await http.get("/page/now")).json()["missing"])
        assert answers == [{}, {}, {"kafka": 1795563962.3}, {"kafka": 1795563962.3}, {}]
        missing["redis"] = 5.0
        assert (await http.get("/page/now?model=later")).json()["missing"] == {"redis": 5.0}


async def test_a_model_that_cannot_answer_yet_says_why_and_an_unknown_one_is_404() -> None:
    async with client(Model("later")) as http:
        body = (await http.get("/page/now")).json()
        assert (body["asked"], body["model"], body["why_not"]) == ("later", None, "the model has no snapshot yet")
        assert (await http.get("/page/now?model=none")).status_code == 404
    async with client() as http:
        assert (await http.get("/page/now")).json()["why_not"] == "the service has no model yet"


async def test_the_files_are_open_and_the_data_is_not(tmp_path: Path) -> None:
    """Nothing that the page shows can be a program, or load one."""
    (tmp_path / "tokens").write_text("a-token-0123456789\n")
    async with client(model_of(), tokens=str(tmp_path / "tokens")) as http:
        for path in OPEN:
            answer = await http.get(path)
            assert answer.status_code == 200, path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
        header = {"authorization": "Bearer a-token-0123456789"}
        answer = await http.get("/page/now")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/page/now", headers=header)).status_code == 200
