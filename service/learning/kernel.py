"""A rule over a batch of columns, compiled: score, step, update, one event after another.

The loops are compiled without fast-math, so every sum and step keeps the order of the formula and the same
events give the same bits on any CPU. (The logistic rule's `exp` is outside this promise.) Columns are `np.uintp`:
signed indices cost half as much again.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from service.learning import rules
from service.learning.average import SHRINK, ages
from service.learning.compiled import compiled
from service.learning.events import Batch
from service.learning.identity import MAX_SQUARED_NORM, Identity

Vector = NDArray[np.float64]

register_jitable(rules.decide)
register_jitable(rules.logistic)
register_jitable(rules.step)

_NEAR = math.sqrt(MAX_SQUARED_NORM) / 2.0


class Learned(NamedTuple):
    """What the kernel did to a batch: a figure for each event that was learned."""

    scores: Vector
    """s = w·x before the event's update. There are fewer than the batch has events when the next one's update would
    take ‖w‖² beyond its limit; that one changed nothing."""
    steps: Vector
    """What its update added, along x; 0 where there was none."""
    squared_norms: Vector
    """‖x‖², the bias included."""
    averages: Vector
    """The score by the average of the weights, before the event too; empty where none is kept."""
    reach: float
    """What ‖w‖ is at most after these events."""


@compiled
def _squared_norm_after(w: Vector, step: float, columns: Any, values: Vector) -> float:
    """‖w + step·x‖² over the weights beyond ±1."""
    after = w.copy()
    after[0] += step
    for j in range(len(columns)):
        after[columns[j]] += step * values[j]
    total = 0.0
    for weight in after:
        if not abs(weight) <= 1.0:
            total += weight * weight
    return total


@compiled
def _learn(
    rule: int, eta: float, positive_tie: bool, parameter: float, negative: float, positive: float, w: Vector,
    late: Vector, ages: Vector, starts: Any, columns: Any, values: Vector, labels: Vector, weights: Vector,
    scores: Vector, steps: Vector, squared_norms: Vector, averages: Vector, reach: float,
) -> tuple[int, float]:  # fmt: skip
    for i in range(len(labels)):
        s, squared = w[0], 1.0
        for j in range(starts[i], starts[i + 1]):
            s += w[columns[j]] * values[j]
            squared += values[j] * values[j]
        if len(late) > 0:
            part = 1.0 / max(ages[i], 1.0)
            a = w[0] - late[0] * part
            for j in range(starts[i], starts[i + 1]):
                a += (w[columns[j]] - late[columns[j]] * part) * values[j]
            averages[i] = a
        margin = positive if labels[i] > 0.0 else negative
        step = rules.step(rule, s, labels[i], eta * weights[i], positive_tie, parameter, margin)
        scores[i], steps[i], squared_norms[i] = s, step, squared
        if step != 0.0:
            # ‖w‖ grows by no more than the step is long, so that ‖w‖² is seldom summed up: where it may be beyond half
            # its limit. Whether it is beyond the limit itself depends on weights and event alone. How records were cut
            # does not count, nor a restart, which knows no `reach`: columns that are there for later events begin
            # within ±1, which no sum near the limit can show, and are left out of all of them.
            reach += abs(step) * math.sqrt(squared)
            if not reach <= _NEAR:
                own = slice(starts[i], starts[i + 1])
                total = _squared_norm_after(w, step, columns[own], values[own])
                if not total <= MAX_SQUARED_NORM:
                    return i, reach
                reach = math.sqrt(total + len(w))
            w[0] += step
            for j in range(starts[i], starts[i + 1]):
                w[columns[j]] += step * values[j]
            if len(late) > 0:
                late[0] += ages[i] * step
                for j in range(starts[i], starts[i + 1]):
                    late[columns[j]] += ages[i] * (step * values[j])
        # Last of all, so that an event that diverges leaves this to the next as well.
        if len(late) > 0 and ages[i + 1] < ages[i]:
            for j in range(len(late)):
                late[j] *= SHRINK
    return len(labels), reach


def learn(identity: Identity, w: Vector, late: Vector, batch: Batch, seen: int = 0, reach: float = math.inf) -> Learned:
    """Learn the batch in order, changing `w` in place, and `late` where the model keeps its average (else empty).

    `seen` is the number of events learned before, `reach` what ‖w‖ is at most, as far as it is known.
    """
    scores, steps, squared_norms = (np.empty(len(batch.labels)) for _ in range(3))
    averages = np.empty(len(batch.labels) if len(late) else 0)
    done, reach = _learn(
        list(rules.RULES).index(identity.rule), identity.eta, identity.tie == "positive",
        identity.parameter, *identity.margins, w, late, ages(identity, seen, len(averages) + 1), batch.starts,
        batch.columns, batch.values, batch.labels, batch.weights, scores, steps, squared_norms, averages, reach,
    )  # fmt: skip
    return Learned(scores[:done], steps[:done], squared_norms[:done], averages[:done], float(reach))
