"""A rule over a batch of columns, compiled: score, step, update, one event after another.

With two labels there is one vector of weights. With more, each class r has its own vector w_r, a column of an array of
shape (columns, classes): from ten classes on that is faster than rows (measured). The perceptron is then the simplest
ultraconservative one (Crammer and Singer 2003). The largest score predicts, the first of equals. If the score of an
event's own class y is not the strictly largest, η·weight·x is added to w_y and subtracted from the weights of its
rival r, the best wrong class, again the first of equals. By Kesler's construction that is the rule of two labels along
z = (e_y - e_r) ⊗ x. LMS and logistic-delta learn each class against the rest.

A model can keep an average next to its weights: the mean (Freund and Schapire), or the recent one.
Both are E = w - average_accumulator/age, so an event without an update costs nothing. An update Δ adds age·Δ to the
accumulator, with the age before the event. For the mean of the weights after each event, the age is the number of
events. For the recent average, each event multiplies the age by 2^(1/N), where N is the half-life. Then D = w - E
follows D ← β(D + Δ) with β = 2^(-1/N), which makes E ← βE + (1 - β)w.

The loops are compiled without fast-math, so every sum and step keeps the order of the formula, and the same events give
the same bits on any CPU. (The logistic rule's `exp` is outside this promise.) Columns are `np.uint32`: a loop over
signed ones takes 50 % longer, and over wider ones 25 % (measured), since more memory is read.
"""

import math
import sys
from decimal import Decimal, localcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from service.learning import rules
from service.learning.columns.columns import Batch
from service.learning.identity import MAX_SQUARED_NORM, Identity
from service.learning.jit import compiled

Vector = NDArray[np.float64]
Reference = NDArray[np.float32]

register_jitable(rules.decide)
register_jitable(rules.logistic)
register_jitable(rules.step)

HALF_LIVES_TO_RESCALE = 900
"""After this many half-lives the accumulator and the age are multiplied by RESCALE_FACTOR, since the age doubles with
each half-life. Weights are within 1e15, so their product with the age stays finite."""
RESCALE_FACTOR = 2.0**-HALF_LIVES_TO_RESCALE
_NO_REFERENCE = np.zeros(1, np.float32)
_SAFE_NORM = math.sqrt(MAX_SQUARED_NORM) / 2.0
"""As long as ‖w‖ cannot be larger, an update needs no check of MAX_SQUARED_NORM."""
_NEAR_TIE = 1e-9
"""Relative: a smaller score of the average is summed term by term, as answers are."""


class Learned(NamedTuple):
    """The result of a batch: a figure for each event that was learned."""

    scores: Vector
    """s = w·x before the event's update; with three labels or more, the score of its own class less the largest other.
    There are fewer scores than events if the next update would take ‖w‖² beyond its limit; that event changed nothing.
    """
    steps: Vector
    """The step of the update, along x; 0 without an update. With three labels or more it is added to the weights of the
    own class and subtracted from the rival's. If each class learns against the rest, it is the root of the sum of the
    squared steps."""
    squared_norms: Vector
    """‖x‖², the bias included."""
    truth: NDArray[np.intp]
    """The index of the event's label, from 0 on."""
    predicted: NDArray[np.intp]
    """The index of the label that was predicted before the update."""
    averaged: NDArray[np.intp]
    """The index of the label that the average of the weights predicted; empty if there is no average."""
    averaged_scores: Vector
    """The score by the average before the event's update; empty without an average or with three labels or more."""
    along: Vector
    """The product of each event with the reference, if there is one."""
    reach: float
    """An upper limit of ‖w‖ after these events."""


@compiled
def _squared_norm_after(w: Vector, step: Any, columns: Any, values: Vector) -> float:
    """‖w + step·x‖² over the weights beyond ±1; with three labels or more `step` has a step for each."""
    after = w.copy()
    after[0] += step
    for j in range(len(columns)):
        after[columns[j]] += step * values[j]
    total = 0.0
    for weight in after.ravel():
        if not abs(weight) <= 1.0:
            total += weight * weight
    return total


