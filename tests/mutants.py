"""Faults put into the learning code one at a time, and the check that must notice each: `python -m tests.mutants`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parents[1]
KERNEL, BOUNDS = "service/learning/kernel.py", "service/learning/bounds.py"
TESTS = ("__init__.py", "checks.py", "kinds.py", "stretches.py")


class Mutant(NamedTuple):
    """A fault: text of a file that stands there once, what stands there instead, and the check that is to fail."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    caught_by: str


LENGTH = "length = rate if rule != ERROR_CORRECTION or binary else 2.0 * rate"
MUTANTS = (
    Mutant("an update at y·s < 0 alone", KERNEL, (("y * s <= 0.0", "y * s < 0.0"),), "axes"),
    Mutant(
        "S without one update", KERNEL,
        (("squares[1] += step * step * squared", "squares[1] += step * step * squared * (seen != 5.0)"),), "axes",
    ),
    Mutant(
        "Ξ without one event", KERNEL, (("if gammas[g] <= along:", "if gammas[g] <= along or seen == 1.0:"),),
        "contradiction",
    ),
    Mutant(
        "Ξ over the updates alone", KERNEL, (("if len(reference) > 0:", "if len(reference) > 0 and step != 0.0:"),),
        "the_sums_are_the_oracles",
    ),
    Mutant(
        "an update applied twice", KERNEL,
        (
            ("            w[0] += step\n", "            w[0] += 2.0 * step\n"),
            (" w[columns[j]] += delta\n", " w[columns[j]] += 2.0 * delta\n"),
        ),
        "axes",
    ),
    Mutant("η left out of z", KERNEL, ((LENGTH, LENGTH.replace("rate", "weights[i]")),), "rates"),
    Mutant("the weight left out of z", KERNEL, ((LENGTH, LENGTH.replace("rate", "eta")),), "rates"),
    Mutant(
        "R not beyond 10", KERNEL, (("squares[0] = max(", "squares[0] = min(100.0, "),), "contradiction",
    ),
)  # fmt: skip
FURTHER = Mutant("a grid of γ a thousand times larger", BOUNDS, (("max(16.0 *", "max(16000.0 *"),), "")
"""No fault: it only has to make no bound better."""


def tried(mutant: Mutant | None) -> Any:
    """What `tests.stretches` says of a copy of the service with this fault: {"failed": [name…], "bounds": {…}}."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(HERE / "service", copy / "service", ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "tests").mkdir()
        for name in TESTS:
            shutil.copy(HERE / "tests" / name, copy / "tests" / name)
        if mutant:
            source = copy / mutant.file
            text = source.read_text()
            for old, new in mutant.changes:
                assert text.count(old) == 1, f"{mutant.name}: {old!r} stands {text.count(old)} times in {mutant.file}"
                text = text.replace(old, new)
            source.write_text(text)
        # Not compiled: these few events take less time than the compiler.
        done = subprocess.run(
            [sys.executable, "-m", "tests.stretches"], cwd=copy, env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def main() -> None:
    """Print the table."""
    for mutant in (None, *MUTANTS, FURTHER):
        failed, bounds = tried(mutant).values()
        print(f"{mutant.name if mutant else 'no fault'} -> {', '.join(failed) or 'nothing fails'}")
        if mutant in {None, FURTHER}:
            print(f"    bounds: {bounds}")


if __name__ == "__main__":
    main()
