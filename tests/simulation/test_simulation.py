"""Random histories of faults: every accepted head is compared with the plain fold. `make simulate` runs more seeds."""

import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.mutants import HERE, MUTANTS, Mutant, first_failure
from tests.simulation.run import Simulation
from tests.source_copy import changed_module

SEEDS, NIGHTLY_SEEDS = 100, 350
REGRESSION_SEEDS = (371, 2334, 2821, 3578, 3887, 4090, 7642)
"""Seeds that once showed a defect."""

ISOLATED = """
import sys
import hashlib, aiokafka.record.util, mmh3, msgspec, numba, numba.core.caching, numpy, random, traceback, unittest.mock
for name in ("asyncio", "time", "socket", "select", "threading", "_thread", "concurrent.futures"):
    sys.modules[name] = None  # an import of this name raises from here on
from tests.simulation.run import Simulation
for seed in (3, 11):
    print("\\n".join(Simulation(seed).run().history))
assert "service.snapshots.keeper" in sys.modules and "service.streaming.learn_loop" in sys.modules
"""


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(NIGHTLY_SEEDS, marks=pytest.mark.nightly)])
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_nothing_is_lost_and_nothing_learned_twice(seeds: int) -> None:
    """A violation is raised with the history of its seed; `make simulate SEED=n` prints it again."""
    counts = Counter[str]()
    for seed in (*range(seeds), *REGRESSION_SEEDS):
        counts.update(Simulation(seed).run().counts)
    # Each kind of event must have happened, or it was not tested.
    for name, minimum in (
        ("OK", 2000), ("CONFLICT", 100), ("MISSING", 5), ("crash", 300), ("late", 500), ("reply lost", 500),
        ("doubled", 500), ("redis rolled back", 300), ("redis emptied", 100), ("topic recreated", 50), ("trim", 50),
        ("partition added", 50), ("rewound: refused", 100), ("rewound: replaced", 30),
        ("stopped: LogLost", 100), ("stopped: IdentityChanged", 5), ("kept for its order", 20),
        ("stopped: Diverged", 10), ("base offset flipped", 40), ("stopped: LogGap", 40),
        ("candidates reconciled", 100), ("amended", 50),
    ):  # fmt: skip
        assert counts[name] >= (minimum if seeds == NIGHTLY_SEEDS else 1), f"{name}: {counts[name]}"
    assert counts["excused"] < seeds / 2, "most runs must end with everything learned"


@pytest.mark.parametrize("hash_seed", ["0", "7"])
def test_the_simulation_needs_no_tasks_threads_or_clock_and_a_seed_has_one_history(hash_seed: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", ISOLATED], capture_output=True, text=True, check=False, cwd=HERE,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "NUMBA_DISABLE_JIT": "1"},  # it may choose the kernel of BLAS
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rng_state = random.getstate()
    histories = ["\n".join(Simulation(seed).run().history) for seed in (3, 11)]
    assert random.getstate() == rng_state, "only the seed's own numbers are drawn"
    assert result.stdout == "".join(history + "\n" for history in histories)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_each_mutant_still_changes_the_code(mutant: Mutant) -> None:
    changed_module(HERE, mutant.function, [(mutant.old, mutant.new)])


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
@pytest.mark.nightly
def test_a_missing_protection_is_noticed(mutant: Mutant) -> None:
    """`make mutants` prints the seed or test that fails."""
    assert first_failure(mutant)


@pytest.mark.nightly
def test_nothing_is_noticed_where_nothing_is_missing() -> None:
    """The test above can fail: the unchanged code passes the same seeds, run in the same way."""
    assert not first_failure(MUTANTS[0]._replace(new=MUTANTS[0].old))
