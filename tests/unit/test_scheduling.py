"""The process asks Linux for short slices, and keeps what else it was started with."""

import os
import subprocess
import sys

import pytest

from tests.slices import SHORT

PROGRAM = """
import os, platform
from service.process import scheduling
from tests.slices import slice_of
{before}
had = slice_of(0)
scheduling.short_slices()
print(had, slice_of(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
"""


def asked(before: str) -> list[int]:
    """The slice before and after it was asked for, the niceness, the policy."""
    command = [sys.executable, "-c", PROGRAM.format(before=before)]
    return [*map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())]


def test_slices_are_short_and_niceness_stays() -> None:
    _, has, nice, _ = asked("os.nice(5)")
    assert (has, nice) == (SHORT, os.getpriority(os.PRIO_PROCESS, 0) + 5)


def test_who_was_started_as_a_batch_stays_one() -> None:
    had, has, _, policy = asked("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))")
    assert (has, policy) == (had, os.SCHED_BATCH)


@pytest.mark.parametrize("before", ["platform.system = lambda: 'Darwin'", "scheduling._SET_ATTRIBUTES.clear()"])
def test_elsewhere_nothing_is_asked(before: str) -> None:
    had, has, *_ = asked(before)
    assert has == had
