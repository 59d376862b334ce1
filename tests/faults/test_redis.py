"""Faults of Redis: killed, truncated, restored from an old copy, stopped, emptied, full."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

import pytest
from redis.exceptions import OutOfMemoryError

from service.snapshots.redis.store import key
from tests.conftest import HELD_SECONDS, hanging, trim, wait
from tests.faults.conftest import repeated
from tests.faults.store import (
    DROPPED,
    EMPTIED,
    appendfsync,
    at_commit,
    client,
    copy_files,
    count_in_logs,
    current,
    cut_off,
    killed_redis,
    restore_files,
    saves,
    wait_for_failed_saves,
    wait_for_log,
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
    """SIGKILL and a restart, several times; the last time Redis is down for 3 s, and predictions continue.

    With `always` Redis keeps all confirmed saves, so no save is refused: the keeper looks up an unconfirmed one.
    """
    appendfsync(trial, policy)
    trial.begin(services=2)
    for _ in range(repeated(20, 2)):
        with killed_redis(trial, policy):
            pass
        trial.progress(100)
    with killed_redis(trial, policy):
        trial.outage(3)
    trial.finish()
    assert policy != "always" or count_in_logs(trial, DROPPED) == 0


@pytest.mark.nightly
def test_killed_as_a_save_arrives(trial: Trial) -> None:
    """SIGKILL after the blobs of a save and before its commit: the next save is complete."""
    trial.begin()
    for _ in range(20):
        failed = saves(trial, "failed")
        at_commit(trial, trial.redis.kill)
        wait_for_failed_saves(trial, failed + 1)
        with killed_redis(trial):
            pass
        trial.progress(100)
    trial.finish()
    assert count_in_logs(trial, DROPPED) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("trial", ["redis-server", "valkey"], indirect=True)
def test_an_old_copy_is_restored(trial: Trial) -> None:
    """An old copy replaces the files under a running learner: its save is refused, and it rewinds and learns again."""
    trial.begin(services=2, session_timeout=HELD_SECONDS)
    copy, _ = copy_files(trial)
    for _ in range(10):
        trial.progress(1000)
        # A learner without the reply to its newest save would continue from the copy, and drop nothing.
        wait(lambda: trial.learning().model()["digest"] == current(trial), "the owner knows of its newest save")
        dropped = count_in_logs(trial, DROPPED)
        with killed_redis(trial) as folder:
            restore_files(copy, folder)
        wait_for_log(trial, DROPPED, dropped + 1, "the owner rewinds")
    trial.finish(10)
    assert count_in_logs(trial, EMPTIED) == 0


@pytest.mark.nightly
def test_an_old_copy_is_restored_and_the_owner_killed(trial: Trial) -> None:
    """The learner whose heads Redis lost is killed. The standby continues from the old head."""
    trial.begin(services=2)
    owner = trial.learning()
    (standby,) = (service for service in trial.services if service is not owner)
    copy, old = copy_files(trial)
    trial.progress(1000)
    with killed_redis(trial) as folder:
        restore_files(copy, folder)
        trial.kill(owner)
    assert trial.learning() is standby
    judge = trial.finish()
    assert count_in_logs(trial, EMPTIED) == 0
    children = [v for v in judge.heads.values() if v.version == judge.heads[old].version + 1]
    assert len(children) == 2, "two heads are children of the old one"


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [1, 20])
def test_stopped(trial: Trial, seconds: int) -> None:
    """SIGSTOP, and SIGCONT later: commands run late, and twice; predictions continue."""
    trial.begin()
    for _ in range(3):
        with hanging(trial.redis):
            trial.outage(seconds)
        trial.progress(100)
    trial.finish()
    assert count_in_logs(trial, DROPPED) == 0


@pytest.mark.nightly
def test_emptied(trial: Trial) -> None:
    """After FLUSHALL, or a deleted key, the log is learned again from 0, and the log says so.

    An idle learner notices it too, since it checks whether its head is still current.
    """
    trial.begin()
    for turn in range(1, 21):
        if turn % 4 > 1:
            trial.settle()
        with client(trial) as redis:
            _ = redis.flushall() if turn % 2 else redis.delete(key(trial.topic))
        wait_for_log(trial, EMPTIED, turn, "it begins again")
        trial.go_on()
        trial.progress(100)
    judge = trial.finish(20)
    assert sum(judged.version == 1 for judged in judge.heads.values()) == 21


@pytest.mark.nightly
def test_emptied_when_the_log_does_not_begin_at_0(trial: Trial) -> None:
    """The log no longer has the records of the lost model: learning stops, and the last version answers.

    --start-at is for new models; a lost model is learned again from 0 or not at all.
    """
    trial.begin("--start-at", "earliest")
    trial.settle()
    (service,) = trial.services
    last_version = service.model()["version"]
    asyncio.run(trim(trial.kafka, trial.topic, 300))
    with client(trial) as redis:
        redis.flushall()
    reason = wait(lambda: service.model()["stopped"], "it stops")
    end = trial.logs[-1].partitions[0].end
    assert f"learning would begin at offset 0 of partition 0, which holds 300 to {end}" in reason
    assert "say where with --start-at earliest" in reason
    answer_count = len(trial.answers)
    wait(lambda: len(trial.answers) >= answer_count + 10, "predictions go on")
    assert set(trial.answers[-10:]) == {last_version}
    trial.judge(dropped=1)
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
        failed_before = saves(trial, "failed")

        def fill_until_failure() -> bool:
            with contextlib.suppress(OutOfMemoryError):
                while True:
                    redis.append("another", b"x" * 4096)
            return saves(trial, "failed") >= failed_before + 3

        with trial.answering(3):
            wait(fill_until_failure, "saves fail")
        digest, (service,) = current(trial), trial.services
        wait(lambda: service.model()["ahead"] > 1000, "learning goes on")
        assert current(trial) == digest
        assert count_in_logs(trial, "maxmemory") >= 1
        redis.config_set("maxmemory", 0)
    trial.finish()
    assert count_in_logs(trial, "answers again") >= 1
    assert count_in_logs(trial, DROPPED) == 0


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
def test_one_after_another(trial: Trial, seed: int) -> None:
    """Any of these faults at any time, several at once, even while the result of a save is unknown."""
    rng = random.Random(seed)
    trial.begin(services=2)
    copy, _ = copy_files(trial)

    def kill() -> None:
        with killed_redis(trial):
            pass

    def truncate() -> None:
        with killed_redis(trial) as folder:
            cut_off(folder, rng.choice([0.0, 0.2, 0.9]))

    def restore() -> None:
        with killed_redis(trial) as folder:
            restore_files(copy, folder)

    def replace_owner() -> None:
        owner = trial.learning()
        trial.kill(owner)
        trial.redis_proxy.heal()
        trial.again(owner)

    def run_command(*command: str) -> Callable[[], None]:
        def execute() -> None:
            with client(trial) as redis:
                redis.execute_command(*command)

        return execute

    def lose_save() -> None:
        at_commit(trial, lambda: setattr(trial.redis_proxy, "dropping", True))
        wait(lambda: trial.redis_proxy.dropping, "a save is on its way")
        time.sleep(rng.random() / 10)  # the save may arrive or not: its sender cannot know
        trial.redis_proxy.refuse()

    faults = [kill, truncate, restore, replace_owner, trial.redis_proxy.hang]
    faults += [run_command("DEL", key(trial.topic)), run_command("FLUSHALL"), run_command("SCRIPT", "FLUSH")]
    for _ in range(40):
        for fault in [lose_save] * (rng.random() < 0.4) + [rng.choice(faults)]:
            fault()
        time.sleep(rng.random())  # the duration of the proxy's fault
        trial.redis_proxy.heal()
        if rng.random() < 0.7:
            trial.progress(rng.choice([1, 200]))
    trial.finish(5)
