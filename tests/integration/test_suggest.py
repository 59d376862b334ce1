"""`perceptron suggest` with a topic or a file; a service runs with what it writes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.settings.load import load
from tests.conftest import Run, create_both_topics, one_line, perceptron, read_all, send
from tests.template import Done
from tests.unit.tools.test_suggest import clicks

NOWHERE = "127.0.0.1:1"


def lines(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def suggest(folder: Path, *arguments: str, code: int = 0, **options: Any) -> Done:
    result = perceptron("suggest", *arguments, cwd=folder, **options)
    assert result.returncode == code, result.stderr
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clicks.jsonl").write_bytes(lines(clicks(2000)))
    return tmp_path


async def test_the_written_settings_run(run: Run, producer: AIOKafkaProducer, topic: str, folder: Path) -> None:
    """The service learns the same records, and has the accuracy that `suggest` reported."""
    result = suggest(folder, "clicks.jsonl", "-t", topic, "-o", "perceptron.toml")
    assert "perceptron.toml is written" in one_line(result.stderr)
    proposal = json.loads(suggest(folder, "clicks.jsonl", "-t", topic, "--json").stdout)
    service = await asyncio.to_thread(run((folder / "perceptron.toml").read_text()).up)
    await send(producer, topic, (json.dumps(record).encode() for record in clicks(2000)))
    model = await asyncio.to_thread(service.wait_for, 2000)
    assert (model["events"], model["rejected"]) == (2000, {})
    weights = proposal["chosen"]["weights"]
    accuracy = model["accuracy"] if weights == "last" else model["average_accuracy"]
    assert accuracy["recent"] == pytest.approx(proposal["chosen"]["later"])
    answer = service.predict({"features": {"user": {"country": "NL", "visits": 2}, "page": "/home"}}).json()
    assert answer["label"] is True


@pytest.mark.nightly
async def test_the_newest_records(kafka: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path) -> None:
    """The sample is spread over the partitions, in order of time. Nothing is sent and no group is made."""
    await create_both_topics(kafka, topic, partitions=3)
    for partition in range(3):
        await send(producer, topic, [b"old"] * 50, partition=partition)
    start = 1_700_000_000_000
    for i, record in enumerate(clicks(900)):
        value = json.dumps(record | {"n": i}).encode()
        await producer.send(topic, value, partition=i % 2, timestamp_ms=start + i)
    await producer.flush()
    counts = [len(await read_all(kafka, topic, partition)) for partition in range(3)]

    result = await asyncio.to_thread(
        suggest, tmp_path, "-t", topic, "-b", kafka.address, "--json", "--count", "650", "-o", "perceptron.toml"
    )
    proposal = json.loads(result.stdout)
    # The last partition has 50 records in all; the two others give 300 each.
    source = f"the newest 650 records of topic {topic}"
    assert proposal["sample"] == {"from": f"topic {topic}", "records": 650, "said": source}
    assert proposal["rejected"] == {"not-json": 50}
    assert "50 records would be dead letters (not-json 50)" in proposal["notes"][0]
    (number,) = [member for member in proposal["members"] if member["name"] == "n"]
    assert (number["distinct"], number["mark"], number["example"]) == (600, "identifier", 300)
    assert [len(await read_all(kafka, topic, partition)) for partition in range(3)] == counts

    settings = load(str(tmp_path / "perceptron.toml"), {})
    assert (settings.topics, settings.kafka.bootstrap_servers) == ([topic], kafka.address)


def test_wrong_input_is_one_line(kafka: Server, topic: str, folder: Path) -> None:
    (folder / "avro.jsonl").write_bytes(b"\x00\x00\x00\x00\x07abc\n")
    for arguments, code, part in (
        ((), 2, "suggest: name a FILE, or a topic with --topic TOPIC"),
        (("avro.jsonl",), 1, "Avro and Protobuf cannot be read), such as the first: Expecting value at character 0"),
        (("clicks.jsonl", "-o", "clicks.jsonl"), 2, "clicks.jsonl is there already: say --yes to write over it"),
        (("-t", topic, "-b", kafka.address), 2, f"topic {topic} does not exist at {kafka.address}"),
        (("-t", topic, "-b", NOWHERE), 3, "Connection refused"),
    ):
        result = suggest(folder, *arguments, code=code)
        assert part in one_line(result.stderr), result.stderr
        assert result.stdout == ""
