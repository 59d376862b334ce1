"""What is damaged is named and kept apart: one record, one head, one kept version, one topic; never the process."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record import util
from redis import Redis as Client
from redis.asyncio import Redis

from service.embedded.servers import Server
from service.snapshots.store import key
from tests.conftest import (
    TAKEOVER_SECONDS,
    Run,
    Running,
    both_stores,
    create_topic,
    delete_topic,
    event,
    perceptron,
    read_all,
    wait,
)
from tests.faults.proxy import Proxy


async def send_with_odd_header(producer: AIOKafkaProducer, topic: str, value: bytes) -> int:
    """Send a record with a header name that is not UTF-8, as Kafka takes it."""
    batch = producer.create_batch()
    batch.append(key=None, value=value, timestamp=None, headers=[("zz9qzz", b"1")])
    batch.close()
    raw = bytearray(batch._builder.build())
    at = raw.index(b"zz9qzz")
    raw[at : at + 6] = b"caf\xe9zz"
    raw[17:21] = util.calc_crc32c(bytes(raw[21:])).to_bytes(4, "big")
    batch._buffer = raw
    return int((await (await producer.send_batch(batch, topic, partition=0))).offset)


async def test_a_header_name_that_is_not_utf_8_is_no_reason_to_stop(run: Run, kafka: Server, topic: str) -> None:
    """Its record is an event like any other. As a dead letter it has the name in hex, and says so."""
    service = await asyncio.to_thread(run().up)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await client.start()
    await client.send_and_wait(topic, event({"a": 1}, 1))
    await send_with_odd_header(client, topic, event({"a": 1}, 0))
    offset = await send_with_odd_header(client, topic, b"no event")
    await client.send_and_wait(topic, event({"b": 1}, 1))
    await client.stop()
    model = await asyncio.to_thread(service.wait_for, 4)
    assert (model["events"], model["rejected"], model["stopped"]) == (3, {"not-json": 1}, None)
    [letter] = await read_all(kafka, f"{topic}.dead-letters")
    assert (letter.key, letter.value) == (f"{topic}-0-{offset}".encode(), b"no event")
    headers = dict(letter.headers)
    assert (headers["header-names-in-hex"], headers[b"caf\xe9zz".hex()]) == (b"1", b"1")


async def test_a_standby_does_not_begin_an_emptied_model_at_the_end(
    run: Run, producer: AIOKafkaProducer, topic: str
) -> None:
    """It followed the model, so --start-at, which is for new ones, says nothing: it is learned again from 0."""
    learner = await asyncio.to_thread(run("", "--start-at", "latest", session_timeout=TAKEOVER_SECONDS).up)
    for i in range(5):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
    await asyncio.to_thread(learner.wait_for, 5)
    standby = await asyncio.to_thread(run("", "--start-at", "latest", session_timeout=TAKEOVER_SECONDS).up)
    await asyncio.to_thread(standby.wait_for, 5)
    learner.kill()
    client = Redis.from_url(learner.redis_url)
    await client.delete(key(topic))
    await client.aclose()
    for i in range(2):
        await producer.send_and_wait(topic, event({"b": i}, i % 2))
    model = await asyncio.to_thread(standby.wait_for, 7)
    assert (model["events"], model["covered"]) == (7, {"0": [[0, 7]]})
    assert "learning the log again from its start" in standby.log.read_text()


@both_stores
async def test_damaged_heads_are_named_and_kept_apart(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    """A kept version that is not what was saved is not shown and holds up no save; a head stops its model alone."""
    other = f"{topic}-2"
    service = await asyncio.to_thread(run("[snapshots]\nkeep_every = 0.2\nkeep = 3\n", "-t", other).up)
    client: Any = Redis.from_url(service.redis_url)

    def versions() -> list[int]:
        answer = service.http.get(f"/v1/models/{topic}/versions").raise_for_status()
        return [version["version"] for version in answer.json()["versions"]]

    sent = 0
    while len(await asyncio.to_thread(versions)) < 3:
        await producer.send_and_wait(topic, event({"a": sent}, sent % 2))
        sent += 1
        await asyncio.to_thread(service.wait_for, sent)
    newest = versions()[-1]
    good = await client.hget(key(topic), f"v:{newest}")
    altered = json.loads(good)
    altered["counts"]["mistakes"] = 777
    for bad in (json.dumps(altered).encode(), b"\xff" + good[1:]):
        await client.hset(key(topic), f"v:{newest}", bad)
        assert newest not in versions()
        await producer.send_and_wait(topic, event({"b": 1}, 1))
        sent += 1
        await asyncio.to_thread(service.wait_for, sent)
    assert await asyncio.to_thread(service.stop) == 0

    head = await client.hget(key(topic), "head")
    await client.hset(key(topic), "head", head.replace(b'"mistakes"', b'"mistakeX"'))
    again = run("", "-t", other)
    url = f"/v1/models/{other}"
    await asyncio.to_thread(wait, lambda: f"model {topic}: the head's bytes" in again.log.read_text(), "it is named")
    await producer.send_and_wait(other, event({"a": 1}, 1))

    def learned() -> bool:
        assert again.process.poll() is None
        answer = again.http.get(url)
        return bool(answer.status_code == 200 and answer.json()["events"] == 1)

    await asyncio.to_thread(wait, learned, "the other model is learned")
    assert again.http.get(f"/v1/models/{topic}").status_code == 503
    # Somebody puts it back: it answers again.
    await client.hset(key(topic), "head", head)
    await client.aclose()
    await asyncio.to_thread(again.up)
    assert again.model()["events"] == sent


async def test_a_damaged_blob_is_said_once_with_the_ways_out(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """The snapshot is looked at again, so that one put right is gone on from; a rollback needs no mending."""
    settings = "[snapshots]\nkeep_every = 0.1\nkeep = 50\n"
    service = await asyncio.to_thread(run(settings).up)
    for i in range(4):
        await producer.send_and_wait(topic, event({f"n{i}": i + 1}, i % 2))
        await asyncio.to_thread(service.wait_for, i + 1)
    assert await asyncio.to_thread(service.stop) == 0
    client: Any = Redis.from_url(service.redis_url)
    head = json.loads(await client.hget(key(topic), "head"))
    version, others = head["kept"][0]["version"], json.loads(await client.hget(key(topic), "v:2"))
    blob = next(name for name in head["names"] if name not in others["names"])
    good = await client.hget(key(topic), f"b:{blob}")

    def stopped(again: Running) -> None:
        with Client.from_url(service.redis_url) as counting:
            wait(lambda: "learning stopped" in again.log.read_text(), "it stops")

            def calls() -> int:
                found: Any = counting.info("commandstats")
                return int(found["cmdstat_hmget"]["calls"])

            looked = calls()
            wait(lambda: calls() > looked + 4, "it is looked at again")
        said = again.log.read_text()
        assert said.count("learning stopped") == 1
        assert f"blob {blob[:12]} of version {head['version']} does not match its digest" in said
        assert f"`perceptron rollback -t {topic} --to VERSION --yes`" in said
        assert f"`perceptron reset -t {topic} --yes`" in said

    await client.hset(key(topic), f"b:{blob}", b"x" + good[1:])
    again = run(settings)
    await asyncio.to_thread(stopped, again)
    await client.hset(key(topic), f"b:{blob}", good)
    await asyncio.to_thread(again.up)
    # What follows the head may have found it good before who learns looks again.
    await asyncio.to_thread(wait, lambda: again.wait_for(4)["stopped"] is None, "it goes on")
    assert await asyncio.to_thread(again.stop) == 0
    await client.hset(key(topic), f"b:{blob}", b"x" + good[1:])
    await client.aclose()
    third = run(settings)
    arguments = ("-t", topic, "-b", kafka.address, "--redis", third.redis_url, "--to", str(version), "--yes")
    done = await asyncio.to_thread(perceptron, "rollback", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    await asyncio.to_thread(third.up)
    model = await asyncio.to_thread(third.wait_for, 4)
    assert (model["events"], model["stopped"]) == (4, None)


async def test_a_rebalance_while_a_model_is_restored_is_no_damage(
    kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """A slow store, and members that join meanwhile: nobody takes a topic that was taken away for a trimmed one."""
    with Proxy(redis.port) as proxy:
        members = [Running(topic, kafka.address, proxy.address, tmp_path, "", "--create-topics")]
        try:
            await asyncio.to_thread(members[0].up)
            for i in range(5):
                await producer.send_and_wait(topic, event({"a": i}, i % 2))
            await asyncio.to_thread(members[0].wait_for, 5)
            proxy.delay = 2.4
            for _ in range(3):
                members.append(Running(topic, kafka.address, redis.address, tmp_path, ""))
                await asyncio.to_thread(members[-1].up)
            proxy.delay = 0.0
            await producer.send_and_wait(topic, event({"a": 9}, 1))
            for member in members:
                await asyncio.to_thread(member.wait_for, 6)
                assert "learning stopped" not in member.log.read_text()
                assert member.model()["stopped"] is None
        finally:
            for member in members:
                member.kill()
                member.http.close()


async def test_a_topic_that_a_pattern_found_and_somebody_deleted_stays_deleted(
    run: Run, kafka: Server, topic: str
) -> None:
    """With --create-topics too: that is for what is listed, and for dead letters."""
    await create_topic(kafka, f"{topic}-1")
    await create_topic(kafka, f"{topic}-2")
    service = await asyncio.to_thread(run("", topic=f"^{topic}-").up)
    await asyncio.to_thread(wait, lambda: len(service.http.get("/v1/models").json()["models"]) == 2, "both are found")
    await delete_topic(kafka, f"{topic}-1")
    await create_topic(kafka, f"{topic}-3")  # found at the next look at all topics
    await asyncio.to_thread(wait, lambda: len(service.http.get("/v1/models").json()["models"]) == 3, "it looks again")
    created = [line for line in service.log.read_text().splitlines() if "topics created" in line]
    assert all(f"'{topic}-1'" not in line for line in created), created


def test_one_request_cannot_hold_up_the_others(run: Run, topic: str) -> None:
    service = run().up()
    instance = {"features": {f"n{i}": 1.0 for i in range(100)}}
    many = service.http.post(f"/v1/models/{topic}/predict?explain=true", json={"instances": [instance] * 201})
    assert (many.status_code, many.json()["errors"]) == (422, [{"pointer": "/instances", "reason": "too-large"}])
    assert service.predict({"instances": [instance] * 201}).status_code == 200
