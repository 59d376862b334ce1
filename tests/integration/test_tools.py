"""The commands predict, healthcheck, config, check and dead-letters, as a new user meets them."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server, free_port
from tests.conftest import Run, create_topic, event, one_line, perceptron, read_all

NOWHERE = "127.0.0.1:1"


async def test_predict_asks_a_running_service(run: Run, producer: AIOKafkaProducer, topic: str, tmp_path: Path) -> None:
    """A token is sent, and is not in the log; bad lines are named."""
    token = "a-token-of-ours-0123"  # noqa: S105 - only for this test
    (tmp_path / "tokens").write_text(f"{token}\n")
    service = await asyncio.to_thread(run(f'[http]\ntoken_file = "{tmp_path / "tokens"}"\n').up)
    service.http.headers["authorization"] = f"Bearer {token}"
    await producer.send_and_wait(topic, event({"a": 2, "b": 1}, 1))
    await asyncio.to_thread(service.wait_for, 1)
    url, lines = f"http://127.0.0.1:{service.port}", b'{"features": {"a": 1, "z": 5}}\n\n{"b": -3}\n'
    environment = {"PERCEPTRON_HTTP__TOKEN_FILE": str(tmp_path / "tokens"), "PERCEPTRON_HTTP__PORT": str(service.port)}

    def predict(*flags: str, stdin: bytes | None = lines, name: str = topic, env: dict[str, str] = environment) -> Any:
        return perceptron("predict", "-t", name, "--url", url, *flags, stdin=stdin, cwd=tmp_path, env=env)

    result = predict()
    assert (result.returncode, result.stdout) == (0, "1\t3\t(1 unknown feature)\n-1\t-2\n")
    (tmp_path / "lines.jsonl").write_bytes(lines * 700)
    answers = [json.loads(line) for line in predict("lines.jsonl", "--json", stdin=None).stdout.splitlines()]
    assert len(answers) == 1400
    assert answers[1] == {"label": -1, "score": -2.0, "unknown_features": 0, "missing_features": 0}
    assert predict("--explain", stdin=b'{"a": 1}').stdout == "1\t3\n\t+2\ta\t1 x 2\n\t+1\tbias\t1 x 1\n"
    result = predict(stdin=b'{"a": 1}\n{"a": 1e99}\n')
    assert (result.returncode, result.stdout) == (1, "1\t3\n"), "the line before the bad one is answered"
    assert 'standard input, line 2: feature "a" is beyond ±1e+30' in one_line(result.stderr)
    result = predict(name="none")
    assert (result.returncode, "404 there is no model of this name" in one_line(result.stderr)) == (1, True), result
    result = predict(env={})
    assert (result.returncode, result.stdout, "401 send a token" in result.stderr) == (1, "", True)
    assert token not in service.log.read_text()

    address = url.removeprefix("http://")
    assert perceptron("healthcheck", "--url", address, cwd=tmp_path).stdout == "alive\n"
    assert perceptron("healthcheck", "--ready", cwd=tmp_path, env=environment).stdout == "ready\n"
    result = perceptron("healthcheck", cwd=tmp_path, env={"PERCEPTRON_HTTP__PORT": str(free_port())})
    assert (result.returncode, bool(one_line(result.stderr))) == (1, True)


def test_config_shows_values_and_origins_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "perceptron.toml").write_text('topics = ["x"]\n[model]\neta = 0.5\n')
    environment = {"PERCEPTRON_REDIS__URL": "redis://me:hush@r:1/0", "PERCEPTRON_MODELS__X__WINDOW": "7"}
    result = perceptron("config", "--json", cwd=tmp_path, env=environment)
    output = json.loads(result.stdout)
    assert output["models.x.eta"] == {"value": 0.5, "origin": "perceptron.toml"}
    assert output["models.x.window"] == {"value": 7, "origin": "environment PERCEPTRON_MODELS__X__WINDOW"}
    assert output["redis.url"] == {"value": "redis://***@r:1/0", "origin": "environment PERCEPTRON_REDIS__URL"}
    text = perceptron("config", "-t", "y", cwd=tmp_path, env=environment)
    assert "hush" not in text.stdout + result.stdout
    assert any(line.split() == ["topics", '["y"]', "flag"] for line in text.stdout.splitlines())


def test_check_prints_a_line_for_each_check(kafka: Server, redis: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    url = f"redis://{redis.address}/0"
    result = perceptron("check", "-t", topic, "-b", kafka.address, "--redis", url, cwd=tmp_path)
    assert result.returncode == 1
    assert [line[:4] for line in result.stdout.splitlines()] == ["ok  ", "ok  ", "ok  ", "ok  ", "ok  ", "fail", "ok  "]
    assert f"topic {topic}.dead-letters does not exist" in result.stdout
    assert result.stdout.endswith(f"ok    topic {topic}: no records yet\n")
    asyncio.run(create_topic(kafka, f"{topic}.dead-letters"))
    assert perceptron("check", "-t", topic, "-b", kafka.address, "--redis", url, cwd=tmp_path).returncode == 0
    result = perceptron("check", "-t", topic, "-b", NOWHERE, "--redis", f"redis://{NOWHERE}/0", cwd=tmp_path)
    assert result.returncode == 3
    assert result.stdout.count("Connection refused") == 2


async def test_dead_letters_are_listed_shown_and_sent_again_once(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """A model with labels 0 and 1 is reset to words; only the letters that this mends are sent again, unchanged."""

    def call(command: str, *arguments: str, config: Path = Path("/dev/null")) -> Any:
        flags = "-t", topic, "-b", kafka.address
        return perceptron("-c", str(config), "dead-letters", command, *arguments, *flags, cwd=tmp_path)

    answer = call("list")
    assert answer.returncode == 1
    assert f"there is no topic {topic}.dead-letters" in answer.stderr
    first = await asyncio.to_thread(run().up)
    headers = [("trace", b"7"), ("reason", b"mine"), ("headers", b"9")]
    words = event({"a": 1}, "yes")
    await producer.send_and_wait(topic, words, key=b"k", headers=headers)
    await producer.send_and_wait(topic, b"\xff bad")
    await producer.send_and_wait(topic, event({"a": 2}, "no"))
    await asyncio.to_thread(first.wait_for, 3)
    assert await asyncio.to_thread(first.stop) == 0
    listing = call("list")
    assert (listing.returncode, listing.stderr) == (0, f"3 dead letters of {topic}\n")
    assert [line.split("  ")[0] for line in listing.stdout.splitlines()] == [f"{topic}-0-{i}" for i in range(3)]
    assert "unknown-label: 'label' must be one of" in listing.stdout
    assert len(call("list", "--reason", "not-json").stdout.splitlines()) == 1
    assert json.loads(call("list", "--json", "--limit", "1").stdout)["offset"] == "2"
    letter = call("show", f"{topic}-0-0").stdout.splitlines()
    assert {"reason: unknown-label", "header trace: 7", "header reason: mine", "key: k", words.decode()} <= set(letter)
    assert r"\xff bad" in call("show", f"{topic}-0-1").stdout
    assert "no dead letter x-0-9" in call("retry", "x-0-9").stderr
    url = f"redis://{redis.address}/0"
    assert perceptron("reset", "-t", topic, "--redis", url, "--yes", cwd=tmp_path).returncode == 0
    second = await asyncio.to_thread(run('[model]\nlabels = ["no", "yes"]\n', "--start-at", "latest").up)
    early = call("retry", "--reason", "unknown-label")  # with the old settings
    assert early.stderr == f"0 of 2 sent again to {topic}; 2 would fail again: unknown-label\n"
    retry = call("retry", "--all", config=second.config)
    sent, left, sent_too = retry.stdout.splitlines()
    assert (sent, sent_too) == (f"{topic}-0-0  sent as {topic}-0-3", f"{topic}-0-2  sent as {topic}-0-4")
    assert left.startswith(f"{topic}-0-1  left alone: it would fail again (not-json: ")
    assert retry.stderr == f"2 of 3 sent again to {topic}; 1 would fail again: not-json\n"
    repeat = call("retry", f"{topic}-0-0")
    assert f"left alone: sent before, as {topic}-0-3" in repeat.stdout
    assert repeat.stderr == f"0 of 1 sent again to {topic}\n"
    model = await asyncio.to_thread(second.wait_for, 5)
    assert (model["events"], model["covered"]) == (2, {"0": [[3, 5]]})
    record = (await read_all(kafka, topic))[3]
    assert (record.value, record.key, list(record.headers)) == (words, b"k", headers)
    assert f"(retried as {topic}-0-3)" in call("list").stdout
