"""The rules as the texts write them, in plain Python: the oracle of the compiled kernel.

An event is a label y ∈ {-1, +1}, an importance weight, and its features as (column, value) pairs in record
order. Column 0 is the bias, x0 = 1, and comes first. Sums run in that order; a step is ((η·weight)·y)·x.
"""

from collections.abc import MutableSequence, Sequence

Features = Sequence[tuple[int, float]]


def score(w: Sequence[float], x: Features) -> float:
    """s = w·x, the induced local field; bias first, then record order."""
    s = w[0]
    for column, value in x:
        s += w[column] * value
    return s


def perceptron(w: MutableSequence[float], x: Features, y: float, weight: float, eta: float) -> float:
    """The mistake-driven rule: if y·s <= 0 then w += η·weight·y·x, else nothing (Rosenblatt; Ahmed & Pavlu).

    The condition includes s = 0, so that the first event on zero weights always updates.
    Changes `w` in place and returns the score before the change.
    """
    s = score(w, x)
    if y * s <= 0.0:
        step = eta * weight * y
        w[0] += step
        for column, value in x:
            w[column] += step * value
    return s
