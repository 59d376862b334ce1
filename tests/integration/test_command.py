"""The command line and the process, as a new user meets them, bad input included."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded import servers
from service.embedded.servers import Server, free_port
from tests.conftest import Run, Running, event, hanging, one_line, perceptron, wait
from tests.integration.kept import Tool
from tests.oracle import Fold, assert_model_is_fold

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run"], "topics: name at least one"),
        (["run", "-t", "x", "-b", "localhost"], "kafka.bootstrap_servers: expected HOST:PORT"),
        (["run", "-t", "x", "-p", "0", "--host", "[::2]"], "http: cannot listen on [::2]:0: "),
        (["inspect"], "model: name one with -m MODEL"),
        (["learn"], "No such command 'learn'; see perceptron --help"),
        (["run", "-p", "http"], "Invalid value for '-p' / '--port': "),
        (["produce"], "Missing argument 'FILE|-'; see perceptron produce --help"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(arguments: list[str], part: str, tmp_path: Path) -> None:
    result = perceptron(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert part in one_line(result.stderr)


def test_a_command_that_needs_another_shows_its_help(tmp_path: Path) -> None:
    """The text is that of --help, as an error."""
    result, help_text = perceptron("dead-letters", cwd=tmp_path), perceptron("dead-letters", "--help", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", help_text.stdout)


def test_unused_settings_are_warned_of(kafka: Server, redis: Server, tmp_path: Path) -> None:
    """`check`, `config` and `run` warn of an unused table and a misspelt variable, not of Kubernetes' variables."""
    (tmp_path / "perceptron.toml").write_text('[models."^used-.*"]\neta = 2\n[models.unused]\neta = 3\n')
    environment = {
        "PERCEPTRON_TOPIC": "x",
        "PERCEPTRON_REDIS_URL": "redis://r:1",
        "PERCEPTRON_PORT": "tcp://10.0.0.1:8000",
        "PERCEPTRON_SERVICE_HOST": "10.0.0.1",
        "PERCEPTRON_REDIS_PORT_6379_TCP_PORT": "6379",
    }
    options = ["-t", "used-1", "-b", kafka.address, "--redis", f"redis://{redis.address}/0"]
    checked = perceptron("check", *options, cwd=tmp_path, env=environment)
    warnings = [line for line in checked.stdout.splitlines() if line.startswith("warn")]
    assert warnings == [
        "warn  models.unused: no topic uses it: name it in topics, or take its table out",
        "warn  environment PERCEPTRON_REDIS_URL: there is no such setting: perhaps PERCEPTRON_REDIS__URL",
        "warn  environment PERCEPTRON_TOPIC: there is no such setting: perhaps PERCEPTRON_TOPICS",
    ]
    config = perceptron("config", "-t", "used-1", cwd=tmp_path, env=environment)
    assert config.stderr.splitlines() == warnings
    assert re.search(r'^topics +\["used-1"\] +flag$', config.stdout, re.MULTILINE)
    run = perceptron("run", *options, "-b", NOWHERE, "--fail-fast", "-p", "0", cwd=tmp_path, env=environment)
    assert run.returncode == 3
    for warning in ("models.unused: no topic uses it", "environment PERCEPTRON_TOPIC: there is no such setting"):
        assert run.stderr.count(warning) == 1


def test_an_advertised_listener_that_cannot_be_resolved_is_named(tmp_path: Path) -> None:
    """Addresses may have the scheme of a listener, and spaces after commas."""
    advertised = "advertised.listeners=PLAINTEXT://"
    properties = servers.PROPERTIES.replace(f"{advertised}127.0.0.1", f"{advertised}nowhere.invalid")
    with servers.start_kafka(tmp_path, properties=properties) as kafka:
        addresses = f"PLAINTEXT://{kafka.address}, {kafka.address}"
        result = perceptron("check", "-t", "x", "-b", addresses, "--redis", f"redis://{NOWHERE}/0", cwd=tmp_path)
    assert f"broker at nowhere.invalid:{kafka.port}: " in result.stdout
    assert "this advertised listener cannot be resolved here" in result.stdout


def test_fail_fast_exits_3_and_names_what_is_missing(kafka: Server, redis: Server, tmp_path: Path) -> None:
    port = str(free_port())
    for b, r, part in (
        (kafka.address, NOWHERE, f"Redis at {NOWHERE}/0: Connection refused"),
        (NOWHERE, redis.address, f"Kafka at {NOWHERE}: Connection refused"),
    ):
        result = perceptron(
            "run", "-t", "x", "-b", b, "--redis", f"redis://{r}/0", "-p", port, "--fail-fast", cwd=tmp_path
        )
        assert result.returncode == 3, result.stderr
        assert result.stderr.splitlines()[-1].startswith(f"perceptron: {part}")
        assert "Traceback" not in result.stderr


