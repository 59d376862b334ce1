"""A topic deleted and created again, where only its id shows it: the client goes on by name and offset."""

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_topic, delete_topic, event, trim, wait

pytestmark = pytest.mark.nightly


async def refill(kafka: Server, topic: str, number: int) -> None:
    """The topic is another one, with so many events."""
    await delete_topic(kafka, topic)
    await create_topic(kafka, topic)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)  # others know the old one
    await client.start()
    for i in range(number):
        await client.send_and_wait(topic, event({"b": i}, i % 2))
    await client.stop()


async def test_a_topic_created_again_without_the_last_record_learned_is_not_gone_on_with(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """Its offsets fit, and the record that would tell was deleted: in the same topic that is retention."""
    first = await asyncio.to_thread(run().up)
    for i in range(5):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
    await asyncio.to_thread(first.wait_for, 5)
    assert await asyncio.to_thread(first.stop) == 0
    await refill(kafka, topic, 8)
    await trim(kafka, topic, 5)
    second = await asyncio.to_thread(run().up)
    await asyncio.to_thread(wait, lambda: second.model()["stopped"], "it does not learn")
    assert "the topic was created again since it was learned" in second.model()["stopped"]
    assert second.model()["events"] == 5
