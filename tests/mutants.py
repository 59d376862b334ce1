"""Faults put into the learning code one at a time, and the check that must notice each: `python -m tests.mutants`."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests import template
from tests.changed import changed

HERE = Path(__file__).parents[1]
KERNEL, RULES, BOUNDS, WATCH = (f"service/learning/{name}.py" for name in ("kernel", "rules", "bounds", "watch"))


class Mutant(NamedTuple):
    """A fault: text of a file that stands there once, what stands there instead, and the check that is to fail."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    caught_by: str


OWN = "length, own = eta * weights[i], int(labels[i])"
ALONG = "        along[i] *= scale * labels[i] * length\n"
PARTS = "        along[i] = (mine - parts.max()) * scale * length\n"
LENGTH = "length = eta * weights[i] * parameter"
SLACK = "slack = 2.0 * length * (positive if labels[i] > 0.0 else negative)"
LIMIT = "2.0 * abs(steps[i]) * (positive if steps[i] > 0.0 else negative)"
MUTANTS = (
    Mutant("an update at y·s < 0 alone", RULES, (("y * s <= margin", "y * s < margin"),), "axes"),
    Mutant(
        "S without one update", BOUNDS,
        (("weights, learned.steps,", "weights, learned.steps * (self.sums.updates != 5),"),), "axes",
    ),
    Mutant(
        "Ξ without the events between two updates", BOUNDS,
        (("gammas, self.hinge,", "gammas, self.hinge * 1 if self.sums.updates == 1 else self.hinge,"),),
        "contradiction",
    ),
    Mutant(
        "Ξ over the updates alone", BOUNDS,
        ((ALONG, f"{ALONG}        along[i] = math.inf if steps[i] == 0.0 else along[i]\n"),),
        "the_sums_are_the_oracles",
    ),
    Mutant(
        "an update applied twice", KERNEL,
        (
            ("            state[0, 0] += step\n", "            step *= 2.0\n            state[0, 0] += step\n"),
        ),
        "axes",
    ),
    Mutant("η left out of z", BOUNDS, ((LENGTH, LENGTH.replace("eta * ", "")),), "rates"),
    Mutant("the weight left out of z", BOUNDS, ((LENGTH, LENGTH.replace("weights[i] * ", "")),), "rates"),
    Mutant(
        "R not beyond 10", BOUNDS,
        (("radius_squared = max(radius_squared, length", "radius_squared = min(100.0, length"),), "axes",
    ),
    Mutant(
        "the margin left out of R", BOUNDS,
        (("length * length * squared_norms[i] + slack)", "length * length * squared_norms[i])"),), "margins",
    ),
    Mutant("the margin left out of S", BOUNDS, (("== 0.0 else slack)", "== 0.0 else 0.0)"),), "margins"),
    Mutant("the margin of the other label in R and S", BOUNDS, ((SLACK, SLACK.replace(" > ", " < ")),), "margins"),
    Mutant(
        "of classes, an update where the own score is the less alone", KERNEL,
        (("if not s[own] > s[rival]:", "if s[own] < s[rival]:"),), "contradiction_of_classes",
    ),
    Mutant(
        "of classes, the update of the best wrong one applied twice", KERNEL,
        (("_add(rival, -rate,", "_add(rival, -2.0 * rate,"),), "axes_of_classes",
    ),
    Mutant(
        "of classes, a wrong one that is not the best", KERNEL,
        (("_add(rival, -rate,", "_add((own + 1) % classes, -rate,"),), "the_sums_of_classes_are_the_oracles",
    ),
    Mutant("of classes, η left out of z", BOUNDS, ((OWN, OWN.replace("eta * ", "")),), "rates_of_classes"),
    Mutant(
        "of classes, the weight left out of z", BOUNDS, ((OWN, OWN.replace(" * weights[i]", "")),), "rates_of_classes",
    ),
    Mutant(
        "of classes, ‖z‖² of one class alone in R", BOUNDS,
        (("squares[0] = max(squares[0], 2.0 * length", "squares[0] = max(squares[0], length"),), "axes_of_classes",
    ),
    Mutant(
        "of classes, ‖z‖² of one class alone in S", BOUNDS,
        (("squares[1] += 2.0 * steps[i]", "squares[1] += steps[i]"),), "axes_of_classes",
    ),
    Mutant(
        "of classes, Ξ by the furthest part of the reference", BOUNDS,
        (("mine, parts[own] = parts[own], -math.inf", "mine, parts[own] = parts[own], math.inf"),
         ("parts.max()", "parts.min()")),
        "contradiction_of_classes",
    ),
    Mutant(
        "of classes, Ξ by the first part of the reference", BOUNDS, (("parts.max()", "parts[1 if own == 0 else 0]"),),
        "the_sums_of_classes_are_the_oracles",
    ),
    Mutant(
        "of classes, Ξ over the updates alone", BOUNDS,
        ((PARTS, f"{PARTS}        along[i] = math.inf if steps[i] == 0.0 else along[i]\n"),),
        "the_sums_of_classes_are_the_oracles",
    ),
    Mutant(
        "of classes, R not beyond 10", BOUNDS,
        (("squares[0] = max(squares[0], 2.0 * length", "squares[0] = min(100.0, 2.0 * length"),), "axes_of_classes",
    ),
    Mutant(
        "of classes, one class alone in the norm's limit", WATCH,
        (("moved = 2.0 if", "moved = 1.0 if"),), "axes_of_classes",
    ),
    Mutant("the margin left out of the norm's limit", WATCH, ((LIMIT, LIMIT.replace("2.0", "0.0")),), "margins"),
)  # fmt: skip
FURTHER = Mutant("a grid of γ a thousand times larger", BOUNDS, (("max(16.0 *", "max(16000.0 *"),), "")
"""No fault: it only has to make no bound better."""


def tried(mutant: Mutant | None, *checks: str) -> Any:
    """What `tests.stretches` says of a copy of the service with this fault: {"failed": [name…], "bounds": {…}}.

    Of these checks, or of all.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = HERE
        if mutant:
            copy = changed(HERE, Path(folder) / "copy", mutant.file, mutant.changes)
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
