"""Many passes over finite data, in order and with any rule, until a pass makes no mistake or a limit is reached.

A mistake is y·s <= 0. The *errors* of a pass decide whether it is the last: they are its mistakes. For a mistake-driven
rule they are its updates, since a pass without an update is the last that changes anything: it updates also within a
margin, or at its own wrong outputs (error-correction and half-step; at s = 0 the tie decides). Varner (Lecture 3a)
stops at errors <= ε or after `maxiter` passes, Hu at a pass without errors (his FLAG). On data that nothing separates
the rule never settles.

A pass of `descend`, batch gradient descent of the linear unit, is one step over the whole set.

With three classes and more w has the shape (columns, classes), y·s is an event's own score less the largest other, and
the bounds are those of Kesler's vectors (e_y - e_r) ⊗ (1, x), one for each class r other than an event's own y.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from service.errors import DataError
from service.learning.columns.columns import Batch, Columns, columns_for
from service.learning.evaluation import mistake_bound
from service.learning.events.batch import Decoder, Reject
from service.learning.finite.finite_bounds import Separation
from service.learning.identity import MAX_SQUARED_NORM, Identity
from service.learning.initial_weights import initial_weights
from service.learning.kernel import kernel
from service.learning.kernel.kernel import Learned, Vector
from service.learning.kernel.scaling import StandardScaler
from service.learning.rules import RULES
from service.learning.weights_file import WeightsFile

SETTLED = 1e-12
"""The descent ends if a pass lowers the loss by less than this share of it."""


class Data(NamedTuple):
    """Finite data of one model: events as columns, the columns, w(0), and the records that were rejected."""

    batch: Batch
    columns: Columns
    start: Vector
    rejects: list[Reject]


class Pass(NamedTuple):
    """The result of one pass. All figures of an event are those before its own update."""

    number: int
    mistakes: int
    updates: int
    errors: int
    """The figure that ends the passes: the mistakes, or for mistake-driven rules the updates."""
    loss: float
    """E = ½ Σ (y - o)² for the linear unit, else the perceptron loss Σ max(0, -y·s); events count by their weights."""
    squared_norms: Vector
    """‖w‖² after each update, for mistake-driven rules."""
    trace: list[Vector]
    """w after each event, if `trace` is set."""


def read_data(identity: Identity, records: Sequence[bytes | None], start: WeightsFile | None = None) -> Data:
    """Record values as finite data. `start` has the given weights of an identity that begins with them."""
    columns = columns_for(identity)
    columns.extend((start.names or ()) if start else ())
    batch, rejects = Decoder(identity, columns).decode(records)
    columns.extend(batch.names)
    if identity.scale == "standard":
        # Once, as in a stream: each event by those before it and itself. The copy frees the scaler's memory.
        scaled = StandardScaler(identity, len(columns)).learn(batch)
        batch = scaled._replace(values=scaled.values.copy())
    w = initial_weights(identity, 0, len(columns))
    if start:
        w[: len(start.vector)] = start.vector
    return Data(batch, columns, w, rejects)


def train(
    identity: Identity, batch: Batch, w: Vector, *, tolerance: int = 0, max_passes: int, trace: bool = False
) -> Iterator[Pass]:
    """Passes that change `w` in place, until one makes at most `tolerance` errors, or `max_passes` are made.

    Raises DataError when an update would take ‖w‖² beyond its limit; that one is not applied.
    """
    is_driven, is_linear = RULES[identity.rule].mistake_driven, identity.rule == "lms"
    y = 1.0 if identity.multiclass else batch.labels  # y·s is the margin of the kernel's score
    parts = ([_event(batch, i) for i in range(len(batch.labels))] if trace else []) or [batch]
    for number in range(1, max_passes + 1):
        begun, learned, after = float(w.ravel() @ w.ravel()), list[Learned](), list[Vector]()
        for part in parts:
            learned.append(kernel.learn(identity, w[:, np.newaxis], part))
            if (done := len(learned[-1].scores)) < len(part.labels):
                place = sum(len(one.scores) for one in learned[:-1]) + done + 1
                why = f"the update of event {place} in pass {number} takes the squared norm of the weights beyond"
                raise _diverges(identity, f"{why} {MAX_SQUARED_NORM:g}")
            after += [w.copy()] if trace else []
        scores, steps, squared_norms = (
            np.concatenate(figures)
            for figures in zip(*((one.scores, one.steps, one.squared_norms) for one in learned), strict=True)
        )
        mistakes, updates = int(np.count_nonzero(y * scores <= 0.0)), int(np.count_nonzero(steps))
        # With three labels and more an update adds step·x to the event's own weights and takes it off another's.
        moved = 2.0 if identity.multiclass else 1.0
        norms = (begun + np.cumsum(steps * (2.0 * scores + moved * steps * squared_norms)))[is_driven & (steps != 0.0)]
        # A step of the linear unit is η·weight·(y - o), or the root of the sum of the squares over the classes.
        losses = (steps / _rates(identity, batch)) ** 2 / 2.0 if is_linear else np.maximum(0.0, -y * scores)
        loss = float(batch.weights @ losses)
        errors = updates if is_driven else mistakes
        yield Pass(number, mistakes, updates, errors, loss, norms, after)
        if errors <= tolerance:
            return


def _linear_loss(batch: Batch, scores: Vector) -> float:
    """E = ½ Σ (y - o)² of the linear unit, times the weights."""
    return float(batch.weights @ (batch.labels - scores) ** 2) / 2.0


def _diverges(identity: Identity, why: str) -> DataError:
    return DataError(f"rule {identity.rule} with eta {identity.eta:g} diverges: {why}; choose a smaller eta")


def _event(batch: Batch, i: int) -> Batch:
    """Event i alone."""
    begin, end = batch.starts[i : i + 2].tolist()
    features, event = slice(begin, end), slice(i, i + 1)
    starts = batch.starts[i : i + 2] - batch.starts[i]
    return Batch(starts, batch.columns[features], batch.values[features], batch.labels[event], batch.weights[event])


def _rates(identity: Identity, batch: Batch) -> Vector:
    """The factor of each event's update: of y·x for mistake-driven rules, of (y - o)·x for the linear unit."""
    return identity.parameter * identity.eta * batch.weights


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
        s, _ = score_batch(batch, w)
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
    return 1.0 / float(batch.weights @ score_batch(batch, np.zeros(int(batch.columns.max(initial=0)) + 1))[1])


