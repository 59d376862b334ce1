"""An exported model, loaded by other libraries, answers as the service does."""

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
from sklearn.pipeline import Pipeline

from service.embedded import servers
from service.embedded.servers import Server
from tests.conftest import Running, clean_environment, delete_topic, event, one_line, perceptron, send, wait

pytestmark = pytest.mark.nightly

SETTINGS = """
[model]
eta = 0.5
[models.words]
labels = ["z", "a", "é"]
[models.raw]
[models.raw-hashed]
features = "hashed"
bits = 6
[models.empty]
[models.scaled]
scale = "standard"
serve = "double"
[models.scaled.candidates.double]
eta = 1.0
tie = "positive"
[models.scaled-words]
scale = "standard"
clip = 2
average = "recent"
serve = "average"
labels = ["z", "a", "é"]
[models.scaled-rows]
features = "positional"
dimension = 8
scale = "standard"
clip = 3
[models.scaled-hashed]
features = "hashed"
bits = 6
scale = "standard"
"""
LABELS: dict[str, tuple[Any, ...]] = {"words": ("z", "a", "é"), "scaled-words": ("z", "a", "é")}
MODELS = ["scaled-rows", "words", "raw", "raw-hashed", "scaled", "scaled-words", "empty", "scaled-hashed"]
ROWS = "scaled-rows"
RAW = ("raw", "raw-hashed")
TABLES = ("scaled", "scaled-words")
"""Models whose columns have NaN for a feature that is absent."""
NAMES = [f"n{i}" for i in range(8)]


def instance(r: random.Random, model: str) -> Any:
    """Eight values, as sparse names unless the model is positional; `raw` models also have every other JSON value.

    Scaled models have numbers around 100, some of them wild; or none, so that scores of 0 occur.
    """
    x = [r.gauss(0, 1) * 10 ** r.randint(-3, 3) for _ in NAMES]
    if model == ROWS:
        return x
    if model in TABLES:
        values = {"vip": r.random() < 0.5, "country": r.choice(["NL", "été"])}
        numbers = {name: 100 + value for name, value in zip(NAMES, x, strict=True)} if r.random() < 0.7 else {}
        return {n: v for n, v in (numbers | values).items() if r.random() < 0.7}
    features: dict[str, Any] = dict(zip(NAMES, x, strict=True))
    if model in RAW:
        features |= {
            "country": r.choice(["NL", "", "été", "a=b", "1"]),
            "vip": r.random() < 0.5,
            "gone": None,
            "a=b": r.randint(-3, 3),
            "user": {"tier": r.choice("xyz"), "of": {"age": r.randint(18, 90), "new": r.random() < 0.5, "none": {}}},
            "tags": r.choices(["t0", "t1", "t2", "t.3"], k=r.randint(0, 5)),
            "size": [r.gauss(0, 1) for _ in range(r.randint(0, 3))],
        }
    return {n: v for n, v in features.items() if r.random() < 0.7}


def events_of(model: str) -> list[bytes]:
    """Random events for a model."""
    r = random.Random(model)
    labels = LABELS.get(model, (-1, 1))
    return [
        event(instance(r, model), r.choice(labels))
        for _ in range(300 if model not in ("empty", "scaled-hashed") else 0)
    ]


