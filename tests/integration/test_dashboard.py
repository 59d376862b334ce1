"""Every query of every panel of the Grafana dashboard, on a real Prometheus and a real service."""

import asyncio
import contextlib
import math
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.conftest import Run, Running, event, program, wait
from tests.prometheus import Prometheus, scraping
from tests.unit.test_dashboard import DASHBOARD, DEPLOY, PANELS

pytestmark = pytest.mark.nightly

VARIABLES = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
RATE_INTERVAL = "1m"  # Grafana's $__rate_interval for a step just below a minute


def _promtool(*arguments: str | Path, text: str = "") -> str:
    """The errors of `promtool check`, or an empty string."""
    command = [program("promtool"), "check", *arguments]
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=240, check=False)
    return result.stdout + result.stderr if result.returncode else ""


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[Running], Prometheus]]:
    """Start a Prometheus that scrapes a service; it ends with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda service: stack.enter_context(scraping(tmp_path, [service]))


def _resolve(prometheus: Prometheus) -> dict[str, str]:
    """Each variable with All selected, as Grafana writes it into a query."""
    resolved: dict[str, str] = {"__rate_interval": RATE_INTERVAL}
    for variable in VARIABLES:
        call = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        assert call, variable["query"]
        values = prometheus.ask(f"/label/{call[2]}/values", **{"match[]": _fill(call[1], resolved)})
        assert values, variable["query"]
        resolved[variable["name"]] = f"({'|'.join(re.escape(value) for value in values)})".replace("\\", "\\\\")
    return resolved


def _fill(query: str, variables: dict[str, str]) -> str:
    for name, value in variables.items():
        query = query.replace(f"${name}", value)
    assert "$" not in query, query
    return query


async def test_every_query_of_every_panel_finds_something(
    run: Run, producer: AIOKafkaProducer, topic: str, prometheus: Callable[[Running], Prometheus]
) -> None:
    service = run("[model]\naverage = true\nscale = 'standard'\n[model.candidates.wide]\nmargin = 2\n")
    server = await asyncio.to_thread(prometheus, service)  # while the service starts
    await asyncio.to_thread(service.up)
    start = time.time()
    # Prometheus sees the waves one by one: rates need counters that rise while it scrapes.
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
            query = f"sum(perceptron_{counter}_total)"
            await asyncio.to_thread(wait, lambda: server.value(query) == count, query)  # noqa: B023 - called at once
        # The dashboard samples learners' counters every five seconds: they must rise between two samples.
        if wave != 2:
            await asyncio.to_thread(_wait_for_samples, server, "count_over_time" if wave == 1 else "rate")
    variables = await asyncio.to_thread(_resolve, server)
    assert variables["model"] == f"({topic})".replace("-", "\\\\-")

    empty = set()
    for panel in PANELS:
        title = panel["title"]
        for target in panel["targets"]:
            query, end = _fill(target["expr"], variables), time.time()
            if target["instant"]:
                result = server.ask("/query", query=query, time=end)["result"]
                values = [[series["value"]] for series in result]
            else:
                result = server.ask("/query_range", query=query, start=start, end=end, step=1)["result"]
                values = [series["values"] for series in result]
            if not any(math.isfinite(float(value)) for points in values for _, value in points):
                empty.add(title)
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert all(labels <= set(series["metric"]) for series in result), (title, result)
    assert not empty
    assert _promtool("metrics", text=service.http.get("/metrics").text) == ""


def _wait_for_samples(prometheus: Prometheus, function: str) -> None:
    """Wait until the function is above 0 for each reason of rejection: these series begin last."""
    query = f"min({function}(max by (reason) (perceptron_rejected_events_total)[1m:5s] offset 1s))"
    wait(lambda: (prometheus.value(query) or 0) > 0, f"{function} of the dashboard's samples")


def test_promtool_accepts_the_configuration_of_prometheus() -> None:
    assert _promtool("config", DEPLOY / "prometheus" / "prometheus.yml") == ""
