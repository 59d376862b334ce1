"""How events are sent: formats, keys, pace, count and a dry run, to a real Kafka."""

import asyncio
import gzip
import json
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service.embedded.servers import Server
from service.streaming.kafka.cluster import Cluster
from tests.conftest import DEADLINE, Run, clean_environment, create_topic, event, one_line, perceptron, read_all, wait

NOWHERE = "127.0.0.1:1"


@contextmanager
def producing(*arguments: str, cwd: Path, more: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """`perceptron produce - …` with its input open, as from a terminal: Ctrl-C is not ignored."""
    start = f"import signal as s; s.signal(s.SIGINT, s.default_int_handler); {more}from service.cli import main; main()"
    command = [sys.executable, "-c", start, "produce", "-", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, env=clean_environment(), cwd=cwd) as process:
        try:
            yield process
        finally:
            process.kill()


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
        assert (done.returncode, done.stderr) == (0, f"1,200 events sent to {topic}\n")
    assert [r.value for r in asyncio.run(read_all(kafka, topic))] == events * 4


CSV_SETTINGS = '[model]\nfeatures = "positional"\ndimension = 2\n'


@pytest.mark.parametrize(
    ("text", "settings", "label", "part"),
    [
        ('{"features":{"a":1},"label":1}\n\n{"features":{"a":x},"label":1}\n', "", None, "line 3: not-json"),
        ('{"features":{"a":1}}\n', "", None, "line 1: missing-field: 'label' is missing (0 events before it sent)"),
        (
            "a,b,y\n1,2,1\n1,inf,0\n",
            "",
            "y",
            "line 3: column 'b': expected a finite number, got 'inf' (1 event before it sent; --skip 1 goes on)",
        ),
        ("a,b,y\n1,2\n", "", "y", "line 2: 2 cells, the header has 3"),
        ("a,b,y\n1,2,1\n", "", "z", "line 1: there is no column 'z'; the columns are a, b, y"),
        ("a,b,y\n1,two,1\n", CSV_SETTINGS, "y", "line 2: column 'b': expected a number, got 'two'"),
    ],
)
def test_produce_names_the_bad_line(
    kafka: Server, tmp_path: Path, text: str, settings: str, label: str | None, part: str
) -> None:
    asyncio.run(Cluster(kafka.address).create_topics(["bad-lines"]))
    file, config = tmp_path / "file", tmp_path / "s.toml"
    file.write_text(text)
    config.write_text(settings)
    more = ["--label", label] if label else []
    done = perceptron("-c", str(config), "produce", str(file), "-t", "bad-lines", "-b", kafka.address, *more)
    assert done.returncode == 1
    assert part in one_line(done.stderr)


@pytest.mark.nightly
def test_produce_says_when_the_topic_or_kafka_is_not_there(kafka: Server, topic: str, tmp_path: Path) -> None:
    """One of nearly that name is perhaps what was meant, and perhaps not."""
    asyncio.run(create_topic(kafka, topic))
    raw = event({}, 1)
    done = perceptron("produce", "-", "-t", f"{topic}s", "-b", kafka.address, stdin=raw, cwd=tmp_path)
    assert done.returncode == 2
    waiting, said = done.stderr.splitlines()
    assert waiting == f"topic {topic}s does not exist at {kafka.address}: perhaps {topic}; waiting 30 seconds for it"
    assert f"topic {topic}s does not exist at {kafka.address}: perhaps {topic}; else create it, or start" in said
    done = perceptron("produce", "-", "-t", topic, "-b", NOWHERE, stdin=raw, cwd=tmp_path)
    assert done.returncode == 3
    assert f"Kafka at {NOWHERE}: Connection refused" in one_line(done.stderr)


def test_a_key_chooses_the_partition(kafka: Server, topic: str, tmp_path: Path) -> None:
    """Equal keys go to one partition, in order, and all partitions are used."""
    asyncio.run(create_topic(kafka, topic, partitions=3))
    raw = b"\n".join(event({"a": i}, 1, id=f"user-{i % 20}") for i in range(400))
    done = perceptron("produce", "-", "-t", topic, "-b", kafka.address, "--key", "id", stdin=raw, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    place: dict[bytes, int] = {}
    order: dict[bytes, list[int]] = {}
    for partition in range(3):
        records: list[Any] = asyncio.run(read_all(kafka, topic, partition))
        assert records
        for record in records:
            assert place.setdefault(record.key, partition) == partition
            assert json.loads(record.value)["id"].encode() == record.key
            order.setdefault(record.key, []).append(json.loads(record.value)["features"]["a"])
    assert order == {b"user-%d" % i: list(range(i, 400, 20)) for i in range(20)}


def test_a_rate_is_kept(kafka: Server, topic: str, tmp_path: Path) -> None:
    """150 events at 100 a second take no less than 1.49 s."""
    asyncio.run(create_topic(kafka, topic))
    file = tmp_path / "e.jsonl"
    file.write_bytes(b"\n".join(event({"a": i}, 1) for i in range(1000)))
    command = ["produce", str(file), "-t", topic, "-b", kafka.address, "--rate", "100", "--count", "150"]
    started = time.monotonic()
    done = perceptron(*command, cwd=tmp_path)
    assert time.monotonic() - started > 1.4
    assert (done.returncode, done.stderr) == (0, f"150 events sent to {topic}\n")
    assert len(asyncio.run(read_all(kafka, topic))) == 150


def test_skip_goes_on_where_it_ended(kafka: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    events = [event({"a": i}, 1) for i in range(9)]
    for part in (["--count", "4"], ["--skip", "4", "--count", "3"], ["--skip", "7"], ["--skip", "9"]):
        done = perceptron(
            "produce", "-", "-t", topic, "-b", kafka.address, *part, stdin=b"\n".join(events), cwd=tmp_path
        )
        assert done.returncode == 0
    assert [r.value for r in asyncio.run(read_all(kafka, topic))] == events


def test_ctrl_c_ends_a_slow_pace_at_once_and_says_what_was_sent(kafka: Server, topic: str, tmp_path: Path) -> None:
    asyncio.run(create_topic(kafka, topic))
    with producing("-t", topic, "-b", kafka.address, "--rate", "0.01", cwd=tmp_path) as process:
        assert process.stdin
        assert process.stderr
        process.stdin.write(b"\n".join(event({"a": i}, 1) for i in range(9)) + b"\n")
        process.stdin.flush()
        wait(lambda: asyncio.run(read_all(kafka, topic)), "the first event is there")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read().decode() == f"interrupted: 1 event sent to {topic}; --skip 1 goes on\n"


@pytest.mark.nightly
def test_a_kafka_that_hangs_is_given_up(own_kafka: Server, topic: str, tmp_path: Path) -> None:
    """It says after a while (here less) that the broker does not answer, and where to go on."""
    kafka = own_kafka
    asyncio.run(create_topic(kafka, topic))
    where = ["-t", topic, "-b", kafka.address]
    sooner = "import service.tools.produce as p; p.ANSWER_SECONDS = 8.0; "
    with producing(*where, cwd=tmp_path, more=sooner) as process:
        assert process.stdin
        assert process.stderr
        assert kafka.process
        process.stdin.write(event({"a": 0}, 1) + b"\n")
        process.stdin.flush()
        wait(lambda: asyncio.run(read_all(kafka, topic)), "the first event is there")
        # Somebody may see it before its sender has heard of it: not any more when a later one was acknowledged.
        assert perceptron("produce", "-", *where, stdin=event({"a": 0}, 1), cwd=tmp_path).returncode == 0
        kafka.process.send_signal(signal.SIGSTOP)
        try:
            process.stdin.write(event({"a": 1}, 1) + b"\n")
            process.stdin.close()
            assert process.wait(DEADLINE) == 3
        finally:
            kafka.process.send_signal(signal.SIGCONT)
        said = process.stderr.read().decode()
    assert said == f"perceptron: Kafka at {kafka.address}: no answer in time (1 event sent; --skip 1 goes on)\n"


def test_a_dry_run_reads_everything_and_needs_no_kafka(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text("u,a,y\n" + "x,1,1\n" * 1200)
    command = ["produce", str(file), "-t", "x", "-b", NOWHERE, "--label", "y", "--dry-run"]
    done = perceptron(*command, "--key", "u", "--rate", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1,200 events good; nothing was sent\n", "")
    assert perceptron(*command, "--key", "u", "--count", "7", cwd=tmp_path).stdout.startswith("7 events good")
    assert perceptron(*command, "--key", "u", "--skip", "1195", cwd=tmp_path).stdout.startswith("5 events good")
    done = perceptron(*command, "--key", "u", "--skip", "1201", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"perceptron: {file}: it has only 1,200 events, and --skip 1201 leaves them out\n"
    # Without a key, u is a feature: a text.
    assert perceptron(*command, cwd=tmp_path).stdout.startswith("1,200 events good")
    done = perceptron(*command, cwd=tmp_path, env={"PERCEPTRON_MODEL__TEXT": "reject"})
    assert done.returncode == 1
    assert done.stdout == ""
    said = done.stderr.splitlines()
    assert said[0] == f"{file}, line 2: column 'u': expected a number, got 'x'"
    assert said[10:] == [f"perceptron: {file}: 1,200 lines bad, 0 events good"]


@pytest.mark.nightly
def test_other_forms_are_sent_and_learned_as_the_same_json(run: Run, kafka: Server, topic: str, tmp_path: Path) -> None:
    """Of a model of names and one of positions, whose records come in every form; verified on the slow path."""
    config = tmp_path / "perceptron.toml"
    points = f"{topic}-points"
    config.write_text(
        f"[models.{points}]\nfeatures = 'positional'\ndimension = 2\nlabels = [0, 1]\n[model]\nlabels = [0, 1]\n"
    )
    service = run(config.read_text(), "-t", points).up()
    named, listed = tmp_path / "named.jsonl", tmp_path / "listed.jsonl"
    named.write_bytes(b"\n".join(event({"a": i, "c": "NL" if i % 3 else "BE", "t": [1, i]}, i % 2) for i in range(300)))
    listed.write_bytes(b"\n".join(event([i / 7, -i], i % 2) for i in range(300)))
    command = ["-c", str(config), "produce", "-b", kafka.address]
    for file, to, forms in ((named, topic, ("json", "msgpack")), (listed, points, ("json", "msgpack", "f8"))):
        for form in forms:
            done = perceptron(*command, str(file), "-t", to, "--as", form, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, f"300 events sent to {to}\n")
    records = asyncio.run(read_all(kafka, points))
    assert records[0].headers == ()
    assert records[300].headers == (("content-type", b"application/msgpack"),)
    assert records[600].headers == (("content-type", b"application/x-perceptron-f8"),)
    assert [r.value for r in records[600:]] == [struct.pack("<3d", i / 7, -i, i % 2) for i in range(300)]
    service.wait_for(600)
    wait(lambda: service.http.get(f"/v1/models/{points}").json()["events"] == 900, "all are learned")
    for to in (topic, points):
        assert service.http.get(f"/v1/models/{to}").json()["rejected"] == {}
    service.stop()
    for to in (topic, points):
        done = perceptron(
            "-c", str(config), "verify", "-t", to, "-b", kafka.address, "--redis", service.redis_url, cwd=tmp_path
        )
        assert done.returncode == 0, done


@pytest.mark.nightly
def test_the_producers_of_the_page_do_what_it_says(run: Run, kafka: Server, topic: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    points = f"{topic}-points"
    service = run(f"[models.{points}]\nfeatures = 'positional'\ndimension = 3\n", "-t", points).up()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        code = block.replace("localhost:9092", kafka.address).replace("churn", topic).replace('"points"', f'"{points}"')
        subprocess.run([sys.executable, "-c", code], check=True)
    service.wait_for(1)
    wait(lambda: service.http.get(f"/v1/models/{points}").json()["events"] == 1, "the vector is learned")


@pytest.mark.nightly
def test_a_topic_that_is_about_to_exist_is_waited_for(kafka: Server, topic: str, tmp_path: Path) -> None:
    """As one that a process creates, which was started just before."""
    topic = f"about-to-exist-{topic}"  # like no other test's, one of which would be said
    with producing("-t", topic, "-b", kafka.address, cwd=tmp_path) as process:
        assert process.stdin
        assert process.stderr
        process.stdin.write(event({"a": 1}, 1) + b"\n")
        process.stdin.close()
        said = process.stderr.readline().decode()
        assert said == f"topic {topic} does not exist at {kafka.address}: waiting 30 seconds for it\n"
        asyncio.run(create_topic(kafka, topic))
        assert process.wait(DEADLINE) == 0
        assert process.stderr.read().decode() == f"1 event sent to {topic}\n"
    assert len(asyncio.run(read_all(kafka, topic))) == 1
