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


async def test_one_that_is_refused_does_not_write_the_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter that is too large for its topic must not repeat all the others every second."""
    monkeypatch.setattr(outbox, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(outbox, "FLUSH_SECONDS", 0.05)
    written, large, often = Counter[bytes](), b"t-0-7", asyncio.Event()

    class Producer:
        async def send_and_wait(self, *_: object, key: bytes, **__: object) -> None:
            written[key] += 1
            if written[large] == 5:
                often.set()
            if key == large and refusing:
                raise MessageSizeTooLargeError

    box, refusing = Outbox("t.dead-letters", Cluster("kafka")), True
    writing = asyncio.create_task(box.write(Producer()))
    for offset in range(20):
        box.add(DeadLetter(b"t-0-%d" % offset, b"v", [("reason", b"not-json")]))
    async with asyncio.timeout(10):
        await often.wait()
    with pytest.raises(DependencyError, match=r"1 dead letters cannot be written to t\.dead-letters.*TooLarge"):
        await box.flush()
    refusing = False
    async with asyncio.timeout(10):
        await box._written.wait()
    await box.flush()
    assert len(written) == 20
    assert {n for key, n in written.items() if key != large} == {1}
    assert box._bytes == 0
    writing.cancel()
