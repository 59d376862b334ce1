"""Faults put into the learning code one at a time, and the check that must notice each: `python -m tests.mutants`."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests import template
from tests.changed import changed

HERE = Path(__file__).parents[1]
KERNEL, RULES, BOUNDS, WATCH = (f"service/learning/{name}.py::" for name in ("kernel", "rules", "bounds", "watch"))
FOLLOW, CLASSES = f"{BOUNDS}_follow", f"{BOUNDS}_follow_classes"


class Mutant(NamedTuple):
    """A fault in a function: expressions or statements of it, the code in their place, and the check that fails."""

    name: str
    function: str
    changes: dict[str, str]
    caught_by: str


MUTANTS = (
    Mutant("an update at y·s < 0 alone", f"{RULES}step", {"y * s <= margin": "y * s < margin"}, "axes"),
    Mutant("an update applied twice", f"{KERNEL}_learn",
           {"state[0, 0] += step": "step *= 2.0; state[0, 0] += step"}, "axes"),
    Mutant("S without one update", f"{BOUNDS}Stretch.follow",
           {"(batch.labels, batch.weights, learned.steps, learned.squared_norms)":
            "(batch.labels, batch.weights, learned.steps * (self.sums.updates != 5), learned.squared_norms)"}, "axes"),
    Mutant("Ξ over the updates alone", FOLLOW,
           {"along[i] *= scale * labels[i] * length":
            "along[i] = math.inf if steps[i] == 0.0 else along[i] * scale * labels[i] * length"},
           "the_sums_are_the_oracles"),
    Mutant("η left out of z", FOLLOW, {"eta * weights[i] * parameter": "weights[i] * parameter"}, "rates"),
    Mutant("the weight left out of z", FOLLOW, {"eta * weights[i] * parameter": "eta * parameter"}, "rates"),
    Mutant("R not beyond 10", FOLLOW,
           {"max(radius_squared, length * length * squared_norms[i] + slack)":
            "min(100.0, length * length * squared_norms[i] + slack)"}, "axes"),
    Mutant("the margin left out of R", FOLLOW,
           {"length * length * squared_norms[i] + slack": "length * length * squared_norms[i]"}, "margins"),
    Mutant("the margin left out of S", FOLLOW, {"0.0 if steps[i] == 0.0 else slack": "0.0"}, "margins"),
    Mutant("the margin of the other label in R and S", FOLLOW, {"labels[i] > 0.0": "labels[i] < 0.0"}, "margins"),
    Mutant("an update only if another score is larger", f"{KERNEL}_learn_classes",
           {"not s[own] > s[rival]": "s[own] < s[rival]"}, "contradiction_of_classes"),
    Mutant("the update of the best wrong class applied twice", f"{KERNEL}_learn_classes",
           {"_add(rival, -rate, i, state, age, starts, columns, values)":
            "_add(rival, -2.0 * rate, i, state, age, starts, columns, values)"}, "axes_of_classes"),
    Mutant("an update of a wrong class that is not the best", f"{KERNEL}_learn_classes",
           {"_add(rival, -rate, i, state, age, starts, columns, values)":
            "_add((own + 1) % classes, -rate, i, state, age, starts, columns, values)"},
           "the_sums_of_classes_are_the_oracles"),
    Mutant("of classes, η left out of z", CLASSES, {"eta * weights[i]": "weights[i]"}, "rates_of_classes"),
    Mutant("of classes, one class alone in R", CLASSES,
           {"2.0 * length * length * squared_norms[i]": "length * length * squared_norms[i]"}, "axes_of_classes"),
    Mutant("of classes, one class alone in S", CLASSES,
           {"2.0 * steps[i] * steps[i] * squared_norms[i]": "steps[i] * steps[i] * squared_norms[i]"},
           "axes_of_classes"),
    Mutant("of classes, Ξ by the furthest part of the reference", CLASSES,
           {"-math.inf": "math.inf", "parts.max()": "parts.min()"}, "contradiction_of_classes"),
    Mutant("of classes, Ξ over the updates alone", CLASSES,
           {"(mine - parts.max()) * scale * length":
            "math.inf if steps[i] == 0.0 else (mine - parts.max()) * scale * length"},
           "the_sums_of_classes_are_the_oracles"),
    Mutant("of classes, one class alone in the norm's limit", f"{WATCH}Watch.follow",
           {"2.0 if identity.multiclass and RULES[identity.rule].mistake_driven else 1.0": "1.0"}, "axes_of_classes"),
    Mutant("the margin left out of the norm's limit", f"{WATCH}_lengthened",
           {"2.0 * abs(steps[i]) * (positive if steps[i] > 0.0 else negative)": "0.0"}, "margins"),
)  # fmt: skip
FURTHER = Mutant(
    "a grid of γ a thousand times larger",
    f"{BOUNDS}Stretch.follow",
    {"16.0 * longest * math.sqrt(squared)": "16000.0 * longest * math.sqrt(squared)"},
    "",
)
"""No fault: it must not make any bound better."""


def tried(mutant: Mutant | None, *checks: str) -> Any:
    """What `tests.stretches` says of a copy of the service with this fault: {"failed": [name…], "bounds": {…}}.

    Of these checks, or of all.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = HERE
        if mutant:
            copy = changed(HERE, Path(folder) / "copy", mutant.function, mutant.changes.items())
        done = template.run(
            ["tests.stretches", *checks], os.environ | {"NUMBA_DISABLE_JIT": "1"}, copy, kind="packages"
        )
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
