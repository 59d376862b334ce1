"""The Grafana dashboard is what its generator makes, asks for metrics that exist, and can be read."""

import asyncio
import functools
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.monitoring.metrics import Metrics
from tests.unit.applications import figures

pytestmark = pytest.mark.nightly

DEPLOY = Path(__file__).parents[2] / "deploy"
TEXT = (DEPLOY / "grafana" / "dashboards" / "perceptron.json").read_text()
DASHBOARD: Any = json.loads(TEXT)
METRIC = r"\b(?:perceptron_\w+|process_\w+|up)\b"
PANELS: list[Any] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]


def test_the_committed_dashboard_is_what_the_generator_makes() -> None:
    generator = runpy.run_path(str(DEPLOY / "grafana" / "dashboard.py"))
    assert generator["render"]() == TEXT, "stale: run deploy/grafana/dashboard.py"
    page = (DEPLOY.parent / "docs" / "dashboards.md").read_text()
    assert generator["page"]() == page, "stale: run deploy/grafana/dashboard.py"


@functools.cache
def metric_names() -> set[str]:
    """The name of every sample that a learner can export, as its own /metrics writes it."""
    model_figures = figures("m")
    metrics = Metrics("1", lambda: [asyncio.sleep(0, model_figures)], lambda: True, lambda: {"kafka": 0.0})
    families = list(text_string_to_metric_families(asyncio.run(metrics.render()).decode()))
    # A metric with labels has no sample before its first use, but it has a family.
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {family.name + suffix for family in families for suffix in suffixes.get(family.type, ("",))}


def test_the_service_exports_every_metric_in_a_query() -> None:
    variables = [v["query"] for v in DASHBOARD["templating"]["list"]]
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]] + variables
    names = {name for query in queries for name in re.findall(METRIC, query)}
    assert len(names) > 20
    assert names <= metric_names() | {"up"}


def test_a_panel_says_what_it_shows_and_in_which_unit() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["legendFormat"], panel["title"]
            # A selector that forgets the variable shows every deployment that Prometheus knows.
            metrics = re.findall(METRIC, target["expr"])
            assert metrics, panel["title"]
            assert len(metrics) == len(re.findall(METRIC + r'\{job=~"\$job"', target["expr"])), panel["title"]
