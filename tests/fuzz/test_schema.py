"""The application does what `/openapi.json` says, and the examples there are requests that it takes."""

import json
from pathlib import Path
from typing import cast

import jsonschema
import pytest

from service.monitoring.metrics import Metrics
from service.serving.app import create_app
from service.serving.models import Models, given
from service.snapshots.store import RedisStore
from tests import template
from tests.conftest import clean_environment
from tests.fuzz.requests import LIMITS, Asked, application, ask


@pytest.mark.long
def test_answers_are_as_documented() -> None:
    """A test for each operation: `documented` has them."""
    command = ["pytest", *template.PYTEST, "-p", "schemathesis.pytest.plugin", "tests/fuzz/documented.py"]
    environment = {k: v for k, v in clean_environment().items() if not k.startswith("PYTEST_")}
    done = template.run(command, environment, Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kinds", [[0], [4], [4, 0], [0, 1, 4, 5, 6]])
async def test_the_example_of_a_request_is_one_that_its_models_take(kinds: list[int]) -> None:
    """Whatever kinds of models there are, also alone: by name, hashed, positional of one dimension or another."""
    models, (_, learners) = Models([]), application()
    metrics, store = Metrics("0", list, lambda: True, dict), cast(RedisStore, None)
    app = create_app(models, metrics, lambda: True, lambda: False, store, LIMITS, version="0")
    assert (await ask(app, Asked("GET", "/openapi.json", "", None, b""))).status == 200
    for i in kinds:  # they come to be known while the process runs
        models.add(given(f"m{i}", learners[i], 0.0))
    document = json.loads((await ask(app, Asked("GET", "/openapi.json", "", None, b""))).body)
    asked, shown = set[str](), set[str]()
    for path in [path for path in document["paths"] if path.endswith("/predict")]:
        operation = document["paths"][path]["post"]
        named = [
            p["schema"].get("enum", [f"m{i}" for i in kinds]) for p in operation["parameters"] if p["in"] == "path"
        ]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for name in named[0] if named else [path.split("/")[3]]:
            asked.add(name)
            if name in f"{path} {operation['summary']}":
                shown.add(name)
            for example in schema["examples"]:
                jsonschema.validate(example, schema | {"components": document["components"]})
                url = path.replace("{name}", name)
                answered = await ask(app, Asked("POST", url, "", b"application/json", json.dumps(example).encode()))
                assert answered.status == 200, (url, example, answered.body)
    assert asked == {f"m{i}" for i in kinds}
    assert len(kinds) == 1 or shown == asked, "where there are several kinds each name stands in a path or beside it"
