"""Finite data, many passes over it in order, with any rule: until a pass makes no mistake, or it is enough.

A mistake is y·s <= 0. A pass's *errors* are what ends the passes: its mistakes; of a rule that changes weights only
there, or within a margin, or at its own wrong outputs (error-correction, half-step: at s = 0 the tie decides), its
updates, since a pass without one is the last that changes anything. Varner (Lecture 3a) stops at errors <= ε or after
`maxiter` passes, Hu at a pass without any (his FLAG). On data that nothing separates the rule never settles.

Batch gradient descent of the linear unit is beside them: a pass is then one step over the whole set.

Of three classes and more w is of shape (columns, classes), y·s is an event's own score less the largest other, and the
bounds are those of Kesler's vectors (e_y - e_r) ⊗ (1, x), one for each class r other than an event's own y.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import DataError
from service.learning import bounds, kernel
from service.learning.bounds import Separation
from service.learning.columns import Columns, columns_for
from service.learning.events.batch import Batch, Decoder, Reject
from service.learning.identity import MAX_SQUARED_NORM, Identity
from service.learning.kernel import Vector
from service.learning.rules import RULES
from service.learning.scale import Scaler
from service.learning.start import initial, rows
from service.learning.weights import Weights

SETTLED = 1e-12
"""Relative: a loss that falls by less in a pass falls no more."""
RISEN = 1e6
"""A linear unit whose loss is so many times that of zero weights only gets worse: its updates overshoot ever more."""


class Data(NamedTuple):
    """Finite data of one model: events as columns, what the columns are, w(0), and the records that are no events."""

    batch: Batch
    columns: Columns
    start: Vector
    rejects: list[Reject]


class Pass(NamedTuple):
    """What one pass did. All figures of an event are those before its own update."""

    number: int
    mistakes: int
    updates: int
    errors: int
    """What ends the passes: its mistakes, or its updates, of mistake-driven rules."""
    loss: float
    """Of the linear unit E = ½ Σ (y - o)², of the others the perceptron loss Σ max(0, -y·s), times the weights."""
    squared_norms: Vector
    """‖w‖² after each update, of mistake-driven rules."""
    trace: list[Vector]
    """w after each event, where it is asked for."""


def gather(identity: Identity, records: Sequence[bytes | None], start: Weights | None = None) -> Data:
    """Record values as finite data. `start` has the weights of an identity whose start is given ones."""
    columns = columns_for(identity)
    columns.extend((start.names or ()) if start else ())
    batch, rejects = Decoder(identity, columns).decode(records)
    columns.extend(batch.names)
    if identity.scale == "standard":
        # Once, as a stream would: each event by those before it and itself. It stays, and the scaler's memory does not.
        scaled = Scaler(identity, len(columns)).learn(batch)
        batch = scaled._replace(values=scaled.values.copy())
    given = start.vector if start else np.zeros(0)
    if identity.multiclass:
        return Data(batch, columns, rows(identity.start, 0, len(columns), identity.classes), rejects)
    rest = initial(identity.start, len(given), len(columns) - len(given))
    return Data(batch, columns, np.concatenate([given, rest]), rejects)


def fit(
    identity: Identity, batch: Batch, w: Vector, *, tolerance: int = 0, max_passes: int, trace: bool = False
) -> Iterator[Pass]:
    """Passes that change `w` in place, until one makes at most `tolerance` errors, or `max_passes` are made.

    Raises DataError when an update would take ‖w‖² beyond its limit; that one is not applied.
    """
    for done in itertools.islice(_passes(identity, batch, w, trace), max_passes):
        yield done
        if done.errors <= tolerance:
            return


def _passes(identity: Identity, batch: Batch, w: Vector, trace: bool) -> Iterator[Pass]:
    events = len(batch.labels)
    y = np.ones(events) if identity.multiclass else batch.labels  # what makes margins of the kernel's scores
    zero_loss = identity.classes * batch.weights.sum() / 2.0 if identity.multiclass else _linear_loss(batch, 0.0 * y)
    parts = [_one(batch, i) for i in range(events)] if trace else [batch]
    reach = math.inf
    for number in itertools.count(1):
        begun, after = float(w.ravel() @ w.ravel()), []
        scores, squared, steps = np.empty(events), np.empty(events), np.empty(events)
        at = 0
        for part in parts:
            learned = kernel.learn(identity, w[:, np.newaxis], part, reach=reach)
            reach = learned.reach
            done = len(learned.scores)
            if done < len(part.labels):
                raise _diverges(
                    identity,
                    f"the update of event {at + done + 1} in pass {number} takes the squared norm of the "
                    f"weights beyond {MAX_SQUARED_NORM:g}",
                )
            scores[at : at + done], squared[at : at + done] = learned.scores, learned.squared_norms
            steps[at : at + done] = learned.steps
            at += done
            after += [w.copy()] if trace else []
        mistakes, updates = int(np.count_nonzero(y * scores <= 0.0)), int(np.count_nonzero(steps))
        driven = RULES[identity.rule].mistake_driven
        norms = _squared_norms(identity, batch, begun, scores, squared) if driven else np.zeros(0)
        if RULES[identity.rule].loss == "squared":
            # Of classes a step is η·weight times the root of Σ (y - o)².
            squares = (steps / lengths_of(identity, batch)) ** 2
            loss = float(batch.weights @ squares) / 2.0 if identity.multiclass else _linear_loss(batch, scores)
            if loss > RISEN * zero_loss:
                raise _diverges(
                    identity, f"the loss rises from {zero_loss:g} at zero weights to {loss:g} in pass {number}"
                )
        else:
            loss = float(batch.weights @ np.maximum(0.0, -y * scores))
        yield Pass(number, mistakes, updates, updates if driven else mistakes, loss, norms, after)


def _linear_loss(batch: Batch, scores: Vector) -> float:
    """E = ½ Σ (y - o)² of the linear unit, times the weights."""
    with np.errstate(over="ignore"):
        return float(batch.weights @ (batch.labels - scores) ** 2) / 2.0


def _diverges(identity: Identity, why: str) -> DataError:
    return DataError(f"rule {identity.rule} with eta {identity.eta:g} diverges: {why}; choose a smaller eta")


def _one(batch: Batch, i: int) -> Batch:
    """Event i alone."""
    part = slice(int(batch.starts[i]), int(batch.starts[i + 1]))
    starts = batch.starts[i : i + 2] - batch.starts[i]
    one = slice(i, i + 1)
    return Batch(starts, batch.columns[part], batch.values[part], batch.labels[one], batch.weights[one])


def _squared_norms(identity: Identity, batch: Batch, begun: float, scores: Vector, squared: Vector) -> Vector:
    """‖w‖² after each update of a pass: each adds 2·step·s + step²·‖x‖² to the `begun` one, of classes 2·step²·‖x‖²."""
    if identity.multiclass:
        updated, step, squared = scores <= 0.0, lengths_of(identity, batch), 2.0 * squared
    else:
        near, wrong = (
            batch.labels * scores <= margins_of(identity, batch),
            identity.decide(scores) != (batch.labels > 0.0),
        )
        updated = near if RULES[identity.rule].updates == "mistakes" else wrong
        step = lengths_of(identity, batch) * batch.labels
    step = np.where(updated, step, 0.0)
    norms: Vector = (begun + np.cumsum(step * (2.0 * scores + step * squared)))[updated]
    return norms


def lengths_of(identity: Identity, batch: Batch) -> Vector:
    """What each event's update multiplies y·x by, of mistake-driven rules."""
    return identity.parameter * identity.eta * batch.weights


