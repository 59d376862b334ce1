"""`perceptron reset`: other settings, and a last version that answers until the model has been learned again."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Any

from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, Running, create_topic, event, in_threads, perceptron, send, wait

EVENTS = 20_000


@contextmanager
def answers_of(*services: Running) -> Iterator[list[Any]]:
    """The figures of the model that answers in each service, and a prediction by it, over and over."""
    seen = list[Any]()

    def ask(service: Running, stop: Event) -> None:
        while not stop.is_set():
            model, predicted = service.model(), service.predict({"features": {"a": 1.0}})
            seen.append((model["events"], model["identity"]["eta"], predicted.status_code, predicted.json()["label"]))

    with in_threads(*(partial(ask, service) for service in services)):
        yield seen


async def test_the_last_version_answers_until_the_model_is_learned_again(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """Also in a replica that starts meanwhile. A learner with the settings from before does not begin the model."""
    await create_topic(kafka, topic)
    await send(producer, topic, (event({"a": i % 7 - 2.5}, i % 7 > 2) for i in range(EVENTS)))
    await asyncio.to_thread(check, run, topic)


def check(run: Run, topic: str) -> None:
    other, alone = f"[models.{topic}]\neta = 2.0\n", ("--no-learn", "-b", "127.0.0.1:1")
    learner, replica = run().up(), run("", *alone, create=False)
    for service in learner, replica.up():
        service.wait_for(EVENTS)
    redis = ("--redis", learner.redis_url)
    with answers_of(learner, replica) as seen:
        reset = perceptron(
            "-c", str(run_settings(learner, other)), "reset", "-m", topic, "--keep-answering", "--yes", *redis
        )
        assert (reset.returncode, "eta: 1.0 -> 2.0" in reset.stdout) == (0, True), reset
        wait(lambda: "was reset to be learned under other settings" in learner.log.read_text(), "the learner says so")
        late = run("", *alone, create=False).up()
        assert late.model()["events"] == EVENTS
    assert learner.stop() == 0
    assert set(seen) == {(EVENTS, 1.0, 200, 1)}
    with answers_of(replica, late) as seen:
        again = run(other).up()
        for service in again, replica, late:
            wait(lambda s=service: s.model()["identity"]["eta"] == 2.0, "the model answers again")  # type: ignore[misc]
            assert service.model()["events"] == EVENTS
            rows = service.http.get("/v1/models").json()["models"]
            assert [(row["model"], row.get("alias_of")) for row in rows] == [(topic, None)]
    assert {(events, eta) for events, eta, _, _ in seen} == {(EVENTS, 1.0), (EVENTS, 2.0)}
    assert {status for _, _, status, _ in seen} == {200}


def run_settings(service: Running, settings: str) -> Any:
    """A settings file next to the service's."""
    path = service.config.with_name("reset.toml")
    path.write_text(settings)
    return path
