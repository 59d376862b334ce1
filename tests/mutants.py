"""Faults put into the learning code one at a time, and the check that must notice each: `python -m tests.mutants`."""

import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests import template
from tests.changed import changed

HERE = Path(__file__).parents[1]
KERNEL, RULES, BOUNDS, OBSERVATIONS = (
    f"service/learning/{name}.py::"
    for name in ("kernel/kernel", "rules", "evaluation/mistake_bound", "evaluation/observations")
)
FOLLOW, SEGMENT = f"{BOUNDS}_follow", f"{BOUNDS}BoundSegment.follow"


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
    Mutant("S without one update", SEGMENT,
           {"(signs, batch.weights, learned.steps, learned.squared_norms, along)":
            "(signs, batch.weights, learned.steps * (self.sums.updates != 5), learned.squared_norms, along)"}, "axes"),
    Mutant("Ξ over the updates alone", FOLLOW,
           {"along[i] *= scale * signs[i] * length":
            "along[i] = math.inf if steps[i] == 0.0 else along[i] * scale * signs[i] * length"},
           "the_sums_are_the_oracles"),
    Mutant("η left out of z", SEGMENT, {"identity.eta * identity.parameter": "identity.parameter"}, "rates"),
    Mutant("the weight left out of z", FOLLOW, {"rate * weights[i]": "rate"}, "rates"),
    Mutant("R not beyond 10", FOLLOW,
           {"max(radius_squared, moved * length * length * squared_norms[i] + slack)":
            "min(100.0, moved * length * length * squared_norms[i] + slack)"}, "axes"),
    Mutant("the margin left out of R", FOLLOW,
           {"moved * length * length * squared_norms[i] + slack": "moved * length * length * squared_norms[i]"},
           "margins"),
    Mutant("the margin left out of S", FOLLOW, {"0.0 if steps[i] == 0.0 else slack": "0.0"}, "margins"),
    Mutant("the margin of the other label in R and S", FOLLOW, {"signs[i] > 0.0": "signs[i] < 0.0"}, "margins"),
    Mutant("an update only if another score is larger", f"{KERNEL}_learn_classes",
           {"not s[own] > s[rival]": "s[own] < s[rival]"}, "contradiction_of_classes"),
    Mutant("the update of the best wrong class applied twice", f"{KERNEL}_learn_classes",
           {"(rate, -rate)": "(rate, -2.0 * rate)"}, "axes_of_classes"),
    Mutant("an update of a wrong class that is not the best", f"{KERNEL}_learn_classes",
           {"step[own], step[rival] = rate, -rate": "step[own], step[(own + 1) % classes] = rate, -rate"},
           "the_sums_of_classes_are_the_oracles"),
    Mutant("of classes, η left out of z", SEGMENT, {"identity.eta * identity.parameter": "identity.parameter"},
           "rates_of_classes"),
    Mutant("of classes, one class alone in R", FOLLOW,
           {"moved * length * length * squared_norms[i]": "length * length * squared_norms[i]"}, "axes_of_classes"),
    Mutant("of classes, one class alone in S", FOLLOW,
           {"moved * steps[i] * steps[i] * squared_norms[i]": "steps[i] * steps[i] * squared_norms[i]"},
           "axes_of_classes"),
    Mutant("of classes, Ξ by the furthest part of the reference", f"{BOUNDS}_along_of_classes",
           {"-math.inf": "math.inf", "parts.max()": "parts.min()"}, "contradiction_of_classes"),
    Mutant("of classes, Ξ over the updates alone", FOLLOW,
           {"along[i] *= scale * signs[i] * length":
            "along[i] = math.inf if steps[i] == 0.0 else along[i] * scale * signs[i] * length"},
           "the_sums_of_classes_are_the_oracles"),
    Mutant("of classes, one class alone in the norm's limit", f"{OBSERVATIONS}ModelObservations.follow",
           {"2.0 if identity.multiclass and RULES[identity.rule].mistake_driven else 1.0": "1.0"}, "axes_of_classes"),
    Mutant("the margin left out of the norm's limit", f"{OBSERVATIONS}_lengthened",
           {"2.0 * abs(steps[i]) * margin": "0.0"}, "margins"),
)  # fmt: skip


def failed(mutant: Mutant | None, *checks: str) -> list[str]:
    """The checks of `tests.stretches`, of these or of all, that a copy of the service with this fault fails."""
    with tempfile.TemporaryDirectory() as folder:
        copy = HERE
        if mutant:
            copy = changed(HERE, Path(folder) / "copy", mutant.function, mutant.changes.items())
        done = template.run(
            ["tests.stretches", *checks], os.environ | {"NUMBA_DISABLE_JIT": "1"}, copy, kind="packages"
        )
        assert done.returncode == 0, done.stderr
        names: list[str] = json.loads(done.stdout)
        return names


def main() -> None:
    """Print the table."""
    for mutant in (None, *MUTANTS):
        print(f"{mutant.name if mutant else 'no fault'} -> {', '.join(failed(mutant)) or 'nothing fails'}")


if __name__ == "__main__":
    main()
