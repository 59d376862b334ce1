"""The tools that ask and look, as a new user meets them."""

import asyncio
import json
from pathlib import Path

from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server, free_port
from tests.conftest import Run, create_topic, event, perceptron

NOWHERE = "127.0.0.1:1"


async def test_predict_asks_a_running_service(run: Run, producer: AIOKafkaProducer, topic: str, tmp_path: Path) -> None:
    service = await asyncio.to_thread(run().up)
    await producer.send_and_wait(topic, event({"a": 2, "b": 1}, 1))
    await asyncio.to_thread(service.wait_for, 1)
    url = f"http://127.0.0.1:{service.port}"
    lines = b'{"features": {"a": 1, "z": 5}}\n\n{"b": -3}\n'
    command = ["predict", "-t", topic, "--url", url]
    done = perceptron(*command, stdin=lines, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\t3\t(1 unknown feature)\n-1\t-2\n")
    file = tmp_path / "lines.jsonl"
    file.write_bytes(lines * 700)
    done = perceptron(*command, str(file), "--json", cwd=tmp_path)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 1400
    assert answers[1] == {"label": -1, "score": -2.0, "unknown_features": 0}
    done = perceptron(*command, "-", "--explain", stdin=b'{"a": 1}', cwd=tmp_path)
    assert done.stdout == "1\t3\n\t+2\ta\t1 x 2\n\t+1\tbias\t1 x 1\n"
    for bad, part in (
        (b'{"a": 1}\n{"a": "x"}\n', 'standard input, line 2: feature "a" must be a number, got a string'),
        (b'{"a": 1}\n[1\n', "standard input, line 2: not JSON"),
        (b"", "no line to predict"),
    ):
        done = perceptron(*command, stdin=bad, cwd=tmp_path)
        assert done.returncode == 1
        assert part in done.stderr
        assert done.stderr.count("\n") == 1
    done = perceptron("predict", "-t", "none", "--url", url, stdin=lines, cwd=tmp_path)
    assert done.returncode == 1
    assert "404 there is no model of this name" in done.stderr
    done = perceptron("predict", "-t", topic, "--url", f"http://{NOWHERE}", stdin=lines, cwd=tmp_path)
    assert done.returncode == 3
    assert "Connection refused" in done.stderr

    assert perceptron("healthcheck", "--url", url, cwd=tmp_path).stdout == "alive\n"
    ready = perceptron("healthcheck", "--ready", cwd=tmp_path, env={"PERCEPTRON_HTTP__PORT": str(service.port)})
    assert (ready.returncode, ready.stdout) == (0, "ready\n")
    dead = perceptron("healthcheck", cwd=tmp_path, env={"PERCEPTRON_HTTP__PORT": str(free_port())})
    assert dead.returncode == 1
    assert dead.stderr.count("\n") == 1


def test_config_shows_values_and_origins_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "perceptron.toml").write_text('topics = ["x"]\n[kafka]\ngroup_id = "mine"\n[model]\neta = 0.5\n')
    environment = {"PERCEPTRON_REDIS__URL": "redis://me:hush@r:1/0", "PERCEPTRON_MODELS__X__WINDOW": "7"}
    done = perceptron("config", "--json", cwd=tmp_path, env=environment)
    shown = json.loads(done.stdout)
    assert shown["topics"] == {"value": ["x"], "origin": "perceptron.toml"}
    assert shown["kafka.group_id"] == {"value": "mine", "origin": "perceptron.toml"}
    assert shown["models.x.eta"] == {"value": 0.5, "origin": "perceptron.toml"}
    assert shown["models.x.window"] == {"value": 7, "origin": "environment PERCEPTRON_MODELS__X__WINDOW"}
    assert shown["redis.url"] == {"value": "redis://me:***@r:1/0", "origin": "environment PERCEPTRON_REDIS__URL"}
    assert shown["http.port"] == {"value": 8000, "origin": "default"}
    text = perceptron("config", "-t", "y", cwd=tmp_path, env=environment)
    assert "hush" not in text.stdout + done.stdout
    assert any(line.split() == ["topics", "['y']", "flag"] for line in text.stdout.splitlines())


def test_check_says_a_line_for_each_thing(kafka: Server, redis: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    url = f"redis://{redis.address}/0"
    done = perceptron("check", "-t", topic, "-b", kafka.address, "--redis", url, cwd=tmp_path)
    assert done.returncode == 1
    assert [line[:4] for line in done.stdout.splitlines()] == ["ok  ", "ok  ", "ok  ", "ok  ", "fail"]
    assert f"topic {topic}.dead-letters does not exist" in done.stdout
    asyncio.run(create_topic(kafka, f"{topic}.dead-letters"))
    assert perceptron("check", "-t", topic, "-b", kafka.address, "--redis", url, cwd=tmp_path).returncode == 0
    done = perceptron("check", "-t", topic, "-b", NOWHERE, "--redis", f"redis://{NOWHERE}/0", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout.count("Connection refused") == 2
