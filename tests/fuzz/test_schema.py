"""The application does what `/openapi.json` says: schemathesis asks, and validates every answer against it."""

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
DOCUMENTED = schemathesis.openapi.from_asgi("/openapi.json", APP, config=CONFIG)
PREDICT = "POST /v1/models/{name}/predict"
"""Whose names are those of models that take the same requests; each other model has a path of its own."""

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
    max_examples=80,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: Any) -> None:
    """No 500, no status, media type or shape that is not documented; and what the schema allows is answered."""
    if case.operation.label != PREDICT and len(case.path_parameters.get("name", "none")) % 4:
        case.path_parameters["name"] = f"m{len(str(case.body)) % len(LEARNERS)}"
    response = case.call()
    answered[case.operation.label, response.status_code] += 1
    # `default` would allow any; a method that is not there is no operation's own.
    assert str(response.status_code) in {*case.operation.definition.raw["responses"], "405"}
    # The limit on names is one of bytes, and JSON Schema counts characters.
    in_bytes = "name-too-long" in response.text
    case.validate_response(response, excluded_checks=[positive_data_acceptance] if in_bytes else [])
