"""A problem names the place of the wrong part of a request, and the reason."""

import json

import pytest

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.serving.predictions import LARGE_BODY_BYTES
from service.settings.connections import HttpSettings
from tests.fuzz.requests import HttpRequest, ask
from tests.unit.applications import application

APP = application(Learner(Identity(max_features=5)), http=HttpSettings(max_instances=3))


async def _assert_problem(request: HttpRequest, pointer: str, reason: str) -> None:
    answer = await ask(APP, request)
    problem = json.loads(answer.body)
    assert (answer.status, problem["errors"]) == (422, [{"pointer": pointer, "reason": reason}])
    assert "\n" not in problem["detail"]
    assert "c0ffee" not in answer.body.decode(), "no value that was sent comes back"


@pytest.mark.parametrize(
    ("body", "pointer", "reason"),
    [
        (b"c0ffee", "", "not-json"),
        (b'{"features":{"\\ud800":1}}', "", "not-json"),
        (b'{"features":{"a":1}} x', "", "trailing-bytes"),
        (b"{}", "/features", "missing-field"),
        (b'{"features":{},"instances":[]}', "", "wrong-type"),
        (b'{"features":{"a":["c0ffee",1]}}', "/features/a", "wrong-type"),
        (b'{"features":{"a":{"a/b":[[]]}}}', "/features/a/a~1b", "wrong-type"),
        (b'{"event":{"features":{"a":NaN}}}', "/event/features/a", "not-finite"),
        (b'{"events":[{"features":{}},{}]}', "/events/1/features", "missing-field"),
        (b'{"features":{"a":1e31}}', "/features/a", "out-of-range"),
        (b'{"features":{"a":1,"a":2}}', "/features/a", "duplicate-feature"),
        (b'{"features":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}}', "/features", "too-many-features"),
        (b'{"features":{"%s":1}}' % (b"n" * 257), "/features", "name-too-long"),
        (b'{"instances":[{"features":{}},{"features":{"x":[[]]}}]}', "/instances/1/features/x", "wrong-type"),
        (b'{"instances":[%s{}]}' % (b'{"features":{}},' * 3), "/instances", "too-large"),
    ],
)
async def test_a_bad_body_is_named_by_its_place(body: bytes, pointer: str, reason: str) -> None:
    for padding in (b"", b" " * LARGE_BODY_BYTES):
        request = HttpRequest("POST", "/v1/models/m/predict", "", b"application/json", body + padding)
        await _assert_problem(request, pointer, reason)


@pytest.mark.parametrize(
    ("query", "reason"), [("top=0", "out-of-range"), ("cursor=1.5", "wrong-type"), ("top=c0ffee", "wrong-type")]
)
async def test_a_bad_parameter_is_named(query: str, reason: str) -> None:
    request = HttpRequest("GET", "/v1/models/m/weights", query, None, b"")
    await _assert_problem(request, f"?{query.partition('=')[0]}", reason)
