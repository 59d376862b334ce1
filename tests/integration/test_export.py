"""An exported model, loaded by others, answers as the service does."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from aiokafka import AIOKafkaProducer
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import Perceptron
from sklearn.pipeline import Pipeline

from service.embedded import servers
from service.embedded.servers import Server
from service.errors import DataError
from service.learning.events.json_values import parse
from service.learning.learner import Learner
from service.learning.records import Records
from service.settings.load import load
from service.settings.model import ModelSettings
from service.snapshots.store import RedisStore
from service.tools import export as tool
from tests.conftest import Running, clean_environment, delete_topic, event, perceptron, wait
from tests.saving import keeper, save

SETTINGS = """
[model]
eta = 0.5
[models.named]
[models.positional]
features = "positional"
dimension = 8
[models.hashed]
features = "hashed"
bits = 3
[models.words]
labels = ["stay", "leave"]
[models.flags]
labels = [false, true]
[models.mixed]
labels = [0, "yes"]
[models.raw]
[models.raw-hashed]
features = "hashed"
bits = 6
[models.tied]
[models.empty]
[models.scaled]
scale = "standard"
[models.scaled-rows]
features = "positional"
dimension = 8
scale = "standard"
"""
LABELS: dict[str, tuple[Any, Any]] = {"words": ("stay", "leave"), "flags": (False, True), "mixed": (0, "yes")}
MODELS = ["named", "positional", "scaled-rows", "hashed", "words", "flags", "mixed", "raw", "raw-hashed", "tied"]
MODELS += ["empty", "scaled"]
ROWS = ("positional", "scaled-rows")
RAW = ("raw", "raw-hashed")
NAMES = [f"n{i}" for i in range(8)]


def instance(r: random.Random, model: str) -> Any:
    """Features of eight values, named sparse ones where the model is not positional; `raw` ones have all else too."""
    x = [r.gauss(0, 1) * 10 ** r.randint(-3, 3) for _ in NAMES]
    if model in ROWS:
        return x
    named: dict[str, Any] = dict(zip(NAMES, x, strict=True))
    if model in RAW:
        named |= {
            "country": r.choice(["NL", "", "été", "a=b", "1"]),
            "vip": r.random() < 0.5,
            "gone": None,
            "a=b": r.randint(-3, 3),
            "user": {"tier": r.choice("xyz"), "of": {"age": r.randint(18, 90), "new": r.random() < 0.5, "none": {}}},
            "tags": r.choices(["t0", "t1", "t2", "t.3"], k=r.randint(0, 5)),
            "size": [r.gauss(0, 1) for _ in range(r.randint(0, 3))],
        }
    return {n: v for n, v in named.items() if r.random() < 0.7}


def learned(model: str) -> list[bytes]:
    """The events of a model: noise beside a plane. `tied` ends with a bias of 0, and a score of 0 for nothing."""
    if model == "tied":
        return [event({"a": 1}, 1), event({"b": 1}, -1)]
    r = random.Random(model)
    labels = LABELS.get(model, (-1, 1))
    return [
        event(features, labels[r.random() < 0.5])
        for features in (instance(r, model) for _ in range(300 if model != "empty" else 0))
    ]


@pytest.fixture(scope="module")
def service(own_kafka: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service that has learned every model, from topics whose names no other worker has."""
    kafka = own_kafka
    folder = tmp_path_factory.mktemp("export")
    with servers.redis(folder) as redis:
        flags = "--create-topics"
        running = Running(MODELS[0], kafka.address, redis.address, folder, SETTINGS, flags, topics=MODELS[1:])
        try:
            running.up()
            asyncio.run(_produce(kafka))
            for model in MODELS:
                events = len(learned(model))
                wait(partial(_saved, running, model, events), f"{model} is learned and saved")
            yield running
        finally:
            running.kill()
            running.http.close()
            for model in MODELS:  # a worker may come here again, after tests of other files
                asyncio.run(delete_topic(kafka, model))


