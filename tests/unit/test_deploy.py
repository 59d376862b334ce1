"""Compose files and the image: settings that exist, few rights, locked packages. Files that others run: valid."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings.load import load
from tests.image import DOCKERFILE, instructions

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.nightly

STEPS = list(instructions(DOCKERFILE.read_text()))
EXAMPLE = "examples/churn/compose.yml"
FORMS = [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/idea.yml"]
COMPOSE: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_sets_settings_that_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {**COMPOSE["services"]["perceptron"]["environment"], "PERCEPTRON_TOPICS": "churn"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load(None, {})
    assert (settings.topics, settings.create_topics, settings.log) == (["churn"], True, "json")
    assert settings.kafka.bootstrap_servers == "kafka:29092"
    assert settings.ignored_settings == []


def test_services_have_few_rights_and_redis_keeps_its_data() -> None:
    for name, service in COMPOSE["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["pids_limit"], name
        assert service.get("read_only") is (None if name == "kafka" else True), name
    redis = " ".join(COMPOSE["services"]["redis"]["command"])
    assert "--appendonly yes" in redis
    assert "--maxmemory-policy noeviction" in redis


def test_the_producer_sends_events_that_are_good() -> None:
    service = COMPOSE["services"]["producer"]
    (pipeline,) = service["command"]
    assert pipeline.endswith(" --rate 100")
    code = pipeline.replace("python ", f"{sys.executable} ").replace(" perceptron ", f" {sys.executable} -m service ")
    result = subprocess.run(
        [*service["entrypoint"], f"{code.removesuffix('--rate 100')} --dry-run --count 50"],
        env={**os.environ, "PERCEPTRON_TOPICS": "churn"}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stdout == "50 events good; nothing was sent\n", result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "deploy/Dockerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml", EXAMPLE],
        ["docker-compose", "config", "--quiet"],
        ["docker-compose", "--file", EXAMPLE, "--profile", "producer", "config", "--quiet"],
        ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/ci.yml"],
        ["check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml"],
        ["check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *FORMS],
        ["yamllint", "--strict", "docker-compose.yml", "deploy", "examples", ".github", ".pre-commit-config.yaml"],
    ],
    ids=lambda c: c[0],
)
def test_the_linters_find_nothing(command: list[str]) -> None:
    program = Path(sys.executable).parent / command[0]
    result = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_image_has_what_is_locked_and_nothing_else() -> None:
    installs = [line for step in STEPS if step.name == "RUN" for line in re.findall("pip .*?install[^&]*", step.rest)]
    assert len(installs) == 3
    for line in installs:
        assert "--no-deps" in line
        assert "--require-hashes" in line or "--no-index" in line
