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
from service.serving import request_parser, scoring
from service.serving.http.app import Application
from tests.checks import learner_of
from tests.conftest import DEADLINE, event
from tests.fuzz.requests import HttpRequest, HttpResponse, ask
from tests.unit.applications import application, figures

NAMES = [f"n{i}" for i in range(100)]
LONGEST = 0.05


@asynccontextmanager
async def turning() -> AsyncIterator[list[float]]:
    """The seconds that this thread spent in each turn of its loop: another process may have the core meanwhile.

    What other tests left is not looked through for garbage meanwhile, as the service has nothing of it.
    """
    gc.collect()
    gc.freeze()
    turns = list[float]()

    async def turn() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.0005)
            turns.append(time.thread_time() - began)

    task = asyncio.create_task(turn())
    try:
        await asyncio.sleep(0)
        yield turns
        await asyncio.sleep(0.001)  # the last turn too
    finally:
        task.cancel()
        gc.unfreeze()  # else whatever others leave open would not be noticed any more


class Served(NamedTuple):
    app: Application
    learner: Learner

    async def predict(self, body: bytes) -> HttpResponse:
        return await ask(self.app, HttpRequest("POST", "/v1/models/m/predict", "", b"application/json", body))


@pytest.fixture
def served() -> Served:
    """A model of a hundred features, whose kernels are compiled."""
    learner = learner_of(Identity(), [event(dict.fromkeys(NAMES, 0.5), 1)])
    scoring.answer_large(scoring.freeze(learner), b'{"instances":[{"features":{}},{"features":{}}]}', 2, explain=False)
    return Served(application(learner), learner)


@pytest.mark.nightly
async def test_a_large_request_does_not_hold_the_loop(served: Served) -> None:
    """10,000 instances of 100 features: each score is what a request of its own gets."""
    body = json.dumps({"instances": [{"features": dict.fromkeys(NAMES, 0.25 + i)} for i in range(10_000)]}).encode()
    async with turning() as turns:
        answered = [await served.predict(body) for _ in range(3)][-1]
    assert answered.status == 200
    assert max(turns) < LONGEST
    predictions = json.loads(answered.body)["predictions"]
    assert len(predictions) == 10_000
    for i in (0, 1, 4999, 9999):
        alone = await served.predict(json.dumps({"features": dict.fromkeys(NAMES, 0.25 + i)}).encode())
        assert {**json.loads(alone.body), **predictions[i]} == json.loads(alone.body)


async def test_one_state_answers_a_large_request_while_the_model_learns(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal instances get equal answers, though weights change and names come meanwhile."""
    learner, learned_again, read_pieces = served.learner, threading.Semaphore(0), request_parser.read_pieces

    def after_an_event(*arguments: Any, **options: Any) -> Iterator[Any]:
        """The pieces of the request, each only after one more event is learned, however busy the machine is."""
        for piece in read_pieces(*arguments, **options):
            assert learned_again.acquire(timeout=DEADLINE)
            yield piece

    monkeypatch.setattr(request_parser, "read_pieces", after_an_event)
    learner.apply(
        0, Records.of(1, [b'{"features":{"spare":0},"label":1}'])
    )  # from here on its arrays have room, and stay in place
    row = dict.fromkeys([*NAMES, "late"], 1.0)
    body = json.dumps({"instances": [{"features": row}] * 10_000}).encode()
    task = asyncio.create_task(served.predict(body))
    learned = 0
    await asyncio.sleep(0)
    while not task.done():
        names = ["late"] if learned else [f"new{learned}"]
        event = {"features": dict.fromkeys([*NAMES, *names], 1.0), "label": learned % 2}
        learned += 1
        learner.apply(0, Records.of(1 + learned, [json.dumps(event).encode()]))
        learned_again.release()
        await asyncio.sleep(0.001)
    assert learned > 1
    answered = json.loads((await task).body)
    first, *others = answered["predictions"]
    assert all(other == first for other in others)
    assert first["unknown_features"] == 1, "the state is from when the request came"
    assert first["score"] == 1.0 + 100 * 0.5


M = 1 << 20
NESTED = {
    "open": b"[" * (16 * M),
    "one instance": b'{"instances":[{"features":[' + b"[]," * (5 * M) + b"[]]}]}",
    "ignored": b'{"features":{},"x":[' + b"[]," * (5 * M) + b"[]]}",
    "names": b'{"instances":[{"features":{' + b'"a":1,' * (2 * M) + b'"b":1}}]}',
    "escapes": b'{"features":{"' + b"\\u0041" * (2 * M) + b'":1}}',
}


@pytest.mark.nightly
@pytest.mark.parametrize("body", NESTED.values(), ids=NESTED)
async def test_a_body_of_brackets_is_refused_by_its_bytes(served: Served, body: bytes) -> None:
    """16 MB take less than 64 MB and no long turn of the loop: nothing larger than one event is parsed."""
    tracemalloc.start()
    try:
        async with turning() as turns:
            answered = await served.predict(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answered.status == 422
    assert max(turns) < LONGEST
    assert peak < 4 * 16 * M


@pytest.mark.nightly
async def test_a_scrape_of_a_hundred_models_does_not_hold_the_loop() -> None:
    learned = [figures(f"m{i}") for i in range(100)]

    metrics = Metrics("1", lambda: learned, lambda: True, dict)
    for i in range(100):
        for histogram in (metrics.saving, metrics.slices, metrics.delays):
            histogram.labels(f"m{i}").observe(1.0)
    async with turning() as turns:
        texts = await asyncio.gather(metrics.render(), metrics.render())
    assert texts[0].count(b"\nperceptron_events_total{") == texts[1].count(b"\nperceptron_events_total{") == 100
    assert max(turns) < LONGEST / 2
