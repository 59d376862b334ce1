"""The demo, as `make demo ARGS=--exit` runs it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import DEADLINE, clean_environment, perceptron, wait

pytestmark = pytest.mark.long


@pytest.mark.nightly
def test_the_demo_ends_with_0_and_mistakes_under_their_bound(tmp_path: Path) -> None:
    result = perceptron("demo", "--exit", "--events", "8000", "--rate", "8000", cwd=tmp_path, seconds=240)
    assert result.returncode == 0, result.stderr
    match = re.search(r"3,200 events, ([\d,]+) mistakes <= ([\d,]+)", result.stderr)
    assert match, result.stderr
    separable_mistakes, bound = (int(n.replace(",", "")) for n in match.groups())
    assert 0 < separable_mistakes <= bound <= 10 * separable_mistakes
    match = re.search(r"8,000 predictions answered, (\S+) logged and learned; .* equal, bit for bit", result.stderr)
    assert match, result.stderr
    lines = re.findall(r"(\S+) events, (\d+) mistakes; .* recent average (\S+)%, mean of all (\S+)%", result.stderr)
    assert lines[-1][0] == match[1], result.stderr
    mistakes, recent, mean = map(float, lines[-1][1:])
    assert mistakes > separable_mistakes
    assert recent > mean, "the recent average recovers, and the mean does not"
    assert re.search(r"the process on port \d+ has taken over after \d+\.\d s", result.stderr)
    assert "Traceback" not in result.stderr


def test_the_demos_servers_run_at_the_printed_addresses_until_ctrl_c(tmp_path: Path) -> None:
    """Every process that the demo started ends with it."""
    out = tmp_path / "out"
    with out.open("wb") as stream:
        demo = subprocess.Popen(
            [sys.executable, "-m", "service", "demo", "--servers"],
            stdout=stream, stderr=subprocess.DEVNULL, cwd=tmp_path, env=clean_environment(),
        )  # fmt: skip
    try:
        wait(lambda: out.read_text().count("\n") == 2, "both addresses are printed")
        variables = dict(re.findall(r"^export (\w+)=(\S+)$", out.read_text(), re.MULTILINE))
        result = perceptron("check", "-t", "x", cwd=tmp_path, env=variables)
        assert [line[:8] for line in result.stdout.splitlines()[1:4]] == ["ok    Re", "ok    Ka", "ok    gr"]
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 2
        demo.send_signal(signal.SIGINT)
        assert demo.wait(DEADLINE) == 0
        assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    finally:
        demo.kill()
        demo.wait()
