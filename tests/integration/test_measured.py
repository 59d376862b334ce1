"""What is served is measured: beside the share of the more frequent label, and with advice where it is below that."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.conftest import Run, event, wait
from tests.integration.kept import Tool

pytestmark = pytest.mark.nightly

SETTINGS = '[model]\nfeatures = "positional"\ndimension = 2\nwindow = 100\naverage = true\n'
EVENTS = 400


async def test_a_model_below_its_baseline_says_so_and_what_to_try(
    run: Run, tool: Tool, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    """Labels that the features say nothing of, nine in ten negative: in answers, metrics, log, replica and command."""
    service = await asyncio.to_thread(run(SETTINGS).up)
    replica = await asyncio.to_thread(run(SETTINGS, "--no-learn").up)
    rng = random.Random(3)
    labels = []
    for _ in range(EVENTS):
        x = [rng.gauss(0, 1), rng.gauss(0, 1)]
        labels.append(int(rng.random() < 0.1))
        await producer.send(topic, event(x, labels[-1]))
    await producer.flush()
    model = await asyncio.to_thread(service.wait_for, EVENTS)
    baseline = {"all": 1 - sum(labels) / EVENTS, "recent": 1 - sum(labels[-100:]) / 100}
    assert {over: model["baseline"][over] for over in baseline} == pytest.approx(baseline)
    (last,) = [pair for pair in model["comparisons"] if (pair["first"], pair["second"]) == ("baseline", "last")]
    assert (last["events"], last["better"], last["interval"][0] > 0.0) == (EVENTS, "baseline", True)
    (advice,) = model["advice"]
    assert f"always the more frequent label would have been in {baseline['recent']:.1%}" in advice
    metrics = service.metrics()
    for name, member, weights in (
        ("prequential_accuracy", "accuracy", "last"), ("prequential_accuracy", "average_accuracy", "average"),
        ("prequential_accuracy", "served_accuracy", "served"), ("baseline_accuracy", "baseline", ""),
        *((name, name, "") for name in ("balanced_accuracy", "precision", "recall", "f1")),
    ):  # fmt: skip
        about = f'{{model="{topic}",weights="{weights}"}}' if weights else f'{{model="{topic}"}}'
        assert metrics[f"perceptron_{name}{about}"] == model[member]["recent"]
        assert metrics[f"perceptron_{name}_overall{about}"] == model[member]["all"]
        if weights:
            ends = [metrics[f"perceptron_{name}_{end}{about}"] for end in ("low", "high")]
            assert ends == model[member]["all_interval"]
    await asyncio.to_thread(wait, lambda: replica.model()["advice"] == [advice], "a replica says so too")
    assert service.log.read_text().count("(logged once)") == 1
    config = tmp_path / "perceptron.toml"
    config.write_text(SETTINGS)
    assert json.loads((await tool("inspect", "--json", settings=config)).stdout)["advice"] == [advice]
    said = " ".join((await tool("inspect", settings=config)).stdout.split())
    assert "baseline is better (95 %)" in said
    assert "advice of the last 100 predictions" in said
