"""The Grafana dashboard is what its generator gives, asks for metrics that exist, and can be read."""

import asyncio
import functools
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.monitoring.metrics import Metrics
from tests.figures import learned

DEPLOY = Path(__file__).parents[2] / "deploy"
TEXT = (DEPLOY / "grafana" / "dashboards" / "perceptron.json").read_text()
DASHBOARD: Any = json.loads(TEXT)
METRIC = r"\b(?:perceptron_\w+|process_\w+|up)\b"
PANELS: list[Any] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]


def test_what_is_committed_is_what_the_generator_gives() -> None:
    generator = runpy.run_path(str(DEPLOY / "grafana" / "dashboard.py"))
    assert generator["render"]() == TEXT, "stale: run deploy/grafana/dashboard.py"
    page = (DEPLOY.parent / "docs" / "dashboards.md").read_text()
    assert generator["page"]() == page, "stale: run deploy/grafana/dashboard.py"


@functools.cache
def exported() -> set[str]:
    """The name of every sample that a learner can export, as its own /metrics writes it."""
    now = learned("m")
    metrics = Metrics("1", lambda: [now], lambda: True, lambda: {"kafka": 0.0})
    families = list(text_string_to_metric_families(asyncio.run(metrics.render()).decode()))
    # Of a metric with labels there is no sample before its first use, but its family is there.
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
    return {family.name + suffix for family in families for suffix in suffixes.get(family.type, ("",))}


def test_every_metric_asked_for_is_one_that_the_service_exports() -> None:
    variables = [v["query"] for v in DASHBOARD["templating"]["list"]]
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]] + variables
    asked = {name for query in queries for name in re.findall(METRIC, query)}
    assert len(asked) > 20
    assert asked <= exported() | {"up"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: f"{p['id']} {p['title']}")
def test_a_panel_says_what_it_shows_and_in_which_unit(panel: Any) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["legendFormat"]
        # A selector that forgets the variable shows every deployment that Prometheus knows.
        metrics = re.findall(METRIC, target["expr"])
        assert metrics
        assert len(metrics) == len(re.findall(METRIC + r'\{job=~"\$job"', target["expr"]))
        assert target["instant"] == (panel["type"] == "stat")
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_a_panel_is_known_by_its_number() -> None:
    numbers = [p["id"] for p in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_panels_fill_the_grid_without_overlap() -> None:
    """Each lies within 24 columns, no cell belongs to two, none is left empty, and a row's title spans its width."""
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        x, y, w, h = (panel["gridPos"][name] for name in "xywh")
        if panel["type"] == "row":
            assert (x, w, h) == (0, 24, 1), panel["title"]
        else:
            assert w >= 3, panel["title"]
            assert 4 <= h <= 10, panel["title"]
        own = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert 0 <= x <= x + w <= 24, panel["title"]
        assert not own & cells, panel["title"]
        cells |= own
    assert len(cells) == 24 * (1 + max(line for _, line in cells))


def test_grafana_is_given_the_prometheus_beside_it_and_this_dashboard() -> None:
    def read(path: str) -> Any:
        return yaml.safe_load((DEPLOY / path).read_text())

    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["uid"] == DASHBOARD["templating"]["list"][0]["current"]["value"]
    assert source["jsonData"]["timeInterval"] == read("prometheus/prometheus.yml")["global"]["scrape_interval"]

    services = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert services["grafana"]["profiles"] == services["prometheus"]["profiles"]
    mounts = dict(volume.removesuffix(":ro").split(":", 1) for volume in services["grafana"]["volumes"])
    assert all(volume.endswith(":ro") for volume in services["grafana"]["volumes"])
    for folder in mounts:
        assert any((DEPLOY.parent / folder).iterdir()), folder
    (provider,) = read("grafana/provisioning/dashboards/perceptron.yml")["providers"]
    folder = provider["options"]["path"]
    assert folder == mounts["./deploy/grafana/dashboards"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/perceptron.json"
