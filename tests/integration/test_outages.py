"""The log as it is, and what waits or goes on when something is not there."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
import uvloop
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from service.embedded import servers
from service.embedded.servers import Server
from service.errors import DependencyError
from service.snapshots.store import RedisStore
from tests.conftest import Run, Running, create_topic, event, read_all, wait
from tests.oracle import Fold, same

OUTAGE_SECONDS = 20.0 if os.environ.get("FAULTS") == "all" else 6.0
"""`make test-all` has the long ones."""


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
    await asyncio.to_thread(wait, lambda: service.metrics()[failed] >= 4, "it tries again and again")
    assert "answers again" not in service.log.read_text()
    assert service.log.read_text().count("so saves wait") == 1
    await create_topic(kafka, f"{topic}.dead-letters")
    assert (await asyncio.to_thread(service.wait_for, 3))["rejected"] == {"not-json": 1}
    letters = await read_all(kafka, f"{topic}.dead-letters")
    assert {(letter.key, letter.value) for letter in letters} == {(f"{topic}-0-1".encode(), b"bad")}


async def test_an_emptied_redis_is_learned_again_from_0_whatever_start_at_says(
    run: Run, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "redis").mkdir()
    with servers.redis(tmp_path / "redis") as own:
        service = await asyncio.to_thread(run("", "--start-at", "latest", redis_address=own.address).up)
        for i in range(5):
            await producer.send_and_wait(topic, event({"a": i}, i % 2))
        await asyncio.to_thread(service.wait_for, 5)
        client = Redis.from_url(f"redis://{own.address}/0")
        await client.flushall()
        await client.aclose()
        for i in range(5):
            await producer.send_and_wait(topic, event({"b": i}, i % 2))
        model = await asyncio.to_thread(service.wait_for, 10)
        assert (model["events"], model["covered"]) == (10, {"0": [[0, 10]]})
        assert "learning the log again from its start" in service.log.read_text()
        assert await asyncio.to_thread(service.stop) == 0


def test_sigterm_while_kafka_is_dead_exits_0_without_a_trace(redis: Server, topic: str, tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with servers.kafka(tmp_path / "kafka") as own:
        service = Running(topic, own.address, redis.address, tmp_path, "", "--create-topics").up()
        try:
            own.kill()
            wait(lambda: f"Kafka at {own.address}" in service.log.read_text(), "it says what is missing")
            assert service.predict({"features": {}}).status_code == 200
            assert service.stop() == 0
            assert "Traceback" not in service.log.read_text()
            assert service.log.read_text().count(f"Kafka at {own.address}") == 1
        finally:
            service.kill()
            service.http.close()


@pytest.mark.long
async def test_predictions_go_on_through_every_outage_and_learning_comes_back(topic: str, tmp_path: Path) -> None:
    """Redis and Kafka, each killed and restarted, then hung: no error, no slow answer, and the oracle holds."""
    for folder in ("kafka", "redis"):
        (tmp_path / folder).mkdir()
    with servers.kafka(tmp_path / "kafka") as kafka, servers.redis(tmp_path / "redis") as redis:
        service = await asyncio.to_thread(
            Running(topic, kafka.address, redis.address, tmp_path, "", "--create-topics").up
        )
        events: list[bytes] = []
        ended = asyncio.Event()
        slowest = 0.0
        codes: list[int] = []

        async def stream() -> None:
            # A long delivery: what is sent while the broker is away arrives when it is back, in order and once.
            client = AIOKafkaProducer(
                bootstrap_servers=kafka.address, acks="all", enable_idempotence=True, request_timeout_ms=120_000
            )
            await client.start()
            pending = []
            while not ended.is_set():
                events.append(event({f"n{len(events) % 50}": len(events) % 7 - 3}, len(events) % 2))
                pending.append(await client.send(topic, events[-1]))
                await asyncio.sleep(0.005)
            await asyncio.gather(*pending)
            await client.stop()

        async def ask() -> None:
            nonlocal slowest
            async with httpx.AsyncClient(base_url=str(service.http.base_url), timeout=1) as client:
                while not ended.is_set():
                    started = time.monotonic()
                    answer = await client.post(f"/v1/models/{topic}/predict", json={"features": {"n1": 1}})
                    codes.append(answer.status_code)
                    slowest = max(slowest, time.monotonic() - started)
                    await asyncio.sleep(0.02)

        def saved() -> int:
            return int(service.metrics().get(f'perceptron_events_total{{model="{topic}"}}', 0))

        async def outage(server: Server, hang: bool) -> None:
            assert server.process
            if hang:
                server.process.send_signal(signal.SIGSTOP)
            else:
                server.kill()
            # How long it is away is the fault itself.
            await asyncio.sleep(OUTAGE_SECONDS)
            before = await asyncio.to_thread(saved)
            if hang:
                server.process.send_signal(signal.SIGCONT)
            else:
                await asyncio.to_thread(server.start)
            await asyncio.to_thread(wait, lambda: saved() > before + 100, "what is learned is saved again")

        streaming, asking = asyncio.create_task(stream()), asyncio.create_task(ask())
        try:
            await asyncio.to_thread(wait, lambda: saved() > 100, "it learns and saves")
            for server in (redis, kafka):
                for hang in (False, True):
                    await outage(server, hang)
            ended.set()
            await streaming
            await asking
            model = await asyncio.to_thread(service.wait_for, len(events))
            same(Fold().fold(events), model, service.weights())
            assert set(codes) == {200}
            assert await asyncio.to_thread(service.stop) == 0
            said = service.log.read_text()
            assert "Traceback" not in said
            assert len(said.splitlines()) < 60, said
            print(f"\n{len(codes)} predictions, the slowest {slowest * 1000:.0f} ms; {len(events)} events")
        finally:
            print(service.log.read_text())
            ended.set()
            await asyncio.gather(streaming, asking, return_exceptions=True)
            service.kill()
            service.http.close()


@pytest.mark.long
async def test_a_service_that_starts_before_its_servers_waits_for_them(topic: str, tmp_path: Path) -> None:
    """Neither is there: alive, unready, each named once. They come: it learns. Kafka alone is away: it answers."""
    for folder in ("kafka", "redis"):
        (tmp_path / folder).mkdir()
    with servers.kafka(tmp_path / "kafka") as kafka, servers.redis(tmp_path / "redis") as redis:
        kafka.kill()
        redis.kill()
        started = time.time()
        service = Running(topic, kafka.address, redis.address, tmp_path, "", "--create-topics")

        def said(text: str) -> bool:
            return text in service.log.read_text()

        def missing(dependency: str) -> float:
            """Since when, or 0."""
            return service.metrics()[f'perceptron_missing_since_timestamp_seconds{{dependency="{dependency}"}}']

        def answer(path: str) -> int:
            with contextlib.suppress(httpx.TransportError):
                return service.http.get(path).status_code
            return 0

        try:
            await asyncio.to_thread(wait, lambda: answer("/livez") == 200, "it is alive")
            assert answer("/readyz") == 503
            assert service.predict({"features": {}}).json()["detail"] == "the model has no snapshot yet"
            refused = f"Redis at {redis.address}/0: Connection refused"
            await asyncio.to_thread(wait, lambda: said(refused), "Redis is named")
            assert started < missing("redis") < time.time()
            await asyncio.sleep(3.0)  # for it to say more, which it must not
            await asyncio.to_thread(redis.start)
            refused = f"Kafka at {kafka.address}: Connection refused"
            await asyncio.to_thread(wait, lambda: said(refused) and missing("kafka"), "Kafka is named")
            assert missing("redis") == 0
            assert service.log.read_text().count(redis.address) == 1
            await asyncio.to_thread(kafka.start)
            await asyncio.to_thread(service.up)
            client = AIOKafkaProducer(bootstrap_servers=kafka.address)
            await client.start()
            await client.send_and_wait(topic, event({"a": 2}, 1))
            await client.stop()
            await asyncio.to_thread(service.wait_for, 1)
            assert await asyncio.to_thread(service.stop) == 0
            kafka.kill()
            await asyncio.to_thread(service.start(service.command).up)
            assert service.predict({"features": {"a": 2}}).json()["score"] == 5.0
            assert (service.model()["events"], service.model()["learning_here"]) == (1, False)
            await asyncio.to_thread(kafka.start)
            await asyncio.to_thread(wait, lambda: service.model()["learning_here"], "it learns again by itself")
            assert (missing("kafka"), missing("redis")) == (0, 0)
            # Nobody sends anything, and the store goes away all the same.
            redis.kill()
            await asyncio.to_thread(wait, lambda: missing("redis"), "an idle learner finds that Redis is gone")
            await asyncio.to_thread(redis.start)
            await asyncio.to_thread(wait, lambda: missing("redis") == 0 and said("answers again"), "and back")
            assert await asyncio.to_thread(service.stop) == 0
            assert not said("Traceback")
        finally:
            service.kill()
            service.http.close()


async def test_an_absent_redis_is_one_line_with_its_address() -> None:
    store = RedisStore("redis://127.0.0.1:1/0", timeout=0.5)
    async with asyncio.timeout(5):
        with pytest.raises(DependencyError, match=r"Redis at 127\.0\.0\.1:1/0: .*refused"):
            await store.digest("m")
    await store.close()


def test_a_connection_that_has_just_broken_is_an_outage_and_no_crash(redis: Server) -> None:
    """The service's event loop says so in an error of its own, which the client does not know."""

    async def broken() -> None:
        store = RedisStore(f"redis://{redis.address}/0")
        await store.digest("m")
        for connection in filter(None, store._redis.connection_pool._available_connections):
            connection._writer.transport.abort()
        with pytest.raises(DependencyError, match="the connection broke"):
            await store.digest("m")
        assert await store.digest("m") == ""
        await store.close()

    uvloop.run(broken())
