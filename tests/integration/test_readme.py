"""What the README shows is what happens."""

import os
import re
import subprocess
import sys
from pathlib import Path

from service.embedded.servers import Server
from service.settings.load import load
from tests.conftest import Run, clean_environment

README = (Path(__file__).parents[2] / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_console_session_prints_what_it_says(run: Run, kafka: Server, topic: str) -> None:
    service = run().up()
    environment = clean_environment(
        PERCEPTRON_KAFKA__BOOTSTRAP_SERVERS=kafka.address,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )
    (session,) = _blocks("console")
    session = session.replace("churn", topic).replace("localhost:8000", f"127.0.0.1:{service.port}")
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE)
    assert len(steps) == 3
    for command, output in steps:
        done = subprocess.run(
            ["bash", "-c", f"{command} 2>&1"], capture_output=True, text=True, env=environment, check=True
        )
        assert done.stdout.strip() == output.strip(), command
        service.wait_for(1)


def test_the_settings_example_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "perceptron.toml"
    (text,) = (block for block in _blocks("toml") if block.startswith("topics = "))
    file.write_text(text)
    settings = load(str(file), {})
    defaults = load(str(file), {"models": {"churn": {"labels": None}}})
    assert settings.models["churn"].labels == (0, 1)
    assert defaults.kafka == settings.kafka
