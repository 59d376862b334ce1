"""`perceptron inspect` shows a model from Redis and Kafka, without the process that learns it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_topic, delete_topic, event, perceptron, send, wait
from tests.integration.kept import Tool

NOWHERE = "127.0.0.1:1"
NAMES = ["up", "down", "[red]b", "escape\x1b[31m", "long name " * 20, "none"]
WEIGHTS = [4.0, -8.0, 2.0, -1.0, 0.5, 0.0]


async def _learn_one_event(run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str) -> Any:
    """Learn one event in partition 1 of two, with kept versions, and end the service; return its last answer."""
    await create_topic(kafka, topic, partitions=2)
    service = run("[snapshots]\nkeep_every = 0.001\n")
    service.up()
    await producer.send_and_wait(topic, event(dict(zip(NAMES, WEIGHTS, strict=True)), 1), partition=1)
    wait(lambda: service.model()["next"] == {"0": 0, "1": 1} and not service.model()["ahead"], "it is learned")
    versions = service.http.get(f"/v1/models/{topic}/versions").json()["versions"]
    info = {**service.model(), "versions": versions}
    service.kill()
    return info


async def test_inspect_shows_a_snapshot(run: Run, tool: Tool, producer: AIOKafkaProducer, topic: str) -> None:
    assert f"model {topic} has no snapshot in Redis" in await tool.expect_error(1, "inspect")
    service = await asyncio.to_thread(run().up)
    await send(producer, topic, [event({"a": 1, "[red]b": -i}, i % 2) for i in range(50)])
    model = await asyncio.to_thread(service.wait_for, 50)
    result = await tool("inspect")
    assert result.returncode == 0
    for part in (topic, "0 to 50", "[red]b"):
        assert part in result.stdout, result.stdout
    assert model["state_digest"] in "".join(result.stdout.split())  # over two lines, where they are narrow
    output = json.loads((await tool("inspect", "--json")).stdout)
    assert {k: output[k] for k in model if k != "learning_here"} == {k: model[k] for k in model if k != "learning_here"}
    assert output["bias"] == service.weights()["bias"]
    assert {w["name"] for w in output["largest_weights"]} == {"a", "[red]b"}


@pytest.mark.nightly
async def test_it_fits_80_columns_and_says_the_lag_or_why_not(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Kafka refuses, lacks the topic, or has another topic of its name: one line says so; the exit code is 0."""
    info = await _learn_one_event(run, kafka, producer, topic)
    for i in range(1500):
        await producer.send(topic, event({"a": i}, 1), partition=i % 3 // 2)
    await producer.flush()
    command = ["inspect", "-t", topic, "--redis", f"redis://{redis.address}/0"]
    output = json.loads(perceptron(*command, "-b", kafka.address, "--json", cwd=tmp_path).stdout)
    assert info["versions"]
    assert (output["lag"], output["lag_reason"]) == ({"0": 1000, "1": 500}, None)
    assert output["bias"] == 1.0
    weights = sorted(zip(NAMES, WEIGHTS, strict=True), key=lambda pair: -abs(pair[1]))
    assert output["largest_weights"] == [{"name": n, "weight": w} for n, w in weights]

    result = perceptron(*command, "-b", kafka.address, cwd=tmp_path, env={"COLUMNS": "80"})
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.stdout
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert rows["lag"].split() == ["lag", "1,500", "records"]
    assert [rows[p].split()[-1] for p in "01"] == ["1,000", "500"]
    assert all(f" {version['saved_at']} " in result.stdout for version in info["versions"])
    assert r"\u001b" in result.stdout
    assert sum("long name long" in line for line in lines) == 1  # cut, not wrapped
    assert "none" not in rows  # a weight of zero is not worth a line

    def reason(address: str) -> str:
        result = perceptron(*command, "-b", address, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        text = " ".join(result.stdout.split())
        answer = json.loads(perceptron(*command, "-b", address, "--json", cwd=tmp_path).stdout)
        assert answer["lag"] is None
        assert f"lag unknown: {answer['lag_reason']}" in text
        return str(answer["lag_reason"])

    assert reason(NOWHERE) == f"Kafka at {NOWHERE}: Connection refused"
    await delete_topic(kafka, topic)
    assert reason(kafka.address) == f"Kafka at {kafka.address} has no topic {topic}"
    await create_topic(kafka, topic, partitions=2)
    assert "is not the log that was learned" in reason(kafka.address)
