"""The command line and the process, as a new user meets them, bad input included."""

import asyncio
import gzip
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded import servers
from service.embedded.servers import Server, free_port
from tests.conftest import Run, clean_environment, create_topic, event, perceptron, read_all, trim, wait

NOWHERE = "127.0.0.1:1"


def one_line(text: str) -> str:
    """The only line of an error output."""
    assert "Traceback" not in text
    assert text.count("\n") == 1, text
    return text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run"], "topics: name at least one"),
        (["run", "-t", "a/b"], "topics: 'a/b' is no topic name"),
        (["run", "-t", "x", "-p", "99999"], "http.port"),
        (["run", "-t", "x", "--redis", "localhost"], "redis.url"),
        (["run", "-t", "x", "--redis", "redis://localhost:99999/0"], "redis.url"),
        (["run", "-t", "x", "-b", "localhost"], "kafka.bootstrap_servers"),
        (["run", "-t", "x", "--start-at", "noon"], "start_at: expected earliest"),
        (["-c", "missing.toml", "run", "-t", "x"], "missing.toml: no such file"),
        (["inspect"], "topics: name one topic with -t TOPIC"),
        (["produce", "missing.jsonl", "-t", "x"], "missing.jsonl: No such file or directory"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(arguments: list[str], part: str, tmp_path: Path) -> None:
    done = perceptron(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert part in one_line(done.stderr)


def test_a_port_in_use_is_one_line(kafka: Server, tmp_path: Path) -> None:
    done = perceptron("run", "-t", "x", "-p", str(kafka.port), cwd=tmp_path)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{kafka.port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_fail_fast_exits_3_and_names_what_is_missing(kafka: Server, redis: Server, tmp_path: Path) -> None:
    port = str(free_port())
    for b, r, part in (
        (kafka.address, NOWHERE, f"Redis at {NOWHERE}/0: Connection refused"),
        (NOWHERE, redis.address, f"Kafka at {NOWHERE}: Connection refused"),
    ):
        done = perceptron(
            "run", "-t", "x", "-b", b, "--redis", f"redis://{r}/0", "-p", port, "--fail-fast", cwd=tmp_path
        )
        assert done.returncode == 3, done.stderr
        assert done.stderr.splitlines()[-1].startswith(f"perceptron: {part}")
        assert "Traceback" not in done.stderr


def test_an_absent_redis_is_waited_for(run: Run) -> None:
    """One line with address and cause, not one a second; alive, unready, and 503 meanwhile; SIGTERM still ends it."""
    service = run("", redis_address=NOWHERE)
    wait(lambda: "trying again" in service.log.read_text(), "it says what is missing")
    assert service.http.get("/livez").status_code == 200
    assert service.http.get("/readyz").status_code == 503
    assert service.predict({"features": {}}).status_code == 503
    assert service.stop() == 0
    assert service.log.read_text().count(f"Redis at {NOWHERE}/0") == 1


async def test_a_topic_that_does_not_exist_is_waited_for(
    kafka: Server, redis: Server, topic: str, tmp_path: Path
) -> None:
    from tests.conftest import Running

    service = Running(topic, kafka.address, redis.address, tmp_path, "")
    try:
        await asyncio.to_thread(wait, lambda: "waiting for the topic to exist" in service.log.read_text(), "it says so")
        await create_topic(kafka, topic)
        await asyncio.to_thread(service.up)
        assert f"{topic}.dead-letters" in service.log.read_text()
    finally:
        service.kill()
        service.http.close()


async def test_a_changed_identity_is_refused_and_reset_is_the_way_out(
    run: Run, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    first = await asyncio.to_thread(run("[model]\neta = 1.0\n").up)
    await producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(first.wait_for, 1)
    assert await asyncio.to_thread(first.stop) == 0
    second = run("[model]\neta = 0.5\n")
    assert await asyncio.to_thread(second.process.wait, 30) == 2
    said = second.log.read_text().splitlines()[-1]
    assert "eta: 1.0 -> 0.5" in said
    assert f"perceptron reset -t {topic} --yes" in said
    url = f"redis://{redis.address}/0"
    refused = perceptron("reset", "-t", topic, "--redis", url, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--yes" in one_line(refused.stderr)
    done = perceptron("reset", "-t", topic, "--redis", url, "--yes", cwd=tmp_path)
    assert done.returncode == 0
    assert "forgotten" in done.stdout
    again = perceptron("reset", "-t", topic, "--redis", url, "--yes", cwd=tmp_path)
    assert again.returncode == 1
    assert "nothing to reset" in one_line(again.stderr)
    third = await asyncio.to_thread(run("[model]\neta = 0.5\n").up)
    model = await asyncio.to_thread(third.wait_for, 1)
    assert model["identity"]["eta"] == 0.5
    assert await asyncio.to_thread(third.vector) == [0.5, 0.5]


async def test_reset_under_a_running_learner_begins_anew(
    run: Run, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Though nothing comes, it finds out, drops its state, and learns the log again from 0."""
    service = await asyncio.to_thread(run().up)
    await producer.send_and_wait(topic, event({"a": 1}, 1))
    await asyncio.to_thread(service.wait_for, 1)
    done = perceptron("reset", "-t", topic, "--redis", f"redis://{redis.address}/0", "--yes", cwd=tmp_path)
    assert done.returncode == 0
    replaced = f'perceptron_rewinds_total{{cause="replaced",model="{topic}"}}'
    await asyncio.to_thread(wait, lambda: service.metrics()[replaced] == 1, "it finds that its head is gone")
    await asyncio.to_thread(service.wait_for, 1)
    await producer.send_and_wait(topic, event({"b": 1}, 0))
    model = await asyncio.to_thread(service.wait_for, 2)
    assert model["events"] == 2
    assert "state dropped" in service.log.read_text()


async def test_a_log_that_does_not_begin_at_0_needs_a_decision(
    kafka: Server, run: Run, producer: AIOKafkaProducer, topic: str
) -> None:
    await create_topic(kafka, topic)
    for i in range(10):
        await producer.send_and_wait(topic, event({f"n{i}": 1}, i % 2))
    await trim(kafka, topic, 4)
    stopped = run()
    await asyncio.to_thread(wait, lambda: "--start-at" in stopped.log.read_text(), "it says what decides")
    assert "holds 4 to 10" in stopped.log.read_text()
    assert stopped.http.get("/readyz").status_code == 503
    assert await asyncio.to_thread(stopped.stop) == 0
    service = await asyncio.to_thread(run("", "--start-at", "0:6").up)
    model = await asyncio.to_thread(service.wait_for, 10)
    assert model["covered"] == {"0": [[6, 10]]}
    assert model["events"] == 4


def test_produce_reads_json_lines_gzip_and_standard_input(kafka: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    events = [event({"a": i}, i % 2) for i in range(1200)]
    plain, zipped = tmp_path / "e.jsonl", tmp_path / "e.jsonl.gz"
    plain.write_bytes(b"\n".join(events))
    zipped.write_bytes(gzip.compress(b"\n\n".join(events) + b"\n"))
    command = ["produce", "-t", topic, "-b", kafka.address]
    for done in (
        perceptron(*command, str(plain), cwd=tmp_path),
        perceptron(*command, str(zipped), cwd=tmp_path),
        perceptron(*command, "-", stdin=zipped.read_bytes(), cwd=tmp_path),
        perceptron(*command, "-", stdin=plain.read_bytes(), cwd=tmp_path),
    ):
        assert (done.returncode, done.stderr) == (0, f"1200 events sent to {topic}\n")
    assert [r.value for r in asyncio.run(read_all(kafka, topic))] == events * 4


CSV_SETTINGS = '[model]\nfeatures = "positional"\ndimension = 2\n'


@pytest.mark.parametrize(
    ("text", "settings", "label", "part"),
    [
        ('{"features":{"a":1},"label":1}\n\n{"features":{"a":x},"label":1}\n', "", None, "line 3: not-json"),
        ('{"features":{"a":1}}\n', "", None, "line 1: missing-field: 'label' is missing (0 events before it sent)"),
        (
            "a,b,y\n1,2,1\n1,two,0\n",
            "",
            "y",
            "line 3: column 'b': expected a number, got 'two' (1 event before it sent)",
        ),
        ("a,b,y\n1,inf,1\n", "", "y", "line 2: column 'b': expected a finite number"),
        ("a,b,y\n1,2\n", "", "y", "line 2: 2 cells, the header has 3"),
        ("a,b,y\n1,2,maybe\n", "", "y", "line 2: unknown-label"),
        ("a,b,y\n1,2,1\n", "", "z", "line 1: there is no column 'z'; the columns are a, b, y"),
        ("a,a,y\n1,2,1\n", "", "y", "line 1: two columns have the same name"),
        ("", "", "y", "line 1: there is no column 'y'; the columns are none"),
        ("a,b,c,y\n1,2,3,1\n", CSV_SETTINGS, "y", "3 feature columns, the model's dimension is 2"),
        ("a,b,y\n1,,1\n", CSV_SETTINGS, "y", "line 2: column 'b': expected a number, got ''"),
    ],
)
def test_produce_names_the_bad_line(
    kafka: Server, tmp_path: Path, text: str, settings: str, label: str | None, part: str
) -> None:
    asyncio.run(_ensure(kafka, "bad-lines"))
    file, config = tmp_path / "file", tmp_path / "s.toml"
    file.write_text(text)
    config.write_text(settings)
    more = ["--label", label] if label else []
    done = perceptron("-c", str(config), "produce", str(file), "-t", "bad-lines", "-b", kafka.address, *more)
    assert done.returncode == 1
    assert part in one_line(done.stderr)


async def _ensure(kafka: Server, topic: str) -> None:
    from service.streaming.brokers import create_topics

    await create_topics(kafka.address, [topic])


def test_a_corrupt_gzip_is_one_line(kafka: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    packed = bytearray(gzip.compress(b"\n".join(event({"a": i}, 1) for i in range(100))))
    packed[10] ^= 0xFF
    for name, data in (("bad.gz", bytes(packed)), ("short.gz", gzip.compress(b"x" * 100)[:-10])):
        (tmp_path / name).write_bytes(data)
        done = perceptron("produce", name, "-t", topic, "-b", kafka.address, cwd=tmp_path)
        assert done.returncode == 1
        assert f"{name}, after line 0" in one_line(done.stderr)


def test_ctrl_c_ends_produce_although_its_input_stays_open(kafka: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    # As from a terminal: where the tests run in the background, SIGINT comes to them ignored.
    start = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from service.cli import main; main()"
    command = [sys.executable, "-c", start, "produce", "-", "-t", topic, "-b", kafka.address]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        cwd=tmp_path,
    ) as process:
        assert process.stdin
        assert process.stderr
        try:
            process.stdin.write(event({"a": 1}, 1) + b"\n")
            process.stdin.flush()
            wait(lambda: asyncio.run(read_all(kafka, topic)), "the event is there although the input goes on")
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_produce_says_when_the_topic_or_kafka_is_not_there(kafka: Server, topic: str, tmp_path: Path) -> None:
    raw = event({}, 1)
    done = perceptron("produce", "-", "-t", topic, "-b", kafka.address, stdin=raw, cwd=tmp_path)
    assert done.returncode == 2
    assert f"topic {topic} does not exist" in one_line(done.stderr)
    done = perceptron("produce", "-", "-t", topic, "-b", NOWHERE, stdin=raw, cwd=tmp_path)
    assert done.returncode == 3
    assert f"Kafka at {NOWHERE}: Connection refused" in one_line(done.stderr)


def test_produce_shows_progress_on_a_terminal(kafka: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    file = tmp_path / "e.jsonl"
    file.write_bytes(b"\n".join(event({"a": i}, 1) for i in range(3000)))
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "service", "produce", str(file), "-t", topic, "-b", kafka.address]
    process = subprocess.Popen(command, stderr=child, env=clean_environment(TERM="xterm"))
    os.close(child)
    shown = b""
    try:
        while part := os.read(parent, 4096):
            shown += part
    except OSError:  # the terminal's end: the process has closed it
        pass
    os.close(parent)
    assert process.wait() == 0
    assert b"3000 events" in shown
    assert b"100%" in shown


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
    for part in (topic, "0 to 50", f"{model['mistakes']} (", model["state_digest"], "[red]b"):
        assert part in done.stdout, done.stdout
    import json

    shown = json.loads(perceptron("inspect", "-t", topic, "--redis", url, "--json", cwd=tmp_path).stdout)
    assert shown["state_digest"] == model["state_digest"]
    assert shown["bias"] == service.weights()["bias"]
    assert {w["name"] for w in shown["largest_weights"]} == {"a", "[red]b"}


def test_a_replica_follows_and_serves_without_kafka(
    run: Run, kafka: Server, redis: Server, topic: str, tmp_path: Path
) -> None:
    from tests.conftest import Running

    learner = run().up()
    replica = Running(topic, NOWHERE, redis.address, tmp_path, "", "--no-learn").up()
    try:
        raw = b"\n".join(event({"a": 1, "b": -i}, i % 2) for i in range(50))
        assert perceptron("produce", "-", "-t", topic, "-b", kafka.address, stdin=raw, cwd=tmp_path).returncode == 0
        model = learner.wait_for(50)
        wait(lambda: replica.model()["digest"] == model["digest"], "the replica has followed")
        about = replica.model()
        assert (about["learning_here"], about["state_digest"]) == (False, model["state_digest"])
        question = {"features": {"a": 2, "b": 3}}
        assert replica.predict(question).json() == learner.predict(question).json()
        assert f'perceptron_events_total{{model="{topic}"}}' not in replica.metrics()
        assert replica.stop() == 0
    finally:
        replica.kill()
        replica.http.close()


def test_a_dead_task_ends_the_process(kafka: Server, topic: str, tmp_path: Path) -> None:
    """A defect in one task ends the whole process with 1: nothing goes on half alive."""
    code = (
        "import service.runtime, service.cli\n"
        "async def broken(self): raise RuntimeError('defect')\n"
        "service.runtime.Service._measure_loop = broken\n"
        "service.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "-t", topic, "-b", kafka.address, "-p", str(free_port())],
        capture_output=True, text=True, timeout=30, env=clean_environment(), check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "defect" in done.stderr


def test_logs_are_json_when_asked(run: Run) -> None:
    import json

    service = run('log = "json"\n').up()
    assert service.stop(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert {"listening", "learning", "stopping", "stopped"} <= {line["event"] for line in lines}
    assert all(set(line) >= {"event", "level", "timestamp"} for line in lines)


@pytest.mark.parametrize("hung", ["redis", "kafka"])
def test_sigterm_is_done_within_10_seconds_although_a_server_hangs(
    run: Run, kafka: Server, topic: str, tmp_path: Path, hung: str
) -> None:
    """A lost last save costs a rewind, no more: warn, exit 0, and the next start learns it again."""
    (tmp_path / "redis").mkdir()
    with servers.redis(tmp_path / "redis") as own:
        service = run(redis_address=own.address).up()
        produce = ["produce", "-", "-t", topic, "-b", kafka.address]
        assert perceptron(*produce, stdin=event({"a": 1}, 1), cwd=tmp_path).returncode == 0
        service.wait_for(1)
        server = own if hung == "redis" else kafka
        assert server.process
        if hung == "redis":
            server.process.send_signal(signal.SIGSTOP)
            assert perceptron(*produce, stdin=event({"b": 1}, 0), cwd=tmp_path).returncode == 0
            wait(lambda: service.model()["events"] == 2, "it learns on")
        else:
            server.process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        try:
            assert service.stop() == 0, service.log.read_text()
            assert time.monotonic() - started < 10
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert "Traceback" not in service.log.read_text()
        events = 2 if hung == "redis" else 1
        assert run(redis_address=own.address).up().wait_for(events)["events"] == events


def test_bash_completes_commands_options_and_topics(tmp_path: Path) -> None:
    """A real bash, with the script that `--show-completion` prints for it."""
    (tmp_path / "perceptron.toml").write_text('topics = ["clicks", "^pattern"]\n[models.churn]\n')
    (tmp_path / "bad.toml").write_text("no = toml = at all")
    script = """
        eval "$(_PERCEPTRON_COMPLETE=source_bash perceptron)"
        type=$(complete -p perceptron)
        complete() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); ${name} perceptron; echo "${COMPREPLY[*]}"; }
        name=${type#*-F }; name=${name%% *}
        complete perceptron pro
        complete perceptron produce - --dry
        complete perceptron produce - --format s
        complete perceptron inspect -t ''
        complete perceptron -c bad.toml inspect -t c
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = clean_environment(PATH=path)
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert done.stderr == ""
    assert done.stdout.replace("\n", " ").split(" ")[:-1] == [
        "produce", "--dry-run", "svmlight", "churn", "clicks", "",
    ]  # fmt: skip
