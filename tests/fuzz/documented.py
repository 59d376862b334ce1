"""Schemathesis sends requests that `/openapi.json` describes, and validates every response against it.

`test_schema` runs it in a separate process: collecting its cases takes seconds, and every worker would do it.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from tests.fuzz.requests import application

CONFIG = schemathesis.Config.from_dict({"generation": {"mode": "all", "deterministic": True}})
APP, LEARNERS = application()


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """The application as a coroutine function, which schemathesis recognises as ASGI."""
    await APP(scope, receive, send)


DOCUMENTED = schemathesis.openapi.from_asgi("/openapi.json", answer, config=CONFIG)
POSTS = "POST /v1/models/{name}/events", "POST /v1/models/{name}/labels"
"""Nothing can be posted without a Kafka: `posts` compares those answers with their schemas."""
PREDICT = "POST /v1/models/{name}/predict"
"""The valid features depend on the settings of a model: the schema of a request allows those of all models."""
WEIGHTS = "GET /v1/models/{model}/weights"
"""In its query each number is a text too, and each text is a list."""


@schemathesis.serializer("application/x-ndjson")
def lines(_: Any, value: Any) -> bytes:
    """The body of a request with a record in each line: a text, or JSON that violates the schema."""
    return (value if isinstance(value, str) else json.dumps(value)).encode(errors="surrogatepass")


responses = Counter[tuple[str, int]]()


@pytest.fixture(scope="module", autouse=True)
def _check_statuses() -> Iterator[None]:
    """Check that each called operation has succeeded, and that operations with parameters have also refused one."""
    yield
    for label in {label for label, _ in responses}:
        assert responses[label, 200] or label in POSTS, label
        assert "{" not in label or responses[label, 404], label


@DOCUMENTED.parametrize()
@settings(max_examples=60, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
def test_answers_are_as_documented(case: Any) -> None:
    """No 500, and no undocumented status, media type or shape; a request that the schema allows succeeds."""
    for name, value in case.path_parameters.items():
        if len(value) % 4:
            case.path_parameters[name] = f"m{len(str(case.body)) % len(LEARNERS)}"
    response = case.call()
    responses[case.operation.label, response.status_code] += 1
    # `default` would allow any status; 405, for a missing method, does not belong to an operation.
    assert str(response.status_code) in {*case.operation.definition.raw["responses"], "405"}
    # The valid features and labels depend on the model.
    model_specific = case.operation.label == PREDICT or '"?label"' in response.text
    excluded = [positive_data_acceptance] if model_specific else []
    if case.operation.label == WEIGHTS:
        excluded.append(negative_data_rejection)
    case.validate_response(response, excluded_checks=excluded)
