"""`perceptron produce` to a real Kafka: formats, keys, pace, count and a dry run."""

import asyncio
import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.embedded.servers import Server
from tests.conftest import (
    DEADLINE,
    clean_environment,
    create_topic,
    event,
    hanging,
    one_line,
    perceptron,
    read_all,
    wait,
)

NOWHERE = "127.0.0.1:1"


@contextmanager
def open_produce(*arguments: str, cwd: Path, patch: str = "") -> Iterator[Any]:
    """The process of `perceptron produce - …` with its input open, as from a terminal: Ctrl-C is not ignored."""
    start = (
        f"import signal as s; s.signal(s.SIGINT, s.default_int_handler); {patch}import service.cli.app as a; a.main()"
    )
    command = [sys.executable, "-c", start, "produce", "-", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, env=clean_environment(), cwd=cwd) as process:
        try:
            yield process
        finally:
            process.kill()


def test_produce_reads_json_lines_gzip_and_standard_input(kafka: Server, topic: str, tmp_path: Path) -> None:
    """The command sends part of a file on request, and names a bad line and where to continue."""
    asyncio.run(create_topic(kafka, topic))
    events = [event({"a": i}, i % 2) for i in range(1200)]
    plain, zipped, bad = tmp_path / "e.jsonl", tmp_path / "e.jsonl.gz", tmp_path / "bad.csv"
    plain.write_bytes(b"\n".join(events))
    zipped.write_bytes(gzip.compress(b"\n\n".join(events) + b"\n"))
    bad.write_text("a,b,y\n1,2,1\n1,inf,0\n")
    command = ["produce", "-t", topic, "-b", kafka.address]
    for result in (
        perceptron(*command, str(plain), cwd=tmp_path),
        perceptron(*command, "-", stdin=zipped.read_bytes(), cwd=tmp_path),
    ):
        assert (result.returncode, result.stderr) == (0, f"1,200 events sent to {topic}\n")
    for part in (["--count", "400"], ["--skip", "400", "--count", "300"], ["--skip", "700"], ["--skip", "1200"]):
        assert perceptron(*command, *part, str(zipped), cwd=tmp_path).returncode == 0
    assert perceptron(*command, "--skip", "1201", str(plain), cwd=tmp_path).returncode == 1
    assert [r.value for r in asyncio.run(read_all(kafka, topic))] == events * 3
    assert perceptron(*command, "--as", "msgpack", "--count", "1", str(plain), cwd=tmp_path).returncode == 0
    record = asyncio.run(read_all(kafka, topic))[-1]
    assert record.headers == (("content-type", b"application/msgpack"),)
    assert msgspec.msgpack.decode(record.value) == json.loads(events[0])
    result = perceptron(*command, str(bad), "--label", "y", cwd=tmp_path)
    assert result.returncode == 1
    error = "line 3: column 'b': expected a finite number, got 'inf' (1 event sent; --skip 1 goes on)"
    assert error in one_line(result.stderr)


@pytest.mark.nightly
def test_a_topic_that_is_about_to_exist_is_waited_for(kafka: Server, topic: str, tmp_path: Path) -> None:
    """The command waits for a topic that a process may be about to create, not for a Kafka that refuses."""
    with open_produce("-t", topic, "-b", kafka.address, cwd=tmp_path) as process:
        process.stdin.write(event({"a": 1}, 1) + b"\n")
        process.stdin.close()
        error = process.stderr.readline().decode()
        assert error == f"topic {topic} does not exist at {kafka.address}: waiting 30 seconds for it\n"
        asyncio.run(create_topic(kafka, topic))
        assert process.wait(DEADLINE) == 0
    assert len(asyncio.run(read_all(kafka, topic))) == 1
    raw = event({}, 1)
    result = perceptron("produce", "-", "-t", f"{topic}s", "-b", kafka.address, stdin=raw, cwd=tmp_path)
    assert result.returncode == 2
    notice, error = result.stderr.splitlines()
    assert notice == f"topic {topic}s does not exist at {kafka.address}: waiting 30 seconds for it"
    assert f"topic {topic}s does not exist at {kafka.address}: create it, or start" in error
    result = perceptron("produce", "-", "-t", topic, "-b", NOWHERE, stdin=raw, cwd=tmp_path)
    assert (result.returncode, f"Kafka at {NOWHERE}: Connection refused" in one_line(result.stderr)) == (3, True)


