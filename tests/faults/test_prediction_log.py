"""Kafka is away while predictions are logged and labels are posted."""

import asyncio

import pytest

from service.embedded.servers import Server
from tests.conftest import Run, hanging, wait
from tests.integration.test_posts import LOOP, post, service_with_topics

pytestmark = pytest.mark.nightly
RESULTS = "written", "dropped", "lost"
LIMIT_BYTES = 64 << 20
"""What the log of predictions may take, and what a process that answers takes anyway."""


@pytest.mark.timeout(300)
async def test_predictions_are_answered_and_posts_refused_while_kafka_is_away(
    run: Run, kafka: Server, topic: str
) -> None:
    service = await service_with_topics(run, kafka, topic, LOOP, "events", "labels")
    logged = {result: f'perceptron_predictions_logged_total{{model="{topic}",result="{result}"}}' for result in RESULTS}
    asked = 0

    def ask() -> None:
        nonlocal asked
        rows = [{"id": asked + i, "features": {f"n{k}": 1.5 for k in range(20)}} for i in range(1000)]
        service.predict({"instances": rows}).raise_for_status()
        asked += len(rows)

    for _ in range(20):
        ask()
    wait(lambda: service.metrics()[logged["written"]] == asked, "all are written")
    before = service.metrics()["process_resident_memory_bytes"]
    with hanging(kafka):
        refused = await asyncio.to_thread(post, service, "labels", {"labels": [{"id": "0", "label": 1}] * 2})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["records"] == [None, None]
        while not service.metrics()[logged["dropped"]]:
            ask()
        for _ in range(20):
            ask()
        assert service.metrics()["process_resident_memory_bytes"] < before + LIMIT_BYTES
    wait(lambda: sum(service.metrics()[name] for name in logged.values()) == asked, "what is left is written")
    assert service.metrics()[logged["lost"]] == 0
    wait(lambda: post(service, "labels", {"id": "1", "label": 1}).status_code == 200, "labels are taken again")
