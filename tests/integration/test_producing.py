"""Other people's producers, as docs/producing.md shows them: what each block sends is learned."""

import os
import re
import subprocess
import sys
from pathlib import Path

from service.embedded.servers import Server
from tests.conftest import Run, clean_environment

PAGE = (Path(__file__).parents[2] / "docs" / "producing.md").read_text()


def test_each_producer_of_the_page_feeds_the_model(run: Run, kafka: Server, topic: str) -> None:
    service = run().up()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for sent, (language, block) in enumerate(blocks, 1):
        code = block.replace("localhost:9092", kafka.address).replace("churn", topic)
        command = [sys.executable, "-c", code] if language == "python" else ["bash", "-ec", code]
        subprocess.run(command, check=True, timeout=60, env=clean_environment(PATH=path))
        service.wait_for(sent)
