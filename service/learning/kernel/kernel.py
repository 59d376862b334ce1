"""A rule over a batch of columns, compiled: score, step, update, one event after another.

Of two labels there is one vector of weights. Of more, each class r has its own, w_r, a column of an array of shape
(columns, classes): measured, faster than rows from ten classes on. The perceptron is then the simplest
ultraconservative one (Crammer and Singer 2003): the largest score predicts, the first of equals; where an event's own
class y does not have the strictly largest, η·weight·x is added to w_y and taken off the best wrong one's, again the
first of equals. By Kesler's construction that is the rule of two labels along z = (e_y - e_r) ⊗ x. LMS and
logistic-delta learn each class against the rest.

The loops are compiled without fast-math, so every sum and step keeps the order of the formula and the same
events give the same bits on any CPU. (The logistic rule's `exp` is outside this promise.) Columns are `np.uint32`:
signed ones cost half as much again, and wider ones a quarter, as the memory they come from.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from service.learning import rules
from service.learning.columns.columns import Batch
from service.learning.identity import MAX_SQUARED_NORM, Identity
from service.learning.jit.jit import compiled
from service.learning.kernel.averaging import RESCALE_FACTOR, ages, events_until_rescale

Vector = NDArray[np.float64]
Reference = NDArray[np.float32]

register_jitable(rules.decide)
register_jitable(rules.logistic)
register_jitable(rules.step)

_NO_REFERENCE = np.zeros(1, np.float32)
_NEAR = math.sqrt(MAX_SQUARED_NORM) / 2.0
_NEARLY = 1e-9


class Learned(NamedTuple):
    """What the kernel did to a batch: a figure for each event that was learned."""

    scores: Vector
    """s = w·x before the event's update; of classes its own score less the largest other. There are fewer than the
    batch has events when the next one's update would take ‖w‖² beyond its limit; that one changed nothing."""
    steps: Vector
    """What its update added, along x; 0 where there was none. Of classes what it added to its own class's weights and
    took off another's; or where each class learns against the rest, the root of the sum of their squares."""
    squared_norms: Vector
    """‖x‖², the bias included."""
    truth: NDArray[np.intp]
    """The number of the event's label, from 0 on."""
    predicted: NDArray[np.intp]
    """That of the label that was predicted before the update."""
    averaged: NDArray[np.intp]
    """What the average of the weights predicted, before the event too; empty where none is kept."""
    along: Vector
    """The product of each event with the reference, if one is given."""
    reach: float
    """What ‖w‖ is at most after these events."""


@compiled
def _squared_norm_after(w: Vector, step: Any, columns: Any, values: Vector) -> float:
    """‖w + step·x‖² over the weights beyond ±1; of classes with a step of each."""
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
    scores: Vector, steps: Vector, squared_norms: Vector, predicted: Any, averaged: Any, along: Vector, reach: float,
) -> tuple[int, float]:  # fmt: skip
    averaging, referring = state.shape[1] > 1, len(reference) > 1  # without columns its first part is all there is
    forgetting, age = len(ages) > 1, ages[0]
    for i in range(len(labels)):
        s, late, squared, r = state[0, 0], state[0, -1], 1.0, reference[0]
        # All sums in one loop: each waits for its own last term, and meanwhile the others get theirs. A loop for each
        # case: one with a test that is always false is compiled to one that costs a third more.
        if referring and averaging:
            for j in range(starts[i], starts[i + 1]):
                s += state[columns[j], 0] * values[j]
                late += state[columns[j], 1] * values[j]
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
                late += state[columns[j], 1] * values[j]
                squared += values[j] * values[j]
        else:
            for j in range(starts[i], starts[i + 1]):
                s += state[columns[j], 0] * values[j]
                squared += values[j] * values[j]
        along[i] = r
        if averaging:
            part = 1.0 / max(age, 1.0)
            a = s - late * part
            # Where both are nearly equal, or one is beyond what a number holds, since ages reach 2^900: term by term,
            # as answers are, of which no tie is to differ.
            if not abs(a) > _NEARLY * (abs(s) + abs(late * part)):
                a = state[0, 0] - state[0, 1] * part
                for j in range(starts[i], starts[i + 1]):
                    a += (state[columns[j], 0] - state[columns[j], 1] * part) * values[j]
            averaged[i] = rules.decide(a, positive_tie)
        margin = positive if labels[i] > 0.0 else negative
        step = rules.step(rule, s, labels[i], eta * weights[i], positive_tie, parameter, margin)
        scores[i], steps[i], squared_norms[i], predicted[i] = s, step, squared, rules.decide(s, positive_tie)
        if step != 0.0:
            # ‖w‖ grows by no more than the step is long, so that ‖w‖² is seldom summed up: where it may be beyond half
            # its limit. Whether it is beyond the limit itself depends on weights and event alone. How records were cut
            # does not count, nor a restart, which knows no `reach`: columns that are there for later events begin
            # within ±1, which no sum near the limit can show, and are left out of all of them.
            reach += abs(step) * math.sqrt(squared)
            if not reach <= _NEAR:
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
    """The first of the largest scores, but for one class."""
    found = 1 if without == 0 else 0
    for k in range(found + 1, len(scores)):
        if k != without and scores[k] > scores[found]:
            found = k
    return found


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
            of, value = state[columns[j]], values[j]
            for k in range(classes):
                s[k] += of[0, k] * value
            squared += value * value
        if averaging:
            part = 1.0 / max(age, 1.0)
            a[:] = w[0] - state[0, 1] * part
            for j in range(starts[i], starts[i + 1]):
                of, value = state[columns[j]], values[j]
                for k in range(classes):
                    a[k] += (of[0, k] - of[1, k] * part) * value
            averaged[i] = _largest(a, -1)
        rival, rate = _largest(s, own), eta * weights[i]
        scores[i], squared_norms[i], predicted[i] = s[own] - s[rival], squared, _largest(s, -1)
        steps[i] = length = largest = 0.0
        if rule == rules.PERCEPTRON:
            if not s[own] > s[rival]:
                steps[i], length = rate, math.sqrt(2.0) * rate
        else:
            for k in range(classes):
                step[k] = rules.step(rule, s[k], 1.0 if k == own else -1.0, rate, False, parameter, 0.0)
                length += step[k] * step[k]
                largest = max(largest, abs(step[k]))
            # Of a step below 1e-162 the square is 0.
            steps[i] = length = max(math.sqrt(length), largest)
        if steps[i] != 0.0:
            # As of two labels: see there.
            reach += length * math.sqrt(squared)
            if not reach <= _NEAR:
                if rule == rules.PERCEPTRON:
                    step[:] = 0.0
                    step[own], step[rival] = rate, -rate
                of = slice(starts[i], starts[i + 1])
                total = _squared_norm_after(w, step, columns[of], values[of])
                if not total <= MAX_SQUARED_NORM:
                    return i, reach
                reach = math.sqrt(total + w.size)
            if rule == rules.PERCEPTRON:
                _add(own, rate, i, state, age, starts, columns, values)
                _add(rival, -rate, i, state, age, starts, columns, values)
            else:
                for k in range(classes):
                    _add(k, step[k], i, state, age, starts, columns, values)
        age = ages[i + 1] if forgetting else age + 1.0
    return len(labels), reach


