"""What problems say of a parameter and of a body: what was expected, what was got, and no value that was sent."""

import json

import pytest

from tests.fuzz.requests import Asked, application, ask

APP, _ = application()
ANY = "expected an object with one of 'features', 'event', 'instances', 'events'"


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("top=abc", "?top= must be a whole number, got something else"),
        ("top=0", "?top= must be at least 1, got less"),
        ("explain=maybe", "?explain= must be true or false, got something else"),
    ],
)
async def test_a_parameter_is_named_with_what_it_must_be(query: str, detail: str) -> None:
    method, route = ("POST", "predict") if query.startswith("explain") else ("GET", "weights")
    answered = await ask(APP, Asked(method, f"/v1/models/m0/{route}", query, None, b"{}"))
    assert (answered.status, json.loads(answered.body)["detail"]) == (422, detail)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", f"the body is empty; {ANY}"),
        (b"secret", "the body is not JSON: expecting value at character 0"),
        (b'"\xff"', "the body is not JSON: not UTF-8 at byte 1"),
        (b'{"features": {"\\ud800": 1}}', "the body is not JSON: half of a surrogate pair in a string"),
        (b"[" * 65, "nested deeper than 64 levels"),
    ],
)
async def test_a_body_that_is_no_json_is_said_to_be_none(body: bytes, detail: str) -> None:
    for large in (b"", b" " * 33_000):
        answered = await ask(APP, Asked("POST", "/v1/models/m0/predict", "", None, body + large))
        assert (answered.status, json.loads(answered.body)["detail"]) == (422, detail)
