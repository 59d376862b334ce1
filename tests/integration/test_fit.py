"""`perceptron fit` from a file and from a topic, and a service that starts from its weights."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_topic, event, perceptron
from tests.oracle import Fold
from tests.template import Done

SQUARE = [(0, 0), (0, 1), (1, 0), (1, 1)]
AND, OR, XOR = [0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the boolean functions as CSV."""
    for name, labels in (("and", AND), ("or", OR), ("xor", XOR)):
        rows = [f"{a},{b},{y}" for (a, b), y in zip(SQUARE, labels, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    return tmp_path


def fit(folder: Path, *arguments: str, code: int = 0, **options: Any) -> Done:
    result = perceptron("fit", *arguments, cwd=folder, **options)
    assert result.returncode == code, result.stderr
    return result


def fit_report(folder: Path, *arguments: str) -> Any:
    return json.loads(fit(folder, *arguments, "--json").stdout)


def test_the_pages_example_is_what_is_printed(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text()
    console = page.split("```console\n")[1].split("```")[0]
    commands = [part.split("\n", 1) for part in console.split("$ perceptron ")[1:]]
    assert len(commands) == 2
    for command, printed in commands:
        assert fit(folder, *command.split()[1:]).stdout == printed


def test_a_service_continues_from_fitted_weights(run: Run, kafka: Server, topic: str, folder: Path) -> None:
    """The service predicts with them before its first event, and learns from there. `fit` starts from its file too."""
    fit(folder, "and.csv", "--label", "y", "-o", "weights.json")
    service = run(f'[model]\nstart = "{folder}/weights.json"\n').up()
    instances = [{"features": {"a": a, "b": b}} for a, b in SQUARE]
    answers = service.predict({"instances": instances}).json()["predictions"]
    assert [(x["label"], x["score"], x["unknown_features"]) for x in answers] == [
        (-1, -4.0, 0), (-1, -2.0, 0), (-1, -1.0, 0), (1, 1.0, 0),
    ]  # fmt: skip
    file = folder / "more.jsonl"
    file.write_bytes(event({"b": 2, "c": 1}, 1) + b"\n" + event({"a": 1, "b": 1}, 1) + b"\n")
    result = perceptron("produce", str(file), "-t", topic, "-b", kafka.address, cwd=folder)
    assert result.returncode == 0, result.stderr
    model = service.wait_for(2)
    assert (model["events"], model["mistakes"]) == (2, 1)  # b·2 = 4 is the bias: s = 0
    oracle = Fold()
    oracle.bias, oracle.w = -4.0, {"a": 3.0, "b": 2.0}
    oracle.fold(file.read_bytes().splitlines())
    assert service.vector() == oracle.vector == [-3.0, 3.0, 4.0, 1.0]
    report = fit_report(folder, "and.csv", "--label", "y", "--start", "weights.json")
    assert [p["mistakes"] for p in report["passes"]] == [0]
    # `fit` continues from what the service learned, and writes the same form.
    result = perceptron("export", "-t", topic, "--redis", service.redis_url, "-o", "served.json", cwd=folder)
    assert result.returncode == 0, result.stderr
    report = fit_report(folder, str(file), "--start", "served.json", "-o", "same.json")
    assert report["weights"]["coef"] == [3.0, 4.0, 1.0]
    new, old = (json.loads((folder / name).read_text()) for name in ("same.json", "served.json"))
    assert new.keys() <= old.keys()
    assert {k: new[k] for k in new if k != "counts"} == {k: old[k] for k in new if k != "counts"}


@pytest.mark.nightly
async def test_a_topic_is_read_whole_once_without_bad_records(
    kafka: Server, producer: AIOKafkaProducer, topic: str, folder: Path
) -> None:
    """`fit` reads one partition after the other, counts bad records, and stops before an open transaction."""
    await create_topic(kafka, topic, partitions=2)
    for x, y in zip(SQUARE[2:], AND[2:], strict=True):
        await producer.send_and_wait(topic, event({"a": x[0], "b": x[1]}, y), partition=1)
    await producer.send_and_wait(topic, b"no event", partition=0)
    async with AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=f"x-{topic}") as writer:
        for x, y, committed in [((5, 5), 0, False), *zip(SQUARE[:2], AND[:2], (True, True), strict=True)]:
            await writer.begin_transaction()
            await writer.send_and_wait(topic, event({"a": x[0], "b": x[1]}, y), partition=0)
            await (writer.commit_transaction() if committed else writer.abort_transaction())
        await writer.begin_transaction()
        await writer.send_and_wait(topic, event({"a": 9, "b": 9}, 0), partition=0)
        result = await asyncio.to_thread(fit, folder, "--topic", topic, "-b", kafka.address, "--trace")
        await writer.abort_transaction()
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("pass ")]
    assert [line[2] for line in lines[:4]] == ["0-3", "0-5", "1-0", "1-1"]
    assert "data     4 events, 2 features, 1 record set aside (not-json 1)\n" in result.stdout
    assert "converged in pass 9 after 18 mistakes" in result.stdout


def test_wrong_input_is_one_line(kafka: Server, topic: str, folder: Path) -> None:
    (folder / "bad.jsonl").write_bytes(event({"a": 1}, 1) + b"\n\n" + event({"a": 1e99}, 1) + b"\n")
    for arguments, code, part in (
        ((), 2, "name a FILE, or a topic with --topic TOPIC, and not both"),
        (("bad.jsonl",), 1, 'bad.jsonl, line 3: out-of-range: feature "a" is beyond ±1e+30'),
        (("-t", topic, "-b", kafka.address), 2, f"topic {topic} does not exist"),
        (("-t", topic, "-b", "127.0.0.1:1"), 3, "Connection refused"),
    ):
        result = fit(folder, *arguments, code=code)
        lines = [line for line in result.stderr.splitlines() if not line.startswith("pass ")]
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("perceptron: ")
        assert part in lines[0]
        assert result.stdout == ""
