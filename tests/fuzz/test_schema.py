"""The application does what `/openapi.json` says, and the examples there are requests that it takes."""

import json
from pathlib import Path

import jsonschema
import pytest

from tests import template
from tests.conftest import clean_environment
from tests.fuzz.requests import Asked, application, ask


@pytest.mark.nightly
def test_answers_are_as_documented() -> None:
    """A test for each operation: `documented` has them."""
    command = ["pytest", *template.PYTEST, "-p", "schemathesis.pytest.plugin", "tests/fuzz/documented.py"]
    environment = {k: v for k, v in clean_environment().items() if not k.startswith("PYTEST_")}
    done = template.run(command, environment, Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout


async def test_the_examples_of_requests_are_requests() -> None:
    """A model of named features takes each of them, and the schema allows them."""
    app, _ = application()
    document = json.loads((await ask(app, Asked("GET", "/openapi.json", "", None, b""))).body)
    operation = document["paths"]["/v1/models/{name}/predict"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    for example in schema["examples"]:
        jsonschema.validate(example, schema | {"components": document["components"]})
        body = json.dumps(example).encode()
        answered = await ask(app, Asked("POST", "/v1/models/m0/predict", "", b"application/json", body))
        assert answered.status == 200, (example, answered.body)
