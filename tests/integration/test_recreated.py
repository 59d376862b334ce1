"""A topic deleted and created again where nothing but its id tells: the client goes on in it by name and offset."""

import asyncio
import signal

from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import HELD_SECONDS, Run, create_topic, delete_topic, event, perceptron, trim, wait


async def refill(kafka: Server, topic: str, number: int) -> None:
    """The topic is another one, with so many events."""
    await delete_topic(kafka, topic)
    await create_topic(kafka, topic)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)  # others know the old one
    await client.start()
    for i in range(number):
        await client.send_and_wait(topic, event({"b": i}, i % 2))
    await client.stop()


async def test_a_topic_created_again_under_a_running_learner_is_not_gone_on_with(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """It was held up meanwhile and saw nothing of it, and the new topic has its offset. No snapshot covers it."""
    service = await asyncio.to_thread(run(session_timeout=HELD_SECONDS).up)
    for i in range(5):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
    before = await asyncio.to_thread(service.wait_for, 5)
    service.process.send_signal(signal.SIGSTOP)
    try:
        await refill(kafka, topic, 8)
    finally:
        service.process.send_signal(signal.SIGCONT)
    await asyncio.to_thread(wait, lambda: service.model()["stopped"], "it stops learning")
    model = service.model()
    assert "the record at offset 4 of partition 0 is not the one that was learned" in model["stopped"]
    assert (model["version"], model["state_digest"]) == (before["version"], before["state_digest"])
    assert "the topic was created again under the process" in service.log.read_text()
    assert service.metrics()[f'perceptron_rewinds_total{{cause="recreated",model="{topic}"}}'] == 1
    assert perceptron("reset", "-t", topic, "--redis", service.redis_url, "--yes").returncode == 0
    assert (await asyncio.to_thread(service.wait_for, 8))["events"] == 8


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
