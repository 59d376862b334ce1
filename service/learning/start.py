"""Where the weights of a model begin: at zero, at random, or at given ones. Part of the identity, as one string.

zero            every column begins at 0
random:SEED     column c begins at a number in [-1, 1) that depends on SEED and c alone
weights:DIGEST  given weights (`weights.Weights`)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

RANDOM, GIVEN = "random:", "weights:"


def initial(start: str, first: int, count: int) -> NDArray[np.float64]:
    """The weights with which the columns `first`, `first` + 1, … (`count` of them) begin, given ones aside."""
    if not start.startswith(RANDOM):
        return np.zeros(count)
    # Steele, Lea and Flood's splitmix64 of seed and column: the same on every machine, in any order of columns.
    with np.errstate(over="ignore"):
        z = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(int(start.removeprefix(RANDOM)))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    unit: NDArray[Any] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return 2.0 * unit - 1.0


def rows(start: str, first: int, count: int, classes: int) -> NDArray[np.float64]:
    """The same of a model of so many classes, shape (count, classes): each has numbers of its own."""
    return initial(start, first * classes, count * classes).reshape(count, classes)
