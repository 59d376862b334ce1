"""Faults of the network to Redis: lost or slow replies, and connections that are cut inside a save."""

import pytest

from tests.conftest import wait
from tests.faults.store import COMMIT, DROPPED, count_in_logs, lose_reply_to_save, saves, wait_for_failed_saves
from tests.faults.trial import Trial

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("trial", ["redis-server", "valkey"], indirect=True)
def test_the_reply_to_a_save_is_lost(trial: Trial) -> None:
    """The client repeats an accepted save and gets OK, or gives up, and the next save looks it up.

    The connection is cut, the server cannot be reached, or no reply comes in time. No save is refused.
    """
    trial.begin()
    for turn in range(40):
        failed = saves(trial, "failed")
        lose_reply_to_save(trial)
        if turn % 3 == 0:
            trial.redis_proxy.cut()
        else:
            if turn % 3 == 1:
                trial.redis_proxy.refuse()
            wait_for_failed_saves(trial, failed + 1)
        trial.redis_proxy.heal()
        trial.progress(100)
    trial.finish()
    assert count_in_logs(trial, DROPPED) == 0
    assert count_in_logs(trial, "no answer in time") >= 1


def test_slow_replies(trial: Trial) -> None:
    """Each reply takes 0.3 s longer: saves are slower and less frequent, and none fails."""
    trial.begin()
    with trial.answering(5):
        trial.redis_proxy.delay = 0.3
        trial.progress(1)
    assert saves(trial, "failed") == 0
    trial.redis_proxy.heal()
    trial.finish()
    assert count_in_logs(trial, DROPPED) == 0


def test_cut_inside_a_save(trial: Trial) -> None:
    """The connection ends at different points of a save: the save is sent again completely."""
    trial.begin()
    for turn in range(1, 100 + 1):
        trial.redis_proxy.cut_in = COMMIT if turn % 2 else b"EVALSHA"
        wait(lambda: trial.redis_proxy.cut_in is None, "a message is cut")
    trial.finish()
    assert count_in_logs(trial, DROPPED) == 0
