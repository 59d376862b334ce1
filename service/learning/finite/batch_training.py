"""Many passes over finite data, in order and with any rule, until a pass makes no mistake or a limit is reached.

A mistake is y·s <= 0. The *errors* of a pass decide whether it is the last. They are its mistakes, or for a
mistake-driven rule its updates: such a rule also updates within a margin, or at a wrong output (error-correction and
half-step; at s = 0 the tie decides), and no pass after one without an update changes anything. Varner (Lecture 3a)
stops at errors <= ε or after `maxiter` passes, Hu at a pass without errors (his FLAG). On data that cannot be separated
the rule never settles.

A pass of `descend`, batch gradient descent of the linear unit, is one step over the whole set.

With three labels or more w has the shape (columns, classes), y·s is an event's own score less the largest other, and
the bounds are those of Kesler's vectors (e_y - e_r) ⊗ (1, x), one for each class r other than an event's own y.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from service.errors import DataError
from service.learning.classifier import initial_weights
from service.learning.columns.columns import Batch, Columns, columns_for
from service.learning.evaluation import mistake_bound
from service.learning.events.event_reader import EventReader
from service.learning.events.read_events import Reject
from service.learning.identity import MAX_SQUARED_NORM, Identity
from service.learning.kernel import kernel
from service.learning.kernel.kernel import Learned, Vector, squared_norm
from service.learning.kernel.scaling import StandardScaler
from service.learning.rules import RULES
from service.learning.weights_file import WeightsFile

MIN_LOSS_DECREASE = 1e-12
"""The descent ends when a pass lowers the loss by less than this share of it."""


class Data(NamedTuple):
    """Finite data of one model: events as columns, the columns, w(0), and the records that were rejected."""

    batch: Batch
    columns: Columns
    start: Vector
    rejects: list[Reject]


class Pass(NamedTuple):
    """The result of one pass. The figures of an event are those before its own update."""

    number: int
    mistakes: int
    updates: int
    errors: int
    """The number that ends the passes: the mistakes, or for mistake-driven rules the updates."""
    loss: float
    """E = ½ Σ (y - o)² for the linear unit, else the perceptron loss Σ max(0, -y·s), both weighted by event."""
    squared_norms: Vector
    """‖w‖² after each update, for mistake-driven rules."""
    trace: list[Vector]
    """w after each event, if `trace` is set."""


def read_data(identity: Identity, records: Sequence[bytes | None], start: WeightsFile | None = None) -> Data:
    """Decode record values. `start` is needed if the identity starts from a file of weights."""
    columns = columns_for(identity)
    columns.extend((start.names or ()) if start else ())
    events = EventReader(identity).read(records)
    batch = columns.decode(events)
    columns.extend(batch.names)
    if identity.scale == "standard":
        # Once, as in a stream: each event by itself and those before it. The copy frees the scaler's memory.
        scaled = StandardScaler(identity, len(columns)).learn(batch)
        batch = scaled._replace(values=scaled.values.copy())
    w = initial_weights(identity, 0, len(columns))
    if start:
        w[: len(start.vector)] = start.vector
    return Data(batch, columns, w, events.rejects)


def train(
    identity: Identity, batch: Batch, w: Vector, *, tolerance: int = 0, max_passes: int, trace: bool = False
) -> Iterator[Pass]:
    """Make passes that change `w` in place, until one makes at most `tolerance` errors, or `max_passes` are made.

    Raises DataError if an update would take ‖w‖² beyond its limit; that update is not applied.
    """
    is_driven, is_linear = RULES[identity.rule].mistake_driven, identity.rule == "lms"
    y = 1.0 if identity.multiclass else batch.labels  # the kernel's score of three labels or more is y·s already
    parts = ([_event(batch, i) for i in range(len(batch.labels))] if trace else []) or [batch]
    for number in range(1, max_passes + 1):
        norm_before, learned, after = squared_norm(w), list[Learned](), list[Vector]()
        for part in parts:
            learned.append(kernel.learn(identity, w[:, np.newaxis], part))
            if len(learned[-1].scores) < len(part.labels):
                event = sum(len(each.scores) for each in learned) + 1
                why = f"the update of event {event} in pass {number} takes the squared norm of the weights beyond"
                raise _diverges(identity, f"{why} {MAX_SQUARED_NORM:g}")
            after += [w.copy()] if trace else []
        scores, steps, squared_norms = map(np.concatenate, zip(*(each[:3] for each in learned), strict=True))
        mistakes, updates = int(np.count_nonzero(y * scores <= 0.0)), int(np.count_nonzero(steps))
        changes = steps * (2.0 * scores + _moved(identity) * steps * squared_norms)
        norms = (norm_before + np.cumsum(changes))[is_driven & (steps != 0.0)]
        # A step of the linear unit is η·weight·(y - o), or the root of the sum of the squares over the classes.
        losses = (steps / _rates(identity, batch)) ** 2 / 2.0 if is_linear else np.maximum(0.0, -y * scores)
        errors = updates if is_driven else mistakes
        yield Pass(number, mistakes, updates, errors, float(batch.weights @ losses), norms, after)
        if errors <= tolerance:
            return


def _moved(identity: Identity) -> float:
    """How many vectors of weights a step moves: with three labels or more also the vector of the rival."""
    return 2.0 if identity.multiclass else 1.0


def _diverges(identity: Identity, why: str) -> DataError:
    return DataError(f"rule {identity.rule} with eta {identity.eta:g} diverges: {why}; choose a smaller eta")


def _event(batch: Batch, i: int) -> Batch:
    """Event i alone; its columns and values stay in place."""
    own = slice(i, i + 1)
    return batch._replace(starts=batch.starts[i : i + 2], labels=batch.labels[own], weights=batch.weights[own])


def _rates(identity: Identity, batch: Batch) -> Vector:
    """The rate of each event's update: the factor of y·x for mistake-driven rules, of (y - o)·x for the linear unit."""
    return identity.parameter * identity.eta * batch.weights


