"""What is served is measured: beside the share of the more frequent label, and with advice where it is below that."""

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from service.embedded.servers import Server
from service.learning.confidence import interval
from tests.conftest import Run, event, perceptron, wait

pytestmark = pytest.mark.nightly

SETTINGS = '[model]\nfeatures = "positional"\ndimension = 2\nwindow = 100\naverage = true\n'
EVENTS = 400


def noise() -> list[tuple[list[float], int]]:
    """Labels that the features say nothing of, nine in ten of them negative."""
    rng = random.Random(3)
    return [([rng.gauss(0, 1), rng.gauss(0, 1)], int(rng.random() < 0.1)) for _ in range(EVENTS)]


def folded(events: list[tuple[list[float], int]]) -> dict[str, list[bool]]:
    """Whether the last weights and their mean were right about each event before it was learned, by the formulas."""
    w, total = [0.0] * 3, [0.0] * 3
    right: dict[str, list[bool]] = {"last": [], "average": []}
    for n, (x, label) in enumerate(events):
        for name, weights in (("last", w), ("average", [v / max(n, 1) for v in total])):
            s = weights[0] + weights[1] * x[0] + weights[2] * x[1]
            right[name].append((s > 0.0) == (label == 1))
        y = 2.0 * label - 1.0
        if y * (w[0] + w[1] * x[0] + w[2] * x[1]) <= 0.0:
            w = [w[0] + y, w[1] + y * x[0], w[2] + y * x[1]]
        total = [a + b for a, b in zip(total, w, strict=True)]
    return right


async def test_a_model_below_its_baseline_says_so_and_what_to_try(
    run: Run, kafka: Server, redis: Server, producer: AIOKafkaProducer, topic: str, tmp_path: Path
) -> None:
    service = await asyncio.to_thread(run(SETTINGS).up)
    replica = await asyncio.to_thread(run(SETTINGS, "--no-learn").up)
    events = noise()
    for x, label in events:
        await producer.send(topic, event(x, label))
    await producer.flush()
    model = await asyncio.to_thread(service.wait_for, EVENTS)
    right = folded(events)
    expected = {
        member: {"all": sum(right[name]) / EVENTS, "recent": sum(right[name][-100:]) / 100}
        for member, name in (("accuracy", "last"), ("average_accuracy", "average"))
    }
    positive = [label for _, label in events]
    expected["baseline"] = {"all": 1 - sum(positive) / EVENTS, "recent": 1 - sum(positive[-100:]) / 100}
    for name, shares in expected.items():
        assert {over: model[name][over] for over in shares} == pytest.approx(shares), name
    for name in ("accuracy", "average_accuracy"):
        low, high = model[name]["all_interval"]
        assert (low, high) == pytest.approx(interval(EVENTS, round(expected[name]["all"] * EVENTS)))
    # The labels are noise: who always answers with the more frequent one is better, as is the steadier of the two.
    two = {(pair["first"], pair["second"]): pair for pair in model["comparisons"]}
    assert list(two) == [("average", "baseline"), ("average", "last"), ("baseline", "last")]
    assert [pair["events"] for pair in two.values()] == [EVENTS] * 3
    pair = two["average", "last"]
    assert pair["first_only"] == sum(a and not b for a, b in zip(right["average"], right["last"], strict=True))
    assert pair["difference"] == pytest.approx(expected["average_accuracy"]["all"] - expected["accuracy"]["all"])
    assert two["baseline", "last"]["better"] == "baseline"
    assert two["baseline", "last"]["interval"][0] > 0.0
    assert shares["recent"] >= expected["average_accuracy"]["recent"] > expected["accuracy"]["recent"]
    last, average = (f"{expected[name]['recent']:.1%}" for name in ("accuracy", "average_accuracy"))
    (advice,) = model["advice"]
    assert advice == (
        f"of the last 100 predictions {last} were right, and always the more frequent label would have been in "
        f'{shares["recent"]:.1%}: try serve = "average", which was right in {average}, or scale = "standard" or '
        'rule = "logistic-delta" (for which `perceptron reset` has the log learned again)'
    )
    metrics = service.metrics()
    for name, member, weights in (
        ("prequential_accuracy", "accuracy", "last"), ("prequential_accuracy", "average_accuracy", "average"),
        ("prequential_accuracy", "served_accuracy", "served"), ("baseline_accuracy", "baseline", ""),
        *((name, name, "") for name in ("balanced_accuracy", "precision", "recall", "f1")),
    ):  # fmt: skip
        labels = f'{{model="{topic}",weights="{weights}"}}' if weights else f'{{model="{topic}"}}'
        assert metrics[f"perceptron_{name}{labels}"] == model[member]["recent"]
        assert metrics[f"perceptron_{name}_overall{labels}"] == model[member]["all"]
        if weights:
            ends = [metrics[f"perceptron_{name}_{end}{labels}"] for end in ("low", "high")]
            assert ends == model[member]["all_interval"]
    await asyncio.to_thread(wait, lambda: replica.model()["advice"] == [advice], "a replica says so too")
    await producer.send_and_wait(topic, event(*events[0]))
    await asyncio.to_thread(service.wait_for, EVENTS + 1)
    assert service.log.read_text().count("(said once)") == 1
    about = ["inspect", "-t", topic, "-b", kafka.address, "--redis", f"redis://{redis.address}/0"]
    config = tmp_path / "perceptron.toml"
    config.write_text(SETTINGS)
    shown: Any = json.loads(perceptron("-c", str(config), *about, "--json").stdout)
    assert shown["average_accuracy"] == service.model()["average_accuracy"]
    said = " ".join(perceptron("-c", str(config), *about).stdout.split())
    assert re.search(r" baseline less last: 0\.\d+, baseline is better \(95 %\)", said)
    assert "advice of the last 100 predictions" in said
