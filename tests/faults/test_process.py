"""Faults of processes: killed at random and at each point of a save, stopped, blocked, with a wrong clock."""

import random
import signal

import pytest

from tests.conftest import DEADLINE, TAKEOVER_SECONDS, Running, wait
from tests.faults.conftest import repeated
from tests.faults.failing import POINTS
from tests.faults.trial import Trial


@pytest.mark.parametrize(
    ("kind", "often"),
    [("plain", 100), *(pytest.param(kind, 30, marks=pytest.mark.nightly) for kind in ("full", "classes"))],
)
@pytest.mark.timeout(3600)
@pytest.mark.long
def test_killed_at_random(trial: Trial, kind: str, often: int) -> None:
    """SIGKILL, each after at least 0.5 % of the run's records; the standby continues from the snapshot."""
    rng, progress = random.Random(11), list[int]()
    trial.kind = kind
    trial.stream(rate=300)
    trial.up(*[trial.service(session_timeout=TAKEOVER_SECONDS) for _ in range(2)])
    trial.ask()
    for _ in range(repeated(often, 2)):
        progress.append(trial.progress(rng.randint(1000, 2000)))
        learner = trial.learning()
        trial.kill(learner)
        trial.again(learner)
    trial.finish()
    total = sum(part.end for part in trial.logs[-1].partitions)
    smallest = min(b - a for a, b in zip([0, *progress], progress, strict=False))
    assert smallest >= 0.005 * total, (smallest, total)
    verified = trial.perceptron("verify")
    assert verified.returncode == 0, verified.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("point", "number"),
    [
        *((point, signal.SIGKILL) for point in POINTS if point != "revocation"),
        *((point, signal.SIGTERM) for point in ("before-commit", "before-flush", "slice")),
    ],
    ids=str,
)
def test_ended_at_a_point_of_a_save(trial: Trial, point: str, number: signal.Signals) -> None:
    """A restart continues after blobs without a head, a head without a reply, or letters without a save."""
    trial.stream(rate=1000)
    service = trial.failing(point, number, nth=4 if point != "slice" else 30)
    exit_code = service.process.wait(DEADLINE)  # saves may be 10 s apart
    assert f"{number.name} at {point}" in service.log.read_text()
    assert exit_code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    trial.again(service)
    trial.ask()
    trial.progress(1000)
    trial.finish()


@pytest.mark.nightly
def test_sigterm_in_a_revocation(trial: Trial) -> None:
    """A second member joins, and the first one ends while it releases the topic."""
    trial.stream(rate=1000)
    first = trial.failing("revocation", signal.SIGTERM)
    trial.up(first)
    trial.progress(500)
    trial.hide(first)
    second = trial.service()
    assert first.process.wait(DEADLINE) == 0
    assert "SIGTERM at revocation" in first.log.read_text()
    trial.up(second)
    trial.ask()
    trial.progress(500)
    trial.finish()


@pytest.mark.parametrize("how", ["stopped", pytest.param("blocked", marks=pytest.mark.nightly)])
@pytest.mark.timeout(600)
def test_a_learner_that_hangs_is_replaced_and_refused(trial: Trial, how: str) -> None:
    """SIGSTOP for longer than the session timeout, or an event loop that is blocked for 30 s.

    It has learned records since its last save, so its next save is refused. The other process answers meanwhile.
    """
    trial.stream(rate=1000)
    services = [trial.failing("-") for _ in range(2)]
    trial.up(*services)
    trial.ask()
    rounds = 0
    # A process that hangs just after an accepted save has no save that could be refused.
    while rounds < repeated(3, 1) or (not count_refusals(trial) and rounds < 6):
        rounds += 1
        hung = trial.learning()
        trial.progress(500)
        wait(lambda: hung.model()["ahead"], "it has learned records that no save covers")  # noqa: B023
        trial.hide(hung)
        stops_before = count_stops(hung)
        hung.process.send_signal(signal.SIGSTOP if how == "stopped" else signal.SIGUSR1)
        successor = trial.learning()
        assert successor is not hung
        trial.progress(1000)
        if how == "stopped":
            hung.process.send_signal(signal.SIGCONT)
        trial.up(hung)
        wait(lambda: count_stops(hung) > stops_before, "it stops learning", DEADLINE)  # noqa: B023 - called at once
    trial.finish(repeated(2, 1))
    assert count_refusals(trial), "no save was refused: the processes that hung had nothing to save"


def count_stops(service: Running) -> int:
    """How often a service has stopped learning, by its log."""
    return service.log.read_text().count("no longer learning")


def count_refusals(trial: Trial) -> int:
    """The number of saves refused so far, by the logs."""
    return sum(service.log.read_text().count("cause=refused") for service in trial.services)


@pytest.mark.nightly
def test_the_wall_clock_jumps(trial: Trial) -> None:
    """An hour ahead, then two hours back, with a learner that keeps versions: saves do not depend on the clock."""
    trial.stream(rate=1000)
    service = trial.failing("-", settings="[snapshots]\nkeep_every = 0.5\nkeep = 4\n")
    trial.up(service)
    trial.ask()
    for shift in ("3600", "-3600"):
        trial.progress(1000)
        service.process.send_signal(signal.SIGUSR2)
        trial.wait_for_log(service, f"is off by {shift} s")
    trial.progress(1000)
    trial.finish()
