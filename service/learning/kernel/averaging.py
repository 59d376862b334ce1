"""The averages that a model can keep next to its weights: the mean (Freund and Schapire), and the recent one.

Both are E = w - average_accumulator/age, so an event without an update costs nothing. An update Δ adds age·Δ to the
accumulator, with the age before the event. For the mean of the weights after each event, the age is the number of
events. For the recent average, each event multiplies the age by 2^(1/N), where N is the half-life. Then D = w - E
follows D ← β(D + Δ) with β = 2^(-1/N), which makes E ← βE + (1 - β)w.
"""

import sys
from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from service.learning.identity import Identity

HALF_LIVES_TO_RESCALE = 900
"""After this many half-lives the accumulator and the age are multiplied by RESCALE_FACTOR, since the age doubles with
each half-life. Weights are within 1e15, so their product with the age stays finite."""
RESCALE_FACTOR = 2.0**-HALF_LIVES_TO_RESCALE


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