@compiled
def _learn(
    rule: int, eta: float, positive_tie: bool, parameter: float, negative: float, positive: float, state: Any,
    ages: Vector, reference: Reference, starts: Any, columns: Any, values: Vector, labels: Vector, weights: Vector,
    scores: Vector, steps: Vector, squared_norms: Vector, predicted: Any, averaged: Any, averaged_scores: Vector,
    along: Vector, reach: float,
) -> tuple[int, float]:  # fmt: skip
    averaging, referring = state.shape[1] > 1, len(reference) > 1  # a reference of one part has only the bias
    forgetting, age = len(ages) > 1, ages[0]
    for i in range(len(labels)):
        s, accumulated, squared, r = state[0, 0], state[0, -1], 1.0, reference[0]
        # All sums in one loop: while one waits for its last term, the others go on. A loop for each case: a test that
        # is always false makes a loop a third slower (measured).
        if referring and averaging:
            for j in range(starts[i], starts[i + 1]):
                s += state[columns[j], 0] * values[j]
                accumulated += state[columns[j], 1] * values[j]
                squared += values[j] * values[j]
                r += reference[columns[j]] * values[j]
        elif referring:
            for j in range(starts[i], starts[i + 1]):
                s += state[columns[j], 0] * values[j]
                squared += values[j] * values[j]
                r += reference[columns[j]] * values[j]
        elif averaging:
            for j in range(starts[i], starts[i + 1]):
                s += state[columns[j], 0] * values[j]
                accumulated += state[columns[j], 1] * values[j]
                squared += values[j] * values[j]
        else:
            for j in range(starts[i], starts[i + 1]):
                s += state[columns[j], 0] * values[j]
                squared += values[j] * values[j]
        along[i] = r
        if averaging:
            part = 1.0 / max(age, 1.0)
            a = s - accumulated * part
            # If s and accumulated·part are nearly equal, or one overflows since ages reach 2^900, the terms are summed
            # one by one, as for an answer: a tie must give the same label.
            if not abs(a) > _NEAR_TIE * (abs(s) + abs(accumulated * part)):
                a = state[0, 0] - state[0, 1] * part
                for j in range(starts[i], starts[i + 1]):
                    a += (state[columns[j], 0] - state[columns[j], 1] * part) * values[j]
            averaged_scores[i], averaged[i] = a, rules.decide(a, positive_tie)
        margin = positive if labels[i] > 0.0 else negative
        step = rules.step(rule, s, labels[i], eta * weights[i], positive_tie, parameter, margin)
        scores[i], steps[i], squared_norms[i], predicted[i] = s, step, squared, rules.decide(s, positive_tie)
        if step != 0.0:
            # ‖w‖ grows by at most the length of the update, so ‖w‖² is seldom summed up. Whether it is beyond its limit
            # depends on weights and event alone, not on slices or restarts, which change `reach`: spare columns begin
            # within ±1, and weights within ±1 are left out of the sum, as they are too small to change it.
            reach += abs(step) * math.sqrt(squared)
            if not reach <= _SAFE_NORM:
                own = slice(starts[i], starts[i + 1])
                total = _squared_norm_after(state[:, 0], step, columns[own], values[own])
                if not total <= MAX_SQUARED_NORM:
                    return i, reach
                reach = math.sqrt(total + len(state))
            state[0, 0] += step
            if averaging:
                state[0, 1] += age * step
                for j in range(starts[i], starts[i + 1]):
                    state[columns[j], 0] += step * values[j]
                    state[columns[j], 1] += age * (step * values[j])
            else:
                for j in range(starts[i], starts[i + 1]):
                    state[columns[j], 0] += step * values[j]
        age = ages[i + 1] if forgetting else age + 1.0
    return len(labels), reach


@compiled
def _largest(scores: Vector, without: int) -> int:
    """The class of the largest score, the first of equals, except the class `without`."""
    best = 1 if without == 0 else 0
    for k in range(best + 1, len(scores)):
        if k != without and scores[k] > scores[best]:
            best = k
    return best


@compiled
def _learn_classes(
    rule: int, eta: float, parameter: float, state: Any, ages: Vector, starts: Any, columns: Any, values: Vector,
    labels: Vector, weights: Vector, scores: Vector, steps: Vector, squared_norms: Vector, predicted: Any,
    averaged: Any, reach: float,
) -> tuple[int, float]:  # fmt: skip
    classes, averaging, w, forgetting, age = state.shape[2], state.shape[1] > 1, state[:, 0], len(ages) > 1, ages[0]
    s, a, step = np.empty(classes), np.empty(classes), np.zeros(classes)
    for i in range(len(labels)):
        s[:], squared, own = w[0], 1.0, int(labels[i])
        for j in range(starts[i], starts[i + 1]):
            column, value = state[columns[j]], values[j]
            for k in range(classes):
                s[k] += column[0, k] * value
            squared += value * value
        if averaging:
            part = 1.0 / max(age, 1.0)
            a[:] = w[0] - state[0, 1] * part
            for j in range(starts[i], starts[i + 1]):
                column, value = state[columns[j]], values[j]
                for k in range(classes):
                    a[k] += (column[0, k] - column[1, k] * part) * value
            averaged[i] = _largest(a, -1)
        rival, rate = _largest(s, own), eta * weights[i]
        scores[i], squared_norms[i], predicted[i] = s[own] - s[rival], squared, _largest(s, -1)
        steps[i] = length = largest = 0.0
        if rule == rules.PERCEPTRON:
            if not s[own] > s[rival]:
                step[:] = 0.0
                step[own], step[rival] = rate, -rate
                steps[i], length = rate, math.sqrt(2.0) * rate
        else:
            for k in range(classes):
                step[k] = rules.step(rule, s[k], 1.0 if k == own else -1.0, rate, False, parameter, 0.0)
                length += step[k] * step[k]
                largest = max(largest, abs(step[k]))
            # The square of a step below 1e-162 is 0.
            steps[i] = length = max(math.sqrt(length), largest)
        if steps[i] != 0.0:
            reach += length * math.sqrt(squared)  # as with two labels
            if not reach <= _SAFE_NORM:
                event = slice(starts[i], starts[i + 1])
                total = _squared_norm_after(w, step, columns[event], values[event])
                if not total <= MAX_SQUARED_NORM:
                    return i, reach
                reach = math.sqrt(total + w.size)
            for k in range(classes):
                if step[k] != 0.0:
                    state[0, 0, k] += step[k]
                    for j in range(starts[i], starts[i + 1]):
                        state[columns[j], 0, k] += step[k] * values[j]
                    if averaging:
                        state[0, 1, k] += age * step[k]
                        for j in range(starts[i], starts[i + 1]):
                            state[columns[j], 1, k] += age * (step[k] * values[j])
        age = ages[i + 1] if forgetting else age + 1.0
    return len(labels), reach


