"""Dead letters are written until they are acknowledged, and not again afterwards."""

import asyncio
from collections import Counter

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from service.errors import DependencyError
from service.streaming import outbox
from service.streaming.dead_letters import DeadLetter
from service.streaming.kafka.cluster import Cluster
from service.streaming.outbox import Outbox


async def test_a_refused_letter_does_not_make_the_others_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter that is too large for its topic must not repeat all the others every second."""
    monkeypatch.setattr(outbox, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(outbox, "FLUSH_SECONDS", 0.05)
    writes, large = Counter[bytes](), b"t-0-7"

    class Producer:
        async def send_and_wait(self, *_: object, key: bytes, **__: object) -> None:
            writes[key] += 1
            if key == large:
                raise MessageSizeTooLargeError

    box = Outbox("t.dead-letters", Cluster("kafka"))
    task = asyncio.create_task(box.write(Producer()))
    for offset in range(20):
        box.add(DeadLetter(b"t-0-%d" % offset, b"v", [("reason", b"not-json")]))
    while writes[large] < 5:
        with pytest.raises(DependencyError, match="dead letters cannot be written"):
            await box.flush()
    assert len(writes) == 20
    assert {n for key, n in writes.items() if key != large} == {1}
    task.cancel()
