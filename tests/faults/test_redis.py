"""Faults of Redis: killed, cut short, restored from an old copy, stopped, emptied, full."""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Callable

import pytest
from redis.exceptions import OutOfMemoryError

from service.snapshots.redis.store import key
from tests.conftest import HELD_SECONDS, trim, wait
from tests.faults.conftest import repeated
from tests.faults.store import (
    DROPPED,
    EMPTIED,
    appendfsync,
    at_commit,
    away,
    client,
    copied,
    current,
    cut_off,
    heard,
    put_back,
    said,
    save_fails,
    saves,
)
from tests.faults.trial import Trial


@pytest.mark.parametrize(
    ("trial", "policy"),
    [
        pytest.param("redis-server", "always", marks=pytest.mark.nightly),
        ("redis-server", "everysec"),
        pytest.param("valkey", "always", marks=pytest.mark.nightly),
    ],
    indirect=["trial"],
)
@pytest.mark.timeout(900)
def test_killed(trial: Trial, policy: str) -> None:
    """SIGKILL and a restart, several times; the last time it is away for 3 s, and predictions continue.

    With `always` Redis keeps what it confirmed, so no save is refused: one that was under way is looked up.
    """
    appendfsync(trial, policy)
    trial.begin(services=2)
    for _ in range(repeated(20, 2)):
        with away(trial, policy):
            pass
        trial.progress(100)
    with away(trial, policy):
        trial.outage(3)
    trial.finish()
    assert policy != "always" or said(trial, DROPPED) == 0


@pytest.mark.nightly
def test_killed_as_a_save_arrives(trial: Trial) -> None:
    """SIGKILL after the blobs of a save and before its commit: the next save is complete."""
    trial.begin()
    for _ in range(20):
        failed = saves(trial, "failed")
        at_commit(trial, trial.redis.kill)
        save_fails(trial, failed + 1)
        with away(trial):
            pass
        trial.progress(100)
    trial.finish()
    assert said(trial, DROPPED) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("trial", ["redis-server", "valkey"], indirect=True)
def test_an_old_copy_is_restored(trial: Trial) -> None:
    """An old copy replaces the files under a running learner: its save is refused, and it rewinds and learns again."""
    trial.begin(services=2, session_timeout=HELD_SECONDS)
    copy, _ = copied(trial)
    for _ in range(10):
        trial.progress(1000)
        # A learner that does not know of its newest save would continue from the copy, and drop nothing.
        wait(lambda: trial.learning().model()["digest"] == current(trial), "the owner knows of its newest save")
        dropped = said(trial, DROPPED)
        with away(trial) as folder:
            put_back(copy, folder)
        heard(trial, DROPPED, dropped + 1, "the owner rewinds")
    trial.finish(10)
    assert said(trial, EMPTIED) == 0


@pytest.mark.nightly
def test_an_old_copy_is_restored_and_the_owner_killed(trial: Trial) -> None:
    """The learner of what Redis lost is gone. The standby continues from the old head."""
    trial.begin(services=2)
    owner = trial.learning()
    (standby,) = (service for service in trial.services if service is not owner)
    copy, old = copied(trial)
    trial.progress(1000)
    with away(trial) as folder:
        put_back(copy, folder)
        trial.kill(owner)
    assert trial.learning() is standby
    judge = trial.finish()
    assert said(trial, EMPTIED) == 0
    twice = [v for v in judge.heads.values() if v.version == judge.heads[old].version + 1]
    assert len(twice) == 2, "two heads are children of the old one"


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [1, 20])
def test_stopped(trial: Trial, seconds: int) -> None:
    """SIGSTOP, and SIGCONT later: commands are carried out late, and twice; predictions continue."""
    trial.begin()
    assert trial.redis.process is not None
    for _ in range(3):
        trial.redis.process.send_signal(signal.SIGSTOP)
        trial.outage(seconds)
        trial.redis.process.send_signal(signal.SIGCONT)
        trial.progress(100)
    trial.finish()
    assert said(trial, DROPPED) == 0


