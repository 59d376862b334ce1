"""A stored model that a newer release has saved is not continued."""

import asyncio
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from redis import Redis

from service.embedded.servers import Server
from service.snapshots.redis.store import key
from tests.conftest import Run, Running, event, one_line, perceptron, wait

pytestmark = pytest.mark.nightly


def says(service: Running, what: str) -> int:
    return service.log.read_text().count(what)


async def test_a_newer_releases_model_is_left_alone(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """A learner, a replica and the commands do not continue it, and do not advise to delete it."""
    service = await asyncio.to_thread(run("[snapshots]\nkeep_every = 0.1\n").up)
    for i in range(3):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
        await asyncio.to_thread(service.wait_for, i + 1)
    client: Any = Redis.from_url(service.redis_url)
    good = client.hgetall(key(topic))
    head = json.loads(good[b"head"])
    head |= {"version": head["version"] + 1, "parent": good[b"digest"].decode()}
    head["identity"]["fold"] += 1
    data = json.dumps(head).encode()
    newer = {"head": data, "digest": hashlib.sha256(data).hexdigest()}
    client.hset(key(topic), mapping=newer)
    said = f"model {topic}: head {newer['digest'][:12]} was written by a newer release, run that one"
    replica = run("", "--no-learn", create=False)
    for one in (service, replica):
        await asyncio.to_thread(wait, partial(says, one, said), "it is said")
    await producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(wait, lambda: service.model()["stopped"], "it has stopped")
    assert service.predict({"features": {"a": 1}}).status_code == 200, "what it had goes on answering"
    assert replica.predict({"features": {"a": 1}}).status_code == 503
    redis, logs = ("--redis", service.redis_url), ("-b", kafka.address)
    version = str(head["kept"][-1]["version"])
    for tool in (("inspect", *logs), ("rollback", *logs, "--to", version, "--yes")):
        done = await asyncio.to_thread(perceptron, *tool, "-t", topic, *redis, cwd=tmp_path)
        assert (done.returncode, said in one_line(done.stderr)) == (1, True)
        assert "reset" not in done.stderr
    for one in (service, replica):
        assert not any(word in one.log.read_text() for word in ("reset", "rollback", "damaged"))
    now = client.hgetall(key(topic))
    assert (now[b"head"], now[b"digest"].decode()) == (newer["head"], newer["digest"])
    # The old head is put back: learning continues by itself.
    client.hset(key(topic), mapping={"head": good[b"head"], "digest": good[b"digest"]})
    client.close()
    assert (await asyncio.to_thread(service.wait_for, 4))["stopped"] is None
    await asyncio.to_thread(replica.wait_for, 4)
