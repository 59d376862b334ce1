"""The application does what `/openapi.json` says: schemathesis asks, and validates every answer against it."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import positive_data_acceptance

from service.monitoring.metrics import Metrics
from service.serving.app import create_app
from service.serving.models import Models, given
from service.snapshots.store import RedisStore
from tests.fuzz.requests import LIMITS, Asked, application, ask

CONFIG = schemathesis.Config.from_dict({"generation": {"mode": "all", "deterministic": True}})
APP, LEARNERS = application()
DOCUMENTED = schemathesis.openapi.from_asgi("/openapi.json", APP, config=CONFIG)
PREDICT = "POST /v1/models/{name}/predict"
"""Whose names are those of models that take the same requests; each other model has a path of its own."""

PATTERNS = next(f"m{i}" for i, learner in enumerate(LEARNERS) if learner.identity.event.only)

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
    if case.operation.label != PREDICT and len(case.path_parameters.get("name", "none")) % 4:
        case.path_parameters["name"] = f"m{len(str(case.body)) % len(LEARNERS)}"
    response = case.call()
    answered[case.operation.label, response.status_code] += 1
    # `default` would allow any; a method that is not there is no operation's own.
    assert str(response.status_code) in {*case.operation.definition.raw["responses"], "405"}
    # Names are limited in bytes, with those around them and the string; members are counted at any depth; two ways lead
    # to one name; and a pattern leaves anything out: none of this can JSON Schema say.
    beyond = any(reason in response.text for reason in ("name-too-long", "duplicate-feature", "too-many-features"))
    beyond = beyond or case.path_parameters.get("name") == PATTERNS or f"/{PATTERNS}/" in case.operation.path
    case.validate_response(response, excluded_checks=[positive_data_acceptance] if beyond else [])


@pytest.mark.parametrize("kinds", [[0], [4], [4, 0], [0, 1, 4, 5, 6]])
async def test_the_example_of_a_request_is_one_that_its_models_take(kinds: list[int]) -> None:
    """Whatever kinds of models there are, also alone: by name, hashed, positional of one dimension or another."""
    models = Models([])
    metrics, store = Metrics("0", list, lambda: True, dict), cast(RedisStore, None)
    app = create_app(models, metrics, lambda: True, lambda: False, store, LIMITS, version="0")
    assert (await ask(app, Asked("GET", "/openapi.json", "", None, b""))).status == 200
    for i in kinds:  # they come to be known while the process runs
        models.add(given(f"m{i}", LEARNERS[i], 0.0))
    document = json.loads((await ask(app, Asked("GET", "/openapi.json", "", None, b""))).body)
    asked = set()
    for path in [path for path in document["paths"] if path.endswith("/predict")]:
        operation = document["paths"][path]["post"]
        named = [
            p["schema"].get("enum", [f"m{i}" for i in kinds]) for p in operation["parameters"] if p["in"] == "path"
        ]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for name in named[0] if named else [path.split("/")[3]]:
            asked.add(name)
            for example in schema["examples"]:
                jsonschema.validate(example, schema | {"components": document["components"]})
                url = path.replace("{name}", name)
                answered = await ask(app, Asked("POST", url, "", b"application/json", json.dumps(example).encode()))
                assert answered.status == 200, (url, example, answered.body)
    assert asked == {f"m{i}" for i in kinds}