def ages(identity: Identity, before: int, events: int) -> NDArray[np.float64]:
    """The age before each of these events and after the last one; `before` is the number of events before them.

    For the mean it is only the first age, since each event adds 1. When the age falls, the accumulator is rescaled too.

    >>> ages(Identity(average=True), 2, 3), ages(Identity(average="recent", half_life=1), 2, 3)
    (array([2.]), array([ 4.,  8., 16., 32.]))
    """
    if (n := identity.half_life) is None:
        return np.array([float(before)])
    numbers = np.arange(before, before + events + 1)
    return np.ldexp(_growth(n)[numbers % n], numbers // n % HALF_LIVES_TO_RESCALE)


def events_until_rescale(identity: Identity, before: int) -> int:
    """The number of further events, after `before` events, until a rescaling is due; sys.maxsize for the mean."""
    n = identity.half_life
    return HALF_LIVES_TO_RESCALE * n - before % (HALF_LIVES_TO_RESCALE * n) if n else sys.maxsize


def accumulator_factor(identity: Identity, events: int) -> float:
    """The factor 1/age of the accumulator after this many events: the average is w - average_accumulator/age."""
    return 1.0 / max(float(ages(identity, events, 0)[0]), 1.0)


@cache
def _growth(n: int) -> NDArray[np.float64]:
    """2^(i/N) for i < N, by one multiplication after the other: the same bits on any machine."""
    with localcontext(prec=50):
        root = float(Decimal(2) ** (1 / Decimal(n)))
    return np.cumprod(np.concatenate([[1.0], np.full(n - 1, root)]))


def learn(
    identity: Identity, state: Vector, batch: Batch, before: int = 0, reach: float = math.inf,
    reference: Reference | None = None,
) -> Learned:  # fmt: skip
    """Learn the batch in order, changing `state` in place.

    `state` has the shape (columns, 1), or (columns, 2) if there is an average: w and its accumulator.
    With three labels or more the shape ends with the number of classes, and `reference` is not used. `before` is the
    number of events learned before, `reach` an upper limit of ‖w‖.
    """
    classes, averaging, count = state.ndim == 3, state.shape[1] > 1, len(batch.labels)
    scores, steps, squared_norms, along, averaged_scores = np.empty((5, count))
    predicted, averaged = np.empty((2, count), np.intp)
    rule, stop = list(rules.RULES).index(identity.rule), 0
    while (begin := stop) < count:
        until_rescale = events_until_rescale(identity, before + begin)
        end = min(begin + until_rescale, count)
        span, age = slice(begin, end), ages(identity, before + begin, end - begin)
        starts, labels, weights = batch.starts[begin : end + 1], batch.labels[span], batch.weights[span]
        if classes:
            learned, reach = _learn_classes(
                rule, identity.eta, identity.parameter, state, age, starts, batch.columns, batch.values, labels,
                weights, scores[span], steps[span], squared_norms[span], predicted[span], averaged[span], reach,
            )  # fmt: skip
        else:
            learned, reach = _learn(
                rule, identity.eta, identity.tie == "positive", identity.parameter, *identity.margins, state, age,
                _NO_REFERENCE if reference is None else reference, starts, batch.columns, batch.values, labels,
                weights, scores[span], steps[span], squared_norms[span], predicted[span], averaged[span],
                averaged_scores[span], along[span], reach,
            )  # fmt: skip
        stop += learned
        if learned < end - begin:
            break
        if learned == until_rescale:
            state[:, 1] *= RESCALE_FACTOR
    truth = (batch.labels[:stop] if classes else batch.labels[:stop] > 0.0).astype(np.intp)
    averaged = averaged[: stop if averaging else 0]
    averaged_scores = averaged_scores[: 0 if classes else len(averaged)]
    return Learned(
        scores[:stop], steps[:stop], squared_norms[:stop], truth, predicted[:stop], averaged, averaged_scores,
        along[:stop], float(reach),
    )  # fmt: skip


def squared_norm(vector: Vector | Reference) -> float:
    """‖vector‖², or infinity if it overflows: an early release had no limit of the weights."""
    flat = vector.reshape(-1)
    with np.errstate(over="ignore"):
        return float(np.dot(flat, flat))  # unlike `@` it lets other threads run
