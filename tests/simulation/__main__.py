"""`python -m tests.simulation 17` prints the history of a seed; `0:1000` runs seeds to the first that fails."""

import sys
import time
from collections import Counter

from tests.simulation.run import Simulation
from tests.simulation.world import Violation


def main(selection: str) -> int:
    """The exit code: 1 where a promise was broken."""
    first_seed, separator, end = selection.partition(":")
    started, counts = time.monotonic(), Counter[str]()
    seeds = range(int(first_seed or 0), int(end)) if separator else [int(first_seed)]
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            counts.update(simulation.run().counts)
        except Violation as violation:
            print(violation)
            print(f"reproduce it: make simulate SEED={seed}")
            return 1
        if not separator:
            print("\n".join(simulation.world.history))
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    print(f"{len(seeds)} seeds, no violation, {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