@compiled
def _add(k: int, step: float, i: int, state: Any, age: float, starts: Any, columns: Any, values: Vector) -> None:
    """The update of class k by event i."""
    state[0, 0, k] += step
    for j in range(starts[i], starts[i + 1]):
        state[columns[j], 0, k] += step * values[j]
    if state.shape[1] > 1:
        state[0, 1, k] += age * step
        for j in range(starts[i], starts[i + 1]):
            state[columns[j], 1, k] += age * (step * values[j])


def learn(
    identity: Identity, state: Vector, batch: Batch, seen: int = 0, reach: float = math.inf,
    reference: Reference | None = None,
) -> Learned:  # fmt: skip
    """Learn the batch in order, changing `state` in place.

    That is w, and where the model keeps its average what makes it of w, beside each other: of shape (columns, 1 or 2),
    or (columns, 1 or 2, classes) where each class has weights of its own. `seen` is the number of events learned
    before, `reach` what ‖w‖ is at most, as far as it is known. Of classes no `reference` is looked at.
    """
    classes, averaging = state.ndim == 3, state.shape[1] > 1
    scores, steps, squared_norms, along = (np.empty(len(batch.labels)) for _ in range(4))
    predicted, averaged = (np.empty(n, np.intp) for n in (len(batch.labels), len(batch.labels) if averaging else 0))
    rule, found, done = list(rules.RULES).index(identity.rule), (scores, steps, squared_norms, predicted, averaged), 0
    while (begin := done) < len(batch.labels):
        left = events_until_rescale(identity, seen + begin)
        end = min(begin + left, len(batch.labels))
        span, age = slice(begin, end), ages(identity, seen + begin, end - begin)
        events = batch.starts[begin : end + 1], batch.columns, batch.values, batch.labels[span], batch.weights[span]
        of = [figure[span] for figure in found]
        if classes:
            count, reach = _learn_classes(rule, identity.eta, identity.parameter, state, age, *events, *of, reach)
        else:
            count, reach = _learn(
                rule, identity.eta, identity.tie == "positive", identity.parameter, *identity.margins,
                state, age, _NO_REFERENCE if reference is None else reference, *events, *of, along[span], reach,
            )  # fmt: skip
        done += count
        if count < end - begin:
            break
        if count == left:
            state[:, 1] *= RESCALE_FACTOR
    truth = (batch.labels[:done] if classes else batch.labels[:done] > 0.0).astype(np.intp)
    figures = scores[:done], steps[:done], squared_norms[:done], truth, predicted[:done], averaged[:done], along[:done]
    return Learned(*figures, float(reach))