def margins_of(identity: Identity, batch: Batch) -> Vector:
    """The margin of each event's label."""
    negative, positive = identity.margins
    return np.where(batch.labels > 0.0, positive, negative)


def squares_of(identity: Identity, batch: Batch, squared_norms: Vector) -> Vector:
    """What each event's update adds to ‖w‖² at most, of mistake-driven rules: ‖z‖² + 2·η·weight·margin.

    Of classes ‖z‖² is 2·(η·weight)²·‖x‖².
    """
    lengths = lengths_of(identity, batch)
    moved = 2.0 if identity.multiclass else 1.0
    return moved * lengths * lengths * squared_norms + 2.0 * lengths * margins_of(identity, batch)


def descend(identity: Identity, batch: Batch, w: Vector, *, max_passes: int, trace: bool = False) -> Iterator[Pass]:
    """Batch gradient descent of the linear unit: o = w·x, E = ½ Σ (y - o)², w -= η∇E over the whole set (Ahmed & Pavlu).

    Ends when the loss falls no more, which is where the error is least, on data that nothing separates too. A pass's
    figures are those before its step. Raises DataError when the loss rises: then η is beyond 2 / the largest
    eigenvalue of Σ x·xᵀ, and no later pass would mend it.
    """  # noqa: E501
    lengths = np.diff(batch.starts).astype(np.intp)
    columns = batch.columns.astype(np.intp)
    y, previous = batch.labels, math.inf
    for number in range(1, max_passes + 1):
        s, _ = scored(batch, w)
        error = batch.weights * (y - s)
        loss = _linear_loss(batch, s)
        if number == 1:
            # A rise of less is rounding.
            rise = 1e-9 * max(loss, _linear_loss(batch, np.zeros(len(y))))
        if loss > previous + rise:
            safe = f"{stable_eta(batch):.3g} never does"
            raise _diverges(identity, f"the loss rises from {previous:g} to {loss:g} in pass {number} ({safe})")
        settled = previous - loss <= SETTLED * loss
        if not settled:
            down = np.bincount(columns, batch.values * np.repeat(error, lengths), minlength=len(w))
            down[0] = error.sum()
            w += identity.eta * down
        mistakes = int(np.count_nonzero(y * s <= 0.0))
        yield Pass(number, mistakes, int(not settled), mistakes, loss, np.zeros(0), [w.copy()] if trace else [])
        if settled:
            return
        previous = loss