def score_batch(batch: Batch, w: Vector) -> tuple[Vector, Vector]:
    """Each event's s = w·x and ‖x‖², the bias included; nothing is learned.

    With weights of shape (columns, classes) each event has a row of scores.
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


def find_separation(identity: Identity, batch: Batch, w: Vector) -> Separation | None:
    """The figures of the bounds for data and a vector; None if it does not separate the data."""
    own, squared_norms = margins(batch, w)
    rates, (negative, positive) = _rates(identity, batch), identity.margins
    margin = float((rates * own).min(initial=math.inf))
    if not 0.0 < margin < math.inf:
        return None
    moved = 2.0 if identity.multiclass else 1.0
    within = np.where(batch.labels > 0.0, positive, negative)
    added = moved * rates * rates * squared_norms + 2.0 * rates * within
    return Separation(float(added.max()), margin, float(w.ravel() @ w.ravel()))


def margins(batch: Batch, w: Vector) -> tuple[Vector, Vector]:
    """Each event's y·s, of classes its own score less the largest other, and ‖x‖²; nothing is learned."""
    learned = kernel.learn(_UNIT, w[:, np.newaxis], batch)
    return learned.scores if w.ndim == 2 else batch.labels * learned.scores, learned.squared_norms


class BoundCheck(NamedTuple):
    """The updates that were made, and the bounds on them."""

    updates: int
    vector: str
    """The name of the separating vector that gives the least bound."""
    separation: Separation
    novikoff: float | None
    """(R/γ)²·‖w_opt‖², only from zero weights."""
    hu: float
    """D², from any start."""
    norms: bool | None
    """Whether n²α²/‖w0‖² <= ‖w(n)‖² <= n·β² held at every update n; only from zero weights."""

    @property
    def held(self) -> bool:
        """Whether the theorems hold; if they do not, this program is wrong."""
        most = min(self.hu, math.inf if self.novikoff is None else self.novikoff)
        return self.updates <= most * (1.0 + mistake_bound.ROUNDING) and self.norms is not False


def check_bound(
    identity: Identity, data: Data, squared_norms: Vector, candidates: dict[str, Vector]
) -> BoundCheck | None:
    """The least bounds on the updates that led to these ‖w‖²; None if no candidate separates the data."""
    from_zero, count, results = not data.start.any(), len(squared_norms), list[BoundCheck]()
    for name, w in candidates.items():
        if separation := find_separation(identity, data.batch, w):
            novikoff = separation.updates if from_zero else None
            norms = sides_hold(separation, squared_norms) if from_zero else None
            hu = separation.updates_from(data.start, w)
            results.append(BoundCheck(count, name, separation, novikoff, hu, norms))
    return min(results, key=lambda one: one.hu if one.novikoff is None else one.novikoff, default=None)


def sides_hold(separation: Separation, squared_norms: Vector) -> bool:
    """Whether ‖w(n)‖² lies between Haykin's two sides after each update n = 1, 2, … from zero weights."""
    low, high = separation.sides(np.arange(1.0, len(squared_norms) + 1.0))
    slack = 1.0 + mistake_bound.ROUNDING
    return bool(np.all(low <= squared_norms * slack) and np.all(squared_norms <= high * slack))
