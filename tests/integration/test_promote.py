"""`perceptron promote`: a model answers under another name, in every process, without a request that fails."""

import asyncio
import json
from typing import Any

from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, Running, create_topic, event, perceptron, wait


async def test_a_promoted_model_answers_for_the_other_name_everywhere(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """The replica has no settings for it. Predictions go on meanwhile; commands do not follow the alias."""
    v2, settings = f"{topic}-v2", f"[models.{topic}-v2]\ntopic = '{topic}'\neta = 2.0\n"
    await create_topic(kafka, topic)
    for i in range(10):
        await producer.send_and_wait(topic, event({"a": i - 4.5}, i > 4))
    services = [run(settings), run("", "--no-learn", "-b", "127.0.0.1:1", create=False)]
    for service in services:
        await asyncio.to_thread(service.up)
        await asyncio.to_thread(service.wait_for, 10)
    answered: list[tuple[int, Any]] = []

    async def ask(service: Running) -> None:
        while not stop.is_set():
            reply = await asyncio.to_thread(service.predict, {"features": {"a": 1.0}})
            answered.append((reply.status_code, reply.json().get("model")))

    stop = asyncio.Event()
    asking = [asyncio.create_task(ask(service)) for service in services]
    redis = ("--redis", services[0].redis_url)

    def answers_as(service: Running, name: str) -> bool:
        path = f"/v1/models/{topic}"
        model, weights = service.http.get(path), service.http.get(f"{path}/weights")
        return bool(model.json().get("model") == name and weights.status_code == 200)

    refused = perceptron("promote", f"{topic}-v3", "--as", topic, *redis)
    assert (refused.returncode, "has no snapshot in Redis" in refused.stderr) == (1, True)
    for name in (v2, topic):
        assert perceptron("promote", name, "--as", topic, *redis).returncode == 0
        for service in services:
            await asyncio.to_thread(wait, lambda s=service, n=name: answers_as(s, n), f"{name} answers")  # type: ignore[misc]
        rows = {row["model"]: row.get("alias_of") for row in services[1].http.get("/v1/models").json()["models"]}
        assert rows == {topic: v2 if name == v2 else None, v2: None}
        inspected = perceptron("inspect", "-m", topic, "-b", "127.0.0.1:1", "--json", *redis)
        assert json.loads(inspected.stdout)["model"] == topic
        if name == v2:
            refused = perceptron("promote", topic, "--as", f"{topic}-v4", *redis)
            assert (refused.returncode, "is an alias of" in refused.stderr) == (2, True)
    stop.set()
    await asyncio.gather(*asking)
    assert {code for code, _ in answered} == {200}
    assert {name for _, name in answered} == {topic, v2}
