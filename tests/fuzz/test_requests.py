"""Runs of the fuzzers of requests, which must find no violation. REQUESTS=100000 makes a long run."""

import json
import os

import pytest

from service.embedded.servers import Server
from service.learning.events.event_reader import use_compiled_reader
from tests.fuzz import posts
from tests.fuzz.requests import HttpRequest, application, ask, fuzz


async def test_mutated_requests_get_an_answer_or_a_problem() -> None:
    counts = await fuzz(int(os.environ.get("REQUESTS", "2000")))
    # The test is meaningful only if both occur.
    assert 0.2 < counts[200] / counts.total() < 0.8
    assert set(counts) >= {200, 400, 404, 405, 413, 415, 422}


async def test_mutated_posts_are_stored_or_refused(kafka: Server, topic: str) -> None:
    counts = await posts.fuzz(kafka, topic, int(os.environ.get("REQUESTS", "1000")))
    assert counts.pop(0) > 0.15 * counts.total()
    assert set(counts) >= {200, 400, 404, 405, 413, 415, 422}


@pytest.mark.parametrize("compiled", [True, False])
async def test_a_body_in_pieces_is_read_as_a_whole_one(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If every body counts as large and is read in pieces of a few bytes: the same verdicts and scores, bit for bit."""
    monkeypatch.setattr("service.serving.predictions.LARGE_BODY_BYTES", 0)
    monkeypatch.setattr("service.serving.predictions.PIECE_BYTES", 30)
    use_compiled_reader(compiled)
    try:
        counts = await fuzz(1500, seed=1)
    finally:
        use_compiled_reader(False)
    assert counts[200] > 300


async def test_a_score_that_overflows_is_refused() -> None:
    """A model close to divergence has finite weights with infinite products; its squared norm is null then."""
    app, learners = application()
    learners[2].main.weights[:] = 1e300
    (name, *_) = learners[2].columns.names
    bad, fine = ({"features": {name: value}} for value in (1e30, 2.0))
    body = json.dumps({"instances": [fine, bad]}).encode()
    response = await ask(app, HttpRequest("POST", "/v1/models/m2/predict", "", None, body))
    assert response.status == 422
    assert json.loads(response.body)["errors"] == [{"pointer": "/instances/1/features", "reason": "not-finite"}]
    response = await ask(app, HttpRequest("POST", "/v1/models/m2/predict", "", None, json.dumps(fine).encode()))
    assert json.loads(response.body)["score"] == 3e300
    model = await ask(app, HttpRequest("GET", "/v1/models/m2", "", None, b""))
    assert json.loads(model.body)["squared_norm"] is None
