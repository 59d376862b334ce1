"""The primary fails, and Sentinel promotes a replica: saves that no replica had are learned again."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.embedded.servers import Server
from tests.conftest import HELD_SECONDS
from tests.faults.proxy import KafkaProxy, Proxy
from tests.faults.sentinel import Redundant, SentinelTrial

pytestmark = pytest.mark.nightly


@pytest.fixture
def trial(kafka: Server, kafka_proxy: KafkaProxy, topic: str, tmp_path: Path) -> Iterator[SentinelTrial]:
    binary = shutil.which("redis-server")
    if binary is None:
        assert not os.environ.get("CI"), "CI must run against redis-server too"
        pytest.skip("no redis-server on PATH")
    with ExitStack() as stack:
        redundant = Redundant(stack, tmp_path / "redundant", binary)
        unused = stack.enter_context(Proxy(redundant.servers[0].port))
        trial = SentinelTrial(kafka, kafka_proxy, redundant, unused, topic, tmp_path)
        stack.enter_context(trial)
        yield trial


def test_a_primary_is_killed_and_a_replica_takes_over(trial: SentinelTrial) -> None:
    """Every other time it had heads that no replica has; it comes back with them, for a while as a primary."""
    trial.begin(services=2, session_timeout=HELD_SECONDS)  # the learner of lost heads must stay, to drop them
    lost = 0
    for turn in range(20):
        old = trial.redis
        if turn % 2:
            with trial.unreplicated():
                old.kill()
            lost += 1
        else:
            old.kill()
        trial.promoted()
        trial.progress(500)
        trial.back(old)
        trial.progress(500)
        trial.follows(old)
    trial.finish(lost)
    done = trial.perceptron("verify", "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_primary_hangs_and_is_one_still_when_it_wakes(trial: SentinelTrial) -> None:
    """For some seconds there are two primaries: a process that was sent to the new one uses no other."""
    trial.begin(services=2)
    for _ in range(5):
        old = trial.redis
        assert old.process is not None
        old.process.send_signal(signal.SIGSTOP)
        trial.promoted()
        old.process.send_signal(signal.SIGCONT)
        trial.progress(500)
        trial.follows(old)
    trial.finish()
