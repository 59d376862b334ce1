"""Faults of the broker and of the network to it, and many members that come and go."""

import asyncio
import random
import signal

import pytest

from tests.conftest import add_partitions, wait
from tests.faults.conftest import repeated
from tests.faults.trial import Trial

IN_ORDER_OF_ARRIVAL = "[snapshots]\nkeep = 0"
"""A kept version drops the order in which partitions were learned, which the judge needs."""


def test_broker_killed_and_started_again(trial: Trial) -> None:
    """SIGKILL: learning waits until the broker is back; predictions continue."""
    trial.begin(rate=2000)
    for _ in range(repeated(5, 1)):
        try:
            trial.kafka.kill()
            trial.outage(2)
        finally:
            trial.kafka.start()
        trial.progress(1000)
    trial.finish()


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["stopped", "refuses"])
def test_broker_away(trial: Trial, fault: str) -> None:
    """It is stopped or accepts no connection for longer than the session timeout. Each process reports it."""
    trial.begin(rate=500, services=2)
    missing = 'perceptron_missing_since_timestamp_seconds{dependency="kafka"}'
    broker = trial.kafka.process
    assert broker is not None
    try:
        if fault == "stopped":
            broker.send_signal(signal.SIGSTOP)
        else:
            trial.kafka_proxy.refuse()
        trial.outage(60)  # the session ends after 6 s
        wait(lambda: all(service.metrics()[missing] for service in trial.live), "each notices")
    finally:
        broker.send_signal(signal.SIGCONT)
        trial.kafka_proxy.heal()
    trial.progress(500)
    wait(lambda: not any(s.metrics()[missing] for s in trial.live), "each notices that it is back")
    trial.finish()


@pytest.mark.nightly
def test_connections_cut(trial: Trial) -> None:
    """Every connection to the broker is cut at any moment."""
    trial.begin(rate=2000)
    for _ in range(50):
        trial.kafka_proxy.cut()
        trial.progress(500)
    trial.finish()


@pytest.mark.nightly
def test_partitions_added(trial: Trial) -> None:
    """New partitions are learned from their first record."""
    trial.begin(rate=2000, settings=IN_ORDER_OF_ARRIVAL)
    asyncio.run(add_partitions(trial.kafka, trial.topic, 3))
    trial.logs[-1].grow()
    trial.logs[-1].grow()
    trial.progress(5000)
    trial.finish()
    assert all(part.end > 100 for part in trial.logs[-1].partitions)


@pytest.mark.nightly
def test_three_partitions_and_sigkill(trial: Trial) -> None:
    """The order of arrival is part of each head, so each is compared with the log even after a crash."""
    trial.begin(partitions=3, rate=2000, settings=IN_ORDER_OF_ARRIVAL)
    for _ in range(20):
        learner = trial.learning()
        trial.kill(learner)
        trial.again(learner)
        trial.progress(1000)
    trial.finish()


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_rebalance_storm(trial: Trial) -> None:
    """One process, four, and one again; any of them ends by SIGTERM or SIGKILL, even the learner."""
    rng = random.Random(3)
    trial.begin(rate=500)
    for _ in range(50):
        if len(trial.services) == 1:
            trial.up(*[trial.service() for _ in range(3)])
        else:
            trial.up(*[s.start(s.command) for s in trial.services if s not in trial.live])
        trial.learning()
        for service in rng.sample(trial.live, 3):
            trial.hide(service)
            if rng.random() < 0.5:
                service.kill()
            else:
                assert service.stop() == 0
        trial.progress(200)
    trial.finish()


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "other"])
def test_answers_of_another_kind(trial: Trial, how: str) -> None:
    """Answers of the broker to any request are damaged. No process ends, no record is lost or learned twice.

    A model goes on or stops with a reason, as for a log that seems to be trimmed. Then fresh processes continue.
    """
    rng, altered, earlier = random.Random(4), 0, b""

    def alter(_key: int, _version: int, reply: bytes) -> bytes:
        nonlocal altered, earlier
        if rng.random() < 0.9 or len(reply) < 8:
            earlier = reply
            return reply
        altered += 1
        body = bytearray(reply[4:])
        if how == "flipped":
            body[rng.randrange(min(40, len(body)))] ^= 1 << rng.randrange(8)
        return reply[:4] + bytes({"cut": body[: len(body) // 2], "empty": b"", "other": earlier[4:]}.get(how, body))

    trial.begin(services=2)
    trial.live.clear()
    trial.kafka_proxy.alter = alter
    trial.service()
    wait(lambda: altered > 30, "many answers are altered")
    trial.kafka_proxy.heal()
    for service in trial.services:
        assert service.process.poll() is None
        assert service.stop() == 0
        trial.again(service)
    trial.finish()
    assert not any("Traceback" in service.log.read_text() for service in trial.services)
