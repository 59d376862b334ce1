"""Faults of the log (trimmed, recreated, damaged, open transactions) and of the dead-letter topic."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Running, configure, create_topic, delete_topic, event, trim, wait
from tests.faults.trial import Trial

pytestmark = pytest.mark.nightly


def wait_until_stopped(service: Running, *words: str) -> None:
    """Wait until a service stops learning, and its reason contains these words, and how to reset the model."""
    wait(lambda: service.model()["stopped"], "it stops learning")
    model = service.model()
    for word in (*words, f"perceptron reset -m {service.topic} --yes"):
        assert word in model["stopped"]
    assert model["learning_here"] is False


def wait_for_sent(trial: Trial, records: int) -> None:
    """Wait until the stream has sent this many more records."""
    enough = trial.sent + records
    wait(lambda: trial.sent > enough, f"{records} more are sent")


def learn_after_reset(trial: Trial) -> None:
    """Reset the model, and wait until the running process learns from scratch."""
    trial.reset()
    trial.learning()
    trial.go_on()
    trial.progress(1000)


def test_records_deleted(trial: Trial) -> None:
    """Deleting learned records changes nothing. Deleting other records stops learning until a reset."""
    trial.begin(rate=2000, settings="[snapshots]\nkeep = 0")  # the judge assumes that a kept version began at 0
    trial.hold()
    trial.read_log()
    asyncio.run(trim(trial.kafka, trial.topic, trial.covered() // 2))
    trial.go_on()
    trial.progress(1000)
    service = trial.live[0]
    trial.kill(service)
    wait_for_sent(trial, 1000)
    trial.hold()
    trial.read_log()
    end = trial.logs[-1].partitions[0].end
    asyncio.run(trim(trial.kafka, trial.topic, end - 100))
    trial.again(service)
    wait_until_stopped(service, f"partition 0 holds offsets {end - 100} to {end}, but the snapshot continues at ")
    trial.outage(1)
    trial.judge()
    trial.reset()
    wait(lambda: "say where with --start-at" in str(service.model()["stopped"]), "it asks where to begin")
    trial.hide(service)
    assert service.stop() == 0
    trial.up(trial.service("--start-at", "earliest", settings="[snapshots]\nkeep = 0"))
    trial.go_on()
    trial.progress(1000)
    trial.finish()


def recreate(trial: Trial, records: int) -> None:
    """Replace the topic by a new one with at least this many records."""
    asyncio.run(delete_topic(trial.kafka, trial.topic))
    asyncio.run(create_topic(trial.kafka, trial.topic))
    trial.note_recreated_topic()
    trial.go_on()
    wait_for_sent(trial, records)
    trial.hold()


def test_topic_recreated_behind_its_back(trial: Trial) -> None:
    """The broker cannot be reached meanwhile; the new log is longer than the learned part of the old one."""
    trial.begin(rate=2000)
    trial.settle()
    trial.kafka_proxy.hang()
    recreate(trial, trial.saved_offset() + 2000)
    trial.outage(3)
    trial.kafka_proxy.heal()
    wait_until_stopped(trial.live[0], "so the topic was recreated")
    trial.judge()
    learn_after_reset(trial)
    trial.finish()


def test_transactions(trial: Trial) -> None:
    """Nothing after the start of an open transaction is learned until it ends. An aborted one is never learned."""
    trial.begin(rate=2000)

    async def transactions() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=trial.kafka.address, transactional_id=trial.topic, transaction_timeout_ms=300_000
        ) as client:
            for ends in (client.abort_transaction, client.commit_transaction):
                await client.begin_transaction()
                first = await client.send_and_wait(trial.topic, event({"n1": 1}, 0))
                for _ in range(50):
                    await client.send(trial.topic, event({"n2": 1}, 1))
                await client.flush()
                await asyncio.to_thread(wait_for_sent, trial, 2000)
                # Longer than the watchdog's limit: an open transaction does not count as a stall.
                await asyncio.to_thread(trial.outage, 70)
                assert trial.covered() == trial.live[0].model()["next"]["0"] == first.offset
                await ends()
                await asyncio.to_thread(trial.progress, 1000)

    asyncio.run(transactions())
    trial.finish()


def batches(data: bytes) -> list[tuple[int, int, int, int]]:
    """The first and last offset, first byte and end of each record batch in a segment file."""
    places, start = [], 0
    while start < len(data):
        first, size = int.from_bytes(data[start : start + 8]), 12 + int.from_bytes(data[start + 8 : start + 12])
        places.append((first, first + int.from_bytes(data[start + 23 : start + 27]), start, start + size))
        start += size
    return places


def segment(kafka: Server, topic: str) -> Path:
    """The only segment file of a new topic."""
    [path] = Path(kafka.log).parent.glob(f"kafka/{topic}-0/*.log")
    return path


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip a bit of a file."""
    with path.open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def repair(trial: Trial, service: Running, place: int) -> None:
    """Repair the byte; a new process continues, as the error message says."""
    flip(segment(trial.kafka, trial.topic), place)
    trial.hide(service)
    assert service.stop() == 0
    trial.again(service)
    trial.go_on()
    trial.progress(1000)
    trial.finish()


