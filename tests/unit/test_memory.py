"""Memory that large events took goes back to the system."""

import subprocess
import sys

import pytest

COLUMNS = 500_000
PROGRAM = f"""
from service.learning.events.batch import use_compiled_reader
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.learning.records import Records
from service.process.memory import give_back

def resident():
    give_back()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def learn(columns):
    wide = Identity(features="positional", dimension=columns, max_features=columns, max_record_bytes=8 << 20)
    learner = Learner(wide)
    learner.begin({{0: 0}})
    for i in range(4):
        record = b'{{"label":%d,"features":[%s]}}' % (i % 2, b",".join([b"%d.5" % i] * columns))
        assert learner.apply(0, Records.of(i, [record])).consumed == 1
    assert learner.counts.events == 4
    return learner

use_compiled_reader(True)
learn(10)
before = resident()
learner = learn({COLUMNS})
print((resident() - before) / {COLUMNS})
"""


@pytest.mark.nightly
def test_a_wide_event_leaves_its_weights_behind_and_little_else() -> None:
    """A weight is 8 bytes; the event's own features would be 35, and what its record was parsed into as many."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert 8.0 <= float(done.stdout) <= 12.0
