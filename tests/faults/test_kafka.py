"""What happens to the broker and to the way there, and many members that come and go."""

import asyncio
import random
import signal

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from tests.conftest import wait
from tests.faults.conftest import repeated
from tests.faults.trial import Trial

IN_ORDER_OF_ARRIVAL = "[snapshots]\nkeep = 0"
"""With several partitions a kept version forgets the order in which they were learned, and the judge needs it."""


def test_broker_killed_and_started_again(trial: Trial) -> None:
    """SIGKILL: learning waits, predictions go on; when the broker is there again, so does learning."""
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
@pytest.mark.parametrize("fault", ["stopped", "hangs", "refuses"])
def test_broker_away(trial: Trial, fault: str) -> None:
    """For longer than the session timeout it is stopped, or answers nothing, or takes no connection.

    Each process says so, the standby too.
    """
    trial.begin(rate=500, services=2)
    missing = 'perceptron_missing_since_timestamp_seconds{dependency="kafka"}'
    broker = trial.kafka.process
    assert broker is not None
    try:
        if fault == "stopped":
            broker.send_signal(signal.SIGSTOP)
        elif fault == "hangs":
            trial.kafka_proxy.hang()
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
    """Every connection to the broker is gone in the middle of whatever is under way."""
    trial.begin(rate=2000)
    for _ in range(50):
        trial.kafka_proxy.cut()
        trial.progress(500)
    trial.finish()


@pytest.mark.nightly
def test_partitions_added(trial: Trial) -> None:
    """They are learned from their first record, beside what was learned."""
    trial.begin(rate=2000, settings=IN_ORDER_OF_ARRIVAL)

    async def add() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=trial.kafka.address)
        await client.start()
        await client.create_partitions({trial.topic: NewPartitions(3)})
        await client.close()

    asyncio.run(add())
    trial.logs[-1].grow()
    trial.logs[-1].grow()
    trial.progress(5000)
    trial.finish()
    assert all(part.end > 100 for part in trial.logs[-1].partitions)


@pytest.mark.nightly
def test_three_partitions_and_sigkill(trial: Trial) -> None:
    """The order of arrival is part of each head, so that even after a crash each can be held against the log."""
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
    """One process, four, and one again; those that go do so by SIGTERM or SIGKILL, also the one that learns."""
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
