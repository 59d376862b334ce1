"""The application behaves as `/openapi.json` says, and accepts the examples of requests there."""

import json
from pathlib import Path

import jsonschema
import pytest

from tests import template
from tests.conftest import clean_environment
from tests.fuzz.requests import HttpRequest, application, ask


@pytest.mark.nightly
def test_answers_are_as_documented() -> None:
    """Run the tests of `documented`, one for each operation."""
    command = ["pytest", *template.PYTEST, "-p", "schemathesis.pytest.plugin", "tests/fuzz/documented.py"]
    environment = {k: v for k, v in clean_environment().items() if not k.startswith("PYTEST_")}
    result = template.run(command, environment, Path(__file__).parents[2])
    assert result.returncode == 0, result.stdout


async def test_the_examples_of_requests_are_requests() -> None:
    """A model of named features accepts each example, and the schema allows it."""
    app, _ = application()
    document = json.loads((await ask(app, HttpRequest("GET", "/openapi.json", "", None, b""))).body)
    content = document["paths"]["/v1/models/{name}/predict"]["post"]["requestBody"]["content"]["application/json"]
    for name, example in content["examples"].items():
        jsonschema.validate(example["value"], content["schema"] | {"components": document["components"]})
        body = json.dumps(example["value"]).encode()
        response = await ask(app, HttpRequest("POST", "/v1/models/m0/predict", "", b"application/json", body))
        assert response.status == 200, (name, response.body)
