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
from tests.unit.test_dashboard import METRIC, exported

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
LISTED: Any = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in LISTED if "alert" in rule}
RECORDED = {rule["record"]: rule for rule in LISTED if "record" in rule}
CASES = Path(__file__).with_name("alerts.yml")
PAGE = (ROOT / "docs" / "alerts.md").read_text()

pytestmark = pytest.mark.nightly


def test_alerts_fire_when_they_must_and_only_then(tmp_path: Path) -> None:
    """Prometheus evaluates the cases in alerts.yml; each alert has a case in which it fires and one in which not."""
    cases: Any = yaml.safe_load(CASES.read_text())
    (tmp_path / "cases.yml").write_text(yaml.safe_dump({"rule_files": [str(RULES)], **cases}))
    for command, file in (("check", RULES), ("test", tmp_path / "cases.yml")):
        done = subprocess.run(["promtool", command, "rules", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tried = {
        (case["alertname"], bool(case["exp_alerts"])) for t in cases["tests"] for case in t.get("alert_rule_test", [])
    }
    assert tried == set(itertools.product(ALERTS, (True, False)))


def test_each_alert_has_its_paragraphs_and_no_other_has() -> None:
    found = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert list(found) == list(ALERTS)
    for alert, text in found.items():
        assert [line.split("**")[1].rstrip(".") for line in text.splitlines() if line.startswith("**")] == [
            "Means", "Look at", "Do",
        ], alert  # fmt: skip
        assert ALERTS[alert]["annotations"]["runbook"] == f"docs/alerts.md#{alert.lower()}"
    assert all(f"`{name}`" in PAGE or name.endswith("6h") for name in RECORDED)


def test_each_alert_is_fired_by_a_fault() -> None:
    assert {name.split()[0] for must, _ in FAULTS.values() for name in must} == set(ALERTS)


@pytest.mark.parametrize("rule", [*ALERTS, *RECORDED])
def test_a_rule_asks_for_metrics_that_are_there(rule: str) -> None:
    expression = {**ALERTS, **RECORDED}[rule]["expr"]
    for name in RECORDED:
        expression = expression.replace(name, "recorded")
    names = re.findall(METRIC, expression)
    assert names or "recorded" in expression
    assert set(names) <= exported() | {"up"}
    # Two deployments may have a model of the same name: a rule selects this job and keeps namespaces apart.
    assert len(re.findall(METRIC + r'\{\s*job="perceptron"', expression)) == len(names)
    assert set(re.findall(r"\bby \((\w+)", expression)) <= {"namespace"}
    if rule in ALERTS:
        assert ALERTS[rule]["labels"]["severity"] in {"critical", "warning"}


def test_a_unit_that_nobody_learns_is_no_fault() -> None:
    """A threshold unit does not learn: it has no series on which an alert about learning could fire."""
    learner = Learner(Identity())
    model = static_model("and", learner, 1.0)
    assert model.answering is not None
    figures = ModelFigures(Description.of(model, model.answering), learner.counts, 1.0, {}, 0)
    text = asyncio.run(Metrics("1", lambda: [figures], lambda: True, dict).render()).decode()
    series = {line.partition("{")[0] for line in text.splitlines() if 'model="and"' in line}
    assert series == {"perceptron_version", "perceptron_columns", "perceptron_squared_norm"}
