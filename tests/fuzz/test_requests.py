"""The fuzzer of requests finds nothing. REQUESTS=100000 for a long run."""

import json
import os

import pytest

from service.learning.events.batch import use_compiled_reader
from service.serving import request_parser, scoring
from tests.fuzz.requests import Asked, application, ask, fuzz


async def test_mutated_requests_get_an_answer_or_a_problem() -> None:
    counted = await fuzz(int(os.environ.get("REQUESTS", "2000")))
    # Worth something only where both happen.
    assert 0.2 < counted[200] / counted.total() < 0.8
    assert set(counted) >= {200, 400, 404, 405, 413, 415, 422}


@pytest.mark.parametrize("compiled", [True, False])
async def test_pieces_are_read_as_the_whole(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every body were large, and every few bytes of it a piece: the same verdicts and scores, bit for bit."""
    monkeypatch.setattr(scoring, "LARGE_BODY_BYTES", 0)
    monkeypatch.setattr(request_parser, "PIECE_BYTES", 30)
    use_compiled_reader(compiled)
    try:
        counted = await fuzz(1500, seed=1)
    finally:
        use_compiled_reader(False)
    assert counted[200] > 300


async def test_a_score_that_no_number_holds_is_no_null() -> None:
    """A model on its way to divergence has finite weights whose products are not; its squared norm is null then."""
    app, learners = application()
    learners[2].weights[:] = 1e300
    (name, *_) = learners[2].columns.names
    bad, fine = ({"features": {name: value}} for value in (1e30, 2.0))
    body = json.dumps({"instances": [fine, bad]}).encode()
    answered = await ask(app, Asked("POST", "/v1/models/m2/predict", "", None, body))
    assert answered.status == 422
    assert json.loads(answered.body)["errors"] == [{"pointer": "/instances/1/features", "reason": "not-finite"}]
    answered = await ask(app, Asked("POST", "/v1/models/m2/predict", "", None, json.dumps(fine).encode()))
    assert json.loads(answered.body)["score"] == 3e300
    about = await ask(app, Asked("GET", "/v1/models/m2", "", None, b""))
    assert json.loads(about.body)["squared_norm"] is None