@pytest.fixture(scope="module")
def service(own_kafka: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service that has learned every model, on a broker of this worker."""
    kafka = own_kafka
    folder = tmp_path_factory.mktemp("export")
    with servers.start_redis(folder) as redis:
        flags = "--create-topics"
        running = Running(MODELS[0], kafka.address, redis.address, folder, SETTINGS, flags, topics=MODELS[1:])
        try:
            running.up()
            asyncio.run(_produce(kafka))
            for model in MODELS:
                events = len(events_of(model))
                wait(partial(_is_saved, running, model, events), f"{model} is learned and saved")
            yield running
        finally:
            running.close()
            for model in MODELS:  # this worker may make them again later
                asyncio.run(delete_topic(kafka, model))


def _is_saved(running: Running, model: str, events: int) -> bool:
    info = running.model(model)
    return bool(info["events"] == events and info["ahead"] == 0)


async def _produce(kafka: Server) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.address) as client:
        for model in MODELS:
            await send(client, model, events_of(model))


def export(service: Running, model: str, *arguments: str, cwd: Path) -> Any:
    flags = "-c", str(service.config), "export", "-m", model, "--redis", service.redis_url
    return perceptron(*flags, *arguments, cwd=cwd)


def matrix(spec: Any, instances: list[Any]) -> Any:
    """The instances as columns, as the exported JSON says; strings become names."""
    if spec["features"]["mode"] != "positional":
        flat = _page()["flat"]
        strings = ({f"{k}={v}" if isinstance(v, str) else k: v for k, v in flat(x)} for x in instances)
        instances = [{k: 1 if isinstance(v, str) else v for k, v in x.items()} for x in strings]
    if spec["features"]["mode"] == "hashed":
        return FeatureHasher(**spec["features"]["feature_hasher"]).transform(instances)
    if spec["features"]["mode"] == "positional":
        return np.array(instances)
    absent = 0.0 if spec["scale"] == "none" else np.nan
    return np.array([[x.get(name, absent) for name in spec["names"]] for x in instances])


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("model", MODELS[:-2])
def test_scores_and_labels_are_the_services(service: Running, tmp_path: Path, model: str) -> None:
    """scikit-learn and ONNX agree with the service on 1,000 random instances and the empty one, labels exactly."""
    files = [("-o", "m.json"), ("--sklearn", "m.skops"), ("--onnx", "m.onnx")]
    result = export(service, model, *(x for pair in files for x in pair), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    version = service.model(model)["version"]
    assert result.stderr == "".join(f"version {version} of {model} written to {file}\n" for _, file in files)
    spec = json.loads((tmp_path / "m.json").read_text())
    import skops.io  # it loads all of scikit-learn and SciPy, in this worker only

    trusted = ["numpy.clip"] * ("clip" in spec) + ["numpy.nan_to_num"] * (model in TABLES)
    assert skops.io.get_untrusted_types(file=tmp_path / "m.skops") == trusted
    estimator = skops.io.load(tmp_path / "m.skops", trusted=trusted)
    assert type(estimator) is Pipeline
    assert model not in TABLES or estimator.feature_names_in_.tolist() == spec["names"]

    r = random.Random(7)
    instances = [instance(r, model) for _ in range(1000)] + [[0.0] * 8 if model == ROWS else {}]
    if model in RAW:
        unknown = {"never seen": 2, "nor": "this", "country": "XX", "tags": ["t9", "t1"], "user": {"tier": "?"}}
        instances += [{**instance(r, model), **unknown} for _ in range(100)]
    body = {"instances": [{"features": x} for x in instances]}
    answer = service.http.post(f"/v1/models/{model}/predict", json=body).raise_for_status().json()["predictions"]
    scores, labels = np.array([a["score"] for a in answer]), [a["label"] for a in answer]
    assert set(labels) == set(LABELS.get(model, (-1, 1)))
    x = matrix(spec, instances)
    limits: Any = {"rtol": 1e-9, "atol": 1e-12}
    rows = x if model in (ROWS, *TABLES) else [dict(_page()["flat"](features)) for features in instances]
    assert 0.0 in scores or model != "scaled"
    several = len(spec["classes"]) > 2

    def top_score(all_scores: Any) -> Any:
        """The score in the service's answer: with several labels, the largest."""
        return all_scores.max(axis=1) if several else all_scores

    np.testing.assert_allclose(top_score(estimator.decision_function(rows)), scores, **limits)
    assert estimator.predict(rows).tolist() == labels
    scaled = x
    if spec["scale"] == "standard":
        n, mean, m2 = (np.array(spec[part]) for part in ("count", "mean", "m2"))
        clip, is_number = spec.get("clip", np.inf), n > 0
        scaled = ((x - mean) / np.sqrt(np.where(is_number, m2 / np.maximum(n, 1), 1))).clip(-clip, clip)
        scaled = np.nan_to_num(np.where(is_number, scaled, x))
    np.testing.assert_allclose(top_score(scaled @ np.array(spec["coef"]).T + spec["intercept"]), scores, **limits)
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    dense = np.asarray(x.todense() if spec["features"]["mode"] == "hashed" else x, np.float64)
    onnx_labels, onnx_scores = session.run(["label", "scores"], {"features": dense})
    np.testing.assert_allclose(top_score(onnx_scores if several else onnx_scores[:, 1]), scores, **limits)
    if not several:
        np.testing.assert_allclose(onnx_scores[:, 0], -scores, **limits)
    assert onnx_labels.tolist() == labels
    assert session.get_modelmeta().custom_metadata_map["state_digest"] == spec["state_digest"]


def test_a_failed_export_is_one_line_and_leaves_no_file(service: Running, tmp_path: Path) -> None:
    result = export(service, "empty", "--sklearn", "m.skops", cwd=tmp_path)
    assert (result.returncode, "knows no feature yet" in one_line(result.stderr)) == (1, True)
    result = export(service, "none", cwd=tmp_path)
    assert (result.returncode, "model none has no snapshot in Redis" in one_line(result.stderr)) == (1, True)
    assert list(tmp_path.iterdir()) == []
    result = export(service, "scaled-hashed", "--onnx", "m", "-o", "m.json", cwd=tmp_path)
    assert (result.returncode, "a column does not tell" in result.stderr) == (1, True)
    assert [file.name for file in tmp_path.iterdir()] == ["m.json"], "the form that can be written is written"


def _blocks() -> list[str]:
    """The shell and Python blocks of docs/export.md."""
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    return re.findall(r"^```(?:sh|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@cache
def _page() -> dict[str, Any]:
    """The names that the page's Python defines."""
    names: dict[str, Any] = {}
    exec(_blocks()[1].partition("events = ")[0], names)  # noqa: S102 - our own page
    return names


def test_the_page_s_export_runs(service: Running, tmp_path: Path) -> None:
    """The page's commands and Python run on our models, and print the labels that the service gives."""
    shell, python, scaled = _blocks()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = clean_environment(
        PERCEPTRON_CONFIG=str(service.config), PERCEPTRON_REDIS__URL=service.redis_url, PATH=path
    )
    for name in ("churn", "scaled"):
        command = shell.replace("-m churn", f"-m {name.replace('churn', 'raw')}").replace("churn", name)
        subprocess.run(["bash", "-ec", command], check=True, cwd=tmp_path, env=environment)
    code = python.replace("age", "n0").replace("logins", "n1").replace('"country": "NL"', '"tier": "x"')
    code += scaled.replace("columns =", 'events = [{"n0": 99.5, "country": "NL", "none": 3}]\ncolumns =')
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    body = {"features": {"n0": 0.1, "n1": 3, "user": {"tier": "x"}}}
    answer = service.http.post("/v1/models/raw/predict", json=body).json()
    sklearn, onnx_output, *of_scaled = result.stdout.splitlines()
    assert answer["unknown_features"] == 0
    assert sklearn == f"[{answer['label']}]"
    assert f"array([{answer['label']}]" in onnx_output
    assert f"{answer['score']:.8g}"[:8] in onnx_output
    body = {"features": {"n0": 99.5, "country": "NL", "none": 3}}
    answer = service.http.post("/v1/models/scaled/predict", json=body).json()
    assert answer["unknown_features"] == 1
    assert of_scaled[0] == f"[{answer['label']}]"
    assert f"{answer['score']:.8g}"[:8] in of_scaled[1]
