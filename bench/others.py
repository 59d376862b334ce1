"""Programs that a user might write instead: `python -m bench.others KIND ADDRESS TOPIC EVENTS`.

Each reads this many records of partition 0 and prints the CPU microseconds of one, over all threads, after the first
tenth.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

POLL_RECORDS = 500
FETCH_BYTES = 1 << 20
"""The cheapest of the tested settings: uvloop or asyncio, garbage collection by default or rarely."""


def clock(events: int) -> Callable[[int], float | None]:
    """A function that gets the number of records read, and returns the cost of one after `events` records."""
    begun: tuple[int, float] | None = None

    def look(count: int) -> float | None:
        nonlocal begun
        if begun is None and count >= events // 10:
            begun = count, time.process_time()
        if begun is not None and count >= events:
            return (time.process_time() - begun[1]) / (count - begun[0]) * 1e6
        return None

    return look


def learner(kind: str) -> Callable[[Iterable[Any]], None]:
    """A function that learns the records of a poll; `drain` only takes them."""
    import orjson

    if kind == "drain":
        return lambda _: None
    if kind == "river":
        from river.linear_model import Perceptron

        model = Perceptron()

        def learn(records: Iterable[Any]) -> None:
            for record in records:
                event = orjson.loads(record.value)
                model.learn_one(dict(enumerate(event["features"])), event["label"])
    elif kind == "vw":
        from vowpalwabbit import Workspace

        workspace = Workspace("--quiet --loss_function hinge")

        def learn(records: Iterable[Any]) -> None:
            for record in records:
                event = orjson.loads(record.value)
                features = " ".join(f"{i}:{value}" for i, value in enumerate(event["features"]))
                workspace.learn(f"{1 if event['label'] else -1} | {features}")
    elif kind == "sklearn":
        from sklearn.linear_model import Perceptron as Scikit

        perceptron = Scikit(shuffle=False)

        def learn(records: Iterable[Any]) -> None:
            for record in records:
                event = orjson.loads(record.value)
                perceptron.partial_fit([event["features"]], [event["label"]], classes=[0, 1])
    else:
        raise SystemExit(f"no such program: {kind}")
    return learn


async def aiokafka(kind: str, address: str, topic: str, events: int) -> float:
    """Run one of the programs on aiokafka, with the fastest of the tested settings."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    learn, look = learner(kind), clock(events)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
    )  # fmt: skip
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 50)
        count = 0
        while (took := look(count)) is None:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=POLL_RECORDS)).values():
                learn(records)
                count += len(records)
        return took
    finally:
        await consumer.stop()


def confluent(address: str, topic: str, events: int) -> float:
    """A counting loop over confluent-kafka's consume()."""
    from confluent_kafka import Consumer, TopicPartition

    look, count = clock(events), 0
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,  # its default of a second costs five times as much by the clock
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    while (took := look(count)) is None:
        count += len(consumer.consume(5000, timeout=1.0))
    consumer.close()
    return took


if __name__ == "__main__":
    _, kind, address, topic, events = sys.argv
    if kind == "confluent":
        print(confluent(address, topic, int(events)))
    else:
        import uvloop

        print(uvloop.run(aiokafka(kind, address, topic, int(events))))
