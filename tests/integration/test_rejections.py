"""A topic whose records are not events of its model: the log and `perceptron check` say so."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_both_topics, event, perceptron, wait

pytestmark = pytest.mark.nightly

PLAIN = json.dumps({"age": 31, "clicks": 2, "bought": True}).encode()
MESSAGE = "most records are rejected, so little is learned"


async def test_a_topic_of_other_records_is_reported(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, redis: Server, tmp_path: Path
) -> None:
    """The log has one error with an example; `check` fails, and succeeds again after good records."""
    await create_both_topics(kafka, topic, 3)

    async def send(count: int, value: bytes) -> None:
        futures = [await producer.send(topic, value, partition=i % 3) for i in range(count)]
        await asyncio.gather(*futures)

    def check() -> tuple[int, str]:
        url = f"redis://{redis.address}/0"
        result = perceptron("check", "-t", topic, "-b", kafka.address, "--redis", url, cwd=tmp_path)
        return result.returncode, result.stdout.splitlines()[-1]

    def is_learned(count: int) -> Any:
        return sum(service.model()["next"].values()) == count

    assert check() == (0, f"ok    topic {topic}: no records yet")
    await send(300, PLAIN)
    code, line = check()
    assert code == 1
    assert line.startswith(
        f"fail  topic {topic}: 0 of the last 100 records would be accepted, 100 rejected as missing-field, such "
        "as: 'features' is missing (offset 99 of partition "
    )
    service = await asyncio.to_thread(run().up)
    await asyncio.to_thread(wait, lambda: is_learned(300), "all are read")
    lines = [line for line in service.log.read_text().splitlines() if MESSAGE in line]
    assert len(lines) == 1
    assert "reason=missing-field" in lines[0]
    assert f"look='perceptron dead-letters show {topic}-" in lines[0]
    await send(1500, event({"age": 1}, 1))
    await asyncio.to_thread(wait, lambda: is_learned(1800), "all are read")
    assert check() == (0, f"ok    topic {topic}: 100 of the last 100 records would be accepted")
    log = service.log.read_text()
    assert (log.count(MESSAGE), log.count("most records are accepted again")) == (1, 1)
