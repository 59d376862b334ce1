"""The log as it is: gaps, codecs, partitions that come, topics that were emptied, trimmed or recreated."""

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from service.embedded import servers
from service.embedded.servers import Server
from service.learning.options import DEFAULT
from service.snapshots.keeper import Snapshot, fetch
from service.snapshots.store import RedisStore
from tests.conftest import (
    Run,
    Running,
    create_topic,
    delete_topic,
    event,
    perceptron,
    read_all,
    trim,
    wait,
)
from tests.oracle import Fold, same


async def test_a_recreated_topic_is_recognised(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Another log under the same name is not what was learned: stop, say what was found and what decides."""
    first = await asyncio.to_thread(run().up)
    for i in range(5):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
    before = await asyncio.to_thread(first.wait_for, 5)
    assert await asyncio.to_thread(first.stop) == 0
    again = run()
    await asyncio.to_thread(again.up)
    assert (await asyncio.to_thread(again.wait_for, 5))["stopped"] is None
    assert await asyncio.to_thread(again.stop) == 0

    await delete_topic(kafka, topic)
    await create_topic(kafka, topic)
    for i in range(7):
        await producer.send_and_wait(topic, event({"b": i}, i % 2))
    second = await asyncio.to_thread(run().up)
    await asyncio.to_thread(wait, lambda: second.model()["stopped"], "it stops learning")
    model = second.model()
    assert "the record at offset 4 of partition 0 is not the one that was learned" in model["stopped"]
    assert f"perceptron reset -t {topic} --yes" in model["stopped"]
    assert (model["state_digest"], model["learning_here"]) == (before["state_digest"], False)
    assert second.predict({"features": {"a": 1}}).status_code == 200
    url = f"redis://{redis.address}/0"
    assert perceptron("reset", "-t", topic, "--redis", url, "--yes", cwd=tmp_path).returncode == 0
    model = await asyncio.to_thread(second.wait_for, 7)
    assert (model["events"], model["stopped"], model["learning_here"]) == (7, None, True)


async def test_a_log_trimmed_past_the_next_offset_stops_the_model(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    first = await asyncio.to_thread(run().up)
    for i in range(3):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
    await asyncio.to_thread(first.wait_for, 3)
    assert await asyncio.to_thread(first.stop) == 0
    for i in range(5):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
    # Records that were learned may go: that cannot be checked, and is said.
    await trim(kafka, topic, 3)
    second = await asyncio.to_thread(run().up)
    await asyncio.to_thread(second.wait_for, 8)
    assert "could not be compared" in second.log.read_text()
    assert await asyncio.to_thread(second.stop) == 0
    for i in range(5):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
    await trim(kafka, topic, 10)
    third = await asyncio.to_thread(run().up)
    await asyncio.to_thread(wait, lambda: third.model()["stopped"], "it stops learning")
    assert "holds offsets 10 to 13, but the snapshot goes on at 8" in third.model()["stopped"]
    assert third.predict({"features": {"a": 1}}).status_code == 200


async def test_compacted_offsets_and_transaction_markers_are_passed_over(run: Run, kafka: Server, topic: str) -> None:
    """An aborted transaction is never learned, a committed one is, and the offsets of markers are covered."""
    await create_topic(kafka, topic)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=f"tx-{topic}")
    await client.start()
    good = [event({"a": 1}, 1), event({"b": 1}, 0), event({"c": 1}, 1)]
    try:
        async with client.transaction():
            await client.send_and_wait(topic, good[0])
        await client.begin_transaction()
        await client.send_and_wait(topic, event({"never": 1}, 0))
        await client.abort_transaction()
        async with client.transaction():
            await client.send_and_wait(topic, good[1])
            await client.send_and_wait(topic, good[2])
    finally:
        await client.stop()
    service = await asyncio.to_thread(run().up)
    # 0 and its marker 1; aborted 2 and its marker 3; 4, 5 and their marker 6, which no record follows.
    model = await asyncio.to_thread(service.wait_for, 7)
    same(Fold().fold(good), model, service.weights())
    assert model["covered"] == {"0": [[0, 7]]}
    lag = f'perceptron_lag_records{{model="{topic}",partition="0"}}'
    await asyncio.to_thread(wait, lambda: service.metrics().get(lag) == 0, "no lag is left")
    assert not service.metrics().get(f'perceptron_offset_gaps_total{{model="{topic}"}}'), "a marker is no gap"


async def test_a_log_of_many_gaps_is_learned_at_the_speed_of_its_records(run: Run, kafka: Server, topic: str) -> None:
    """A marker behind every record, as transactional producers write: a gap costs no fetch of its own."""
    await create_topic(kafka, topic)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=f"tx-{topic}")
    await client.start()
    good = [event({"a": i}, i % 2) for i in range(300)]
    try:
        for raw in good:
            async with client.transaction():
                await client.send_and_wait(topic, raw)
    finally:
        await client.stop()
    service = await asyncio.to_thread(run().up)
    started = time.monotonic()
    model = await asyncio.to_thread(service.wait_for, 600)
    print(f"{time.monotonic() - started:.1f} s for 300 transactions")
    same(Fold().fold(good), model, service.weights())


async def stored(redis: Server, topic: str) -> Snapshot:
    """The current snapshot, as the store has it."""
    store = RedisStore(f"redis://{redis.address}/0")
    try:
        found = await fetch(store, topic, asyncio.to_thread, DEFAULT)
        assert found is not None
        return found
    finally:
        await store.close()


def random_event(rng: random.Random) -> bytes:
    return event({f"n{rng.randrange(30)}": round(rng.gauss(0, 1), 3)}, rng.choice([0, 1]))


async def test_eight_partitions_are_learned_in_the_order_that_is_recorded(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    """One weight vector, order of arrival: folding the recorded runs gives the same bits."""
    await create_topic(kafka, topic, 8)
    service = await asyncio.to_thread(run("[snapshots]\nkeep = 0").up)
    rng = random.Random(5)
    sent: dict[int, list[bytes]] = {p: [] for p in range(8)}
    for i in range(3000):
        partition = rng.randrange(8)
        raw = random_event(rng)
        # The first are awaited one by one, as a trickle; the rest arrive as they will.
        sending = await producer.send(topic, raw, partition=partition)
        if i < 300:
            await sending
        sent[partition].append(raw)
    await producer.flush()
    expected = {str(p): len(part) for p, part in sent.items()}

    def there() -> Any:
        model = service.model()
        return model if model["next"] == expected and model["ahead"] == 0 else None

    model = await asyncio.to_thread(wait, there, "all eight are learned")
    snapshot = await stored(redis, topic)
    assert (snapshot.head.order, model["order"]) == ("arrival", "arrival")
    fold = Fold()
    at = Counter[int]()
    for partition, start, to in snapshot.learner.runs:
        assert start == at[partition]
        at[partition] = to
        fold.fold(sent[partition][start:to])
    same(fold, model, service.weights())
    assert len(snapshot.learner.runs) > 100
    # A restart goes on in each of them.
    assert await asyncio.to_thread(service.stop) == 0
    again = await asyncio.to_thread(run("[snapshots]\nkeep = 0").up)
    await producer.send_and_wait(topic, event({"n1": 1}, 1), partition=7)
    expected["7"] += 1
    await asyncio.to_thread(wait, lambda: again.model()["next"] == expected, "it goes on")
    assert again.model()["events"] == 3001


async def test_a_partition_that_is_added_is_learned_from_its_first_record(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str
) -> None:
    await create_topic(kafka, topic, 1)
    await producer.send_and_wait(topic, event({"before": 1}, 1))
    service = await asyncio.to_thread(run("[snapshots]\nkeep = 0", "--start-at", "latest").up)
    await producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(service.wait_for, 2)
    client = AIOKafkaAdminClient(bootstrap_servers=kafka.address)
    await client.start()
    await client.create_partitions({topic: NewPartitions(3)})
    await client.close()
    later = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await later.start()
    for partition in (0, 1, 2, 1):
        await later.send_and_wait(topic, event({f"p{partition}": 1}, partition % 2), partition=partition)
    await later.stop()
    expected = {"0": 3, "1": 2, "2": 1}
    await asyncio.to_thread(wait, lambda: service.model()["next"] == expected, "the new ones are learned")
    await asyncio.to_thread(wait, lambda: service.model()["ahead"] == 0, "it is saved")
    model = service.model()
    assert model["covered"] == {"0": [[1, 3]], "1": [[0, 2]], "2": [[0, 1]]}
    assert (model["events"], model["order"]) == (5, "arrival")
    runs = (await stored(redis, topic)).learner.runs
    assert runs[0][:2] == (0, 1), "the order is recorded from the start, not from when there were two"
    assert sum(to - start for _, start, to in runs) == 5


async def test_every_codec_and_a_tombstone(run: Run, kafka: Server, topic: str) -> None:
    """Each codec is read; a record without a value is no event, and is a dead letter without one."""
    service = await asyncio.to_thread(run().up)
    events: list[bytes] = []
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        client = AIOKafkaProducer(bootstrap_servers=kafka.address, compression_type=codec, linger_ms=20)
        await client.start()
        batch = [event({f"a-long-name-{i % 5}-{codec}": i % 3}, i % 2) for i in range(100)]
        await asyncio.gather(*[await client.send(topic, raw) for raw in batch])
        events += batch
        await client.stop()
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await client.start()
    await client.send_and_wait(topic, None, key=b"k")
    await client.send_and_wait(topic, b"")
    await client.stop()
    model = await asyncio.to_thread(service.wait_for, 502)
    same(Fold().fold(events), model, service.weights())
    assert model["rejected"] == {"empty": 2}
    letters = await read_all(kafka, f"{topic}.dead-letters")
    assert [(letter.key, letter.value) for letter in letters] == [
        (f"{topic}-0-500".encode(), None),
        (f"{topic}-0-501".encode(), b""),
    ]
    assert dict(letters[0].headers)["key"] == b"k"


async def test_a_topic_that_was_compacted_is_learned_as_what_is_left_of_it(run: Run, kafka: Server, topic: str) -> None:
    """Where the cleaner took records there are gaps, for ever, whatever the policy says later.

    They are covered, counted and said once, and nothing is lost of what is there.
    """
    small = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01", "delete_retention_ms": "0"}
    await create_topic(kafka, topic, 1, cleanup_policy="compact", **small)
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await client.start()

    async def after(more: int) -> list[Any]:
        # The segment that is written to is never compacted: each try begins another, with a key of its own.
        await client.send_and_wait(topic, event({"more": 1}, 1), key=b"more%d" % more)
        return await read_all(kafka, topic)

    for i in range(40):
        await client.send_and_wait(topic, event({f"n{i % 4}": i}, i % 2), key=b"k%d" % (i % 4))
    deadline, more = time.monotonic() + 90, 1
    while len(left := await after(more)) > 4 + more:  # until nothing is left that the cleaner may take later
        assert time.monotonic() < deadline, f"the cleaner left {len(left) - more} records of 4 keys"
        await asyncio.sleep(0.5)
        more += 1
    await client.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.address)
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": "delete"})])
    await admin.close()
    service = await asyncio.to_thread(run("", "--start-at", "earliest").up)
    model = await asyncio.to_thread(service.wait_for, left[-1].offset + 1)
    assert left[-1].offset > len(left)
    same(Fold().fold(r.value for r in left), model, service.weights())
    assert service.metrics()[f'perceptron_offset_gaps_total{{model="{topic}"}}'] >= 1
    assert service.log.read_text().count("offsets without a batch") == 1


async def test_an_empty_topic_is_a_model_that_knows_nothing_yet(run: Run, kafka: Server, topic: str) -> None:
    await create_topic(kafka, topic, 2)
    service = await asyncio.to_thread(run().up)
    model = service.model()
    assert (model["events"], model["version"], model["next"]) == (0, 1, {"0": 0, "1": 0})
    assert service.predict({"features": {"a": 1}}).json()["score"] == 0.0


async def test_records_deleted_while_it_learns(run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str) -> None:
    """Behind the next offset: nothing happens. Ahead of it: events are gone, so it stops, says so, and answers."""
    service = await asyncio.to_thread(run().up)
    for i in range(10):
        await producer.send_and_wait(topic, event({"a": i}, i % 2))
    await asyncio.to_thread(service.wait_for, 10)
    await trim(kafka, topic, 8)
    await producer.send_and_wait(topic, event({"b": 1}, 0))
    assert (await asyncio.to_thread(service.wait_for, 11))["stopped"] is None
    service.process.send_signal(signal.SIGSTOP)
    for i in range(10):
        await producer.send_and_wait(topic, event({"c": i}, i % 2))
    await trim(kafka, topic, 15)
    service.process.send_signal(signal.SIGCONT)
    await asyncio.to_thread(wait, lambda: service.model()["stopped"], "it stops learning")
    model = service.model()
    print(f"\n{model['stopped']}")
    assert "partition 0" in model["stopped"]
    assert f"perceptron reset -t {topic} --yes" in model["stopped"]
    # A fetch that was answered before it was stopped may bring some; none from behind the gap.
    assert 11 <= model["next"]["0"] == model["events"] < 15
    assert model["learning_here"] is False
    assert service.predict({"features": {"a": 1}}).status_code == 200
    # The way out that it names: forget the model, which then begins anew where it may.
    assert perceptron("reset", "-t", topic, "--redis", service.redis_url, "--yes").returncode == 0
    await asyncio.to_thread(
        wait, lambda: "learning would begin at offset 0" in service.model()["stopped"], "it asks where to begin"
    )
    assert await asyncio.to_thread(service.stop) == 0
    fresh = await asyncio.to_thread(run("", "--start-at", "earliest").up)
    assert (await asyncio.to_thread(fresh.wait_for, 21))["covered"] == {"0": [[15, 21]]}


WATCHDOG_SECONDS = 15.0
"""Longer than two looks at a broker that has just started, which may answer late, and than finding it again takes."""
STUCK = """
import asyncio, pathlib
from service.streaming.kafka.fetcher import Fetcher
request = Fetcher._request
async def hang(self, *arguments):
    if pathlib.Path(TRIGGER).exists():
        pathlib.Path(TRIGGER + "-seen").touch()
        await asyncio.sleep(3600)  # what was seen after some restarts of a broker: a fetch that never ends
    await request(self, *arguments)
Fetcher._request = hang
from service.cli import main
main()
"""


@pytest.mark.long
async def test_a_client_that_hangs_ends_the_process_and_an_absent_broker_does_not(topic: str, tmp_path: Path) -> None:
    """The watchdog: the broker answers and has more, and nothing came for its time. Then a fresh process goes on."""
    for folder in ("kafka", "redis"):
        (tmp_path / folder).mkdir()
    hang = tmp_path / "hang"
    with servers.kafka(tmp_path / "kafka") as own, servers.redis(tmp_path / "redis") as redis:
        client = AIOKafkaProducer(bootstrap_servers=own.address, request_timeout_ms=120_000)
        await client.start()
        service = Running(topic, own.address, redis.address, tmp_path, "", "--create-topics", watchdog=WATCHDOG_SECONDS)
        service.kill()
        service.start([sys.executable, "-c", STUCK.replace("TRIGGER", repr(str(hang))), *service.command[3:]])
        try:
            await asyncio.to_thread(service.up)
            await client.send_and_wait(topic, event({"a": 1}, 1))
            await asyncio.to_thread(service.wait_for, 1)
            own.kill()
            await asyncio.sleep(WATCHDOG_SECONDS + 2.0)  # the outage itself
            assert service.process.poll() is None
            await asyncio.to_thread(own.start)
            await client.send_and_wait(topic, event({"a": 1}, 0))
            await asyncio.to_thread(service.wait_for, 2)
            hang.touch()
            # A fetch that is under way would still bring what is sent now.
            await asyncio.to_thread(wait, Path(f"{hang}-seen").exists, "it hangs")
            await client.send_and_wait(topic, event({"a": 1}, 1))
            assert await asyncio.to_thread(service.process.wait, WATCHDOG_SECONDS + 30) == 1
            said = service.log.read_text()
            assert f"topic {topic}: Kafka at {own.address} answers and has more records, but none came for" in said
            assert "Traceback" not in said
            hang.unlink()
            fresh = await asyncio.to_thread(service.start(service.command).up)
            assert (await asyncio.to_thread(fresh.wait_for, 3))["events"] == 3
        finally:
            await client.stop()
            service.kill()
            service.http.close()


def learned(service: Running, topic: str, events: int) -> bool:
    model = service.model(topic)
    return (model["events"], model["ahead"]) == (events, 0)


def stopped(service: Running, topic: str) -> Any:
    return service.model(topic)["stopped"]


async def test_another_clusters_model_is_never_gone_on_with(
    kafka: Server, producer: AIOKafkaProducer, redis: Server, topic: str, tmp_path: Path
) -> None:
    """Two clusters, one Redis. The offsets fit in all: nothing was learned yet; the last record learned is gone, or is
    there; the settings are others. What is said advises nobody to forget what is somebody else's."""
    empty, same, settings = (f"{topic}-{kind}" for kind in ("empty", "same", "settings"))
    topics = (empty, same, settings)
    (tmp_path / "kafka").mkdir()
    with servers.kafka(tmp_path / "kafka") as own:
        client = AIOKafkaProducer(bootstrap_servers=own.address)
        await client.start()

        def first() -> Running:
            return Running(topic, own.address, redis.address, tmp_path, "", "--create-topics", topics=topics).up()

        service = await asyncio.to_thread(first)
        for name in (topic, same, settings):
            for i in range(5):
                await client.send_and_wait(name, event({"a": i}, i % 2), timestamp_ms=1000 + i)
        for name in topics:
            await asyncio.to_thread(wait, partial(learned, service, name, 0 if name == empty else 5), "it is saved")
        await asyncio.to_thread(service.wait_for, 5)
        assert await asyncio.to_thread(service.stop) == 0
        service.http.close()
        for name in (topic, *topics):
            await create_topic(kafka, name)
            for i in range(8):
                what = event({"a": i} if name == same else {"b": i}, i % 2)
                await producer.send_and_wait(name, what, timestamp_ms=1000 + i)
        await trim(kafka, topic, 5)
        text = f"[models.{settings}]\neta = 0.5"
        other = Running(topic, kafka.address, redis.address, tmp_path, text, "--create-topics", topics=topics)
        try:
            await asyncio.to_thread(other.up)
            for name, events in ((topic, 5), (empty, 0), (same, 5), (settings, 5)):
                said = await asyncio.to_thread(wait, partial(stopped, other, name), "it does not learn")
                assert said.startswith(f"model {name} was learned from Kafka cluster ")
                assert other.model(name)["events"] == events
                assert not any(word in said for word in ("reset", "rollback", "recreated", "trimmed"))
            assert "reset" not in other.log.read_text()
        finally:
            other.kill()
            other.http.close()
        # Where it was learned it is gone on with.
        await client.send_and_wait(empty, event({"a": 1}, 1))
        await client.stop()
        back = await asyncio.to_thread(first)
        await asyncio.to_thread(wait, lambda: back.model(empty)["events"] == 1, "it is learned")
        assert (back.model()["events"], back.model()["stopped"]) == (5, None)
        back.kill()
        back.http.close()
