"""The page's history, and the body that it polls, asked of the application without a browser."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from service.learning.evaluation.last_events import KEPT_EVENTS
from service.learning.events.content_types import MessagePack, double_vector
from service.learning.identity import Identity, Places
from service.learning.options import CandidateOptions, Options
from service.learning.records import Records
from service.monitoring.metrics import Metrics
from service.serving.http.auth import BearerTokens
from service.serving.models import Model, Models, static_model
from service.serving.page.example_event import MAX_EVENT_BYTES
from service.serving.page.history import MAX_POINTS, History, Point, Points
from service.serving.page.routes import OPEN
from tests.checks import learner_of
from tests.conftest import event
from tests.unit.applications import serving


def client(
    *models: Model,
    history: History | None = None,
    tokens: BearerTokens | None = None,
    missing: Callable[[], dict[str, float]] = dict,
) -> httpx.AsyncClient:
    """A client of an application over these models."""
    app = serving(*models, metrics=Metrics("0", list, lambda: True, missing), tokens=tokens, history=history)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def learned(*records: bytes, **identity: Any) -> Model:
    """A model that has learned these."""
    return static_model("m", learner_of(Identity(**identity), records), time.time())


async def shown(model: Model) -> Any:
    """The JSON that the page polls."""
    history = History(Models([model]), lambda _: {0: 3, 1: 4})
    history.take(model, time.time())
    async with client(model, history=history) as http:
        return (await http.get("/page/now", params={"model": model.name})).raise_for_status().json()


def point(second: float, events: int) -> Point:
    return Point(second, events, 0, None, None, {}, None)


def test_a_history_is_short_and_evenly_spaced_without_what_was_rolled_back() -> None:
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
    assert [one.events for one in rolled_back.all] == [10, 12, 13]
    assert points.rate == rolled_back.rate == 1.0


async def test_the_body_has_what_the_page_shows() -> None:
    records = [event({"a": i % 3, "b": {"c": "x" if i % 2 else "y"}}, i % 2) for i in range(40)]
    now = await shown(learned(*records, b"nothing", average=True))
    assert (now["asked"], now["models"], now["release"]) == ("m", ["m"], "0")
    assert (now["model"]["events"], now["labels"], now["lag"]) == (40, ["-1", "1"], 7)
    assert now["event"] == {"a": 0, "b": {"c": "x"}}
    assert now["plane"] is None
    assert {name for name, _ in now["largest"][0]["weights"]} <= {"a", "b.c=x", "b.c=y"}
    ((_, events, *_, shares, (low, high)),) = now["points"]
    model, named = now["model"], {"last": "accuracy", "average": "average_accuracy", "baseline": "baseline"}
    assert events == 40
    assert shares.keys() == named.keys()
    for name, member in named.items():
        assert shares[name] == pytest.approx([model[member]["recent"], model[member]["all"]], abs=1e-5)
    assert 0 <= low <= model["accuracy"]["all"] <= high <= 1


@pytest.mark.parametrize("serve", ["last", "average", "other"])
@pytest.mark.parametrize("labels", [None, ("a", "b", "c")])
async def test_the_confusion_is_of_what_answers(labels: tuple[str, ...] | None, serve: str) -> None:
    """Each event is predicted before it is learned; of three labels the last weights' stands for the average's."""
    identity, names = Identity(labels=labels, average=True), labels or (-1, 1)
    other = CandidateOptions(msgspec.structs.replace(identity, start="random:7", eta=0.1))
    learner = learner_of(identity, (), Options(serve=serve, candidates={"other": other}))
    expected = [[0] * len(names) for _ in names]
    for i in range(60):
        x, place = {"a": i % 5, "b": i % 7}, i * i % len(names)
        by = learner.by(learner.answering)
        expected[place][names.index(by.label(learner.score(x, by)[0]))] += 1
        learner.apply(0, Records.of(i, [event(x, names[place])]))
    now = await shown(static_model("m", learner, 0.0))
    assert now["model"]["serve"] == serve
    of_last = bool(labels) and serve == "average"
    assert (now["confusion"], now["of_last"]) == (learner.counts.confusion if of_last else expected, of_last)
    if not labels:
        assert now["model"]["recall"]["all"] == expected[1][1] / sum(expected[1])
        assert 0 < expected[1][1] < sum(expected[1])


async def test_a_plane_is_in_the_events_own_units_scaled_or_not() -> None:
    """Its scores are those of predictions, and the last events are all there, in their order."""
    records = [event([100 + i % 7, -5 * (i % 3)], int(i % 7 > 3)) for i in range(KEPT_EVENTS + 40)]
    for scale in ("none", "standard"):
        model = learned(*records, features="positional", dimension=2, scale=scale)
        assert model.answering is not None
        learner, now = model.answering.learner, await shown(model)
        expected = [[100 + i % 7, -5 * (i % 3), int(i % 7 > 3)] for i in range(40, KEPT_EVENTS + 40)]
        assert now["plane"]["events"] == expected
        ((bias, x, y),) = now["plane"]["scores"]
        for u, v in ((100.0, -5.0), (0.0, 3.0)):
            score, _ = learner.score([u, v])
            assert bias + x * u + y * v == pytest.approx(score)


async def test_the_form_has_what_the_model_reads_of_an_event() -> None:
    """A list stays whole, a null might be a value in another event, and an event may have any form."""
    features = {"at": "now", "user": {"id": 7, "age": 3, "from": None}, "tags": ["a", "b"], "odd": [1, 2], "e": [1, 2]}
    large = {f"n{i}": i for i in range(MAX_EVENT_BYTES // 8)}
    packed = MessagePack(b"\x82\xa8features\x82\xa1a\x03\xa1b\xa1z\xa5label\x01")
    for model, expected in (
        (learned(double_vector([1.5, 2.0], 1.0), features="positional", dimension=2), [1.5, 2.0]),
        (learned(packed), {"a": 3, "b": "z"}),
        (learned(event(features, 1)), features),
        (
            learned(event(features, 1), event=Places(only=("e.1", "user.*"))),
            {"user": features["user"], "e": [1, 2]},
        ),
        (learned(event(large, 1)), None),
        (learned(), None),
    ):
        assert (await shown(model))["event"] == expected


async def test_many_labels_do_not_make_a_large_body() -> None:
    model = learned(*(event({"a": i}, i) for i in range(900)), labels=tuple(range(900)))
    now = await shown(model)
    assert len(json.dumps(now)) < 50_000
    assert (now["confusion"], len(now["model"]["labels"]), len(now["largest"])) == ([], 12, 12)


async def test_what_does_not_answer_is_told_at_once_also_of_a_model_that_rests() -> None:
    """And that it answers again."""
    model, missing = learned(event({"a": 1}, 1)), {"kafka": 0.0, "redis": 0.0}
    history, told = History(Models([model]), lambda _: {}), list[Any]()
    async with client(model, Model("later"), history=history, missing=lambda: missing) as http:
        for second, since in enumerate((0.0, 0.0, 1795563962.34, 1795563962.34, 0.0)):
            missing["kafka"] = since
            history.take(model, 1795563962.0 + second)
            told.append((await http.get("/page/now")).json()["missing"])
        assert told == [{}, {}, {"kafka": 1795563962.3}, {"kafka": 1795563962.3}, {}]
        missing["redis"] = 5.0
        assert (await http.get("/page/now?model=later")).json()["missing"] == {"redis": 5.0}


async def test_a_model_that_cannot_answer_yet_says_why_and_one_that_is_not_there_is_404() -> None:
    async with client(Model("later")) as http:
        now = (await http.get("/page/now")).json()
        assert (now["asked"], now["model"], now["why_not"]) == ("later", None, "the model has no snapshot yet")
        assert (await http.get("/page/now?model=none")).status_code == 404
    async with client() as http:
        assert (await http.get("/page/now")).json()["why_not"] == "the service has no model yet"


async def test_the_files_are_open_and_the_data_is_not(tmp_path: Path) -> None:
    """And nothing that the page shows can be a program, or load one."""
    (tmp_path / "tokens").write_text("a-token-0123456789\n")
    async with client(learned(), tokens=BearerTokens(str(tmp_path / "tokens"))) as http:
        for path in OPEN:
            answer = await http.get(path)
            assert answer.status_code == 200, path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
        given_token = {"authorization": "Bearer a-token-0123456789"}
        refused = await http.get("/page/now")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/page/now", headers=given_token)).status_code == 200
