"""Several models that learn one topic: one process learns them, each at its own offsets."""

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from service.embedded.servers import Server
from tests.conftest import Run, Running, create_topic, event, perceptron, until, wait

EVENTS = 300


def wait_until_learned(service: Running, model: str, rejected: int = 1) -> None:
    """Wait until a model has learned all events, and rejected this many records, and saved that."""

    def is_saved() -> bool:
        answer = service.http.get(f"/v1/models/{model}")
        about = answer.json() if answer.status_code == 200 else {"events": -1}
        return bool(
            about["events"] == EVENTS - 1 and not about["ahead"] and about["rejected"] == {"not-json": rejected}
        )

    wait(is_saved, f"{model} is learned")


async def is_committed(kafka: Server, topic: str, offset: int) -> bool:
    group, tp = f"g-{topic}", TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=kafka.address, group_id=group, enable_auto_commit=False) as consumer:
        return bool(await consumer.committed(tp) == offset)


async def test_models_on_one_topic_have_their_own_offsets_snapshots_and_dead_letters(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """One begins again while the other is at the end of the log. A process that lacks one waits, and says so."""
    v2, settings = f"{topic}-v2", f"topics = ['{topic}']\n[models.{topic}-v2]\ntopic = '{topic}'\neta = 2.0\n"
    await create_topic(kafka, topic)
    for i in range(EVENTS - 1):
        await producer.send(topic, event({"a": i % 7, "b": 1}, (i * i) % 3 == 1))
    await producer.send_and_wait(topic, b"no event")
    service = await asyncio.to_thread(run(settings).up)
    for model in (topic, v2):
        await asyncio.to_thread(wait_until_learned, service, model)
    one, two = (service.http.get(f"/v1/models/{model}/weights").json()["weights"] for model in (topic, v2))
    assert [2.0 * each["weight"] for each in one] == [each["weight"] for each in two]
    await until(lambda: is_committed(kafka, topic, EVENTS), "the group has the smallest offset")
    waiting = run("")  # it does not have the second model
    await asyncio.to_thread(wait, lambda: "other members of the group learn" in waiting.log.read_text(), "it waits")
    # Without settings of the model any learner begins it again.
    assert perceptron("reset", "-m", v2, "--yes", "--redis", service.redis_url).returncode == 0
    await asyncio.to_thread(wait_until_learned, service, v2)
    letter = f"{topic}-0-{EVENTS - 1}"
    options = ("-c", str(service.config), "dead-letters", "retry", letter, "-m", v2, "-b", kafka.address)
    refused: Any = perceptron(*options)
    assert (refused.returncode, f"model {topic} would learn" in refused.stderr) == (2, True)
    assert perceptron(*options, "--yes").stderr == f"1 of 1 sent again to {topic}\n"
    for model in (topic, v2):
        await asyncio.to_thread(wait_until_learned, service, model, 2)
    assert not waiting.http.get(f"/v1/models/{topic}").json()["learning_here"]
    service.kill()
    await asyncio.to_thread(wait, lambda: waiting.http.get(f"/v1/models/{topic}").json()["learning_here"], "it learns")
