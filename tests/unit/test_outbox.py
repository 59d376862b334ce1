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
    written, large = Counter[bytes](), b"t-0-7"

    class Producer:
        async def send_and_wait(self, *_: object, key: bytes, **__: object) -> None:
            written[key] += 1
            if key == large:
                raise MessageSizeTooLargeError

    box = Outbox("t.dead-letters", Cluster("kafka"))
    writing = asyncio.create_task(box.write(Producer()))
    for offset in range(20):
        box.add(DeadLetter(b"t-0-%d" % offset, b"v", [("reason", b"not-json")]))
    while written[large] < 5:
        with pytest.raises(DependencyError, match="dead letters cannot be written"):
            await box.flush()
    assert len(written) == 20
    assert {n for key, n in written.items() if key != large} == {1}
    writing.cancel()
