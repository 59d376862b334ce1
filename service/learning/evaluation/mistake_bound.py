"""The mistake bound of a running model.

A *segment* of a model's life starts at weights w(0). For event i let z_i be the vector that its update adds or would
add (η·weight·y·x; twice that for bipolar error-correction). Updates happen only if w·z_i <= m_i, which is 0, or
η·weight times the margin of the event's label, so each adds at most q_i = ‖z_i‖² + 2·m_i to ‖w‖². Let S = Σ q_i over
the k updates and R² = max q_i over all events; and for a fixed unit vector u, the *reference*, and any γ > 0 let
Ξ = Σ max(0, γ - u·z_i) over all events. Then ‖w_k‖² <= ‖w(0)‖² + S, and u·w_k >= u·w(0) + kγ - Ξ. Together (Novikoff;
Freund and Schapire; with margins Li et al.):

    kγ <= sqrt(‖w(0)‖² + k·R²) - u·w(0) + Ξ        the bound: a property of data and reference alone
    kγ <= sqrt(‖w(0)‖² + S)    - u·w(0) + Ξ        an integrity check of the state, as ‖w_k‖² <= ‖w(0)‖² + S is

With three labels or more all this holds for the columns of w joined, and z = η·weight·(e_y - e_r) ⊗ x, by Kesler's
construction: an event is a mistake if w·z_i <= 0 for some class r other than its own y, and its update is by such an r.
In Ξ it counts with the least u·z_i over all r, which is at most that of its update. ‖z_i‖² is 2·(η·weight)²·‖x‖².

The sums are observations, not state.
"""

import math
from typing import Any

import msgspec
import numpy as np

from service.learning.columns.columns import Batch
from service.learning.identity import Identity
from service.learning.jit import compiled
from service.learning.kernel.kernel import Learned, Reference, Vector, squared_norm
from service.learning.rules import RULES

GAMMAS = 49
RATIO = 2.0**0.25
"""The number of γ that are tried. Each is 1/RATIO of the one before, from 16 times ‖z‖ of the first event down to a
256th of it."""
MIN_GAMMA = 1e-60
"""The lower limit of the largest γ, so that no square or product of squares underflows."""
ROUNDING = 1e-8
"""Relative: the rounding of sums in double precision that a check allows."""


def largest_root(gamma: float, hinge: float, radius_squared: float, start: float, along: float) -> float:
    """The larger k with (kγ - Ξ + u·w(0))² = ‖w(0)‖² + k·R²; `start` is ‖w(0)‖², `along` u·w(0).

    Sums that are too small by a rounding of at most ROUNDING of their terms give no smaller k.
    """
    norm = math.sqrt(start)
    d = hinge - along + ROUNDING * (hinge + norm)
    b = 2.0 * gamma * d + radius_squared
    c = (d - norm) * (d + norm)
    root = math.sqrt(max(0.0, b * b - 4.0 * gamma * gamma * c))
    # The form that subtracts no nearly equal numbers; if b < 0 the other root is far below zero.
    k = (b + root) / (2.0 * gamma * gamma) if b >= 0.0 else 2.0 * c / (b - root)
    return max(0.0, k) * (1.0 + ROUNDING)


class SegmentSums(msgspec.Struct, forbid_unknown_fields=True):
    """The sums of a segment, as a snapshot has them. Lengths are those of z."""

    reference: str
    """The `identity` of a file of weights, or `kept version` for the model's weights or average at an earlier save."""
    scale: float
    """1 / ‖reference array‖: u is the array times this."""
    before: int
    """Updates before the segment."""
    start_squared: float
    """‖w(0)‖²"""
    start_along: float
    """u·w(0)"""
    updates: int = 0
    squared_steps: float = 0.0
    """S, which is summed from 0, since a difference of large sums would lose short steps."""
    radius_squared: float = 0.0
    """R²"""
    largest_gamma: float = 0.0
    hinge: list[float] = []
    """Ξ for each γ, largest first; empty before the first event. Each batch makes a new list."""

    @property
    def gammas(self) -> Vector:
        """Each γ, largest first."""
        return self.largest_gamma * RATIO ** -np.arange(GAMMAS, dtype=np.float64)

    @property
    def grid(self) -> list[tuple[float, float]]:
        """Each γ with its Ξ."""
        return list(zip(self.gammas.tolist(), self.hinge, strict=False))


