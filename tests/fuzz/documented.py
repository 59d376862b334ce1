"""Schemathesis asks the application what `/openapi.json` says, and validates every answer against it.

`test_schema` runs it in a process of its own: to collect its cases takes seconds, and each worker would.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import positive_data_acceptance

from tests.fuzz.requests import application

CONFIG = schemathesis.Config.from_dict({"generation": {"mode": "all", "deterministic": True}})
APP, LEARNERS = application()


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """The application as a coroutine function, by which schemathesis knows that it is ASGI."""
    await APP(scope, receive, send)


DOCUMENTED = schemathesis.openapi.from_asgi("/openapi.json", answer, config=CONFIG)
PREDICT = "POST /v1/models/{name}/predict"
"""Which features a model takes depends on its settings: the schema of a request allows those of all."""

answered = Counter[tuple[str, int]]()


@pytest.fixture(scope="module", autouse=True)
def _both() -> Iterator[None]:
    """Each operation that was asked has answered, and those with parameters have refused too."""
    yield
    for label in {label for label, _ in answered}:
        assert answered[label, 200], label
        assert "{" not in label or answered[label, 404], label


@DOCUMENTED.parametrize()
@settings(
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: Any) -> None:
    """No 500, no status, media type or shape that is not documented; and what the schema allows is answered."""
    if len(case.path_parameters.get("name", "none")) % 4:
        case.path_parameters["name"] = f"m{len(str(case.body)) % len(LEARNERS)}"
    response = case.call()
    answered[case.operation.label, response.status_code] += 1
    # `default` would allow any; a method that is not there is no operation's own.
    assert str(response.status_code) in {*case.operation.definition.raw["responses"], "405"}
    # Which features and labels there are is each model's own.
    beyond = case.operation.label == PREDICT or '"?label"' in response.text
    case.validate_response(response, excluded_checks=[positive_data_acceptance] if beyond else [])
