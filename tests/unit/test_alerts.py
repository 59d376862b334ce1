"""Each alert has its paragraph, its cases for `promtool`, and metrics that exist.

tests/faults/test_alerts.py fires each of them by a fault of real processes.
"""

import asyncio
import itertools
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.learning.identity import Identity
from service.learning.learner import Learner
from service.monitoring.metrics import Metrics, ModelFigures
from service.serving.model_info import Description
from service.serving.models import static_model
from tests.faults.test_alerts import FAULTS
from tests.unit.test_dashboard import METRIC, metric_names

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
ALL_RULES: Any = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL_RULES if "alert" in rule}
RECORDINGS = {rule["record"]: rule for rule in ALL_RULES if "record" in rule}
CASES = Path(__file__).with_name("alerts.yml")
PAGE = (ROOT / "docs" / "alerts.md").read_text()

pytestmark = pytest.mark.nightly


def test_alerts_fire_when_they_must_and_only_then(tmp_path: Path) -> None:
    """Prometheus evaluates the cases in alerts.yml; each alert fires in one case and not in another."""
    cases: Any = yaml.safe_load(CASES.read_text())
    (tmp_path / "cases.yml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], **cases}))
    for command, file in (("check", RULES), ("test", tmp_path / "cases.yml")):
        result = subprocess.run(["promtool", command, "rules", file], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
    outcomes = {
        (case["alertname"], bool(case["exp_alerts"])) for t in cases["tests"] for case in t.get("alert_rule_test", [])
    }
    assert outcomes == set(itertools.product(ALERTS, (True, False)))


def test_the_page_has_the_paragraphs_of_exactly_these_alerts() -> None:
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert list(sections) == list(ALERTS)
    for alert, text in sections.items():
        assert [line.split("**")[1].rstrip(".") for line in text.splitlines() if line.startswith("**")] == [
            "Means", "Look at", "Do",
        ], alert  # fmt: skip
        assert ALERTS[alert]["annotations"]["runbook"] == f"docs/alerts.md#{alert.lower()}"
    assert all(f"`{name}`" in PAGE or name.endswith("6h") for name in RECORDINGS)


def test_each_alert_is_fired_by_a_fault() -> None:
    assert {name.split()[0] for alerts, _ in FAULTS.values() for name in alerts} == set(ALERTS)


@pytest.mark.parametrize("rule", [*ALERTS, *RECORDINGS])
def test_a_rule_asks_for_metrics_that_are_there(rule: str) -> None:
    expression = {**ALERTS, **RECORDINGS}[rule]["expr"]
    for name in RECORDINGS:
        expression = expression.replace(name, "recorded")
    names = re.findall(METRIC, expression)
    assert names or "recorded" in expression
    assert set(names) <= metric_names() | {"up"}
    # Two deployments may have a model of the same name: a rule selects this job and keeps namespaces apart.
    assert len(re.findall(METRIC + r'\{\s*job="perceptron"', expression)) == len(names)
    assert set(re.findall(r"\bby \((\w+)", expression)) <= {"namespace"}
    if rule in ALERTS:
        assert ALERTS[rule]["labels"]["severity"] in {"critical", "warning"}


def test_a_threshold_unit_has_no_series_about_learning() -> None:
    """A threshold unit does not learn: it has no series on which an alert about learning could fire."""
    learner = Learner(Identity())
    model = static_model("and", learner, 1.0)
    assert model.answering is not None
    figures = ModelFigures(Description.from_model(model, model.answering), learner.main.counts, 1.0, {}, {}, 0)
    text = asyncio.run(Metrics("1", lambda: [asyncio.sleep(0, figures)], lambda: True, dict).render()).decode()
    series = {line.partition("{")[0] for line in text.splitlines() if 'model="and"' in line}
    assert series == {"perceptron_version", "perceptron_columns", "perceptron_squared_norm"}
