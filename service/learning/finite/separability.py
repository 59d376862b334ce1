"""Whether finite data can be separated, with the evidence: a linear program over the extended vectors z.

It looks for the w of the largest margin, max γ with w·z_i >= γ for all i, where every weight times the largest |value|
of its column is at most 1: a margin in the maximum norm. Its dual looks for λ >= 0 with Σ λ_i = 1 that makes
‖Σ λ_i z_i‖₁ least, with columns scaled so. Either γ > 0, and w separates; or some λ makes the sum zero, and then no w
can have w·z_i > 0 for all i, as Σ λ_i (w·z_i) = 0 (Gordan's theorem). Both answers of the solver are checked: the
margins must be larger than their rounding errors, and the sum, computed again, must be zero within `ZERO_TOLERANCE`.

With three labels or more z are Kesler's vectors: an event has one for each wrong label.
"""

from typing import Any, NamedTuple

import numpy as np

from service.learning.columns.columns import Batch
from service.learning.kernel.kernel import Vector

ZERO_TOLERANCE = 1e-13
"""The largest sum that counts as zero, with columns scaled to a largest |value| of 1. The solver's sums of 3,000 events
with 80 features were up to 4e-14 (measured). Events that differ by 1e-12 do not count as inseparable."""
MAX_NUMBERS = 1_000_000
"""The most numbers in Kesler's vectors: 700,000 take 6 s, and 2,100,000 take 30 s (measured)."""
SOLVER_SECONDS = 60.0


class Certificate(NamedTuple):
    """A separating vector, or a combination that proves there is none, or the reason why neither is known."""

    vector: Vector | None = None
    """w in the shape of the model's weights, with a 0 for each column that no event has."""
    combination: list[tuple[int, float]] | None = None
    """(i, λ_i) of each λ_i > 0, largest first; i is the index of z_i among the extended vectors."""
    residual: float = 0.0
    """The largest |part| of Σ λ_i z_i, with columns scaled to a largest |value| of 1; at most `ZERO_TOLERANCE`."""
    unknown: str | None = None


def extended(batch: Batch, classes: int = 2) -> Any:
    """Hu's extended vectors as the rows of a sparse array: (1, x), negated where y = -1. w separates if all w·z > 0.

    Importance weights do not count, since they move no boundary. With three labels or more the vectors are Kesler's,
    in the order of the events and then of the wrong classes; column c of class k is c·classes + k. Raises ImportError
    if scipy is missing.
    """
    from scipy.sparse import csr_array

    events = np.arange(len(batch.labels))
    rows = np.concatenate([events, np.repeat(events, np.diff(batch.starts).astype(np.intp))])
    columns = np.concatenate([0 * events, batch.columns.astype(np.intp)])
    values, labels = np.concatenate([np.ones(len(events)), batch.values]), batch.labels[rows]
    if classes == 2:
        return csr_array((values * labels, (rows, columns)))
    own, wrong = labels.astype(np.intp)[:, None], np.arange(classes - 1)
    class_columns = np.stack(np.broadcast_arrays(own, wrong + (wrong >= own))) + classes * columns[:, None]
    signed = np.stack([values, -values])[..., None] * np.ones(classes - 1)
    own_rows = np.tile(((classes - 1) * rows[:, None] + wrong).ravel(), 2)
    return csr_array((signed.ravel(), (own_rows, class_columns.ravel())))


def separate(batch: Batch, shape: tuple[int, ...], classes: int = 2, seconds: float = SOLVER_SECONDS) -> Certificate:
    """Look for a separating vector of this shape. Raises ImportError if scipy is missing."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack

    numbers = 2 * (classes - 1) * (len(batch.values) + len(batch.labels))
    if classes > 2 and numbers > MAX_NUMBERS:
        return Certificate(unknown=f"Kesler's vectors have {numbers:,} numbers: the most is {MAX_NUMBERS:,}")
    raw = extended(batch, classes)
    used = np.unique(raw.indices)
    raw = raw[:, used]
    rows = raw.shape[0]
    # A column of zeros, or nearly so, is not scaled. The bias makes the largest |value| of every row 1.
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
        return Certificate(unknown=f"the linear program has no answer ({' '.join(answer.message.split())})")
    w = answer.x[:-1]
    # These margins are above zero, however the sums are rounded.
    if np.all(z @ w > (len(used) + 1) * np.finfo(float).eps * (abs(z) @ np.abs(w))):
        vector = np.zeros(shape)
        vector.ravel()[used] = w / scale
        return Certificate(vector)
    weights = np.maximum(0.0, -answer.ineqlin.marginals)
    weights /= weights.sum()
    residual = float(np.abs(z.T @ weights).max())
    order = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
    if residual > ZERO_TOLERANCE:
        return Certificate(unknown=f"too close to call: the largest margin is between 0 and {residual * len(used):.3g}")
    return Certificate(combination=list(zip(order.tolist(), weights[order].tolist(), strict=True)), residual=residual)
