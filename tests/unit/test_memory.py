"""What large events and the compiler took in memory goes back to the system."""

import subprocess
import sys

COLUMNS = 500_000
PROGRAM = f"""
from service.learning.events.batch import use_compiled_reader
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.process.memory import give_back, one_arena

def resident():
    give_back()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def learn(columns):
    wide = Identity(features="positional", dimension=columns, max_features=columns, max_record_bytes=8 << 20)
    learner = Learner(wide)
    learner.begin({{0: 0}})
    for i in range(4):
        record = b'{{"label":%d,"features":[%s]}}' % (i % 2, b",".join([b"%d.5" % i] * columns))
        assert learner.apply(0, i, [record]).consumed == 1
    assert learner.counts.events == 4
    return learner

one_arena()
use_compiled_reader(True)
learn(10)
before = resident()
learner = learn({COLUMNS})
print((resident() - before) / {COLUMNS})
"""


def test_a_wide_event_leaves_its_weights_behind_and_little_else() -> None:
    """A weight is 8 bytes; the event's own features would be 35, and what its record was parsed into as many."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert 8.0 <= float(done.stdout) <= 12.0


def test_the_compiler_is_in_no_memory_once_it_has_compiled() -> None:
    """Nor does it come back for what is done from then on."""
    program = """
from service.learning.events.batch import use_compiled_reader
from service.learning.identity import Identity
from service.learning.learner import Learner
from service.process.memory import forget_compiler

def of_files():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssFile")) / 1024

def learn():
    learner = Learner(Identity())
    learner.begin({0: 0})
    learner.apply(0, 0, [b'{"features":{"a":1},"label":1}'] * 3)
    return learner.score({"a": 1.0})

use_compiled_reader(True)
learn()
before = of_files()
forget_compiler()
after = of_files()
assert learn() == (2.0, 0)
print(before - after, of_files() - after)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    less, again = map(float, done.stdout.split())
    assert less > 25.0
    assert again < 5.0