def test_flipped_byte(trial: Trial) -> None:
    """The checksum fails: learning stops at that batch, all earlier records are saved, and predictions continue."""
    trial.begin(rate=2000)
    service = trial.live[0]
    trial.kill(service)
    wait_for_sent(trial, 3000)
    trial.hold()
    trial.read_log()
    saved_offset, path = trial.saved_offset(), segment(trial.kafka, trial.topic)
    damaged = [batch for batch in batches(path.read_bytes()) if batch[0] > saved_offset + 1000][5]
    first_offset, _, start, end = damaged
    flip(path, (start + end) // 2)
    trial.again(service)
    wait_until_stopped(service, f"the record at offset {first_offset} of partition 0 cannot be read", "checksum")
    assert trial.saved_offset() == first_offset
    trial.outage(1)
    trial.judge(read=False)
    repair(trial, service, (start + end) // 2)


def test_flipped_byte_in_what_was_learned_last(trial: Trial) -> None:
    """A new process cannot compare the last learned record: it stops and names the record."""
    trial.begin(rate=2000)
    trial.settle()
    service, last_offset, path = trial.live[0], trial.saved_offset() - 1, segment(trial.kafka, trial.topic)
    trial.kill(service)
    [damaged] = [batch for batch in batches(path.read_bytes()) if batch[0] <= last_offset <= batch[1]]
    flip(path, (damaged[2] + damaged[3]) // 2)
    trial.again(service)
    wait_until_stopped(service, f"the record at offset {last_offset} of partition 0 cannot be read", "checksum")
    trial.judge(read=False)
    repair(trial, service, (damaged[2] + damaged[3]) // 2)


def test_flipped_byte_and_the_broker_dies(trial: Trial) -> None:
    """At its start the broker truncates its log at the damage, before learned records: learning stops until a reset."""
    trial.begin(rate=2000)
    trial.settle()
    path = segment(trial.kafka, trial.topic)
    batches_ = batches(path.read_bytes())
    first, _, start, end = batches_[len(batches_) // 2]
    trial.kafka.kill()
    flip(path, (start + end) // 2)
    trial.kafka.start()
    wait_until_stopped(trial.live[0], f"holds offsets 0 to {first}, but the snapshot continues at {trial.covered()}")
    trial.judge(read=False)
    trial.note_recreated_topic()
    learn_after_reset(trial)
    trial.finish()


def test_dead_letter_topic_missing(trial: Trial) -> None:
    """Saves wait at the first bad event, and the log reports it; a crash meanwhile loses nothing."""
    trial.stream(dead_letters=False)
    service = trial.service()
    trial.up(service)
    trial.ask()
    trial.wait_for_log(service, "no dead-letter topic: saves wait at the first rejected event")
    for _ in range(5):
        trial.wait_for_log(service, "dead letters cannot be written")
        wait(lambda: service.model()["ahead"] > 2000, "learning continues")
        trial.outage(2)
        trial.kill(service)
        service.log.rename(service.log.with_suffix(".before"))
        trial.again(service)
    assert trial.saved_offset() < 1000
    asyncio.run(create_topic(trial.kafka, f"{trial.topic}.dead-letters"))
    trial.progress(1000)
    trial.finish()


def test_dead_letter_topic_refuses(trial: Trial) -> None:
    """Saves wait and the log reports it; learning and predictions continue. After a repair saves continue."""
    trial.begin(rate=2000)
    asyncio.run(configure(trial.kafka, f"{trial.topic}.dead-letters", max_message_bytes=100))
    service = trial.live[0]
    trial.wait_for_log(service, "dead letters cannot be written")
    saved_offset = trial.saved_offset()
    wait(lambda: service.model()["ahead"] > 2000, "learning continues")
    trial.outage(60)
    assert trial.saved_offset() == saved_offset
    asyncio.run(configure(trial.kafka, f"{trial.topic}.dead-letters"))
    trial.progress(1000)
    trial.finish()