async def test_a_changed_identity_stops_that_model_and_reset_is_the_way_out(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """`check` reports the same. With log = "json" each line of the log is JSON."""
    first = await asyncio.to_thread(run('log = "json"\n[model]\neta = 1.0\n').up)
    await producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(first.wait_for, 1)
    assert await asyncio.to_thread(first.stop) == 0
    lines = [json.loads(line) for line in first.log.read_text().splitlines()]
    assert {"listening", "learning", "stopping", "stopped"} <= {line["event"] for line in lines}
    assert all(set(line) >= {"event", "level", "timestamp"} for line in lines)
    second = await asyncio.to_thread(run("[model]\neta = 0.5\n").up)
    reason = await asyncio.to_thread(wait, lambda: second.model()["stopped"], "it says why it does not learn")
    assert "eta: 1.0 -> 0.5" in reason
    assert f"with `perceptron amend -m {topic} --yes`, learn these as a candidate, or forget" in reason
    assert f"perceptron reset -m {topic} --yes" in reason
    assert reason in second.log.read_text()
    assert (await asyncio.to_thread(second.predict, {"features": {"a": 1}})).json()["version"] == 2
    url = f"redis://{redis.address}/0"
    options = "-t", topic, "-b", kafka.address, "--redis", url
    checked = perceptron("-c", str(second.config), "check", *options, cwd=tmp_path)
    assert checked.returncode == 2
    assert f"\nfail  {reason}\n" in checked.stdout
    checked = perceptron("-c", str(first.config), "check", *options, cwd=tmp_path)
    assert checked.returncode == 0
    assert f"\nok    model {topic}: goes on with version " in checked.stdout
    unknown = "-t", f"{topic}-never-learned", "--yes"  # the running process learns the topic itself again at once
    resets = ((options[:2], 2, "--yes"), ((*options[:2], "--yes"), 0, "forgotten"), (unknown, 1, "has no snapshot"))
    for flags, code, part in resets:
        result = perceptron("reset", *flags, "--redis", url, cwd=tmp_path)
        assert (result.returncode, part in one_line(result.stdout + result.stderr)) == (code, True), result
    await asyncio.to_thread(wait, lambda: second.model()["identity"]["eta"] == 0.5, "it learns under its settings")
    await asyncio.to_thread(second.wait_for, 1)
    assert await asyncio.to_thread(second.vector) == [0.5, 0.5]


async def test_an_amended_model_is_not_learned_under_the_old_settings(
    run: Run, tool: Tool, producer: AIOKafkaProducer, topic: str
) -> None:
    """The running learner stops and answers on. One with the new settings continues; a rollback takes it back."""
    old = await asyncio.to_thread(run("[model]\neta = 1.0\n").up)
    events = [event({"a": 1}, 1), event({"a": -4}, 1)]
    await producer.send_and_wait(topic, events[0])
    await asyncio.to_thread(old.wait_for, 1)
    follower = await asyncio.to_thread(run("[model]\neta = 0.5\n", "--no-learn").up)
    for flags, code, part in ([], 2, "eta: 1.0 -> 0.5"), (["--yes"], 0, "eta: 1.0 -> 0.5"), (["--yes"], 0, "nothing"):
        result = perceptron("-c", str(follower.config), "amend", "-m", topic, "--redis", old.redis_url, *flags)
        assert (result.returncode, part in one_line(result.stdout + result.stderr)) == (code, True), result
    await producer.send_and_wait(topic, events[1])
    reason = await asyncio.to_thread(wait, lambda: old.model()["stopped"], "it has stopped")
    assert "eta: 0.5 -> 1.0" in reason
    for process in old, follower:
        await asyncio.to_thread(wait, lambda: process.model()["identity"]["eta"] == 0.5, "it follows")  # noqa: B023
        assert (await asyncio.to_thread(process.predict, {"features": {"a": 1}})).json()["version"] == 3
    assert await asyncio.to_thread(old.stop) == 0
    new = await asyncio.to_thread(run("[model]\neta = 0.5\n").up)
    model, fold = await asyncio.to_thread(new.wait_for, 2), Fold().fold(events[:1])
    fold.eta = 0.5
    assert_model_is_fold(fold.fold(events[1:]), model, new.weights())
    assert (await tool.verify())["replayed_state_digest"] == model["state_digest"]
    await tool.roll_back(2)
    await asyncio.to_thread(wait, lambda: new.model()["identity"]["eta"] == 1.0, "it follows the version before")
    assert (await tool.verify())["replayed_events"] == 1


def test_a_replica_serves_without_kafka(run: Run, kafka: Server, redis: Server, topic: str, tmp_path: Path) -> None:
    learner = run().up()
    with contextlib.closing(Running(topic, NOWHERE, redis.address, tmp_path, "", "--no-learn")) as replica:
        replica.up()
        raw = b"\n".join(event({"a": 1, "b": -i}, i % 2) for i in range(50))
        assert perceptron("produce", "-", "-t", topic, "-b", kafka.address, stdin=raw, cwd=tmp_path).returncode == 0
        model = learner.wait_for(50)
        wait(lambda: replica.model()["digest"] == model["digest"], "the replica has followed")
        followed = replica.model()
        assert (followed["learning_here"], followed["state_digest"]) == (False, model["state_digest"])
        question = {"features": {"a": 2, "b": 3}}
        assert replica.predict(question).json() == learner.predict(question).json()
        assert f'perceptron_events_total{{model="{topic}"}}' not in replica.metrics()
        assert replica.stop() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("dependency", ["redis", "kafka"])
def test_sigterm_is_done_within_10_seconds_although_a_server_hangs(
    run: Run, own_kafka: Server, topic: str, tmp_path: Path, dependency: str
) -> None:
    """The exit code is 0, and the next start learns again the events of the lost last save."""
    with servers.start_redis(tmp_path) as redis:
        addresses = {"redis_address": redis.address, "kafka_address": own_kafka.address}
        service = run(**addresses).up()
        produce = ["produce", "-", "-t", topic, "-b", own_kafka.address]
        assert perceptron(*produce, stdin=event({"a": 1}, 1), cwd=tmp_path).returncode == 0
        service.wait_for(1)
        with hanging(redis if dependency == "redis" else own_kafka):
            if dependency == "redis":
                assert perceptron(*produce, stdin=event({"b": 1}, 0), cwd=tmp_path).returncode == 0
                wait(lambda: service.model()["events"] == 2, "it learns on")
            assert service.stop(seconds=10) == 0, service.log.read_text()
        assert "Traceback" not in service.log.read_text()
        events = 2 if dependency == "redis" else 1
        assert run(**addresses).up().wait_for(events)["events"] == events