def descend(identity: Identity, batch: Batch, w: Vector, *, max_passes: int, trace: bool = False) -> Iterator[Pass]:
    """Batch gradient descent of the linear unit (Ahmed & Pavlu): o = w·x, E = ½ Σ (y - o)², w -= η∇E.

    It ends when the loss falls no more: there the error is least, also on data that cannot be separated. The figures of
    a pass are those before its step. Raises DataError if the loss rises: then η is beyond 2 / the largest eigenvalue of
    Σ x·xᵀ, and no later pass can lower it.
    """
    lengths = np.diff(batch.starts).astype(np.intp)
    columns = batch.columns.astype(np.intp)
    y, previous = batch.labels, math.inf
    for number in range(1, max_passes + 1):
        s = score_batch(batch, w)
        error = batch.weights * (y - s)
        loss = float(batch.weights @ (y - s) ** 2) / 2.0
        if number == 1:  # a smaller rise is rounding
            rise = 1e-9 * max(loss, float(batch.weights @ y**2) / 2.0)
        if loss > previous + rise:
            safe = f"{stable_eta(batch):.3g} never does"
            raise _diverges(identity, f"the loss rises from {previous:g} to {loss:g} in pass {number} ({safe})")
        settled = previous - loss <= MIN_LOSS_DECREASE * loss
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
    return 1.0 / float(batch.weights @ margins(batch, np.zeros(int(batch.columns.max(initial=0)) + 1))[1])


def score_batch(batch: Batch, w: Vector) -> Vector:
    """Each event's s = w·x, without learning. If w has the shape (columns, classes), an event has a row of scores."""
    if w.ndim == 1:
        return kernel.learn(_UNIT, w[:, np.newaxis], batch).scores
    # The first feature of each event, then the second, …: a sum has the kernel's order, and nothing is compiled.
    starts, columns = batch.starts.astype(np.intp), batch.columns.astype(np.intp)
    lengths = np.diff(starts)
    scores = np.tile(w[0], (len(lengths), 1))
    for j in range(int(lengths.max(initial=0))):
        events = np.flatnonzero(lengths > j)
        indices = starts[events] + j
        scores[events] += w[columns[indices]] * batch.values[indices, None]
    return scores


