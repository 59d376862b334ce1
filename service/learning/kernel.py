"""The rules of `rules.py`, compiled, over a batch of columns.

The loops are compiled without fast-math, so every sum and step keeps the order of the formula and the same
events give the same bits on any CPU. Columns are `np.uintp`: signed indices cost half as much again.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from service.learning.events import Batch

Vector = NDArray[np.float64]


def _compiled(function: Callable[..., Any]) -> Any:
    """The function, to be compiled on first use; the result is kept for the next process where there is a place."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder that can be written: a read-only file system, a user without a home
        return njit(nogil=True)(function)


@_compiled
def _perceptron(
    w: Vector, starts: Any, columns: Any, values: Vector, labels: Vector, weights: Vector,
    eta: float, scores: Vector, squared_steps: float,
) -> tuple[int, float]:  # fmt: skip
    for i in range(len(labels)):
        y = labels[i]
        s = w[0]
        for j in range(starts[i], starts[i + 1]):
            s += w[columns[j]] * values[j]
        scores[i] = s
        if y * s <= 0.0:
            step = eta * weights[i] * y
            # An update that is not finite is not applied: zero times infinity is NaN and stays.
            check = (w[0] + step) * 0.0 + s * 0.0
            for j in range(starts[i], starts[i + 1]):
                check += (w[columns[j]] + step * values[j]) * 0.0
            if check != 0.0:
                return i, squared_steps
            w[0] += step
            squared_steps += step * step
            for j in range(starts[i], starts[i + 1]):
                delta = step * values[j]
                w[columns[j]] += delta
                squared_steps += delta * delta
        elif math.isnan(s):
            return i, squared_steps
    return len(labels), squared_steps


_KERNELS = {"perceptron": _perceptron}


def learn(rule: str, eta: float, w: Vector, batch: Batch, scores: Vector, squared_steps: float) -> tuple[int, float]:
    """Learn the batch in order, changing `w` in place and filling `scores` (before each event's update).

    `squared_steps` is the running Σ‖Δw‖² over updates. Returns it with the number of events learned: fewer than
    the batch has when the next event's score or update is not finite, and then that event changed nothing.
    """
    done, squared_steps = _KERNELS[rule](
        w, batch.starts, batch.columns, batch.values, batch.labels, batch.weights, eta, scores, squared_steps
    )
    return int(done), float(squared_steps)