def stable_eta(batch: Batch) -> float:
    """An η with which `descend` never diverges: 1 / Σ weight·‖x‖², as the sum is at least the largest eigenvalue."""
    return 1.0 / float(batch.weights @ scored(batch, np.zeros(int(batch.columns.max(initial=0)) + 1))[1])


def scored(batch: Batch, w: Vector) -> tuple[Vector, Vector]:
    """Each event's s = w·x and ‖x‖², the bias included; nothing is learned.

    Of weights of shape (columns, classes) each event has a row of scores.
    """
    if w.ndim == 2:
        return _scored_by_classes(batch, w)
    learned = kernel.learn(_UNIT, w[:, np.newaxis], batch)
    return learned.scores, learned.squared_norms


_UNIT = Identity(rule="threshold-unit")


def _scored_by_classes(batch: Batch, w: Vector) -> tuple[Vector, Vector]:
    """The first feature of each event, then the second, …: a sum has the kernel's order, and nothing is compiled."""
    starts, columns = batch.starts.astype(np.intp), batch.columns.astype(np.intp)
    lengths = np.diff(starts)
    scores, squared = np.tile(w[0], (len(lengths), 1)), np.ones(len(lengths))
    for j in range(int(lengths.max(initial=0))):
        events = np.flatnonzero(lengths > j)
        at = starts[events] + j
        values = batch.values[at]
        scores[events] += w[columns[at]] * values[:, None]
        squared[events] += values * values
    return scores, squared


def separated(identity: Identity, batch: Batch, w: Vector) -> Separation | None:
    """What the bounds need to know of data and a vector; None where it does not separate them."""
    own, squared = margins(batch, w)
    return bounds.separation(lengths_of(identity, batch) * own, squares_of(identity, batch, squared), w.ravel())


