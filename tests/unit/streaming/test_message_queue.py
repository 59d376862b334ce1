"""Messages are sent until they are acknowledged, and not again afterwards."""

import asyncio
from collections import Counter

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from service.errors import DependencyError
from service.streaming import message_queue
from service.streaming.kafka.cluster import Cluster, KafkaClients
from service.streaming.message_queue import MessageQueue
from service.streaming.records import Message


async def test_a_refused_message_does_not_make_the_others_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is too large for its topic must not repeat all the others every second."""
    monkeypatch.setattr(message_queue, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(message_queue, "FLUSH_SECONDS", 0.05)
    writes, large = Counter[bytes](), b"t-0-7"

    class Producer:
        async def send_and_wait(self, *_: object, key: bytes, **__: object) -> None:
            writes[key] += 1
            if key == large:
                raise MessageSizeTooLargeError

    clients = KafkaClients(Cluster("kafka"), "", None, Producer())
    queue = MessageQueue("t.dead-letters", clients)
    task = asyncio.create_task(queue.run())
    for offset in range(20):
        queue.add(Message(b"t-0-%d" % offset, b"v", [("reason", b"not-json")]))
    while writes[large] < 5:
        with pytest.raises(DependencyError, match="dead letters cannot be written"):
            await queue.flush()
    assert len(writes) == 20
    assert {n for key, n in writes.items() if key != large} == {1}
    task.cancel()
