"""`perceptron suggest` as a user meets it: a topic or a file, and what it writes is what a service runs with."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.settings.load import load
from tests.conftest import Run, create_topic, one_line, perceptron, read_all
from tests.unit.test_suggest import clicks

NOWHERE = "127.0.0.1:1"


def lines(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def suggest(folder: Path, *arguments: str, code: int = 0, **more: Any) -> Any:
    done = perceptron("suggest", *arguments, cwd=folder, **more)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clicks.jsonl").write_bytes(lines(clicks(2000)))
    return tmp_path


async def test_a_service_runs_with_what_is_written(
    run: Run, producer: AIOKafkaProducer, topic: str, folder: Path
) -> None:
    """On the records as they are: it predicts as well as it was said to, in the words of the label."""
    said = suggest(folder, "clicks.jsonl", "-t", topic, "-o", "perceptron.toml")
    assert "perceptron.toml is written" in one_line(said.stderr)
    found = json.loads(suggest(folder, "clicks.jsonl", "-t", topic, "--json").stdout)
    service = await asyncio.to_thread(run((folder / "perceptron.toml").read_text()).up)
    for record in clicks(2000):
        await producer.send(topic, json.dumps(record).encode())
    await producer.flush()
    model = await asyncio.to_thread(service.wait_for, 2000)
    assert (model["events"], model["rejected"]) == (2000, {})
    weights = found["chosen"]["weights"]
    accuracy = model["accuracy"] if weights == "last" else model["average_accuracy"]
    assert accuracy["recent"] == pytest.approx(found["chosen"]["later"])
    answer = service.predict({"features": {"user": {"country": "NL", "visits": 2}, "page": "/home"}}).json()
    assert answer["label"] is True


@pytest.mark.nightly
async def test_the_newest_of_a_topic(kafka: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path) -> None:
    """Spread over its partitions, in the order of time; nothing is sent and no group is made."""
    await create_topic(kafka, topic, partitions=3)
    await create_topic(kafka, f"{topic}.dead-letters")
    for partition in range(3):
        for _ in range(50):
            await producer.send(topic, b"old", partition=partition)
    begun = 1_700_000_000_000
    for i, record in enumerate(clicks(900)):
        value = json.dumps(record | {"n": i}).encode()
        await producer.send(topic, value, partition=i % 2, timestamp_ms=begun + i)
    await producer.flush()
    before = [len(await read_all(kafka, topic, partition)) for partition in range(3)]

    def call(*arguments: str, code: int = 0) -> Any:
        return suggest(tmp_path, "-t", topic, "-b", kafka.address, *arguments, code=code)

    done = await asyncio.to_thread(call, "--json", "--count", "650", "-o", "perceptron.toml")
    found = json.loads(done.stdout)
    # 50 are all of the last partition; of the two others 300 each.
    said = f"the newest 650 records of topic {topic}"
    assert found["sample"] == {"from": f"topic {topic}", "records": 650, "said": said}
    assert found["rejected"] == {"not-json": 50}
    assert "50 records would be dead letters (not-json 50)" in found["notes"][0]
    (number,) = [member for member in found["members"] if member["name"] == "n"]
    assert (number["distinct"], number["mark"], number["example"]) == (600, "identifier", 300)
    assert [len(await read_all(kafka, topic, partition)) for partition in range(3)] == before

    settings = load(str(tmp_path / "perceptron.toml"), {})
    assert (settings.topics, settings.kafka.bootstrap_servers) == ([topic], kafka.address)
    text = (tmp_path / "perceptron.toml").read_text()
    done = await asyncio.to_thread(call, "-o", "perceptron.toml", code=2)
    assert one_line(done.stderr) == "perceptron: perceptron.toml is there already: say --yes to write over it\n"
    assert (tmp_path / "perceptron.toml").read_text() == text


def test_wrong_input_is_one_line(kafka: Server, topic: str, folder: Path) -> None:
    (folder / "empty.jsonl").write_text("\n")
    (folder / "bad.jsonl").write_text("no\njson\n")
    (folder / "avro.jsonl").write_bytes(b"\x00\x00\x00\x00\x07abc\n")
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(lines(clicks(50)))[:-20])
    for arguments, code, part in (
        ((), 2, "suggest: name a FILE, or a topic with --topic TOPIC"),
        (("empty.jsonl",), 1, "empty.jsonl: there is no record to look at"),
        (("bad.jsonl",), 1, "bad.jsonl: none of 2 records is a JSON object; the first: not-json: Expecting value"),
        (("avro.jsonl",), 1, "(it begins with a zero byte, as Avro and Protobuf of a schema registry do)"),
        (("cut.jsonl.gz",), 1, "cut.jsonl.gz, after line 48: Compressed file ended"),
        (("clicks.jsonl", "--label", "/nope"), 1, "--label: no record of clicks.jsonl has '/nope'; the members are"),
        (("clicks.jsonl", "-o", "clicks.jsonl"), 2, "clicks.jsonl is there already: say --yes to write over it"),
        (("-t", topic, "-b", kafka.address), 2, f"topic {topic} does not exist at {kafka.address}"),
        (("-t", topic, "-b", NOWHERE), 3, "Connection refused"),
    ):
        done = suggest(folder, *arguments, code=code)
        assert part in one_line(done.stderr), done.stderr
        assert done.stdout == ""
