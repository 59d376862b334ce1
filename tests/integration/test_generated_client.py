"""A client that openapi-generator makes of `/openapi.json` predicts, labels, posts events and reads a model back."""

import asyncio
import importlib
from pathlib import Path
from typing import Any

import openapi_generator_cli
import pytest

from service.embedded.servers import Server
from tests.conftest import Run, until
from tests.integration.test_posts import LOOP, service_with_topics


async def test_a_generated_client(
    run: Run, kafka: Server, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await service_with_topics(run, kafka, topic, LOOP, "events", "labels")
    document = tmp_path / "openapi.json"
    document.write_bytes(service.http.get("/openapi.json").content)
    command = ["generate", "-g", "python", "-i", document, "-o", tmp_path, "--package-name", "generated_client"]
    assert (await asyncio.to_thread(openapi_generator_cli.run, [str(part) for part in command])).returncode == 0
    monkeypatch.syspath_prepend(tmp_path)
    generated: Any = importlib.import_module("generated_client")

    def use_client() -> Any:
        api = generated.ApiClient(generated.Configuration(host=str(service.http.base_url)))
        predictions, records = generated.PredictionsApi(api), generated.RecordsApi(api)

        def predict(explain: bool = False, **members: Any) -> Any:
            return predictions.predict(topic, generated.PredictRequest(**members), explain=explain)

        one = predict(features={"a": 1, "b": "x"}, id="one")
        assert (one.model, one.label, one.score, one.unknown_features, one.predictions) == (topic, 0, 0.0, 2, None)
        instances = [generated.Instance(features={"a": i}, id=f"many{i}") for i in range(50)]
        many = predict(instances=instances, explain=True)
        assert [[term.name for term in each.contributions] for each in many.predictions] == [["bias"]] * 50
        assert many.label is None
        assert predict(event={"features": {"a": 1}}).label == 0
        with pytest.raises(generated.exceptions.UnprocessableEntityException) as refused:
            predict(features={"a": "x" * 300})
        assert refused.value.data.errors[0].reason == "name-too-long"
        labels = [generated.LabelRecord(id=f"many{i}", label=i % 2) for i in range(50)]
        (place,) = records.post_labels(topic, generated.LabelsRequest(id="one", label=1)).records
        assert place.topic == f"{topic}-labels"
        assert len(records.post_labels(topic, generated.LabelsRequest(labels=labels)).records) == 50
        event = {"id": "event", "features": {"a": 1}, "label": 1}
        (place,) = records.post_events(topic, generated.EventsRequest.from_dict(event)).records
        assert place.topic == f"{topic}-events"
        many_events = generated.EventsRequest(events=[event | {"id": "event1"}, event | {"id": "event2"}])
        assert len(records.post_events(topic, many_events).records) == 2
        return generated.ModelsApi(api)

    models = await asyncio.to_thread(use_client)
    await until(lambda: models.get_model(topic).events == 54, "all events are learned")
    description = models.get_model(topic)
    assert description.label_outcomes["joined"] == 51
    assert description.identity.labels == [0, 1]
    assert {weight.name for weight in models.get_weights(topic).weights} == {"a", "b=x"}
