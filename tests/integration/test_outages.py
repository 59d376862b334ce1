"""What waits, and what goes on, when something that is needed is not there."""

import asyncio

from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_topic, event, read_all, wait


async def test_saves_wait_for_dead_letters_and_learning_goes_on(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """Without its topic a dead letter cannot be written: no head may cover its record. Then the topic comes."""
    await create_topic(kafka, topic)
    service = run(create=False)
    await asyncio.to_thread(service.up)
    await producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(service.wait_for, 1)
    await producer.send_and_wait(topic, b"bad")
    await producer.send_and_wait(topic, event({"b": 1}, 0))
    await asyncio.to_thread(wait, lambda: service.model()["events"] == 2, "learning goes on")
    await asyncio.to_thread(wait, lambda: "so saves wait" in service.log.read_text(), "it says so")
    model = service.model()
    assert (model["ahead"], model["next"]["0"]) == (1, 3)
    failed = f'perceptron_snapshots_total{{model="{topic}",result="failed"}}'
    assert service.metrics()[failed] >= 1
    await create_topic(kafka, f"{topic}.dead-letters")
    assert (await asyncio.to_thread(service.wait_for, 3))["rejected"] == {"not-json": 1}
    letters = await read_all(kafka, f"{topic}.dead-letters")
    assert {(letter.key, letter.value) for letter in letters} == {(f"{topic}-0-1".encode(), b"bad")}
