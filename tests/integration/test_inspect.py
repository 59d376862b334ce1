"""`perceptron inspect`: what is known of a model without asking the process that learns it."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_topic, delete_topic, event, one_line, perceptron, wait

NOWHERE = "127.0.0.1:1"
NAMES = ["up", "down", "[red]b", "escape\x1b[31m", "long name " * 20, "none"]
WEIGHTS = [4.0, -8.0, 2.0, -1.0, 0.5, 0.0]


async def _learned(run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str) -> Any:
    """A model of one event in partition 1 of two, with kept versions; its service is gone. Answers its last words."""
    await create_topic(kafka, topic, partitions=2)
    service = run("[snapshots]\nkeep_every = 0.001\n")
    service.up()
    await producer.send_and_wait(topic, event(dict(zip(NAMES, WEIGHTS, strict=True)), 1), partition=1)
    wait(lambda: service.model()["next"] == {"0": 0, "1": 1} and not service.model()["ahead"], "it is learned")
    versions = service.http.get(f"/v1/models/{topic}/versions").json()["versions"]
    about = {**service.model(), "versions": versions}
    service.kill()
    return about


def test_inspect_shows_a_snapshot(run: Run, kafka: Server, redis: Server, topic: str, tmp_path: Path) -> None:
    url = f"redis://{redis.address}/0"
    none = perceptron("inspect", "-t", topic, "--redis", url, cwd=tmp_path)
    assert none.returncode == 1
    assert f"model {topic} has no snapshot in Redis" in one_line(none.stderr)
    service = run().up()
    raw = b"\n".join(event({"a": 1, "[red]b": -i}, i % 2) for i in range(50))
    assert perceptron("produce", "-", "-t", topic, "-b", kafka.address, stdin=raw, cwd=tmp_path).returncode == 0
    model = service.wait_for(50)
    done = perceptron("inspect", "-t", topic, "--redis", url, cwd=tmp_path)
    assert done.returncode == 0
    for part in (topic, "0 to 50", "[red]b"):
        assert part in done.stdout, done.stdout
    assert model["state_digest"] in "".join(done.stdout.split())  # over two lines, where they are narrow
    assert re.search(rf"^ mistakes +{model['mistakes']}$", done.stdout, re.MULTILINE)
    shown = json.loads(perceptron("inspect", "-t", topic, "--redis", url, "--json", cwd=tmp_path).stdout)
    assert shown["state_digest"] == model["state_digest"]
    assert shown["bias"] == service.weights()["bias"]
    assert {w["name"] for w in shown["largest_weights"]} == {"a", "[red]b"}


@pytest.mark.nightly
async def test_everything_is_shown_and_fits_80_columns(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    about = await _learned(run, kafka, producer, topic)
    for i in range(1500):
        await producer.send(topic, event({"a": i}, 1), partition=i % 3 // 2)
    await producer.flush()
    command = ["inspect", "-t", topic, "--redis", f"redis://{redis.address}/0"]
    shown = json.loads(perceptron(*command, "-b", kafka.address, "--json", cwd=tmp_path).stdout)
    assert {k: shown[k] for k in about if k != "learning_here"} == {k: about[k] for k in about if k != "learning_here"}
    assert about["versions"]
    assert (shown["lag"], shown["lag_reason"]) == ({"0": 1000, "1": 500}, None)
    assert shown["bias"] == 1.0
    weights = sorted(zip(NAMES, WEIGHTS, strict=True), key=lambda pair: -abs(pair[1]))
    assert shown["largest_weights"] == [{"name": n, "weight": w} for n, w in weights]

    uncut = perceptron(*command, "-b", kafka.address, cwd=tmp_path, env={"COLUMNS": ""}).stdout.splitlines()
    assert sum(NAMES[4] in line for line in uncut) == 1  # nobody's terminal is too narrow for it
    assert max(map(len, uncut)) < 300
    assert all(line == line.rstrip() for line in uncut)
    done = perceptron(*command, "-b", kafka.address, cwd=tmp_path, env={"COLUMNS": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert rows["lag"].split() == ["lag", "1,500", "records"]
    assert [rows[p].split() for p in "01"] == [
        ["0", "0", "to", "0", "1,000"],
        ["1", "0", "to", "1", "500"],
    ]
    for version in about["versions"]:
        assert [str(version["version"]), version["saved_at"], str(version["events"]), str(version["mistakes"])] in [
            line.split() for line in lines
        ]
    assert r"\u001b" in done.stdout
    assert sum("long name long" in line for line in lines) == 1  # cut, not wrapped
    assert "none" not in rows  # a weight of zero is not worth a line


@pytest.mark.nightly
async def test_without_kafka_it_says_so_and_goes_on(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Refused, silent, without the topic, or with another of its name: one line, exit 0."""
    await _learned(run, kafka, producer, topic)
    command = ["inspect", "-t", topic, "--redis", f"redis://{redis.address}/0"]

    def reason(address: str) -> str:
        done = perceptron(*command, "-b", address, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["1"]] == [
            ["1", "0", "to", "1", "unknown"]
        ]
        said = " ".join(done.stdout.split())
        answer = json.loads(perceptron(*command, "-b", address, "--json", cwd=tmp_path).stdout)
        assert answer["lag"] is None
        assert f"lag unknown: {answer['lag_reason']}" in said
        return str(answer["lag_reason"])

    assert reason(NOWHERE) == f"Kafka at {NOWHERE}: Connection refused"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert reason(address) == f"Kafka at {address}: no answer in time"
    await delete_topic(kafka, topic)
    assert reason(kafka.address) == f"Kafka at {kafka.address} has no topic {topic}"
    await create_topic(kafka, topic, partitions=2)
    assert "is not the log that was learned" in reason(kafka.address)