def margins(batch: Batch, w: Vector) -> tuple[Vector, Vector]:
    """Each event's y·s, of classes its own score less the largest other, and ‖x‖²; nothing is learned."""
    learned = kernel.learn(_UNIT, w[:, np.newaxis], batch)
    return learned.scores if w.ndim == 2 else batch.labels * learned.scores, learned.squared_norms


class Bounded(NamedTuple):
    """The updates that were made beside the bounds on them."""

    updates: int
    vector: str
    """Which separating vector gives the least bound."""
    separation: Separation
    novikoff: float | None
    """(R/γ)²·‖w_opt‖², from zero weights alone."""
    hu: float
    """D², from any start."""
    norms: bool | None
    """Whether n²α²/‖w0‖² <= ‖w(n)‖² <= n·β² held at every update n; from zero weights alone."""

    @property
    def held(self) -> bool:
        """Whether the theorems hold; where they do not, this program is wrong."""
        most = min(self.hu, math.inf if self.novikoff is None else self.novikoff)
        return self.updates <= most * (1.0 + bounds.ROUNDING) and self.norms is not False


def bounded(identity: Identity, data: Data, squared_norms: Vector, candidates: dict[str, Vector]) -> Bounded | None:
    """The bounds on updates after each of which ‖w‖² is in `squared_norms`; None where no candidate separates."""
    from_zero = not data.start.any()
    found = []
    for name, w in candidates.items():
        if separation := separated(identity, data.batch, w):
            hu = separation.updates_from(data.start, w)
            novikoff = separation.updates if from_zero else None
            found.append((hu if novikoff is None else novikoff, hu, novikoff, name, separation))
    if not found:
        return None
    _, hu, novikoff, name, separation = min(found, key=lambda row: row[0])
    norms = sides_hold(separation, squared_norms) if from_zero else None
    return Bounded(len(squared_norms), name, separation, novikoff, hu, norms)


def sides_hold(separation: Separation, squared_norms: Vector) -> bool:
    """Whether ‖w(n)‖² lies between Haykin's two sides after each update n = 1, 2, … from zero weights."""
    low, high = separation.sides(np.arange(1.0, len(squared_norms) + 1.0))
    slack = 1.0 + bounds.ROUNDING
    return bool(np.all(low <= squared_norms * slack) and np.all(squared_norms <= high * slack))


class Extended(NamedTuple):
    """Hu's extended vectors: (1, x), negated where y = -1. w separates the events when w·z > 0 for all of them.

    Rows as in `Batch`, with the bias as column 0 in each; importance weights aside, since they move no boundary.
    Of classes they are Kesler's, in the order of the events and of the classes that are not their own; column c of
    class k is c·classes + k, where the weights have it whose rows stand one behind the other.
    """

    starts: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: Vector


def extended(batch: Batch, classes: int = 2) -> Extended:
    """The extended vectors of events."""
    lengths = np.diff(batch.starts).astype(np.int64) + 1
    bias = np.asarray(batch.starts[:-1], np.int64)
    columns = np.insert(batch.columns.astype(np.int64), bias, 0)
    values = np.insert(batch.values, bias, 1.0)
    if classes == 2:
        return Extended(_starts(lengths), columns, values * np.repeat(batch.labels, lengths))
    own = np.repeat(batch.labels.astype(np.int64), classes - 1)
    others = np.tile(np.arange(classes - 1), len(batch.labels))
    others += others >= own
    # Each event's extended vector so many times, and in each copy the own class's part beside the other's.
    begun, lengths = (np.repeat(of, classes - 1) for of in (_starts(lengths)[:-1], lengths))
    at = np.repeat(begun - _starts(lengths)[:-1], lengths) + np.arange(lengths.sum())
    pairs = np.stack([np.repeat(own, lengths), np.repeat(others, lengths)], axis=1)
    signed = np.stack([values[at], -values[at]], axis=1)
    return Extended(2 * _starts(lengths), (columns[at, None] * classes + pairs).ravel(), signed.ravel())


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)])
