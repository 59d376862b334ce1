"""`perceptron suggest` as a user meets it: a topic or a file, and what it writes is what a service runs with."""

import asyncio
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.errors import DataError
from service.learning.learner import Learner
from service.learning.records import Records
from service.settings.load import load
from service.streaming.kafka.cluster import Cluster
from service.tools.sample import of_topic
from tests.batches import packed, send_packed
from tests.conftest import Run, create_topic, one_line, perceptron, read_all
from tests.unit.test_suggest import clicks

NOWHERE = "127.0.0.1:1"


def lines(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def suggest(folder: Path, *arguments: str, code: int = 0, **more: Any) -> Any:
    done = perceptron("suggest", *arguments, cwd=folder, **more)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clicks.jsonl").write_bytes(lines(clicks(2000)))
    return tmp_path


def test_a_file_is_its_own_topics_and_a_guess_is_called_one(folder: Path) -> None:
    """Whatever the settings that lie there are of."""
    (folder / "perceptron.toml").write_text('topics = ["others"]\n')
    rows = [{"x": i % 7, "alarm": i % 7 > 3, "valve_open": i % 3 == 0} for i in range(400)]
    (folder / "sensors.jsonl").write_bytes(lines(rows))
    done = suggest(folder, "sensors.jsonl")
    assert 'topics = ["sensors"]' in done.stdout
    assert "note: that valve_open is the label is a guess; else perhaps --label /alarm\n" in done.stderr
    assert 'topics = ["mine"]' in suggest(folder, "sensors.jsonl", "-t", "mine", "--label", "alarm").stdout


def test_a_table_is_shown_and_sent_as_one(folder: Path) -> None:
    """Its whole numbers without a point, with the column that `produce` is to be told; an amount is no label."""
    (folder / "rents.csv").write_text(
        "rooms,rent now,let\n" + "".join(f"{i % 7},{i % 90 * 100},{i % 2}\n" for i in range(1000))
    )
    done = suggest(folder, "rents.csv", "--label", "rent now", "-o", "rents.toml")
    assert ["rooms", "number", "100%", "7", "0"] in [line.split() for line in done.stdout.splitlines()]
    noted, written = done.stderr.splitlines()
    assert noted == (
        "note: rent now has 90 different values of 1,000 records: a number to be predicted is not a class, and only "
        "classes are learned"
    )
    assert "`run` runs it, `produce rents.csv --label 'rent now'` sends it the file" in written
    assert "# so `perceptron produce --label 'rent now'` sends a table's rows\n" in (folder / "rents.toml").read_text()
    assert load(str(folder / "rents.toml"), {}).create_topics


def test_what_is_shown_of_a_file(folder: Path) -> None:
    done = suggest(folder, "clicks.jsonl")
    assert done.stderr == ""
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert shown[0] == "all 2,000 records of clicks.jsonl"
    assert "clicked boolean 100% 2 true label" in shown or "clicked boolean 100% 2 false label" in shown
    assert any(line.startswith("ts number 100%") and line.endswith("timestamp, left out") for line in shown)
    (baseline,) = [line for line in shown if line.startswith("baseline (the more frequent label)")]
    (chosen,) = [line for line in shown if line.endswith("<")]
    assert float(chosen.split()[-2][:-1]) > float(baseline.split()[-1][:-1]) + 10
    assert any(line.startswith("Best: ") for line in shown)
    text = done.stdout[done.stdout.index("# Suggested") :]
    (folder / "x.toml").write_text(text)
    settings = load(str(folder / "x.toml"), {})
    assert settings.topics == ["clicks"]
    assert settings.of("clicks").event.without == ("ts",)
    # Every setting has its reason, on a line before it.
    lines_ = text.splitlines()
    for i, line in enumerate(lines_):
        if " = " in line and not line.startswith(("#", " ", "topics")):
            assert lines_[i - 1].startswith("# "), line


def test_json_says_the_same(folder: Path) -> None:
    found = json.loads(suggest(folder, "clicks.jsonl", "--json", "--count", "1500").stdout)
    assert found["sample"] == {
        "from": "clicks.jsonl",
        "records": 1500,
        "said": "the first 1,500 records of clicks.jsonl",
    }
    assert {member["name"]: member["mark"] for member in found["members"] if member["mark"]} == {
        "clicked": "label",
        "ts": "timestamp",
    }
    assert found["beats_baseline"] is True
    assert found["baseline"]["events"] == 1500
    assert found["chosen"] in found["trials"]
    chosen = {one["setting"]: one["value"] for one in found["choices"]}
    assert (chosen["event.label"], chosen["rule"]) == ("/clicked", found["chosen"]["rule"])
    assert all(one["reason"] for one in found["choices"])


async def test_a_service_runs_with_what_is_written(
    run: Run, producer: AIOKafkaProducer, topic: str, folder: Path
) -> None:
    """On the records as they are: it predicts as well as it was said to, in the words of the label."""
    said = suggest(folder, "clicks.jsonl", "-t", topic, "-o", "perceptron.toml")
    assert "perceptron.toml is written" in one_line(said.stderr)
    found = json.loads(suggest(folder, "clicks.jsonl", "-t", topic, "--json").stdout)
    service = await asyncio.to_thread(run((folder / "perceptron.toml").read_text()).up)
    for record in clicks(2000):
        await producer.send(topic, json.dumps(record).encode())
    await producer.flush()
    model = await asyncio.to_thread(service.wait_for, 2000)
    assert (model["events"], model["rejected"]) == (2000, {})
    weights = found["chosen"]["weights"]
    accuracy = model["accuracy"] if weights == "last" else model["average_accuracy"]
    assert accuracy["recent"] == pytest.approx(found["chosen"]["later"])
    alike = [one for one in found["trials"] if one["scale"] == found["chosen"]["scale"]]
    later = {f"{one['rule']}-{one['weights']}": one["later"] for one in alike}
    beside = {row["name"]: row["accuracy"]["recent"] for row in model["candidates"]}
    assert beside
    assert beside == pytest.approx({name: later[name] for name in beside})
    answer = service.predict({"features": {"user": {"country": "NL", "visits": 2}, "page": "/home"}}).json()
    assert answer["label"] is True


async def test_the_newest_of_a_topic(
    kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Spread over its partitions, in the order of time; nothing is sent and no group is made."""
    await create_topic(kafka, topic, partitions=3)
    await create_topic(kafka, f"{topic}.dead-letters")
    for partition in range(3):
        for _ in range(50):
            await producer.send(topic, b"old", partition=partition)
    begun = 1_700_000_000_000
    for i, record in enumerate(clicks(900)):
        value = json.dumps(record | {"n": i}).encode()
        await producer.send(topic, value, partition=i % 2, timestamp_ms=begun + i)
    await producer.flush()
    before = [len(await read_all(kafka, topic, partition)) for partition in range(3)]

    def call(*arguments: str, code: int = 0) -> Any:
        return suggest(tmp_path, "-t", topic, "-b", kafka.address, *arguments, code=code)

    done = await asyncio.to_thread(call, "--json", "--count", "650", "-o", "perceptron.toml")
    found = json.loads(done.stdout)
    # 50 are all of the last partition; of the two others 300 each.
    said = f"the newest 650 records of topic {topic}, 3 partitions by their records' times"
    assert found["sample"] == {"from": f"topic {topic}", "records": 650, "said": said}
    assert found["baseline"]["rejected"] == {"not-json": 50}
    assert "50 records would be dead letters (not-json 50)" in found["notes"][0]
    newest = await of_topic(Cluster(kafka.address), topic, DataError("gone"), 650)
    numbers = [record["n"] for record in newest.objects()]
    assert numbers == sorted(numbers)
    assert len(numbers) == 600
    (number,) = [member for member in found["members"] if member["name"] == "n"]
    assert (number["distinct"], number["mark"], number["example"]) == (600, "identifier", 300)
    assert [len(await read_all(kafka, topic, partition)) for partition in range(3)] == before

    # What is written has all that it needs to be found again.
    settings = load(str(tmp_path / "perceptron.toml"), {})
    assert (settings.topics, settings.kafka.bootstrap_servers) == ([topic], kafka.address)
    done = await asyncio.to_thread(perceptron, "config", "--json", cwd=tmp_path)
    shown = json.loads(done.stdout)
    assert shown[f"models.{topic}.event.label"] == {"value": "/clicked", "origin": "perceptron.toml"}
    flags = ["check", "--redis", f"redis://{redis.address}/0"]
    done = await asyncio.to_thread(perceptron, *flags, cwd=tmp_path)
    assert "67 of the last 100 records would be accepted" in done.stdout
    assert "models." not in done.stdout
    text = (tmp_path / "perceptron.toml").read_text().replace('"ts"', '"tz"')
    (tmp_path / "perceptron.toml").write_text(text)
    done = await asyncio.to_thread(perceptron, *flags, cwd=tmp_path)
    line = f'models.{topic}.event.without: "tz" matches no feature of the 67 records that were looked at'
    assert f"warn  {line}, such as user.country" in done.stdout
    done = await asyncio.to_thread(call, "-o", "perceptron.toml", code=2)
    assert one_line(done.stderr) == "perceptron: perceptron.toml is there already: say --yes to write over it\n"
    assert (tmp_path / "perceptron.toml").read_text() == text
    await asyncio.to_thread(call, "-o", "perceptron.toml", "--yes")
    assert '"ts"' in (tmp_path / "perceptron.toml").read_text()


def test_other_files(folder: Path) -> None:
    """A gzipped table; standard input."""
    rows = [f"{i % 7},{'NL' if i % 3 else ''},{i},{i % 7 > 3}" for i in range(200)]
    (folder / "table.csv.gz").write_bytes(gzip.compress("\n".join(["visits,country,order_id,bought", *rows]).encode()))
    found = json.loads(suggest(folder, "table.csv.gz", "--json", "-o", "x.toml").stdout)
    assert {member["name"]: member["mark"] for member in found["members"]} == {
        "bought": "label",
        "visits": None,
        "country": None,
        "order_id": "identifier",
    }
    assert found["baseline"]["events"] == 200
    settings = load(str(folder / "x.toml"), {})
    assert settings.of("table").labels == (False, True)
    done = suggest(folder, "-", "--json", stdin=lines(clicks(300)))
    assert json.loads(done.stdout)["sample"]["from"] == "standard input"
    assert "only 300 events" in done.stderr


def test_names_of_any_kind_are_quoted(folder: Path) -> None:
    """Also those that TOML, patterns, pointers or a terminal would take for something else."""
    name = 'a.b/c~ "é\\\n\x1b[31m\u2028*'
    records = [{name: {"id": i, "n": i % 3}, 'la"b\nel/\u2028': i % 2 == 0} for i in range(100)]
    (folder / "odd name!.jsonl").write_bytes(lines(records))
    done = suggest(folder, "odd name!.jsonl", "-o", "x.toml")
    assert "\x1b" not in done.stdout + done.stderr
    settings = load(str(folder / "x.toml"), {})
    event = settings.of("odd-name").event
    assert event.label == '/la"b\nel~1\u2028'
    assert len(event.without) == 1
    learner = Learner(settings.of("odd-name").identity())
    learner.begin({0: 0})
    assert learner.apply(0, Records.of(0, [json.dumps(record).encode() for record in records])).rejects == []
    assert learner.columns.names == [f"{name}.n"]


def test_a_rare_label_is_said_with_the_verdict(folder: Path) -> None:
    (folder / "rare.jsonl").write_bytes(lines([{"a": i % 13, "fraud": i % 50 == 0} for i in range(2000)]))
    done = suggest(folder, "rare.jsonl")
    assert done.stdout.count("%. true is in 2.0% of the events, where accuracy says little: ") == 2
    assert "Nothing beats the baseline: " in done.stdout


def test_what_finds_a_rare_label_is_suggested(folder: Path) -> None:
    """By its F1: who never says it is as often right."""
    rng = random.Random(3)
    rare = [rng.random() < 0.03 for _ in range(6000)]
    records = [{"sum": 1000 * rng.gauss(one), "age": rng.gauss(2 * one), "fraud": one} for one in rare]
    (folder / "rare.jsonl").write_bytes(lines(records))
    found = json.loads(suggest(folder, "rare.jsonl", "--json").stdout)
    chosen, most = found["chosen"], max(found["trials"], key=lambda one: one["later"] or 0.0)
    assert found["beats_baseline"]
    assert (chosen["scale"], chosen["f1"] > most["f1"]) == ("standard", True)
    (margin,) = [one["value"] for one in found["choices"] if one["setting"] == "margin"]
    assert margin == [0, 100]
    shown = [" ".join(line.split()) for line in suggest(folder, "rare.jsonl", "-o", "x.toml").stdout.splitlines()]
    assert "rule scale weights right later half its F1 margin" in shown
    model = load(str(folder / "x.toml"), {}).of("rare")
    assert (model.margin, model.scale, model.candidates) == ((0.0, 100.0), "standard", {})


def test_numbers_with_a_comma_are_left_out(folder: Path) -> None:
    """As strings they would be categories that seldom come back."""
    rows = "".join(f'"{i * 31 % 1896},{i % 100:02}",{i % 4},{i % 2}\n' for i in range(3000))
    (folder / "comma.csv").write_text(f"price,rooms,let\n{rows}")
    assert "decimal comma, left out" in suggest(folder, "comma.csv", "-o", "x.toml").stdout
    model = load(str(folder / "x.toml"), {}).of("comma")
    assert (model.features, model.event.without) == ("named", ("price",))
    why = '# price: decimal comma: a number with a comma, such as "0,00", is a string: write it with a point'
    assert why in (folder / "x.toml").read_text()


def test_nothing_beats_the_baseline(folder: Path) -> None:
    records = [{"a": i * 7919 % 13, "y": i * 104_729 % 11 == 0} for i in range(1200)]
    (folder / "noise.jsonl").write_bytes(lines(records))
    done = suggest(folder, "noise.jsonl")
    assert done.stdout.count("Nothing beats the baseline: ") == 2
    assert "Best: " not in done.stdout


def test_wrong_input_is_one_line(kafka: Server, topic: str, folder: Path) -> None:
    (folder / "empty.jsonl").write_text("\n")
    (folder / "bad.jsonl").write_text("no\njson\n")
    (folder / "lists.jsonl").write_text("[1]\n")
    (folder / "avro.jsonl").write_bytes(b"\x00\x00\x00\x00\x07abc\n")
    (folder / "two.csv").write_text("a,a\n1,2\n")
    (folder / "short.csv").write_text("a,b\n1\n")
    (folder / "long.jsonl").write_bytes(lines([{"features": [0] * 10_001, "label": i} for i in (0, 1)]))
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(lines(clicks(50)))[:-20])
    for arguments, code, part in (
        ((), 2, "suggest: name a FILE, or a topic with --topic TOPIC"),
        (("gone.jsonl",), 2, "gone.jsonl: No such file or directory"),
        (("empty.jsonl",), 1, "empty.jsonl: there is no record to look at"),
        (("bad.jsonl",), 1, "bad.jsonl: none of 2 records is a JSON object; the first: not JSON: Expecting value"),
        (("lists.jsonl",), 1, "none of 1 record is a JSON object; the first: it is a list"),
        (("avro.jsonl",), 1, "(it begins with a zero byte, as Avro and Protobuf of a schema registry do)"),
        (("two.csv",), 1, "two.csv, line 1: two columns have the same name"),
        (("short.csv",), 1, "short.csv, line 2: 1 cells, the header has 2"),
        (("long.jsonl",), 1, "no settings fit it: dimension = 10001 is more than max_features"),
        (("cut.jsonl.gz",), 1, "cut.jsonl.gz, after line 48: Compressed file ended"),
        (("clicks.jsonl", "--label", "/nope"), 1, "--label: no record of clicks.jsonl has '/nope'; the members are"),
        (("clicks.jsonl", "--label", "/ts"), 1, "label: /ts has 1,997 values (1732000000198, "),
        (("clicks.jsonl", "--count", "0"), 2, "--count"),
        (("clicks.jsonl", "-o", "clicks.jsonl"), 2, "clicks.jsonl is there already: say --yes to write over it"),
        (("clicks.jsonl", "-o", "gone/x.toml"), 2, "gone/x.toml: there is no such folder"),
        (("-t", topic, "-b", kafka.address), 2, f"topic {topic} does not exist at {kafka.address}"),
        (("-t", topic, "-b", NOWHERE), 3, "Connection refused"),
    ):
        done = suggest(folder, *arguments, code=code)
        assert part in one_line(done.stderr), done.stderr
        assert done.stdout == ""


async def test_a_record_that_cannot_be_read_is_named(kafka: Server, topic: str, tmp_path: Path) -> None:
    await create_topic(kafka, topic)
    async with AIOKafkaProducer(bootstrap_servers=kafka.address) as client:
        for record in clicks(30):
            await client.send_and_wait(topic, json.dumps(record).encode())
        offset = await send_packed(client, topic, packed("zstd", [(bytes(20 << 20), [])]))
    done = await asyncio.to_thread(suggest, tmp_path, "-t", topic, "-b", kafka.address, code=1)
    assert f"the batch of offsets {offset} to {offset} of partition 0 unpacks to more" in one_line(done.stderr)


async def test_a_topic_without_a_record(kafka: Server, topic: str, tmp_path: Path) -> None:
    await create_topic(kafka, topic)
    done = await asyncio.to_thread(suggest, tmp_path, "-t", topic, "-b", kafka.address, code=1)
    assert done.stderr == f"perceptron: topic {topic}: there is no record to look at\n"
