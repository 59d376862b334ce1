"""Large requests and large scrapes: the event loop turns meanwhile, and one state answers."""

import asyncio
import gc
import json
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.monitoring.metrics import Metrics
from service.serving.http.app import Application
from service.serving.predictions import V1Request
from service.serving.scoring import freeze, predict_large
from tests.checks import learner_of
from tests.conftest import DEADLINE, event
from tests.fuzz.requests import HttpRequest, HttpResponse, ask
from tests.unit.applications import application, figures

NAMES = [f"n{i}" for i in range(100)]
MAX_TURN_SECONDS = 0.05


@asynccontextmanager
async def loop_turns() -> AsyncIterator[list[float]]:
    """The CPU seconds that this thread spent in each turn of its loop: other processes do not count.

    Objects that other tests left are hidden from the garbage collector meanwhile: the service has none of them.
    """
    gc.collect()
    gc.freeze()
    turns = list[float]()

    async def turn() -> None:
        while True:
            start = time.thread_time()
            await asyncio.sleep(0.0005)
            turns.append(time.thread_time() - start)

    task = asyncio.create_task(turn())
    try:
        await asyncio.sleep(0)
        yield turns
        await asyncio.sleep(0.001)  # the last turn too
    finally:
        task.cancel()
        gc.unfreeze()  # otherwise files that other tests leave open would not be noticed


class LocalModel(NamedTuple):
    app: Application
    learner: Learner

    async def predict(self, body: bytes) -> HttpResponse:
        return await ask(self.app, HttpRequest("POST", "/v1/models/m/predict", "", b"application/json", body))


@pytest.fixture
def model() -> LocalModel:
    """A model of a hundred features, whose kernels are compiled."""
    learner = learner_of(Identity(), [event(dict.fromkeys(NAMES, 0.5), 1)])
    request = V1Request(b'{"instances":[{"features":{}},{"features":{}}]}', 2)
    predict_large(freeze(learner, learner.main), request, False, 1)
    return LocalModel(application(learner), learner)


@pytest.mark.nightly
async def test_a_large_request_does_not_hold_the_loop(model: LocalModel) -> None:
    """10,000 instances of 100 features: each score is what a request of its own gets."""
    body = json.dumps({"instances": [{"features": dict.fromkeys(NAMES, 0.25 + i)} for i in range(10_000)]}).encode()
    async with loop_turns() as turns:
        answer = [await model.predict(body) for _ in range(3)][-1]
    assert answer.status == 200
    assert max(turns) < MAX_TURN_SECONDS
    predictions = json.loads(answer.body)["predictions"]
    assert len(predictions) == 10_000
    for i in (0, 1, 4999, 9999):
        single = await model.predict(json.dumps({"features": dict.fromkeys(NAMES, 0.25 + i)}).encode())
        assert {**json.loads(single.body), **predictions[i]} == json.loads(single.body)


async def test_one_state_answers_a_large_request(model: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal instances get equal answers, though weights change and names come meanwhile."""
    learner, event_learned, read_pieces = model.learner, threading.Semaphore(0), V1Request.read_pieces

    def after_an_event(*arguments: Any, **options: Any) -> Iterator[Any]:
        """The pieces of the request, each only after one more event is learned, however busy the machine is."""
        for piece in read_pieces(*arguments, **options):
            assert event_learned.acquire(timeout=DEADLINE)
            yield piece

    monkeypatch.setattr(V1Request, "read_pieces", after_an_event)
    # From here on the learner's arrays have room, and stay in place.
    learner.apply(Records.from_values(1, [b'{"features":{"spare":0},"label":1}']))
    row = dict.fromkeys([*NAMES, "late"], 1.0)
    body = json.dumps({"instances": [{"features": row}] * 10_000}).encode()
    task = asyncio.create_task(model.predict(body))
    learned_events = 0
    await asyncio.sleep(0)
    while not task.done():
        names = ["late"] if learned_events else [f"new{learned_events}"]
        event = {"features": dict.fromkeys([*NAMES, *names], 1.0), "label": learned_events % 2}
        learned_events += 1
        learner.apply(Records.from_values(1 + learned_events, [json.dumps(event).encode()]))
        event_learned.release()
        await asyncio.sleep(0.001)
    assert learned_events > 1
    answer = json.loads((await task).body)
    first, *rest = answer["predictions"]
    assert all(prediction == first for prediction in rest)
    assert first["unknown_features"] == 1, "the state is from when the request came"
    assert first["score"] == 1.0 + 100 * 0.5


@pytest.mark.nightly
async def test_reading_a_large_model_does_not_hold_the_loop() -> None:
    """A copy of its 512 MB of weights takes longer than a turn of the event loop may."""
    learner = learner_of(Identity(features="hashed", bits=22, labels=tuple(range(16))), [])
    model = LocalModel(application(learner), learner)
    async with loop_turns() as turns:
        for path, query in (("", ""), ("/weights", "top=3&label=7")):
            assert (await ask(model.app, HttpRequest("GET", f"/v1/models/m{path}", query, None, b""))).status == 200
        assert (await model.predict(b'{"features":{}}' + b" " * (1 << 19))).status == 200
    assert max(turns) < MAX_TURN_SECONDS


MIB = 1 << 20
NESTED = {
    "open": b"[" * (16 * MIB),
    "one instance": b'{"instances":[{"features":[' + b"[]," * (5 * MIB) + b"[]]}]}",
    "ignored": b'{"features":{},"x":[' + b"[]," * (5 * MIB) + b"[]]}",
    "names": b'{"instances":[{"features":{' + b'"a":1,' * (2 * MIB) + b'"b":1}}]}',
    "escapes": b'{"features":{"' + b"\\u0041" * (2 * MIB) + b'":1}}',
}


@pytest.mark.nightly
@pytest.mark.parametrize("body", NESTED.values(), ids=NESTED)
async def test_a_body_of_brackets_is_refused_by_its_bytes(model: LocalModel, body: bytes) -> None:
    """16 MB take less than 64 MB and no long turn of the loop: nothing larger than one event is parsed."""
    tracemalloc.start()
    try:
        async with loop_turns() as turns:
            answer = await model.predict(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status == 422
    assert max(turns) < MAX_TURN_SECONDS
    assert peak < 4 * 16 * MIB


@pytest.mark.nightly
async def test_a_scrape_of_a_hundred_models_does_not_hold_the_loop() -> None:
    models = [figures(f"m{i}") for i in range(100)]

    metrics = Metrics("1", lambda: [asyncio.sleep(0, model) for model in models], lambda: True, dict)
    for i in range(100):
        for histogram in (metrics.saving, metrics.slices, metrics.delays):
            histogram.labels(f"m{i}").observe(1.0)
    async with loop_turns() as turns:
        texts = await asyncio.gather(metrics.render(), metrics.render())
    assert texts[0].count(b"\nperceptron_events_total{") == texts[1].count(b"\nperceptron_events_total{") == 100
    assert max(turns) < MAX_TURN_SECONDS / 2