@compiled
def _follow(
    rate: float, moved: float, negative: float, positive: float, signs: Vector, weights: Vector, steps: Vector,
    squared_norms: Vector, along: Vector, scale: float, gammas: Vector, hinge: Vector, radius_squared: float,
    squared_steps: float,
) -> tuple[float, float]:  # fmt: skip
    """Add events to the sums, and return R² and S. R² and Ξ are over all events, S is over the updates.

    `rate` is η, or twice that for bipolar error-correction; `moved` is the number of weight vectors that a step moves.
    `along` is each event's product with the reference, and becomes u·z.
    """
    for i in range(len(steps)):
        length = rate * weights[i]
        slack = 2.0 * length * (positive if signs[i] > 0.0 else negative)
        # No branch: a mispredicted one costs more than the sum.
        squared_steps += moved * steps[i] * steps[i] * squared_norms[i] + (0.0 if steps[i] == 0.0 else slack)
        radius_squared = max(radius_squared, moved * length * length * squared_norms[i] + slack)
        along[i] *= scale * signs[i] * length
        for g in range(len(gammas)):
            hinge[g] += 0.0 if gammas[g] <= along[i] else gammas[g] - along[i]
    return radius_squared, squared_steps


@compiled
def _along_of_classes(starts: Any, columns: Any, values: Vector, labels: Vector, reference: Any, along: Vector) -> None:
    """Each event's product with (e_y - e_r) ⊗ reference, for the wrong class r that makes it the least."""
    parts = np.empty(reference.shape[1])
    for i in range(len(along)):
        own = int(labels[i])
        parts[:] = reference[0]
        for j in range(starts[i], starts[i + 1]):
            for k in range(len(parts)):
                parts[k] += reference[columns[j], k] * values[j]
        own_part, parts[own] = parts[own], -math.inf
        along[i] = own_part - parts.max()


class BoundSegment:
    """The sums of a running model since a reference was chosen, and the reference: an array next to the weights.

    The reference has a part for each column, which never changes, and spare parts for later columns. The theorem holds
    for any vector, so parts have single precision: with wide events the bound costs the time to read them.
    """

    def __init__(self, reference: Reference, sums: SegmentSums) -> None:
        self.reference, self.sums = reference, sums

    def follow(self, identity: Identity, batch: Batch, learned: Learned) -> None:
        """Add the events of a batch that were learned."""
        rate, moved, signs, along = identity.eta * identity.parameter, 1.0, batch.labels, learned.along
        if identity.multiclass:
            moved, signs = 2.0, np.ones(len(along))
            _along_of_classes(batch.starts, batch.columns, batch.values, batch.labels, self.reference, along)
        sums = self.sums
        if not sums.hinge and len(along):
            # ‖z‖ of the first event gives the scale of the data, and with it the γ to try.
            longest = rate * float(batch.weights[0]) * math.sqrt(moved * learned.squared_norms[0])
            sums.largest_gamma, sums.hinge = max(16.0 * longest, MIN_GAMMA), [0.0] * GAMMAS
        hinge = np.array(sums.hinge)
        squares = _follow(
            rate, moved, *identity.margins, signs, batch.weights, learned.steps, learned.squared_norms, along,
            sums.scale, sums.gammas, hinge, sums.radius_squared, sums.squared_steps,
        )  # fmt: skip
        sums.hinge, (sums.radius_squared, sums.squared_steps) = hinge.tolist(), map(float, squares)
        sums.updates += int(np.count_nonzero(learned.steps))

    def make_room(self, count: int) -> None:
        """Give the reference at least this many columns; new parts are 0 until they are set."""
        if (have := len(self.reference)) < count:
            more = np.zeros((max(count - have, have), *self.reference.shape[1:]), self.reference.dtype)
            self.reference = np.concatenate([self.reference, more])

    def grow(self, started: Vector, first: int) -> None:
        """Add new columns from `first` on: their first weights are part of w(0)."""
        reference = self.reference[first : first + len(started)]
        self.sums.start_squared += squared_norm(started)
        self.sums.start_along += self.sums.scale * float(started.ravel() @ reference.ravel())

    @property
    def bound(self) -> int:
        """The most updates that the model can have made: those before the segment, and the least bound of the grid."""
        s = self.sums
        roots = (largest_root(g, x, s.radius_squared, s.start_squared, s.start_along) for g, x in s.grid)
        return s.before + math.floor(min(roots, default=0.0))

    def failed_check(self, squared_norm: float) -> str | None:
        """The integrity check that the state fails, with its figures; None if it fails none."""
        s = self.sums
        limit = s.start_squared + s.squared_steps
        if squared_norm > limit * (1.0 + ROUNDING) + MIN_GAMMA**2:
            return f"the squared norm of the weights is {squared_norm:g}, beyond its limit {limit:g}"
        for g, x in s.grid:
            most = (math.sqrt(limit) - s.start_along + x) / g
            if s.updates > most + ROUNDING * (abs(s.start_along) + math.sqrt(limit) + x) / g:
                return f"{s.updates} updates since the reference was chosen: at most {most:g} are possible (γ = {g:g})"
        return None


def no_bound_reason(identity: Identity, enabled: bool) -> str | None:
    """The reason why a model has no bound, whatever it learns; None if it may have one."""
    if not RULES[identity.rule].mistake_driven:
        return f"rule {identity.rule} does not only update at mistakes (y·s <= 0), so the theorem does not apply"
    return None if enabled else "bound = false"
