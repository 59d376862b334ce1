"""The averages that can be kept beside the weights: the mean (Freund and Schapire), and the recent one, which forgets.

Both are E = w - late/age, so that an event without an update costs nothing: an update Δ adds age·Δ to `late`, the age
as it was before the event. The mean of the weights after each event has for age the number of events. The recent one
has age·2^(1/N) after each event, N its half-life: then D = w - E follows D ← β(D + Δ) with β = 2^(-1/N), which makes
E ← βE + (1 - β)w.
"""

from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from service.learning.identity import Identity

HALVES = 900
"""Of half-lives: so often doubles the age before `late` and the age are scaled back, exactly, by 2^-HALVES. Weights are
within 1e15, so that their product stays a number."""
SHRINK = 2.0**-HALVES


def ages(identity: Identity, seen: int, count: int) -> NDArray[np.float64]:
    """The age before each of `count` events, when as many as `seen` were learned before.

    Where it falls, `late` was scaled back with it.

    >>> ages(Identity(average=True), 2, 3), ages(Identity(average="recent", half_life=1), 2, 3)
    (array([2., 3., 4.]), array([ 4.,  8., 16.]))
    """
    if (n := identity.half_life) is None:
        return np.arange(seen, seen + count, dtype=float)
    events = np.arange(seen, seen + count)
    return np.ldexp(_growth(n)[events % n], events // n % HALVES)


def part(identity: Identity, events: int) -> float:
    """What `late` is multiplied by after so many events, to be taken off the weights: 1/age."""
    return 1.0 / max(float(ages(identity, events, 1)[0]), 1.0)


@cache
def _growth(n: int) -> NDArray[np.float64]:
    """2^(i/N) for i < N, by one multiplication after the other: the same bits on any machine."""
    with localcontext(prec=50):
        root = float(Decimal(2) ** (1 / Decimal(n)))
    return np.cumprod(np.concatenate([[1.0], np.full(n - 1, root)]))
