"""What the network before Redis does: hangs, drops replies, is slow, cuts a connection inside a save."""

import time

import pytest

from tests.conftest import DEADLINE, wait
from tests.faults.conftest import repeated
from tests.faults.store import COMMIT, DROPPED, accepted_unheard, said, save_fails, saves
from tests.faults.trial import Trial


def four_saves(trial: Trial, seconds: float) -> float:
    """How long they take."""
    before, started = saves(trial, "accepted"), time.monotonic()
    wait(lambda: saves(trial, "accepted") >= before + 4, "four saves", seconds)
    return time.monotonic() - started


@pytest.mark.long
def test_hung(trial: Trial) -> None:
    """Nothing passes for 5 s, or until saves fail, and then all of it does: saves are as often as before within 2 s.

    Their pace is up to ten a second, by what one costs here. At 10 s apart, the longest pause, two at most would come
    in 8 s.
    """
    trial.begin()
    for turn in range(repeated(5, 1)):
        usual = four_saves(trial, DEADLINE)
        trial.redis_proxy.hang()
        trial.outage(12 if turn % 2 else 5)
        trial.redis_proxy.heal()
        took = four_saves(trial, max(8.0, 2.0 + 2 * usual))
        print(f"four saves {took:.1f} s after it answered, in {usual:.1f} s before")
        trial.progress(100)
    trial.finish()
    assert said(trial, DROPPED) == 0


@pytest.mark.parametrize("trial", ["redis-server", pytest.param("valkey", marks=pytest.mark.nightly)], indirect=True)
def test_the_reply_to_a_save_is_lost(trial: Trial) -> None:
    """Accepted, and no reply comes. The client asks again and hears OK; or gives up, and the next save looks it up.

    Either way it is settled, not refused, and nothing is learned twice.
    """
    trial.begin()
    for turn in range(repeated(40, 4)):
        failed = saves(trial, "failed")
        accepted_unheard(trial)
        if turn % 2:
            trial.redis_proxy.cut()
        else:
            trial.redis_proxy.refuse()
            save_fails(trial, failed + 1)
        trial.redis_proxy.heal()
        trial.progress(100)
    trial.finish()
    assert said(trial, DROPPED) == 0
    print(f"{saves(trial, 'failed'):.0f} saves failed")


@pytest.mark.long
def test_replies_are_dropped(trial: Trial) -> None:
    """From the commit of a save on no reply comes, until it gives up for want of one; predictions go on."""
    trial.begin()
    failed = saves(trial, "failed")
    with trial.answering(5):
        accepted_unheard(trial)
        save_fails(trial, failed + 1)
    assert said(trial, "no answer in time") >= 1
    trial.redis_proxy.heal()
    trial.finish()
    assert said(trial, DROPPED) == 0


@pytest.mark.nightly
def test_slow_replies(trial: Trial) -> None:
    """Each reply takes 0.3 s longer: saves are slower and rarer, and none fails."""
    trial.begin()
    with trial.answering(5):
        trial.redis_proxy.delay = 0.3
        trial.progress(1)
    assert saves(trial, "failed") == 0
    trial.redis_proxy.heal()
    trial.finish()
    assert said(trial, DROPPED) == 0


@pytest.mark.long
def test_cut_inside_a_save(trial: Trial) -> None:
    """The connection ends in the middle of a save, sooner or later: the whole is sent again."""
    trial.begin()
    for turn in range(1, repeated(100, 6) + 1):
        trial.redis_proxy.cut_in = COMMIT if turn % 2 else b"EVALSHA"
        wait(lambda: trial.redis_proxy.cut_in is None, "a message is cut")
    trial.finish()
    assert said(trial, DROPPED) == 0
    print(f"cut {trial.redis_proxy.cuts} times")
