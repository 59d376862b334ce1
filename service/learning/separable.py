"""Whether finite data can be separated at all, with the evidence: a linear program over the extended vectors z.

It looks for the w of the largest margin, max γ with w·z_i >= γ for all i, where every weight times the largest |value|
of its column is at most 1: a margin in the maximum norm. Its dual looks for λ >= 0 with Σ λ_i = 1 that makes
‖Σ λ_i z_i‖₁ least, of columns scaled so. Either γ > 0, and w separates; or some λ makes the sum zero, and then no w can
have w·z_i > 0 for all i, as Σ λ_i (w·z_i) = 0 (Gordan's theorem). The solver's word is taken for neither: margins are
looked at beyond their rounding, and λ is mended in fractions, so that the sum is zero exactly, where it is small.

Of three classes and more z are Kesler's vectors, one less than there are classes for each event.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from service.learning.events.batch import Batch
from service.learning.kernel import Vector
from service.learning.passes import extended

ZERO = 1e-9
"""Of columns whose largest |value| is 1: a sum no larger is zero up to rounding."""
EXACT = 2000
"""A combination of so many numbers, events times columns, is mended in fractions; that takes a second."""
KESLER = 1_000_000
"""Numbers of Kesler's vectors, at most: 700,000 take 6 s, and three times as many half a minute."""
SECONDS = 60.0


class Evidence(NamedTuple):
    """One of three: a separating vector, a combination that shows there is none, or the reason why it is not known."""

    vector: Vector | None = None
    """w, of the model's shape, with a 0 for each column that no event has."""
    combination: list[tuple[int, float]] | None = None
    """(i, λ_i) of each λ_i > 0, largest first; i is the place of z_i among the extended vectors."""
    residual: float = 0.0
    """The largest part of Σ λ_i z_i, columns scaled so that their largest |value| is 1; 0 where it is known exactly."""
    unknown: str | None = None


def separate(batch: Batch, shape: tuple[int, ...], classes: int = 2, seconds: float = SECONDS) -> Evidence:
    """Look for a separating vector, weights of this shape. Raises ImportError where scipy is missing."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack

    numbers = 2 * (classes - 1) * (len(batch.values) + len(batch.labels))
    if classes > 2 and numbers > KESLER:
        return Evidence(unknown=f"Kesler's vectors have {numbers:,} numbers, and the linear program takes {KESLER:,}")
    data = extended(batch, classes)
    used, place = np.unique(data.columns, return_inverse=True)
    rows = len(data.starts) - 1
    raw = csr_array((data.values, place, data.starts), shape=(rows, len(used)))
    # A column of zeros, or as good as that, stays one. The bias makes every row's largest |value| 1.
    scale = abs(raw).max(axis=0).toarray()
    scale[scale < 1e-150] = 1.0
    z = csr_array(raw.multiply(1.0 / scale))
    answer = linprog(
        np.append(np.zeros(len(used)), -1.0),
        A_ub=hstack([-z, np.ones((rows, 1))], format="csr"),
        b_ub=np.zeros(rows),
        bounds=[(-1.0, 1.0)] * len(used) + [(None, None)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10, "time_limit": seconds},
    )
    if answer.status != 0:
        return Evidence(unknown=f"the linear program has no answer ({' '.join(answer.message.split())})")
    w = answer.x[:-1]
    # However the sums are rounded, these margins are above zero.
    if np.all(z @ w > (len(used) + 1) * np.finfo(float).eps * (abs(z) @ np.abs(w))):
        vector = np.zeros(shape)
        vector.ravel()[used] = w / scale
        return Evidence(vector)
    weights = np.maximum(0.0, -answer.ineqlin.marginals)
    weights /= weights.sum()
    residual = float(np.abs(z.T @ weights).max())
    order = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
    parts = [float(part) for part in weights[order]]
    close = Evidence(unknown=f"too close to call: the largest margin is between 0 and {residual * len(used):.3g}")
    if residual > ZERO:
        return close
    chosen = raw[order]
    if chosen.shape[0] * len(np.unique(chosen.indices)) <= EXACT:
        mended = _mended(chosen.toarray().T[np.unique(chosen.indices)].tolist(), parts)
        if mended is None:
            return close
        parts, residual = mended, 0.0
    combination = [(i, part) for i, part in zip(order.tolist(), parts, strict=True) if part > 0.0]
    return Evidence(combination=combination, residual=residual)


def _mended(rows: list[list[float]], parts: list[float]) -> list[float] | None:
    """λ near `parts` with rows · λ = 0 exactly and no λ_i < 0, rounded to floats; None where there is none so near.

    By Gauss-Jordan in fractions, which floats are; whatever is free stays as it is.
    """
    matrix = [[Fraction(value) for value in row] for row in rows]
    exact = [Fraction(part) for part in parts]
    pivots: list[int] = []
    for column in range(len(parts)):
        done = len(pivots)
        row = next((r for r in range(done, len(matrix)) if matrix[r][column]), None)
        if row is None:
            continue
        matrix[done], matrix[row] = matrix[row], matrix[done]
        top = matrix[done][column]
        matrix[done] = [value / top for value in matrix[done]]
        for r, other in enumerate(matrix):
            if r != done and other[column]:
                matrix[r] = [a - other[column] * b for a, b in zip(other, matrix[done], strict=True)]
        pivots.append(column)
    free = [column for column in range(len(parts)) if column not in pivots]
    for reduced, column in zip(matrix, pivots, strict=False):  # the rows below are zero
        exact[column] = -sum((reduced[f] * exact[f] for f in free), Fraction(0))
    return [float(part) for part in exact] if min(exact) >= 0 and any(exact) else None
