"""The rules of `rules.py`, compiled, over a batch of columns.

The loops are compiled without fast-math, so every sum and step keeps the order of the formula and the same
events give the same bits on any CPU. (The logistic rule's `exp` is outside this promise.) Columns are `np.uintp`:
signed indices cost half as much again.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.bounds import Stretch, factor
from service.learning.compiled import compiled
from service.learning.events import Batch
from service.learning.identity import MAX_SQUARED_NORM, Identity

Vector = NDArray[np.float64]

PERCEPTRON, ERROR_CORRECTION, HALF_STEP, LMS, LOGISTIC_DELTA, THRESHOLD_UNIT = range(6)
RULES = ("perceptron", "error-correction", "half-step", "lms", "logistic-delta", "threshold-unit")

_NEAR = math.sqrt(MAX_SQUARED_NORM) / 2.0

_NONE = np.zeros(0)


class Learned(NamedTuple):
    """What the kernel did to a batch. Scores and norms are those before each event's update."""

    done: int
    """Events learned: fewer than the batch has when the next one's update would take ‖w‖² beyond its limit; that one
    changed nothing."""
    updates: int
    squared_steps: float
    """The running ‖w(0)‖² + Σ‖Δw‖² over all updates."""
    scores: Vector
    squared_norms: Vector
    """‖x‖² of each event, the bias included."""
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
    rule: int, eta: float, positive_tie: bool, binary: bool, slope: float, w: Vector, late: Vector, seen: float,
    starts: Any, columns: Any, values: Vector, labels: Vector, weights: Vector, scores: Vector, squared_norms: Vector,
    squared_steps: float, reach: float, reference: Vector, scale: float, gammas: Vector, hinge: Vector, squares: Vector,
) -> tuple[int, int, float, float]:  # fmt: skip
    updates = 0
    for i in range(len(labels)):
        y, rate = labels[i], eta * weights[i]
        s, squared = w[0], 1.0
        for j in range(starts[i], starts[i + 1]):
            s += w[columns[j]] * values[j]
            squared += values[j] * values[j]
        scores[i], squared_norms[i] = s, squared
        out = 1.0 if s > 0.0 or (s == 0.0 and positive_tie) else -1.0
        if rule == PERCEPTRON:
            step = rate * y if y * s <= 0.0 else 0.0
        elif rule == ERROR_CORRECTION:
            step = rate * ((y - out) / 2.0 if binary else y - out)
        elif rule == HALF_STEP:
            step = 0.5 * rate * (y - out)
        elif rule == LMS:
            step = rate * (y - s)
        elif rule == LOGISTIC_DELTA:
            z = slope * s
            o = 1.0 / (1.0 + math.exp(-z)) if z >= 0.0 else math.exp(z) / (1.0 + math.exp(z))
            step = rate * ((1.0 if y > 0.0 else 0.0) - o) * (slope * o * (1.0 - o))
        else:
            step = 0.0
        if step != 0.0:
            # ‖w‖ grows by no more than the step is long, so that ‖w‖² is seldom summed up: where it may be beyond half
            # its limit. Whether it is beyond the limit itself depends on weights and event alone. How records were cut
            # does not count, nor a restart, which knows no `reach`: columns that are there for later events begin
            # within ±1, which no sum near the limit can show, and are left out of all of them.
            reach += abs(step) * math.sqrt(squared)
            if not reach <= _NEAR:
                part = slice(starts[i], starts[i + 1])
                total = _squared_norm_after(w, step, columns[part], values[part])
                if not total <= MAX_SQUARED_NORM:
                    return i, updates, squared_steps, reach
                reach = math.sqrt(total + len(w))
            updates += 1
            w[0] += step
            squared_steps += step * step
            for j in range(starts[i], starts[i + 1]):
                delta = step * values[j]
                w[columns[j]] += delta
                squared_steps += delta * delta
            if len(squares) > 0:
                squares[1] += step * step * squared
            if len(late) > 0:
                # The mean of the weights after each event is w - late/events: a change counts from its event on.
                late[0] += (seen + i) * step
                for j in range(starts[i], starts[i + 1]):
                    late[columns[j]] += (seen + i) * (step * values[j])
        if len(reference) > 0:
            # The bound's sums (see bounds.py) are over all events, also those that change nothing.
            along = reference[0]
            for j in range(starts[i], starts[i + 1]):
                along += reference[columns[j]] * values[j]
            length = rate if rule != ERROR_CORRECTION or binary else 2.0 * rate
            along *= scale * y * length
            squares[0] = max(squares[0], length * length * squared)
            for g in range(len(gammas)):
                if gammas[g] <= along:
                    break  # they fall
                hinge[g] += gammas[g] - along
    return len(labels), updates, squared_steps, reach


def learn(
    identity: Identity,
    w: Vector,
    late: Vector,
    batch: Batch,
    seen: int = 0,
    squared_steps: float = 0.0,
    stretch: Stretch | None = None,
    reach: float = math.inf,
) -> Learned:
    """Learn the batch in order, changing `w` in place, and `late` where the model keeps its average (else empty).

    `seen` is the number of events learned before, `squared_steps` the running sum, `reach` what ‖w‖ is at most, as far
    as it is known. The sums of a `stretch` are added to.
    """
    if stretch is None:
        following: tuple[Any, ...] = (_NONE, 0.0, _NONE, _NONE, _NONE)
    else:
        if len(batch.labels):
            first = batch.values[: int(batch.starts[1])]
            rate = factor(identity) * identity.eta * float(batch.weights[0])
            stretch.expect(rate * rate * (1.0 + float(first @ first)))
        following = (stretch.reference, stretch.sums.scale, stretch.gammas, stretch.hinge, stretch.squares)
    scores, squared_norms = np.empty(len(batch.labels)), np.empty(len(batch.labels))
    done, updates, squared, reach = _learn(
        RULES.index(identity.rule), identity.eta, identity.tie == "positive", identity.outputs == "binary",
        identity.slope or 1.0, w, late, float(seen), batch.starts, batch.columns, batch.values, batch.labels,
        batch.weights, scores, squared_norms, squared_steps, reach, *following,
    )  # fmt: skip
    if stretch is not None:
        stretch.sums.updates += int(updates)
    return Learned(int(done), int(updates), float(squared), scores[:done], squared_norms[:done], float(reach))