def _saved(running: Running, model: str, events: int) -> bool:
    about = running.model(model)
    return bool(about["events"] == events and about["ahead"] == 0)


async def _produce(kafka: Server) -> None:
    client = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await client.start()
    for model in MODELS:
        for raw in learned(model):
            await client.send(model, raw)
    await client.stop()


def export(service: Running, model: str, *arguments: str, cwd: Path) -> Any:
    return perceptron("export", "-t", model, "--redis", service.redis_url, *arguments, cwd=cwd)


def matrix(about: Any, instances: list[Any]) -> Any:
    """The instances as the JSON says that they become columns, strings made names."""
    if about["features"]["mode"] != "positional":
        flat = _page()["flat"]
        strings = ({f"{k}={v}" if isinstance(v, str) else k: v for k, v in flat(x)} for x in instances)
        instances = [{k: 1 if isinstance(v, str) else v for k, v in x.items()} for x in strings]
    if about["features"]["mode"] == "hashed":
        return FeatureHasher(**about["features"]["feature_hasher"]).transform(instances)
    if about["features"]["mode"] == "positional":
        return np.array(instances)
    return np.array([[x.get(name, 0.0) for name in about["names"]] for x in instances])


@pytest.mark.parametrize("model", MODELS[:-2])
def test_scores_and_labels_are_the_services(service: Running, tmp_path: Path, model: str) -> None:
    """On 1,000 random instances and the empty one: scikit-learn's and ONNX's, labels exactly."""
    files = [("-o", "m.json"), ("--sklearn", "m.skops"), ("--onnx", "m.onnx")]
    if model == "mixed":
        refused = export(service, model, *files.pop(), cwd=tmp_path)
        assert refused.returncode == 1
        assert refused.stderr == (
            "perceptron: model mixed: ONNX takes labels that are all integers or all strings, not [0, 'yes']\n"
        )
    done = export(service, model, *(x for pair in files for x in pair), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    version = service.model(model)["version"]
    assert done.stderr == "".join(f"version {version} of {model} written to {file}\n" for _, file in files)
    about = json.loads((tmp_path / "m.json").read_text())
    import skops.io  # it loads all of scikit-learn and SciPy: in the one worker that comes here

    assert skops.io.get_untrusted_types(file=tmp_path / "m.skops") == []
    fitted = skops.io.load(tmp_path / "m.skops", trusted=[])
    assert type(fitted) is (Perceptron if model in ROWS else Pipeline)

    r = random.Random(7)
    instances = [instance(r, model) for _ in range(1000)] + [[0.0] * 8 if model in ROWS else {}]
    if model == "tied":
        instances += [{"a": v} for v in (-1, 0, 1)]
    if model in RAW:
        unknown = {"never seen": 2, "nor": "this", "country": "XX", "tags": ["t9", "t1"], "user": {"tier": "?"}}
        instances += [{**instance(r, model), **unknown} for _ in range(100)]
    body = {"instances": [{"features": x} for x in instances]}
    answer = service.http.post(f"/v1/models/{model}/predict", json=body).raise_for_status().json()["predictions"]
    scores, labels = np.array([a["score"] for a in answer]), [a["label"] for a in answer]
    assert set(labels) == set(LABELS.get(model, (-1, 1)))
    x = matrix(about, instances)
    close: Any = {"rtol": 1e-9, "atol": 1e-12}
    given = x if model in ROWS else [dict(_page()["flat"](one)) for one in instances]
    np.testing.assert_allclose(fitted.decision_function(given), scores, **close)
    assert fitted.predict(given).tolist() == labels
    shown = x
    if about["scale"] == "standard":
        n, mean, m2 = (np.array(about[name]) for name in ("count", "mean", "m2"))
        shown = (x - mean) / np.sqrt(m2 / n)
    np.testing.assert_allclose(shown @ np.array(about["coef"]) + about["intercept"], scores, **close)
    if model == "tied":
        assert labels[1000] == about["classes"][0] == -1
        assert scores[1000] == 0.0

    if model == "mixed":
        return
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    dense = np.asarray(x.todense() if about["features"]["mode"] == "hashed" else x, np.float64)
    told, both = session.run(["label", "scores"], {"features": dense})
    np.testing.assert_allclose(both[:, 1], scores, **close)
    np.testing.assert_allclose(both[:, 0], -scores, **close)
    assert told.tolist() == labels
    assert session.get_modelmeta().custom_metadata_map["state_digest"] == about["state_digest"]


CLASSES: dict[str, Any] = {
    "words": {"labels": ["z", "a", "é"]},
    "hashed": {"labels": [7, -1, 0, 3], "features": "hashed", "bits": 4, "rule": "lms", "eta": 1e-9},
    "rows": {
        "labels": [2, 0, 1],
        "features": "positional",
        "dimension": 8,
        "scale": "standard",
        "average": True,
        "serve": "average",
    },
    "some": {"labels": [0, "b", 1.5]},
    "equals": {"labels": ["b", "a", "c"]},
}


@pytest.mark.parametrize("model", CLASSES)
def test_classes_answer_as_the_service_does(redis: Server, tmp_path: Path, model: str) -> None:
    """JSON, scikit-learn and ONNX: each class's score on 1,000 instances, and the first label of the largest."""
    own = ModelSettings(**CLASSES[model])
    learner = Learner(own.identity(), options=own.options())
    learner.begin({0: 0})
    labels, r = list(own.labels or ()), random.Random(model)
    kind = "scaled-rows" if model == "rows" else "named"
    events = [event(instance(r, kind), r.choice(labels)) for _ in range(300)]
    # Beside the wrong one all are equal, and so they are where n0 = -1: the first.
    learner.apply(0, Records.of(0, [event({"n0": 1}, "c")] if model == "equals" else events))
    name = f"classes-{model}"

    async def saved() -> None:
        async with RedisStore(f"redis://{redis.address}/0") as store:
            if not await store.there(name):  # else a worker comes here again
                await save(keeper(store, name), learner)

    asyncio.run(saved())
    settings = load(None, {"redis": {"url": f"redis://{redis.address}/0"}, "models": {name: CLASSES[model]}})
    files = {part: str(tmp_path / f"m.{part}") for part in ("json", "skops", "onnx")}
    if model == "some":
        with pytest.raises(DataError, match=r"all integers or all strings, not \[0, 'b', 1.5\]$"):
            tool.export(settings, name, None, None, files["onnx"])
    tool.export(settings, name, files["json"], files["skops"], None if model == "some" else files["onnx"])
    import skops.io  # as above

    about, fitted = json.loads(Path(files["json"]).read_text()), skops.io.load(files["skops"], trusted=[])
    assert about["classes"] == labels
    assert (len(about["intercept"]), len(about["coef"])) == (len(labels), len(labels))
    assert {len(row) for row in about["coef"]} == {about["n_features"]}
    assert about["counts"]["events"] == sum(map(sum, about["counts"]["confusion"])) == learner.counts.events
    last = fitted if model == "rows" else fitted[-1]
    assert (last.coef_.shape, last.classes_.tolist()) == ((len(labels), about["n_features"]), labels)

    instances = [instance(r, kind) for _ in range(1000)] + [[0.0] * 8 if model == "rows" else {}]
    instances += [{"n0": -1.0}] if model == "equals" else []
    scores = np.array(
        [learner.score(learner.flattener.of(parse(json.dumps(x).encode()), "/features"))[0] for x in instances]
    )
    told = [learner.label(row) for row in scores]
    if model == "equals":
        assert (set(told), told[-1], scores[-1].tolist()) == ({"b", "c"}, "b", [0, 0, 0])
    else:
        assert set(told) == set(labels)
    close: Any = {"rtol": 1e-9, "atol": 1e-12}
    x = matrix(about, instances)
    given = x if model == "rows" else [dict(_page()["flat"](one)) for one in instances]
    np.testing.assert_allclose(fitted.decision_function(given), scores, **close)
    assert fitted.predict(given).tolist() == told
    shown = x
    if model == "rows":
        n, mean, m2 = (np.array(about[part]) for part in ("count", "mean", "m2"))
        shown = (x - mean) / np.sqrt(m2 / n)
    np.testing.assert_allclose(shown @ np.array(about["coef"]).T + about["intercept"], scores, **close)
    if model != "some":
        onnx.checker.check_model(files["onnx"], full_check=True)
        dense = np.asarray(x.todense() if model == "hashed" else x, np.float64)
        said, every = onnxruntime.InferenceSession(files["onnx"]).run(["label", "scores"], {"features": dense})
        np.testing.assert_allclose(every, scores, **close)
        assert said.tolist() == told


def test_scikit_learn_goes_on_by_the_same_rule(service: Running, tmp_path: Path) -> None:
    """`partial_fit` on the loaded model, an event at a time, is the texts' rule with the model's eta."""
    assert export(service, "positional", "--sklearn", "m.skops", cwd=tmp_path).returncode == 0
    import skops.io

    fitted = skops.io.load(tmp_path / "m.skops", trusted=[])
    w, b = fitted.coef_[0].copy(), float(fitted.intercept_[0])
    r = random.Random(3)
    mistakes = 0
    for _ in range(50):
        x, y = np.array([r.gauss(0, 1) for _ in NAMES]), r.choice([-1, 1])
        fitted.partial_fit(x[None, :], [y])
        if y * (w @ x + b) <= 0:
            w, b, mistakes = w + 0.5 * y * x, b + 0.5 * y, mistakes + 1
        np.testing.assert_allclose(fitted.coef_[0], w, rtol=1e-9)
        assert fitted.intercept_[0] == pytest.approx(b, rel=1e-9, abs=1e-12)
    assert mistakes > 10


def test_the_json_names_every_part(service: Running, tmp_path: Path) -> None:
    for model in MODELS:
        done = export(service, model, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        about, live = json.loads(done.stdout), service.model(model)
        same = ("model", "version", "state_digest", "saved_at")
        assert [about[k] for k in same] == [live[k] for k in same]
        assert {k: live[k] for k in about["counts"]} == about["counts"]
        assert (about["format"], about["format_version"]) == ("perceptron-export", 1)
        assert (about["rule"], about["eta"]) == ("perceptron", 0.5)
        assert about["classes"] == list(LABELS.get(model, (-1, 1)))
        assert about["n_features"] == len(about["coef"]) == live["columns"] - 1
        names = {
            "positional": None,
            "scaled-rows": None,
            "hashed": None,
            "raw-hashed": None,
            "tied": ["a", "b"],
            "empty": [],
        }
        if model in names:
            assert about["names"] == names[model]
        elif model not in RAW:
            assert sorted(about["names"]) == NAMES


def test_what_cannot_be_written_is_one_line_and_leaves_no_file(service: Running, tmp_path: Path) -> None:
    done = export(service, "empty", "--sklearn", "m.skops", cwd=tmp_path)
    said = "perceptron: model empty knows no feature yet, and scikit-learn takes no model without\n"
    assert (done.returncode, done.stderr) == (1, said)
    done = export(service, "none", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("perceptron: model none has no snapshot in Redis")
    done = export(service, "named", "-o", "nowhere/m.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("nowhere/m.json: No such file or directory\n")
    done = perceptron("export", "-t", "named", "--redis", "redis://127.0.0.1:1/0", cwd=tmp_path)
    assert done.returncode == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--sklearn", "--onnx"])
def test_the_json_is_written_where_another_form_cannot_be(service: Running, tmp_path: Path, option: str) -> None:
    done = export(service, "scaled", option, "m", "-o", "m.json", cwd=tmp_path)
    written, refused = done.stderr.splitlines()
    assert written.endswith(" of scaled written to m.json")
    assert refused == (
        'perceptron: model scaled has scale = "standard": the columns that scikit-learn and ONNX take have 0 for a '
        "feature that is absent, and scaling has to tell it from the number 0; the JSON (-o FILE) has weights, count, "
        "mean and m2 of each column"
    )
    assert done.returncode == 1
    assert [file.name for file in tmp_path.iterdir()] == ["m.json"]
    assert json.loads((tmp_path / "m.json").read_text())["scale"] == "standard"


def test_without_the_extra_it_says_what_to_install(service: Running, tmp_path: Path) -> None:
    """And of a model for which they would be installed in vain, that."""
    for missing, option, extra in (("skops", "--sklearn", "sklearn"), ("skl2onnx", "--onnx", "onnx")):
        code = f"import sys; sys.modules['{missing}'] = None; from service.cli import main; main()"
        for model, said in (
            ("named", f"{option} needs more packages: pip install 'perceptron-service[{extra}]'\n"),
            ("scaled", 'model scaled has scale = "standard": '),
        ):
            command = [sys.executable, "-c", code, "export", "-t", model, "--redis", service.redis_url, option, "m"]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=tmp_path, env=clean_environment()
            )
            assert done.returncode == (2 if model == "named" else 1)
            assert done.stderr.startswith(f"perceptron: {said}")


def test_a_file_is_whole_or_as_it_was(service: Running, tmp_path: Path) -> None:
    """With room for 1 kB: the old file stays, and nothing beside it."""
    file = tmp_path / "m.skops"
    file.write_text("old")
    # Without -B Python would leave bytecode that is cut short beside what it imports, for everybody who comes later.
    export_named = f"-m service export -t named --redis {service.redis_url} --sklearn {file}"
    command = f"ulimit -f 1; exec {sys.executable} -B {export_named}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=clean_environment(), cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (2, f"perceptron: {file}: File too large\n")
    assert [p.name for p in tmp_path.iterdir()] == ["m.skops"]
    assert file.read_text() == "old"
    link = tmp_path / "link"
    link.symlink_to(file)
    assert export(service, "named", "--sklearn", "link", cwd=tmp_path).returncode == 0
    assert link.is_symlink()
    assert len(file.read_bytes()) > 1024
    assert export(service, "named", "-o", "/dev/null", cwd=tmp_path).returncode == 0
    assert Path("/dev/null").is_char_device()


def _blocks() -> list[str]:
    """The commands and the Python of docs/export.md."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    return re.findall(r"^```(?:sh|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@cache
def _page() -> dict[str, Any]:
    """What the page's Python defines."""
    names: dict[str, Any] = {}
    exec(_blocks()[1].partition("events = ")[0], names)  # noqa: S102 - our own page
    return names


def test_the_page_s_export_runs(service: Running, tmp_path: Path) -> None:
    """Its commands and its Python, on a model of ours: both print the label that the service gives."""
    shell, python = _blocks()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = clean_environment(PERCEPTRON_REDIS__URL=service.redis_url, PATH=path)
    subprocess.run(["bash", "-ec", shell.replace("-t churn", "-t raw")], check=True, cwd=tmp_path, env=environment)
    code = python.replace("age", "n0").replace("logins", "n1").replace('"country": "NL"', '"tier": "x"')
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    body = {"features": {"n0": 0.1, "n1": 3, "user": {"tier": "x"}}}
    answer = service.http.post("/v1/models/raw/predict", json=body).json()
    sklearn, onnx_said = done.stdout.splitlines()
    assert answer["unknown_features"] == 0
    assert sklearn == f"[{answer['label']}]"
    assert f"array([{answer['label']}]" in onnx_said
    assert f"{answer['score']:.8g}"[:8] in onnx_said
