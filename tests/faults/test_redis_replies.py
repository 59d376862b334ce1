"""Faults of the network to Redis: lost, slow or altered replies, and connections that are cut inside a save."""

import random

import pytest

from tests.conftest import wait
from tests.faults.store import COMMIT, DROPPED, count_in_logs, lose_reply_to_save, saves, wait_for_failed_saves
from tests.faults.trial import Trial

pytestmark = pytest.mark.nightly

REPLIES = [
    b"+OK\r\n", b"+\r\n", b"+QUEUED\r\n", b"$-1\r\n", b"$0\r\n\r\n", b"$3\r\nabc\r\n", b"$2\r\n\xff\xfe\r\n",
    b":1\r\n", b":-1\r\n", b"*-1\r\n", b"*0\r\n", b"*1\r\n$1\r\nx\r\n", b"*2\r\n$-1\r\n$-1\r\n",
    b"*2\r\n*0\r\n*0\r\n", b"*2\r\n:1\r\n*1\r\n:2\r\n", b"*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n", b"_\r\n", b"#t\r\n",
    b",1.5\r\n", b"%0\r\n", b"~0\r\n", b">0\r\n", b"(123\r\n", b"=7\r\ntxt:abc\r\n", b"-ERR no\r\n",
    b"-NOSCRIPT No matching script\r\n", b"-EXECABORT\r\n", b"-\r\n", b"\r\n", b"?\r\n", b":x\r\n", b"$9\r\nabc",
    b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x46",
]  # fmt: skip
"""Replies of another kind than most commands have, and bytes that are none."""


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


def test_replies_of_another_kind(trial: Trial) -> None:
    """Any reply may take the place of another. Each such reply is an outage of one command, and is said in one line.

    A process that starts meanwhile waits for the true replies.
    """
    rng, altered = random.Random(3), 0

    def alter(data: bytes) -> bytes:
        nonlocal altered
        if rng.random() < 0.5:
            return data
        altered += 1
        return rng.choice(REPLIES)

    trial.begin(services=2)
    with trial.answering(100):
        trial.redis_proxy.alter = alter
        starting = trial.service()
        wait(lambda: altered > 200, "each reply is altered in many ways")
        trial.redis_proxy.heal()
    trial.up(starting)
    trial.finish()
    assert count_in_logs(trial, "Traceback") == 0
    assert count_in_logs(trial, "its reply is not one of Redis to this command") >= 1
