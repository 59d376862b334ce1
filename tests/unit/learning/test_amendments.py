"""Amended settings: what is computed from the settings follows them, and a replay learns each part under its own."""

from collections.abc import AsyncIterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from service.errors import ConfigurationError
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import PartitionId, Records
from service.serving.models import ServedModel
from service.settings.model import ModelSettings
from service.snapshots.head import TopicIdentity
from service.streaming.records import KafkaRecord, KafkaRecords
from service.tools.stored import verify
from tests.batches import join_records
from tests.checks import close, learner_of, restored, state_digest
from tests.conftest import event
from tests.partitions import P0, P1
from tests.saving import keeper, simulated_store
from tests.unit.learning.test_candidates import apply_all, random_records

RECENT = Identity(average="recent", half_life=3)


@pytest.mark.parametrize("labels", [None, (-1, 1, 0)])
def test_an_average_continues_with_another_half_life(labels: Any) -> None:
    """It does not change by the amendment, and then follows E ← βE + (1 - β)w with the new β."""
    learner = apply_all(learner_of(replace(RECENT, labels=labels)), random_records(1))
    before, beta = learner.main.average, 0.5 ** (1 / 50)
    learner.amend(replace(learner.identity, half_life=50))
    assert close(learner.main.average, before)
    apply_all(learner, [event({"n1": 3.0}, 1)])
    assert close(learner.main.average, beta * before + (1 - beta) * learner.main.weights)
    assert state_digest(restored(learner)) == state_digest(learner)


def test_probability_and_bound_follow_the_settings() -> None:
    logistic = learner_of(Identity(rule="logistic-delta", eta=0.1, slope=1.0))
    logistic.amend(replace(logistic.identity, slope=2.0))
    assert logistic.main.probability
    assert round(logistic.main.probability(1.0), 4) == 0.8808
    learner = apply_all(learner_of(Identity()), random_records(1))
    assert learner.main.begin_segment()
    learner.amend(Identity(eta=0.5))
    assert learner.main.observations.bound == (None, "no reference is known yet")
    with pytest.raises(ConfigurationError, match=r"but not labels: null -> \[0,1\]$"):
        learner.amend(Identity(labels=(0, 1)))


async def test_verify_learns_each_part_under_its_own_settings() -> None:
    """Runs of a partition last beyond an amendment, and one amendment is the last that happened."""
    log = {P0: random_records(1), P1: random_records(2)}
    store, _ = simulated_store()
    saver, learner = keeper(store, "m", keep=0), learner_of(RECENT)
    learner.begin({P1: 0})
    for changes in {"eta": 0.5}, {"margin": (0.0, 2.0), "half_life": 20}, {"eta": 0.25}:
        for partition in (P0, P1, P0):
            at = learner.next[partition]
            learner.apply(Records.from_values(at, log[partition][at : at + 10], partition))
        learner.amend(replace(learner.identity, **changes))
        assert await saver.save(learner, {}, TopicIdentity("c"))
    snapshot, replayed = await replay(store, log)
    assert (len(replayed.amendments), state_digest(replayed)) == (3, snapshot.head.state_digest)


async def replay(store: Any, log: dict[PartitionId, list[bytes]]) -> tuple[ServedModel, Learner]:
    """The newest snapshot, and what `verify` learns again from this log."""

    async def read(partition: PartitionId, start: int, to: int) -> AsyncIterator[KafkaRecords]:
        records = enumerate(log[partition][start:to], start)
        yield join_records([KafkaRecord(offset, 0, None, value, ()) for offset, value in records], partition)

    reader = SimpleNamespace(bounds={partition: (0, len(records)) for partition, records in log.items()}, read=read)
    cluster: Any = SimpleNamespace(reader=lambda *_: nullcontext(reader))
    settings: Any = SimpleNamespace(model_settings=lambda _: ModelSettings())
    snapshot, replayed, _ = await verify._begin(store, settings, "m")
    await verify._replay(cluster, ["m"], snapshot, verify._steps(snapshot, replayed), replayed)
    return snapshot, replayed
