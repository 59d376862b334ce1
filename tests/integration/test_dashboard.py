"""The Grafana dashboard, asked as Grafana asks: every query of every panel, on a real Prometheus and a real service."""

import asyncio
import contextlib
import json
import math
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaProducer

from tests.conftest import Run, Running, event, wait
from tests.prometheus import Prometheus, program, scraping

pytestmark = pytest.mark.nightly

DEPLOY = Path(__file__).parents[2] / "deploy"
TEXT = (DEPLOY / "grafana" / "dashboards" / "perceptron.json").read_text()
DASHBOARD: Any = json.loads(TEXT)
PANELS: list[Any] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
RATE_INTERVAL = "1m"  # what Grafana puts for $__rate_interval where a graph's step is just below a minute


def _run(*command: str | Path, **more: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **more)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[Running], Prometheus]]:
    """Start a Prometheus that scrapes a service; it ends with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda service: stack.enter_context(scraping(tmp_path, [service]))


def _resolve(asked: Prometheus) -> dict[str, str]:
    """Each variable with All chosen, as Grafana writes it into a query."""
    found: dict[str, str] = {"__rate_interval": RATE_INTERVAL}
    for variable in VARIABLES:
        call = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        assert call, variable["query"]
        values = asked.ask(f"/label/{call[2]}/values", **{"match[]": _fill(call[1], found)})
        assert values, variable["query"]
        found[variable["name"]] = f"({'|'.join(re.escape(value) for value in values)})".replace("\\", "\\\\")
    return found


def _fill(query: str, variables: dict[str, str]) -> str:
    for name, value in variables.items():
        query = query.replace(f"${name}", value)
    assert "$" not in query, query
    return query


async def test_every_query_of_every_panel_finds_something(
    run: Run, producer: AIOKafkaProducer, topic: str, prometheus: Callable[[Running], Prometheus]
) -> None:
    service = run("[model]\naverage = true\nscale = 'standard'\n[model.candidates.wide]\nmargin = 2\n")
    asked = await asyncio.to_thread(prometheus, service)  # while that starts
    await asyncio.to_thread(service.up)
    began = time.time()
    # In waves that Prometheus sees one by one: rates need counters that rise while they are watched.
    for wave in range(1, 4):
        for n in range(100):
            side = n % 2 * 2 - 1
            await producer.send(topic, event({"a": side * (1 + n % 7), "b": n % 5 - 2}, side))
        await producer.send(topic, b"no event")
        await producer.send(topic, event({"a": 1}, "neither"))
        await producer.flush()
        await asyncio.to_thread(service.wait_for, 102 * wave)
        for n in range(20):
            answer = await asyncio.to_thread(service.predict, {"features": {"a": n - 10, "b": 1}})
            assert answer.status_code == 200
        for counter, count in ("events", 100 * wave), ("predictions", 20 * wave), ("rejected_events", 2 * wave):
            await asyncio.to_thread(_seen, asked, f"sum(perceptron_{counter}_total)", count)
        # The dashboard looks at learners' counters every five seconds: between two looks they are to rise.
        if wave != 2:
            await asyncio.to_thread(_looked, asked, "count_over_time" if wave == 1 else "rate")
    variables = await asyncio.to_thread(_resolve, asked)
    assert variables["model"] == f"({topic})".replace("-", "\\\\-")

    empty = set()
    for panel in PANELS:
        title = panel["title"]
        for target in panel["targets"]:
            query, now = _fill(target["expr"], variables), time.time()
            if target["instant"]:
                result = asked.ask("/query", query=query, time=now)["result"]
                values = [[series["value"]] for series in result]
            else:
                result = asked.ask("/query_range", query=query, start=began, end=now, step=1)["result"]
                values = [series["values"] for series in result]
            if not any(math.isfinite(float(value)) for points in values for _, value in points):
                empty.add(title)
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert all(labels <= set(series["metric"]) for series in result), (title, result)
    assert not empty


def _looked(asked: Prometheus, how: str) -> None:
    """Wait until this is above 0 of each reason, for which the series begin last."""
    query = f"min({how}(max by (reason) (perceptron_rejected_events_total)[1m:5s] offset 1s))"
    wait(lambda: (asked.value(query) or 0) > 0, f"{how} of what the dashboard has looked at")


def _seen(asked: Prometheus, query: str, count: int) -> None:
    wait(lambda: asked.value(query) == count, f"{query} is {count} in Prometheus")


async def test_promtool_has_nothing_to_say_about_the_metrics(run: Run, producer: AIOKafkaProducer, topic: str) -> None:
    service = await asyncio.to_thread(run().up)
    for raw in event({"a": 1}, 1), b"no event":
        await producer.send(topic, raw)
    await producer.flush()
    await asyncio.to_thread(service.wait_for, 2)
    assert service.predict({"features": {"a": 1}}).status_code == 200
    done = _run(program("promtool"), "check", "metrics", input=service.http.get("/metrics").text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_accepts_the_configuration_of_prometheus() -> None:
    done = _run(program("promtool"), "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_takeover_shows_in_no_rate_and_no_total(tmp_path: Path) -> None:
    """10 events a second, one in five a mistake; at 5 min another process takes over, while for two scrapes the first
    still exports what it had."""
    series = []
    for metric, step in ("events", 50), ("mistakes", 10):
        name = f'perceptron_{metric}_total{{job="p", model="m", instance="%s"}}'
        at = 60 * step
        series.append({"series": name % "first", "values": f"0+{step}x60 {at} {at} stale"})
        series.append({"series": name % "second", "values": f"_x61 {at + step}+{step}x100"})
    variables = {"job": "p", "model": "m", "instance": ".+", "__rate_interval": RATE_INTERVAL}

    def query(panel: str) -> str:
        return _fill(next(p for p in PANELS if p["title"] == panel)["targets"][0]["expr"], variables)

    asked = []
    for seconds in range(120, 600, 5):
        for expression, value in (
            (f"abs(({query('Events learned')}) - 10) < bool 1", 1),
            (f"abs(({query('Mistake rate, 5 min')}) - 0.2) < bool 0.001", 1),
            (f"{query('Mistakes')}", 2 * seconds),
        ):
            sample = {"labels": '{model="m"}', "value": value}
            asked.append({"expr": expression, "eval_time": f"{seconds}s", "exp_samples": [sample]})
    test = {"interval": "5s", "input_series": series, "promql_expr_test": asked}
    file = tmp_path / "takeover.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "5s", "tests": [test]}))
    done = _run(program("promtool"), "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
