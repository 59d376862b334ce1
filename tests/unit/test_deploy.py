"""What deploys the service names settings that exist, and what it starts is what the tests run."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings.load import load

ROOT = Path(__file__).parents[2]
COMPOSE: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_sets_settings_that_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {**COMPOSE["services"]["perceptron"]["environment"], "PERCEPTRON_TOPICS": "churn"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load(None, {})
    assert (settings.topics, settings.create_topics, settings.log) == (["churn"], True, "json")
    assert settings.kafka.bootstrap_servers == "kafka:29092"
    known = {f"PERCEPTRON_{'__'.join(path).upper()}" for path in _paths(settings.model_dump())}
    assert set(environment) <= known


def _paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [found for name, inner in value.items() for found in _paths(inner, (*path, name))]


def test_nothing_listens_beyond_this_machine() -> None:
    for name, service in COMPOSE["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_the_app_can_write_nowhere_and_do_nothing_more() -> None:
    app = COMPOSE["services"]["perceptron"]
    assert (app["read_only"], app["cap_drop"], app["init"]) == (True, ["ALL"], True)
    assert app["security_opt"] == ["no-new-privileges:true"]


def test_redis_keeps_what_it_is_given() -> None:
    command = " ".join(COMPOSE["services"]["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "deploy/Dockerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
        ["docker-compose", "config", "--quiet"],
        ["yamllint", "--strict", "docker-compose.yml", "deploy"],
    ],
    ids=lambda c: c[0],
)
def test_the_linters_are_content(command: list[str]) -> None:
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_runs_a_python_that_the_project_supports() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert required == ">=3.11"
    assert "FROM python:3.12-slim" in (ROOT / "deploy" / "Dockerfile").read_text()