@pytest.mark.nightly
def test_emptied(trial: Trial) -> None:
    """After FLUSHALL, or a deleted key, the log is learned again from 0, and the log says so.

    An idle learner notices it too: it looks whether its head is still current.
    """
    trial.begin()
    for turn in range(1, 21):
        if turn % 4 > 1:
            trial.settle()
        with client(trial) as redis:
            _ = redis.flushall() if turn % 2 else redis.delete(key(trial.topic))
        heard(trial, EMPTIED, turn, "it begins again")
        trial.go_on()
        trial.progress(100)
    judge = trial.finish(20)
    assert sum(judged.version == 1 for judged in judge.heads.values()) == 21


@pytest.mark.nightly
def test_emptied_when_the_log_does_not_begin_at_0(trial: Trial) -> None:
    """The log does not have the lost records any more: learning stops, and the last version answers.

    --start-at is for new models; a lost one is learned again from 0 or not at all.
    """
    trial.begin("--start-at", "earliest")
    trial.settle()
    (service,) = trial.services
    last = service.model()["version"]
    asyncio.run(trim(trial.kafka, trial.topic, 300))
    with client(trial) as redis:
        redis.flushall()
    reason = wait(lambda: service.model()["stopped"], "it stops")
    end = trial.logs[-1].partitions[0].end
    assert f"learning would begin at offset 0 of partition 0, which holds 300 to {end}" in reason
    assert "say where with --start-at earliest" in reason
    seen = len(trial.answers)
    wait(lambda: len(trial.answers) >= seen + 10, "predictions go on")
    assert set(trial.answers[-10:]) == {last}
    trial.judged(dropped=1)
    # A new process, which never had the model, begins where --start-at says.
    trial.kill(service)
    trial.again(service)
    wait(lambda: service.model()["next"]["0"] == end, "it learns from where the log begins now")
    assert service.model()["covered"] == {"0": [[300, end]]}


@pytest.mark.nightly
def test_full(trial: Trial) -> None:
    """Another client fills Redis to its maxmemory: saves fail and say so; learning and predictions continue."""
    trial.begin()
    with client(trial) as redis:
        redis.config_set("maxmemory", redis.info()["used_memory"] + (1 << 20))
        before = saves(trial, "failed")

        def filled() -> bool:
            with contextlib.suppress(OutOfMemoryError):
                while True:
                    redis.append("another", b"x" * 4096)
            return saves(trial, "failed") >= before + 3

        with trial.answering(3):
            wait(filled, "saves fail")
        digest, (service,) = current(trial), trial.services
        wait(lambda: service.model()["ahead"] > 1000, "learning goes on")
        assert current(trial) == digest
        assert said(trial, "maxmemory") >= 1
        redis.config_set("maxmemory", 0)
    trial.finish()
    assert said(trial, "answers again") >= 1
    assert said(trial, DROPPED) == 0


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
def test_one_after_another(trial: Trial, seed: int) -> None:
    """Any of these faults at any time, several at once, also while the result of a save is unknown."""
    rng = random.Random(seed)
    trial.begin(services=2)
    copy, _ = copied(trial)

    def kill() -> None:
        with away(trial):
            pass

    def cut() -> None:
        with away(trial) as folder:
            cut_off(folder, rng.choice([0.0, 0.2, 0.9]))

    def old() -> None:
        with away(trial) as folder:
            put_back(copy, folder)

    def other_owner() -> None:
        owner = trial.learning()
        trial.kill(owner)
        trial.redis_proxy.heal()
        trial.again(owner)

    def given(*command: str) -> Callable[[], None]:
        def carried_out() -> None:
            with client(trial) as redis:
                redis.execute_command(*command)

        return carried_out

    def unheard() -> None:
        at_commit(trial, lambda: setattr(trial.redis_proxy, "dropping", True))
        wait(lambda: trial.redis_proxy.dropping, "a save is on its way")
        time.sleep(rng.random() / 10)  # it arrives, or does not: its sender cannot know
        trial.redis_proxy.refuse()

    others = [kill, cut, old, other_owner, trial.redis_proxy.hang]
    others += [given("DEL", key(trial.topic)), given("FLUSHALL"), given("SCRIPT", "FLUSH")]
    for _ in range(40):
        for fault in [unheard] * (rng.random() < 0.4) + [rng.choice(others)]:
            fault()
        time.sleep(rng.random())  # how long the fault of the proxy lasts
        trial.redis_proxy.heal()
        if rng.random() < 0.7:
            trial.progress(rng.choice([1, 200]))
    trial.finish(5)
