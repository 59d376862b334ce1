"""`perceptron promote`: a model answers under another name, in every process, without a request that fails."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from threading import Event

from aiokafka import AIOKafkaProducer

from bench.client import Connection
from service.embedded.servers import Server
from tests.conftest import Run, Running, create_topic, event, in_threads, perceptron, wait


@contextmanager
def predictions(services: list[Running]) -> Iterator[Counter[str]]:
    """Predictions as fast as they are answered; counts the models that answer. Each answer must be a 200."""
    answered, began = Counter[str](), time.monotonic()

    def ask(service: Running, stop: Event) -> None:
        with closing(Connection(service.port, service.topic)) as connection:
            while not stop.is_set():
                _, answer = connection.ask(b'{"features":{"a":1.0}}')
                answered[answer.split(b'"')[3].decode()] += 1

    with in_threads(*(partial(ask, service) for service in services * 2)):
        yield answered
    print(f"{answered.total() / (time.monotonic() - began):,.0f} predictions a second")


async def test_a_promoted_model_answers_for_the_other_name_everywhere(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """The replica has no settings for it. Commands do not follow the alias."""
    await create_topic(kafka, topic)
    for i in range(10):
        await producer.send_and_wait(topic, event({"a": i - 4.5}, i > 4))
    await asyncio.to_thread(promote, run, topic)


def promote(run: Run, topic: str) -> None:
    v2, settings = f"{topic}-v2", f"[models.{topic}-v2]\ntopic = '{topic}'\neta = 2.0\n"
    services = [run(settings), run("", "--no-learn", "-b", "127.0.0.1:1", create=False)]
    for service in services:
        service.up().wait_for(10)
    redis = ("--redis", services[0].redis_url)

    def answers_as(service: Running, name: str) -> bool:
        path = f"/v1/models/{topic}"
        model, weights = service.http.get(path), service.http.get(f"{path}/weights")
        return bool(model.json().get("model") == name and weights.status_code == 200)

    refused = perceptron("promote", f"{topic}-v3", "--as", topic, *redis)
    assert (refused.returncode, "has no snapshot in Redis" in refused.stderr) == (1, True)
    with predictions(services) as answered:
        for name in (v2, topic):
            assert perceptron("promote", name, "--as", topic, *redis).returncode == 0
            for service in services:
                wait(lambda s=service, n=name: answers_as(s, n), f"{name} answers")  # type: ignore[misc]
            rows = {row["model"]: row.get("alias_of") for row in services[1].http.get("/v1/models").json()["models"]}
            assert rows == {topic: v2 if name == v2 else None, v2: None}
            inspected = perceptron("inspect", "-m", topic, "-b", "127.0.0.1:1", "--json", *redis)
            assert json.loads(inspected.stdout)["model"] == topic
            if name == v2:
                refused = perceptron("promote", topic, "--as", f"{topic}-v4", *redis)
                assert (refused.returncode, "is an alias of" in refused.stderr) == (2, True)
    assert answered.keys() == {topic, v2}
