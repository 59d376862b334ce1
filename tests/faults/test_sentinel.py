"""The primary fails, and Sentinel promotes a replica: events of saves that no replica had are learned again."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.embedded.servers import Server
from tests.conftest import HELD_SECONDS, hanging, program
from tests.faults.proxy import KafkaProxy, Proxy
from tests.faults.sentinel import Redundant, SentinelTrial

pytestmark = pytest.mark.nightly


@pytest.fixture
def trial(kafka: Server, kafka_proxy: KafkaProxy, topic: str, tmp_path: Path) -> Iterator[SentinelTrial]:
    with ExitStack() as stack:
        redundant = Redundant(stack, tmp_path / "redundant", program("redis-server"))
        unused = stack.enter_context(Proxy(redundant.servers[0].port))
        trial = SentinelTrial(kafka, kafka_proxy, redundant, unused, topic, tmp_path)
        stack.enter_context(trial)
        yield trial


def test_a_primary_is_killed_and_a_replica_takes_over(trial: SentinelTrial) -> None:
    """Every other time it has heads that no replica has; it restarts with them, at first as a primary."""
    trial.begin(services=2, session_timeout=HELD_SECONDS)  # the learner of lost heads must keep its topic, to drop them
    lost_turns = 0
    for turn in range(20):
        old = trial.redis
        if turn % 2:
            with trial.unreplicated():
                old.kill()
            lost_turns += 1
        else:
            trial.kill_primary(old)
        trial.wait_for_promotion()
        trial.progress(500)
        trial.restart(old)
        trial.progress(500)
        trial.wait_until_replica(old)
    trial.finish(lost_turns)
    result = trial.perceptron("verify", "--json")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_primary_hangs_and_is_one_still_when_it_wakes(trial: SentinelTrial) -> None:
    """For some seconds there are two primaries: a process that uses the new one does not return to the old one."""
    trial.begin(services=2)
    for _ in range(5):
        old = trial.redis
        with hanging(old):
            trial.wait_for_promotion()
        trial.progress(500)
        trial.wait_until_replica(old)
    trial.finish()
