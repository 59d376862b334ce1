"""`perceptron fit` as a user meets it: from a file, from a topic, and on to a service that starts from its weights."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from tests.conftest import Run, create_topic, event, perceptron
from tests.oracle import Fold

SQUARE = [(0, 0), (0, 1), (1, 0), (1, 1)]
AND, OR, XOR = [0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 0]
POSITIONAL = '[model]\nfeatures = "positional"\ndimension = 2\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the boolean functions as CSV."""
    for name, labels in (("and", AND), ("or", OR), ("xor", XOR)):
        rows = [f"{a},{b},{y}" for (a, b), y in zip(SQUARE, labels, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    (tmp_path / "not.csv").write_text("a,y\n0,1\n1,0\n")
    return tmp_path


def fit(folder: Path, *arguments: str, code: int = 0, **more: Any) -> Any:
    done = perceptron("fit", *arguments, cwd=folder, **more)
    assert done.returncode == code, done.stderr
    return done


def fitted(folder: Path, *arguments: str) -> Any:
    return json.loads(fit(folder, *arguments, "--json").stdout)


def test_a_name_stays_on_its_line_and_a_file_that_is_written_is_named(folder: Path) -> None:
    (folder / "lines.csv").write_text('"a\nb",y\n"c\x1b[31m\nd",1\n')
    done = fit(folder, "lines.csv", "--label", "y", "-o", "w.json")
    assert r'weights  bias 1, "a\nb=c\u001b[31m\nd" 1' in done.stdout
    assert "weights written to w.json\n" in done.stderr


def trace(done: Any) -> list[list[float]]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("pass ")]
    return [[float(v) for v in line[line.index("[") + 1 : -1].split()] for line in lines]


async def test_row_6_and_by_every_route(
    run: Run, kafka: Server, producer: AIOKafkaProducer, topic: str, folder: Path
) -> None:
    """[-1 0 0] after the first instance, [0 1 1] after the first pass, [-4 3 2] in the end: file, topic, service."""
    from_file = await asyncio.to_thread(fit, folder, "and.csv", "--label", "y", "--trace")
    expected = trace(from_file)
    assert len(expected) == 9 * 4
    assert (expected[0], expected[3], expected[-1]) == ([-1, 0, 0], [0, 1, 1], [-4, 3, 2])
    assert from_file.stdout.startswith("converged in pass 9 after 18 mistakes\n")
    shown = from_file.stderr.splitlines()
    assert [int(line.split()[3]) for line in shown] == [2, 3, 3, 2, 2, 3, 2, 1, 0]
    assert "█" in shown[0]

    events = [event(list(x), y) for x, y in zip(SQUARE, AND, strict=True)]
    service = await asyncio.to_thread(run(POSITIONAL).up)
    assert await asyncio.to_thread(service.vector) == [0, 0, 0]
    (folder / "perceptron.toml").write_text(POSITIONAL)
    for i, after in enumerate(expected):
        if i == len(events):
            from_topic = await asyncio.to_thread(fit, folder, "-t", topic, "-b", kafka.address, "--trace")
            assert trace(from_topic) == expected
            assert f"\npass 2  0-3  {'[-1 2 1]'}\n" in from_topic.stdout
        await producer.send_and_wait(topic, events[i % len(events)])
        await asyncio.to_thread(service.wait_for, i + 1)
        assert await asyncio.to_thread(service.vector) == after
    model = await asyncio.to_thread(service.model)
    assert (model["events"], model["mistakes"], model["updates"]) == (36, 18, 18)


def test_the_pages_example_is_what_is_printed(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text()
    console = page.split("```console\n")[1].split("```")[0]
    commands = [part.split("\n", 1) for part in console.split("$ perceptron ")[1:]]
    assert len(commands) == 2
    for command, printed in commands:
        assert fit(folder, *command.split()[1:]).stdout == printed


def test_converged_data_have_their_bounds_beside_the_updates(folder: Path) -> None:
    """Rows 7, 8, 9 as they are printed: (R/γ)²·‖w_opt‖² = 3·9·17/9 = 51, D² = 68 (a = 4/(2γ)), 29 between its sides."""
    shown = fit(folder, "and.csv", "--label", "y").stdout
    assert "18 updates <= 51 = (R/γ)²·‖w_opt‖²: R = 1.73205, γ = 0.333333, ‖w_opt‖ = 1.37437" in shown
    assert "n²α²/‖w0‖² <= ‖w(n)‖² <= n·β² held at every update" in shown
    assert "at the last: 19.0588 <= 29 <= 54" in shown
    assert "18 updates <= 68 = D²" in shown
    assert "weights  bias -4, a 3, b 2" in shown
    for name in ("or", "not"):
        found = fitted(folder, f"{name}.csv", "--label", "y")
        assert (found["ended"], found["separable"]) == ("converged", True)
        assert found["bounds"]["updates"] <= found["bounds"]["novikoff"]
        assert found["bounds"]["norms_between_their_sides"]
    # Any start has Hu's alone; a rule that is not mistake-driven has none, and says why.
    shown = fit(folder, "and.csv", "--label", "y", "--start", "random:7").stdout
    assert "D²" in shown
    assert "(R/γ)²" not in shown
    shown = fit(folder, "and.csv", "--label", "y", "--rule", "lms", "--eta", "0.1").stdout
    assert "bound    none: rule lms does not only update where y·s <= 0" in shown


def test_row_15_xor_is_not_separable_and_here_is_why(folder: Path) -> None:
    done = fit(folder, "xor.csv", "--label", "y")
    assert "not separable: 100 passes made 400 mistakes, 4 in the last, 4 at least (pass 1)\n" in done.stdout
    terms = " + ".join(f"0.25·z(line {n})" for n in (2, 3, 4, 5))
    assert f"evidence {terms} = 0 (±1e-13), with z = y·(1, x): no w has w·z > 0 for all of them" in done.stdout
    shown = done.stderr.splitlines()
    assert [line[:9] for line in shown] == [*(f"pass {n:>4}" for n in range(1, 21)), "pass  100"]
    found = fitted(folder, "xor.csv", "--label", "y", "--max-passes", "7")
    assert (found["ended"], found["separable"], found["bounds"]) == ("max-passes", False, None)
    assert [one["mistakes"] for one in found["passes"]] == [4] * 7
    assert found["evidence"]["combination"] == [{"event": f"line {n}", "coefficient": 0.25} for n in (2, 3, 4, 5)]


def test_row_4_tolerance_and_max_passes(folder: Path) -> None:
    done = fit(folder, "and.csv", "--label", "y", "--tolerance", "1")
    assert "within tolerance in pass 8 after 18 mistakes: 1 in it, tolerance 1\n" in done.stdout
    done = fit(folder, "and.csv", "--label", "y", "--max-passes", "3")
    assert "separable, but not converged in 3 passes: 8 mistakes, 3 in the last, 2 at least (pass 1)" in done.stdout
    assert "a linear program finds w with y·w·x >= 0.333333 for every event" in done.stdout
    assert "8 updates <= 51" in done.stdout
    varner = ("--rule", "error-correction", "--tie", "positive", "--start", "random:1", "--eta", "0.5")
    found = fitted(folder, "and.csv", "--label", "y", *varner, "--tolerance", "1")
    assert [one["errors"] > 1 for one in found["passes"][:-1]] == [True] * (len(found["passes"]) - 1)
    assert found["passes"][-1]["errors"] <= 1


def test_row_11_batch_descent_has_its_loss_per_pass(folder: Path) -> None:
    found = fitted(folder, "and.csv", "--label", "y", "--batch", "--max-passes", "1000")
    assert found["ended"] == "settled"
    assert [found["weights"]["intercept"], *found["weights"]["coef"]] == pytest.approx([-1.5, 1, 1], abs=1e-5)
    assert found["weights"]["eta"] == 0.125  # 1 / Σ ‖x‖², where none is set
    losses = [one["loss"] for one in found["passes"]]
    assert losses[0] == 2.0
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0.5)
    done = fit(folder, "xor.csv", "--label", "y", "--batch")
    assert "settled in pass 2: E = 2 falls no more, 4 mistakes left" in done.stdout
    assert "no w has w·z > 0" in done.stdout


def test_a_service_goes_on_from_fitted_weights(run: Run, kafka: Server, topic: str, folder: Path) -> None:
    """It predicts with them before its first event, and learns from there; fit takes its own file as a start too."""
    fit(folder, "and.csv", "--label", "y", "-o", "weights.json")
    service = run(f'[model]\nstart = "{folder}/weights.json"\n').up()
    instances = [{"features": {"a": a, "b": b}} for a, b in SQUARE]
    answers = service.predict({"instances": instances}).json()["predictions"]
    assert [(x["label"], x["score"], x["unknown_features"]) for x in answers] == [
        (-1, -4.0, 0), (-1, -2.0, 0), (-1, -1.0, 0), (1, 1.0, 0),
    ]  # fmt: skip
    file = folder / "more.jsonl"
    file.write_bytes(event({"b": 2, "c": 1}, 1) + b"\n" + event({"a": 1, "b": 1}, 1) + b"\n")
    done = perceptron("produce", str(file), "-t", topic, "-b", kafka.address, cwd=folder)
    assert done.returncode == 0, done.stderr
    model = service.wait_for(2)
    assert (model["events"], model["mistakes"]) == (2, 1)  # b·2 = 4 is the bias: s = 0
    oracle = Fold()
    oracle.bias, oracle.w = -4.0, {"a": 3.0, "b": 2.0}
    oracle.fold(file.read_bytes().splitlines())
    assert service.vector() == oracle.vector == [-3.0, 3.0, 4.0, 1.0]
    again = fitted(folder, "and.csv", "--label", "y", "--start", "weights.json")
    assert [one["mistakes"] for one in again["passes"]] == [0]
    # And what the service learned is fitted on, in the same form.
    done = perceptron("export", "-t", topic, "--redis", service.redis_url, "-o", "served.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    served = fitted(folder, str(file), "--start", "served.json", "-o", "same.json")
    assert served["weights"]["coef"] == [3.0, 4.0, 1.0]
    ours, theirs = (json.loads((folder / name).read_text()) for name in ("same.json", "served.json"))
    assert ours.keys() <= theirs.keys()
    assert {k: ours[k] for k in ours if k != "counts"} == {k: theirs[k] for k in ours if k != "counts"}


async def test_a_topic_is_read_whole_once_without_what_is_no_event(
    kafka: Server, producer: AIOKafkaProducer, topic: str, folder: Path
) -> None:
    """Partition after partition; bad records counted; of transactions the committed ones, up to the first open one."""
    await create_topic(kafka, topic, partitions=2)
    for x, y in zip(SQUARE[2:], AND[2:], strict=True):
        await producer.send_and_wait(topic, event({"a": x[0], "b": x[1]}, y), partition=1)
    await producer.send_and_wait(topic, b"no event", partition=0)
    writer = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=f"x-{topic}")
    await writer.start()
    try:
        for x, y, committed in [((5, 5), 0, False), *zip(SQUARE[:2], AND[:2], (True, True), strict=True)]:
            await writer.begin_transaction()
            await writer.send_and_wait(topic, event({"a": x[0], "b": x[1]}, y), partition=0)
            await (writer.commit_transaction() if committed else writer.abort_transaction())
        await writer.begin_transaction()
        await writer.send_and_wait(topic, event({"a": 9, "b": 9}, 0), partition=0)
        done = await asyncio.to_thread(fit, folder, "--topic", topic, "-b", kafka.address, "--trace")
        await writer.abort_transaction()
    finally:
        await writer.stop()
    assert trace(done)[:4] == [[-1, 0, 0], [-1, 0, 0], [-1, 0, 0], [0, 1, 1]]
    lines = [line for line in done.stdout.splitlines() if line.startswith("pass ")]
    assert [line.split()[2] for line in lines[:4]] == ["0-3", "0-5", "1-0", "1-1"]
    assert "data     4 events, 2 features, 1 record set aside (not-json 1)\n" in done.stdout
    again = await asyncio.to_thread(fit, folder, "--topic", topic, "-b", kafka.address)
    assert "converged in pass 9 after 18 mistakes" in again.stdout


def test_settings_of_a_model_and_flags_over_them(folder: Path) -> None:
    (folder / "perceptron.toml").write_text(
        '[model]\neta = 0.5\n[models.words]\nlabels = ["no", "yes"]\nrule = "half-step"\n[models.other]\n'
    )
    (folder / "words.jsonl").write_bytes(event({"a": 1}, "yes") + b"\n" + event({}, "no") + b"\n")
    done = fit(folder, "words.jsonl", code=2)
    assert "name one of words, other" in done.stderr
    weights = fitted(folder, "words.jsonl", "--model", "words")["weights"]
    assert (weights["rule"], weights["eta"], weights["classes"]) == ("half-step", 0.5, ["no", "yes"])
    weights = fitted(folder, "words.jsonl", "--model", "words", "--rule", "perceptron", "--eta", "2")["weights"]
    assert (weights["rule"], weights["eta"], weights["classes"]) == ("perceptron", 2.0, ["no", "yes"])


def test_without_the_extra_it_says_what_to_install(folder: Path) -> None:
    (folder / "without").mkdir()
    (folder / "without" / "scipy.py").write_text("raise ImportError('not installed')\n")
    env = {"PYTHONPATH": str(folder / "without")}
    done = fit(folder, "xor.csv", "--label", "y", env=env)
    assert done.stdout.startswith("not converged in 100 passes: 400 mistakes")
    assert "evidence none: pip install 'perceptron-service[fit]'" in done.stdout
    # Converged weights separate, and bound without it.
    done = fit(folder, "and.csv", "--label", "y", env=env)
    assert "evidence it converged, so separable; the largest margin is unknown: pip install" in done.stdout
    assert "18 updates <= 87 = (R/γ)²·‖w_opt‖²: R = 1.73205, γ = 1, ‖w_opt‖ = 5.38516 (w_opt: the final" in done.stdout


def test_wrong_input_is_one_line(kafka: Server, topic: str, folder: Path) -> None:
    (folder / "bad.jsonl").write_bytes(event({"a": 1}, 1) + b"\n\n" + event({"a": 1e99}, 1) + b"\n")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "unit.toml").write_text('[model]\nrule = "threshold-unit"\nweights = {a = 1}\nthreshold = 1\n')
    (folder / "long.csv").write_text("a,y\n" + "1,1\n" * 6000)
    for arguments, code, part in (
        ((), 2, "name a FILE, or a topic with --topic TOPIC, and not both"),
        (("and.csv", "-t", topic), 2, "name a FILE, or a topic with --topic TOPIC, and not both"),
        (("gone.csv", "--label", "y"), 2, "gone.csv: No such file or directory"),
        (("and.csv",), 1, "and.csv, line 1: there is no column 'label'; the columns are a, b, y; --label COLUMN says"),
        (("bad.jsonl",), 1, 'bad.jsonl, line 3: out-of-range: feature "a" is beyond ±1e+30'),
        (("empty.jsonl",), 1, "empty.jsonl: no event to learn"),
        (("and.csv", "--label", "y", "--rule", "lms", "--eta", "3"), 1, "rule lms with eta 3 diverges: the loss rises"),
        (("and.csv", "--label", "y", "--batch", "--eta", "3"), 1, "(0.125 never does); choose a smaller eta"),
        (("and.csv", "--label", "y", "--batch", "--rule", "perceptron"), 2, "it goes with --rule lms alone"),
        (("and.csv", "--label", "y", "--batch", "--tolerance", "2"), 2, "it takes no --tolerance"),
        (("and.csv", "--label", "y", "--rule", "half-step", "--eta", "1"), 2, "needs 0 < eta < 1"),
        (("and.csv", "--label", "y", "--rule", "delta"), 2, "rule: expected 'perceptron', 'error-correction'"),
        (("and.csv", "--label", "y", "--start", "gone.json"), 2, "start: gone.json: No such file or directory"),
        (("and.csv", "--label", "y", "--start", "and.csv"), 2, "start: and.csv: JSON is malformed"),
        (("and.csv", "--label", "y", "--model", "none"), 2, "the settings have no model none"),
        (("and.csv", "--label", "y", "-o", "gone/w.json"), 2, "gone/w.json: there is no such folder"),
        (("and.csv", "--label", "y", "-o", "/"), 2, "/: Is a directory"),
        (("long.csv", "--label", "y", "--trace"), 2, "--trace is for small data"),
        (("-t", topic, "-b", kafka.address), 2, f"topic {topic} does not exist"),
        (("-t", topic, "-b", "127.0.0.1:1"), 3, "Connection refused"),
    ):
        done = fit(folder, *arguments, code=code)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("pass ")]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("perceptron: ")
        assert part in lines[0]
        assert done.stdout == ""
    (folder / "two.toml").write_text("[models.first]\n[models.second]\n")
    for more, said in (
        ([], "--model: the settings have several models: name one of first, second"),
        (["--model", "frist"], "the settings have no model frist: perhaps first"),
    ):
        done = perceptron("-c", "two.toml", "fit", "and.csv", "--label", "y", *more, cwd=folder)
        assert (done.returncode, done.stderr) == (2, f"perceptron: {said}\n")
    done = perceptron("-c", "unit.toml", "fit", "and.csv", "--label", "y", cwd=folder)
    assert (done.returncode, done.stderr) == (2, "perceptron: a threshold-unit never learns: there is nothing to fit\n")


async def test_a_topic_without_an_event(kafka: Server, producer: AIOKafkaProducer, topic: str, folder: Path) -> None:
    await create_topic(kafka, topic)
    done = await asyncio.to_thread(fit, folder, "-t", topic, "-b", kafka.address, code=1)
    assert done.stderr == f"perceptron: topic {topic}: no event to learn\n"
    await producer.send_and_wait(topic, b"bad")
    done = await asyncio.to_thread(fit, folder, "-t", topic, "-b", kafka.address, code=1)
    assert done.stderr == f"perceptron: topic {topic}: no event to learn (not-json 1)\n"