_UNIT = Identity(rule="threshold-unit")


class Separation(NamedTuple):
    """The figures of finite data and a separating vector that bound the updates of a mistake-driven rule.

    x is the vector that an update adds, up to its sign: the event's, times η·weight, and twice that for bipolar
    error-correction. `squared_radius` is R² = β² = max ‖x‖²; with margins each ‖x‖² has 2·η·weight·margin added, since
    ‖w‖² can grow by that too. `margin` is γ = α = min y·w_opt·x, `squared_norm` is ‖w_opt‖². With three labels or more
    x is Kesler's vector, whose squared length is twice that of the event's.

    >>> Separation(squared_radius=4.0, margin=0.5, squared_norm=1.0).updates
    16.0
    """

    squared_radius: float
    margin: float
    squared_norm: float

    @property
    def updates(self) -> float:
        """(R/γ)²·‖w_opt‖² (Ahmed & Pavlu), which is Haykin's n_max = β²·‖w0‖²/α²: from zero, in any order."""
        return self.squared_radius * self.squared_norm / self.margin**2

    def sides(self, n: Vector) -> tuple[Vector, Vector]:
        """n²α²/‖w0‖² and n·β²: the limits of ‖w(n)‖² after n updates from zero (Haykin)."""
        return n * n * self.margin**2 / self.squared_norm, n * self.squared_radius

    def updates_from(self, start: Vector, w_opt: Vector) -> float:
        """D² = ‖ω(0) - a·ω_opt‖² with a = (β² + 1)/(2γ) and ‖ω_opt‖ = 1: from any start (Hu)."""
        norm = math.sqrt(self.squared_norm)
        a = (self.squared_radius + 1.0) / (2.0 * self.margin / norm)
        return float(np.sum((start - a * w_opt / norm) ** 2))


def find_separation(identity: Identity, batch: Batch, w: Vector) -> Separation | None:
    """The figures of the bounds for data and a vector; None if the vector does not separate the data."""
    own, squared_norms = margins(batch, w)
    rates, (negative, positive) = _rates(identity, batch), identity.margins
    margin = float((rates * own).min(initial=math.inf))
    if not 0.0 < margin < math.inf:
        return None
    limits = np.where(batch.labels > 0.0, positive, negative)
    growth = _moved(identity) * rates * rates * squared_norms + 2.0 * rates * limits
    return Separation(float(growth.max()), margin, squared_norm(w))


def margins(batch: Batch, w: Vector) -> tuple[Vector, Vector]:
    """Each event's y·s and ‖x‖², the bias included, without learning.

    With three labels or more y·s is the score of the own label less the largest other.
    """
    learned = kernel.learn(_UNIT, w[:, np.newaxis], batch)
    return learned.scores if w.ndim == 2 else batch.labels * learned.scores, learned.squared_norms


class BoundCheck(NamedTuple):
    """The number of updates, and the bounds on it."""

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


def check_bound(identity: Identity, data: Data, norms: Vector, candidates: dict[str, Vector]) -> BoundCheck | None:
    """The least bounds on the updates that led to these ‖w‖²; None if no candidate separates the data."""
    from_zero, count, checks = not data.start.any(), len(norms), list[BoundCheck]()
    for name, w in candidates.items():
        if separation := find_separation(identity, data.batch, w):
            novikoff = separation.updates if from_zero else None
            between = sides_hold(separation, norms) if from_zero else None
            hu = separation.updates_from(data.start, w)
            checks.append(BoundCheck(count, name, separation, novikoff, hu, between))
    return min(checks, key=lambda check: check.hu if check.novikoff is None else check.novikoff, default=None)


def sides_hold(separation: Separation, squared_norms: Vector) -> bool:
    """Whether ‖w(n)‖² lies between Haykin's two sides after each update n = 1, 2, … from zero weights."""
    low, high = separation.sides(np.arange(1.0, len(squared_norms) + 1.0))
    slack = 1.0 + mistake_bound.ROUNDING
    return bool(np.all(low <= squared_norms * slack) and np.all(squared_norms <= high * slack))