def test_a_key_chooses_the_partition(kafka: Server, topic: str, tmp_path: Path) -> None:
    """Equal keys go to one partition in order, and all partitions are used."""
    asyncio.run(create_topic(kafka, topic, partitions=3))
    raw = b"\n".join(event({"a": i}, 1, id=f"user-{i % 20}") for i in range(400))
    result = perceptron("produce", "-", "-t", topic, "-b", kafka.address, "--key", "id", stdin=raw, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    partitions: dict[bytes, int] = {}
    order: dict[bytes, list[int]] = {}
    for partition in range(3):
        records: list[Any] = asyncio.run(read_all(kafka, topic, partition))
        assert records
        for record in records:
            assert partitions.setdefault(record.key, partition) == partition
            assert json.loads(record.value)["id"].encode() == record.key
            order.setdefault(record.key, []).append(json.loads(record.value)["features"]["a"])
    assert order == {b"user-%d" % i: list(range(i, 400, 20)) for i in range(20)}


@pytest.mark.nightly
def test_ctrl_c_ends_a_slow_pace_at_once_and_says_what_was_sent(kafka: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    with open_produce("-t", topic, "-b", kafka.address, "--rate", "0.01", cwd=tmp_path) as process:
        process.stdin.write(b"\n".join(event({"a": i}, 1) for i in range(9)) + b"\n")
        process.stdin.flush()
        wait(lambda: asyncio.run(read_all(kafka, topic)), "the first event is there")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
        assert process.stderr.read().decode() == f"interrupted: 1 event sent to {topic}; --skip 1 goes on\n"


@pytest.mark.nightly
def test_a_kafka_that_hangs_is_given_up(own_kafka: Server, topic: str, tmp_path: Path) -> None:
    """The command reports after a while (shorter here) that the broker does not answer, and where to continue."""
    kafka = own_kafka
    asyncio.run(create_topic(kafka, topic))
    options = ["-t", topic, "-b", kafka.address]
    patch = "import service.tools.produce as p; p.ANSWER_SECONDS = 8.0; "
    with open_produce(*options, cwd=tmp_path, patch=patch) as process:
        process.stdin.write(event({"a": 0}, 1) + b"\n")
        process.stdin.flush()
        wait(lambda: asyncio.run(read_all(kafka, topic)), "the first event is there")
        # A reader may see it before its sender gets the acknowledgement, but not before that of a later record.
        assert perceptron("produce", "-", *options, stdin=event({"a": 0}, 1), cwd=tmp_path).returncode == 0
        with hanging(kafka):
            process.stdin.write(event({"a": 1}, 1) + b"\n")
            process.stdin.close()
            assert process.wait(DEADLINE) == 3
        error = process.stderr.read().decode()
    assert error == f"perceptron: Kafka at {kafka.address}: no answer in time (1 event sent; --skip 1 goes on)\n"


def test_a_dry_run_reads_everything_and_needs_no_kafka(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text("u,a,y\n" + "x,1,1\n" * 1200)
    command = ["produce", str(file), "-t", "x", "-b", NOWHERE, "--label", "y", "--dry-run"]
    result = perceptron(*command, "--key", "u", "--rate", "1", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1,200 events good; nothing was sent\n", "")
    file.write_text("u,a,y\n" + "".join(f"x,{i % 7},{int(i >= 800)}\n" for i in range(1200)))
    result = perceptron(*command, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "1,200 events good; nothing was sent\n")
    assert result.stderr.startswith(f"note: {file} is sorted by its label (1,200 events in 2 runs of one label): ")
    result = perceptron(*command, cwd=tmp_path, env={"PERCEPTRON_MODEL__TEXT": "reject"})
    assert result.returncode == 1
    assert result.stdout == ""
    errors = result.stderr.splitlines()
    assert errors[0] == f"{file}, line 2: column 'u': expected a number, got 'x'"
    assert errors[10:] == [f"perceptron: {file}: 1,200 lines bad, 0 events good"]
